"""The run page's template values, from what was read. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from cuo_checkpoint.event_pages import encode_cursor
from cuo_checkpoint.run_records import EventRecord
from cuo_supervisor.http.drawing import Stop, draw_path
from cuo_supervisor.http.page_data import ROWS, RunData
from cuo_supervisor.http.run_page import (
    candidate_rows,
    counted,
    facts_of,
    gates_of,
    headline_of,
    link_rows,
    model_of,
    seal_of,
    state_word,
    tone_of,
    verdict_of,
)
from cuo_supervisor.http.text import get, shortened, visible
from cuo_supervisor.http.view import Shown, steps_of, value_shown

__all__ = ["run_context"]

_OPEN_LINKS = 60
"""Audit rows that are shown unfolded; a chain's further ones were asked for and are, too."""


def run_context(data: RunData) -> dict[str, Any]:
    """Every value `run.html` names, but who may answer a waiting run."""
    run, state = data.run, data.last
    steps = steps_of(data.rows, data.before)
    for step in steps:
        if step.kind == "failed" and data.failure is not None:
            step.error = visible(data.failure)
    shown = {row["seq"]: step.anchor for step in steps for row in step.rows}
    components, candidates = candidate_rows(state)
    base = f"/runs/{run.ulid}"
    links, before = data.links, None
    if links and links[0].chain_seq > 1:
        before, *links = links
    problems = data.verification.problems if data.verification is not None else ()
    last = links[-1].chain_seq if links else 0
    more = data.links_more
    return {
        "run": run,
        "tone": tone_of(run),
        "state": visible(state_word(run)),
        "headline": headline_of(run, state),
        "query": visible(str(state["query"])) if isinstance(state.get("query"), str) else None,
        "facts": facts_of(run, state),
        "components": components,
        "candidates": candidates,
        "model": model_of(state),
        "gates": gates_of(state, data.answers, data.asked),
        "drawing": draw_path(_stops(data.path, shown)),
        "path_text": _path_text(data.path),
        "steps": steps,
        "day": run.first_at.astimezone(dt.UTC).date().isoformat(),
        "stretch": _stretch(data),
        "pages": _pages(data, base),
        "verdict": verdict_of(data.verification, run, f"{base}?verify=true#audit"),
        "seal": seal_of(data.seal, run),
        "links": link_rows(links, before, problems),
        "audit_caption": f"Audit rows {links[0].chain_seq} to {last} of {run.chain_rows}"
        if links
        else "",
        "audit_open": len(links) <= _OPEN_LINKS or before is not None,
        "next_audit": _at(base, "audit", after=data.after, audit_after=last) if more else None,
        "waiting": _waiting(data.asked) if run.state == "waiting" else None,
    }


def _waiting(asked: Any) -> dict[str, Any] | None:
    """What an approval would let happen; None where another graph waits, for whatever it does."""
    if asked is None:
        return None
    arguments: Shown = value_shown(get(asked, "arguments"))
    return {
        "skill": visible(shortened(str(get(asked, "skill") or "an unnamed step"), 200)),
        "operation": visible(shortened(str(get(asked, "operation") or "something"), 200)),
        "arguments": arguments,
    }


def _stops(path: Sequence[EventRecord], shown: dict[int, str]) -> list[Stop]:
    """One for each time a node was entered; the mark says whether it was left again."""
    stops: list[Stop] = []
    open_at: dict[tuple[str, str | None], int] = {}
    for event in path:
        key = (event.checkpoint_ns, event.node_name)
        if event.kind == "node_entered":
            earlier = open_at.get(key)
            if earlier is not None:
                stops[earlier] = Stop(stops[earlier].node, "waits", stops[earlier].anchor)
            open_at[key] = len(stops)
            stops.append(Stop(str(event.node_name), "plain", shown.get(event.seq)))
        elif event.kind == "node_completed" and key in open_at:
            place = open_at.pop(key)
            stops[place] = Stop(stops[place].node, "done", stops[place].anchor)
        elif event.kind == "run_failed":
            for place in open_at.values():
                stops[place] = Stop(stops[place].node, "failed", stops[place].anchor)
    return stops


def _path_text(path: Sequence[EventRecord]) -> str:
    """The path in words: whole while it is short, else how often each node was entered."""
    nodes = [visible(shortened(str(e.node_name), 40)) for e in path if e.kind == "node_entered"]
    if len(nodes) <= 14:
        return " → ".join(nodes)
    counts = Counter(nodes).most_common(12)
    return f"{len(nodes)} visits: " + ", ".join(f"{name} {count}×" for name, count in counts)


def _stretch(data: RunData) -> str | None:
    """Which of the run's rows these are; their numbers in the thread count other rows too."""
    if not data.rows or (data.after is None and data.next is None):
        return None
    first, shown, whole = _first(data), len(data.rows), data.run.log_rows
    if first is None:
        return f"{shown} of {counted(whole, 'log row')}."
    return f"Log rows {first + 1} to {first + shown} of {whole}."


def _first(data: RunData) -> int | None:
    """The place of these rows in the run's path; None beyond what was read of that."""
    row = data.rows[0]
    place = (row["thread_id"], row["seq"])
    return next((i for i, e in enumerate(data.path) if (e.thread_id, e.seq) == place), None)


def _pages(data: RunData, base: str) -> list[tuple[str, str | None, str]]:
    """Where the other stretches are: address, relation and words of each link."""
    found: list[tuple[str, str | None, str]] = []
    first = _first(data) if data.rows else None
    if data.after:
        found.append((_at(base, "path"), None, "From the start"))
    if first is not None and first > ROWS:
        found.append((_behind(data, base, first - ROWS), "prev", "Earlier steps"))
    if data.next:
        found.append((_at(base, "path", after=data.next), "next", "Further steps"))
    if first is not None and len(data.path) == data.run.log_rows:
        last = (len(data.path) - 1) // ROWS * ROWS
        if last > first + len(data.rows):
            found.append((_behind(data, base, last), None, "To the end"))
    return found


def _behind(data: RunData, base: str, count: int) -> str:
    """The stretch behind so many rows of the path."""
    places = {event.thread_id: event.seq for event in data.path[:count]}
    return _at(base, "path", after=encode_cursor(places))


def _at(base: str, part: str, **asked: Any) -> str:
    given = {name: value for name, value in asked.items() if value is not None}
    return f"{base}{f'?{urlencode(given)}' if given else ''}#{part}"
