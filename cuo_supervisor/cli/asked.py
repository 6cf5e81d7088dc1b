"""What a waiting run asks a person to let happen."""

from __future__ import annotations

import json
from typing import Any

from cuo_checkpoint.serde import Serializer
from cuo_supervisor.cli.common import printable

__all__ = ["asked_lines", "asked_of"]


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
        state = reader.events(run_id, after_seq=events[-1].seq - 1, with_state=True)[0].state
        return {**value, "query": (state or {}).get("query")}
    return None


def asked_lines(asked: dict[str, Any]) -> list[str]:
    """The same, a line each."""
    arguments = json.dumps(asked.get("arguments"), ensure_ascii=False)
    said = {**asked, "arguments": arguments}
    return [
        f"{name:<10} {printable(str(said[name]))}"
        for name in ("query", "operation", "skill", "arguments")
        if said.get(name) is not None
    ]
