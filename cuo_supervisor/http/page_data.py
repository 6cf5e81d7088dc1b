"""What the run page reads: one stretch of rows with states, the whole path without, the chain."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cuo_checkpoint.event_pages import parse_cursor, read_audit, read_page, read_state
from cuo_checkpoint.run_records import AuditRecord, EventRecord, RunSummary
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.seal_view import SealView, read_seal
from cuo_supervisor.http.text import plain_form

__all__ = ["AUDIT_ROWS", "ROWS", "RunData", "last_state", "load_run"]

ROWS: Final = 200
_BYTES: Final = 4 * 1024 * 1024
AUDIT_ROWS: Final = 250
_SPACES: Final = 20
_PATH_ROWS: Final = 10_000
_VERIFIED_ROWS: Final = 3000
"""Runs up to this long are recomputed for every look at them (3 s at most); longer ones on demand."""


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything of one look at a run."""

    run: RunSummary
    rows: list[dict[str, Any]]
    next: str | None
    after: str | None
    before: Mapping[str, Mapping[str, Any]]
    last: Mapping[str, Any]
    path: list[EventRecord]
    links: list[AuditRecord]
    links_more: bool
    answers: list[AuditRecord]
    verification: Any
    seal: SealView | None
    asked: Mapping[str, Any] | None
    """What a waiting run asks leave for, in the gate's own words."""
    failure: str | None
    """What the node that failed said; the log row has only the kind of error."""


def load_run(
    reader: RunReader, run_id: uuid.UUID, *, after: str | None, audit_after: int, verify: bool
) -> RunData | None:
    """Reads it all; None for a run this tenant does not have. Blocking.

    Several reads, each of its own snapshot: a run that goes on may show its newest row in one
    part of the page and not yet in another.
    """
    run = reader.get_run(run_id)
    if run is None:
        return None
    places = {} if after is None else parse_cursor(after)
    page = read_page(
        reader.engine, reader.tenant_id, run_id, after=places, limit=ROWS, max_bytes=_BYTES
    )
    if page is None:
        return None
    rows = [orjson.loads(row) for row in page.rows]
    path = reader.events(run_id, limit=_PATH_ROWS)
    last = rows[-1]["state_json"] if rows else {}
    if page.next is not None and path:
        last = _state_at(reader, run_id, path[-1])
    before = _before(reader, run_id, path, rows) if places and rows else {}
    links = read_audit(
        reader.engine, reader.tenant_id, run_id, after=max(audit_after - 1, 0), limit=AUDIT_ROWS + 2
    )
    answers = read_audit(
        reader.engine, reader.tenant_id, run_id, after=0, limit=50, kinds=("waiting", "approval")
    )
    verification = None
    if verify or run.log_rows <= _VERIFIED_ROWS:
        verification = reader.verify(run_id)
    cut = AUDIT_ROWS + (1 if audit_after else 0)
    return RunData(
        run,
        rows,
        page.next,
        after,
        before,
        plain_form(last) if isinstance(last, dict) else {},
        path,
        links[:cut],
        len(links) > cut,
        answers,
        verification,
        read_seal(reader.engine, reader.tenant_id, run_id),
        _asked(reader, run_id) if run.state == "waiting" else None,
        _failure(reader, run),
    )


def _before(
    reader: RunReader, run_id: uuid.UUID, path: list[EventRecord], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """The last state before a stretch, for each namespace in it; of very many, for the first."""
    spaces = list(dict.fromkeys(row["checkpoint_ns"] for row in rows))[:_SPACES]
    found: dict[str, Any] = {}
    for space in spaces:
        earlier = [e for e in path if e.seq < rows[0]["seq"] and e.checkpoint_ns == space]
        if earlier:
            found[space] = _state_at(reader, run_id, earlier[-1])
    return found


def _state_at(reader: RunReader, run_id: uuid.UUID, event: EventRecord) -> Any:
    return read_state(
        reader.engine, reader.tenant_id, run_id, thread_id=event.thread_id, seq=event.seq
    )


def _asked(reader: RunReader, run_id: uuid.UUID) -> Mapping[str, Any] | None:
    """The value of the newest interrupt, as the node that waits wrote it."""
    for write in reversed(reader.writes(run_id)):
        if write.channel == "__interrupt__":
            for found in _objects(write.value):
                value = plain_form(found.get("value"))
                if isinstance(value, dict) and "skill" in value:
                    return value
    return None


def _failure(reader: RunReader, run: RunSummary) -> str | None:
    if run.outcome != "run_failed" or run.log_rows > _VERIFIED_ROWS:
        return None
    for write in reversed(reader.writes(run.run_id)):
        if write.channel == "__error__" and isinstance(write.value, dict):
            said = (write.value.get(name) for name in ("$error", "$message"))
            kind, words = (text if isinstance(text, str) else "" for text in said)
            return f"{kind.rpartition(':')[2]}: {words}" if words else None
    return None


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    """The objects of the first levels of a stored value, outermost first."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            if isinstance(value, list):
                yield from (item for item in value if isinstance(item, dict))
    elif isinstance(tree, list):
        yield from (item for item in tree if isinstance(item, dict))


def last_state(data: RunData) -> Mapping[str, Any]:
    """The run's newest state, readable."""
    return data.last
