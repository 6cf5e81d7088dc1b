"""The queries of verification and export, each for several runs at once. Pure.

UUIDs come as text, since that is how digests spell them. Verification asks for rows with documents that
are large as stored on their own, so that many small ones can be fetched at a time without a few large
ones filling the memory. Export asks for all of them in order.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    Text,
    Uuid,
    and_,
    column,
    func,
    literal,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from cuo_checkpoint import digests, run_queries
from cuo_checkpoint.models import AuditRow, LogRow, PendingWriteRow, Tombstone

__all__ = [
    "Place",
    "Span",
    "chains",
    "log",
    "log_in_order",
    "tombstones",
    "writes",
    "writes_in_order",
]

Span = tuple[dt.datetime, dt.datetime]
Place = tuple[uuid.UUID, Span | None]
"""A run and between which instants its rows lie; None: look in every month."""

_SMALL: Final = 2000
"""Bytes, as stored: what PostgreSQL keeps in the row itself."""

_STATES: Final = {"state_json": "state", "langgraph": "langgraph"}
_VALUE: Final = {"value": "value"}
_WRITE: Final = (
    *(getattr(PendingWriteRow, name) for name in digests.WRITE_COLUMNS),
    PendingWriteRow.row_sha256,
    PendingWriteRow.value,
)

_UUID: Final = postgresql.UUID(as_uuid=True)
_TIME: Final = postgresql.TIMESTAMP(timezone=True)


def chains(tenant_id: uuid.UUID, places: Sequence[Place]) -> Select[Any]:
    """The runs' chains, run by run and in order."""
    wanted = _wanted(places)
    rows = (
        select(*(getattr(AuditRow, name) for name in digests.CHAIN_COLUMNS))
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == wanted.c.run_id)
        .where(*_within(AuditRow.created_at, wanted, places))
        .offset(0)
        .lateral("found")
    )
    return (
        select(*(_plain(one) for one in rows.c))
        .select_from(wanted)
        .join(rows, literal(True))
        .order_by(rows.c.run_id, rows.c.chain_seq, rows.c.created_at)
    )


def log(tenant_id: uuid.UUID, places: Sequence[Place], *, large: bool | None) -> Select[Any]:
    """The runs' log rows with large, with small or with (None) any documents, in no order."""
    return _told(_log(tenant_id, places, large), _STATES)


def log_in_order(tenant_id: uuid.UUID, places: Sequence[Place]) -> Select[Any]:
    """The runs' log rows, run by run and by seq."""
    return _told(_log(tenant_id, places, None), _STATES, "run_id", "seq", "checkpoint_id")


def _log(tenant_id: uuid.UUID, places: Sequence[Place], large: bool | None) -> Select[Any]:
    wanted = _wanted(places)
    rows = (
        select(
            *(getattr(LogRow, name) for name in digests.LOG_COLUMNS),
            LogRow.row_sha256,
            LogRow.state_json,
            LogRow.langgraph,
        )
        .where(LogRow.tenant_id == tenant_id, LogRow.run_id == wanted.c.run_id)
        .where(*_within(LogRow.created_at, wanted, places))
        .where(*_of_size(large, LogRow.state_json, LogRow.langgraph))
        .offset(0)
        .lateral("found")
    )
    return select(rows).select_from(wanted).join(rows, literal(True))


def writes(
    tenant_id: uuid.UUID,
    wanted_at: Sequence[tuple[uuid.UUID, tuple[str, str, str], Span | None]],
    *,
    large: bool | None,
) -> Select[Any]:
    """The runs' pending writes at these checkpoints (run, (thread, namespace, checkpoint), span).

    By the table's key: it has no index on runs, and a thread may be long.
    """
    spans = [span for _, _, span in wanted_at]
    wanted = _places(
        {
            "run_id": (_UUID, [run for run, _, _ in wanted_at]),
            "thread_id": (Text(), [place[0] for _, place, _ in wanted_at]),
            "checkpoint_ns": (Text(), [place[1] for _, place, _ in wanted_at]),
            "lg_checkpoint_id": (Text(), [place[2] for _, place, _ in wanted_at]),
        },
        spans,
    )
    rows = (
        select(*_WRITE)
        .where(
            PendingWriteRow.tenant_id == tenant_id,
            PendingWriteRow.thread_id == wanted.c.thread_id,
            PendingWriteRow.checkpoint_ns == wanted.c.checkpoint_ns,
            PendingWriteRow.lg_checkpoint_id == wanted.c.lg_checkpoint_id,
            PendingWriteRow.run_id == wanted.c.run_id,
        )
        .where(*_inside(PendingWriteRow.created_at, wanted, *_bounds(spans)))
        .where(*_of_size(large, PendingWriteRow.value))
        .offset(0)
        .lateral("found")
    )
    return _told(select(rows).select_from(wanted).join(rows, literal(True)), _VALUE)


