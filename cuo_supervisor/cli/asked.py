"""What a waiting run asks a person to let happen."""

from __future__ import annotations

import json
from typing import Any, Final

from cuo_checkpoint.serde import Serializer
from cuo_supervisor.cli.common import one_line
from cuo_supervisor.expiry import answer_until

__all__ = ["asked_lines", "asked_of"]

_QUERY_SHOWN: Final = 600
"""Characters of the request shown to whoever answers: more would push the act off the screen."""


def asked_of(reader: Any, run_id: Any, events: Any) -> dict[str, Any] | None:
    """Skill, operation and arguments of the newest interrupt, and the request as it was made.

    None for an interrupt of another graph. For whoever is to answer: personal data included.
    """
    for write in reversed(reader.writes(run_id)):
        if write.channel != "__interrupt__":
            continue
        value = Serializer().decode(write.value)[0].value
        if not isinstance(value, dict) or "skill" not in value:
            return None
        newest = reader.events(run_id, after_seq=events[-1].seq - 1, with_state=True)[0]
        state = Serializer().decode(newest.state or {})
        until = answer_until(state, events[0].created_at)
        return {
            **value,
            "query": state.get("query"),
            "asked_by": state.get("subject_id"),
            "answer_until": None if until is None else f"{until:%Y-%m-%dT%H:%M:%SZ}",
        }
    return None


def asked_lines(asked: dict[str, Any]) -> list[str]:
    """The same, a line each: first what would be done, then what was asked for, in the requester's
    own words, which may look like anything."""
    arguments = json.dumps(asked.get("arguments"), ensure_ascii=False)
    query = asked.get("query")
    if isinstance(query, str) and len(query) > _QUERY_SHOWN:
        more = len(query) - _QUERY_SHOWN
        query = f"{query[:_QUERY_SHOWN]} … ({more} more; runs show --json has all)"
    said = {
        **asked,
        "arguments": arguments,
        "query": query,
        "asked by": asked.get("asked_by"),
        "until": asked.get("answer_until"),
    }
    return [
        f"{name:<10} {one_line(str(said[name]))}"
        for name in ("operation", "skill", "arguments", "until", "asked by", "query")
        if said.get(name) is not None
    ]