def writes_in_order(
    tenant_id: uuid.UUID, wanted_in: Sequence[tuple[uuid.UUID, str, Span | None]]
) -> Select[Any]:
    """The runs' pending writes in these threads (run, thread, span), at whatever checkpoint; run by
    run and by seq.

    Each thread is read once for all of its runs: it may hold many, and the table has no index on them.
    """
    spans = [span for _, _, span in wanted_in]
    wanted = _places(
        {
            "run_id": (_UUID, [run for run, _, _ in wanted_in]),
            "thread_id": (Text(), [thread for _, thread, _ in wanted_in]),
        },
        spans,
    )
    names = sorted({thread for _, thread, _ in wanted_in})
    threads = func.unnest(sql_cast(names, ARRAY(Text))).table_valued(
        column("thread_id", Text), name="threads"
    )
    threads = threads.render_derived()
    runs = sql_cast(sorted({run for run, _, _ in wanted_in}), ARRAY(_UUID))
    low, high = _bounds(spans)
    rows = (
        select(*_WRITE)
        .where(
            PendingWriteRow.tenant_id == tenant_id,
            PendingWriteRow.thread_id == threads.c.thread_id,
            PendingWriteRow.run_id == func.any(runs),
        )
        .where(*([] if low is None else [PendingWriteRow.created_at.between(low, high)]))
        .offset(0)
        .lateral("found")
    )
    found = (
        select(rows)
        .select_from(threads)
        .join(rows, literal(True))
        .join(
            wanted,
            and_(
                wanted.c.run_id == rows.c.run_id,
                wanted.c.thread_id == rows.c.thread_id,
                *_inside(rows.c.created_at, wanted, None, None),
            ),
        )
    )
    order = ("seq", "checkpoint_ns", "lg_checkpoint_id", "task_id", "idx", "created_at")
    return _told(found, _VALUE, "run_id", *order)


def tombstones(
    tenant_id: uuid.UUID, runs: Collection[uuid.UUID], threads: Collection[str]
) -> Select[Any]:
    """The tombstones that these runs appended to these threads, run by run and by time."""
    return (
        select(*run_queries.finite(Tombstone))
        .where(
            Tombstone.tenant_id == tenant_id,
            Tombstone.thread_id == func.any(sql_cast(sorted(threads), ARRAY(Text))),
            Tombstone.run_id == func.any(sql_cast(sorted(runs), ARRAY(_UUID))),
        )
        .order_by(Tombstone.run_id, Tombstone.created_at, Tombstone.tombstone_id)
    )


def _wanted(places: Sequence[Place]) -> Any:
    return _places({"run_id": (_UUID, [run for run, _ in places])}, [span for _, span in places])


def _places(
    columns: Mapping[str, tuple[TypeEngine[Any], list[Any]]], spans: Sequence[Span | None]
) -> Any:
    """A table of what is wanted: these columns, and between which instants."""
    given = {
        **columns,
        "low": (_TIME, [None if span is None else span[0] for span in spans]),
        "high": (_TIME, [None if span is None else span[1] for span in spans]),
    }
    arrays = [sql_cast(values, ARRAY(kind)) for kind, values in given.values()]
    names = [column(name, kind) for name, (kind, _) in given.items()]
    return func.unnest(*arrays).table_valued(*names, name="wanted").render_derived()


def _within(at: Any, wanted: Any, places: Sequence[Place]) -> list[ColumnElement[bool]]:
    return _inside(at, wanted, *_bounds([span for _, span in places]))


def _bounds(spans: Sequence[Span | None]) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Around all spans; nothing when one of them is not known."""
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return None, None
    return min(low for low, _ in known), max(high for _, high in known)


def _inside(
    at: Any, wanted: Any, low: dt.datetime | None, high: dt.datetime | None
) -> list[ColumnElement[bool]]:
    """In the run's own span, and for the planner, which then opens no other months, around all."""
    if low is None:
        return [wanted.c.low.is_(None) | at.between(wanted.c.low, wanted.c.high)]
    return [at.between(low, high), at.between(wanted.c.low, wanted.c.high)]


def _of_size(large: bool | None, *documents: Any) -> list[ColumnElement[bool]]:
    if large is None:
        return []
    sizes = [func.coalesce(func.pg_column_size(document), 0) for document in documents]
    greatest = func.greatest(*sizes)
    return [greatest > _SMALL if large else greatest <= _SMALL]


def _told(found: Select[Any], documents: Mapping[str, str], *order: str) -> Select[Any]:
    """What was found with its documents as text, in an order if one is given.

    Sorted are the rows as stored, and only then made text: of a large document that is a pointer to
    it, where its text would make the server sort gigabytes.
    """
    if order:
        found = found.order_by(*(found.selected_columns[name] for name in order)).offset(0)
    rows = found.subquery("stored")
    query = select(
        *(_plain(one) for one in rows.c if one.name not in documents),
        *(sql_cast(rows.c[name], Text).label(label) for name, label in documents.items()),
    )
    return query.order_by(*(rows.c[name] for name in order)) if order else query


def _plain(found: ColumnElement[Any]) -> Any:
    return sql_cast(found, Text).label(found.key) if isinstance(found.type, Uuid) else found
