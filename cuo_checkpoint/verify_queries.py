"""The queries of verification, each for several runs at once. Pure.

UUIDs come as text, since that is how digests spell them. Rows with documents that are large as stored
are asked for on their own, so that many small ones can be fetched at a time without a few large ones
filling the memory.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    Text,
    Uuid,
    column,
    func,
    literal,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql

from cuo_checkpoint import digests, run_queries
from cuo_checkpoint.models import AuditRow, LogRow, PendingWriteRow, Tombstone

__all__ = ["Place", "Span", "chains", "log", "tombstones", "writes"]

Span = tuple[dt.datetime, dt.datetime]
Place = tuple[uuid.UUID, Span | None]
"""A run and between which instants its rows lie; None: look in every month."""

_SMALL: Final = 2000
"""Bytes, as stored: what PostgreSQL keeps in the row itself."""

_UUID: Final = postgresql.UUID(as_uuid=True)
_TIME: Final = postgresql.TIMESTAMP(timezone=True)


def chains(tenant_id: uuid.UUID, places: Sequence[Place]) -> Select[Any]:
    """The runs' chains, run by run and in order."""
    wanted = _wanted(places)
    rows = (
        select(
            _plain(AuditRow, "run_id"),
            AuditRow.chain_seq,
            AuditRow.kind,
            AuditRow.trace_id,
            AuditRow.body,
            AuditRow.row_bytes,
            AuditRow.prev_sha256,
            AuditRow.row_sha256,
            AuditRow.created_at,
        )
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == wanted.c.run_id)
        .where(*_within(AuditRow.created_at, wanted, places))
        .offset(0)
        .lateral("found")
    )
    return (
        select(rows)
        .select_from(wanted)
        .join(rows, literal(True))
        .order_by(rows.c.run_id, rows.c.chain_seq)
    )


def log(tenant_id: uuid.UUID, places: Sequence[Place], *, large: bool | None) -> Select[Any]:
    """The runs' log rows with large, with small or with (None) any documents, in no order."""
    wanted = _wanted(places)
    rows = (
        select(
            *(_plain(LogRow, name) for name in digests.LOG_COLUMNS),
            LogRow.row_sha256,
            sql_cast(LogRow.state_json, Text).label("state"),
            sql_cast(LogRow.langgraph, Text).label("langgraph"),
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
    w = PendingWriteRow
    spans = [span for _, _, span in wanted_at]
    low, high = _bounds(spans)
    wanted = func.unnest(
        sql_cast([run for run, _, _ in wanted_at], ARRAY(_UUID)),
        sql_cast([place[0] for _, place, _ in wanted_at], ARRAY(Text)),
        sql_cast([place[1] for _, place, _ in wanted_at], ARRAY(Text)),
        sql_cast([place[2] for _, place, _ in wanted_at], ARRAY(Text)),
        sql_cast([None if span is None else span[0] for span in spans], ARRAY(_TIME)),
        sql_cast([None if span is None else span[1] for span in spans], ARRAY(_TIME)),
    ).table_valued(
        column("run_id", _UUID),
        column("thread_id", Text),
        column("checkpoint_ns", Text),
        column("lg_checkpoint_id", Text),
        column("low", _TIME),
        column("high", _TIME),
        name="wanted",
    )
    wanted = wanted.render_derived()
    rows = (
        select(
            *(_plain(w, name) for name in digests.WRITE_COLUMNS),
            w.row_sha256,
            sql_cast(w.value, Text).label("value"),
        )
        .where(
            w.tenant_id == tenant_id,
            w.thread_id == wanted.c.thread_id,
            w.checkpoint_ns == wanted.c.checkpoint_ns,
            w.lg_checkpoint_id == wanted.c.lg_checkpoint_id,
            w.run_id == wanted.c.run_id,
        )
        .where(*_inside(w.created_at, wanted, low, high))
        .where(*_of_size(large, w.value))
        .offset(0)
        .lateral("found")
    )
    return select(rows).select_from(wanted).join(rows, literal(True))


def tombstones(
    tenant_id: uuid.UUID, runs: Collection[uuid.UUID], threads: Collection[str]
) -> Select[Any]:
    """The tombstones that these runs appended to these threads."""
    return select(*run_queries.finite(Tombstone)).where(
        Tombstone.tenant_id == tenant_id,
        Tombstone.thread_id == func.any(sql_cast(sorted(threads), ARRAY(Text))),
        Tombstone.run_id == func.any(sql_cast(sorted(runs), ARRAY(_UUID))),
    )


def _wanted(places: Sequence[Place]) -> Any:
    wanted = func.unnest(
        sql_cast([run for run, _ in places], ARRAY(_UUID)),
        sql_cast([None if span is None else span[0] for _, span in places], ARRAY(_TIME)),
        sql_cast([None if span is None else span[1] for _, span in places], ARRAY(_TIME)),
    ).table_valued(
        column("run_id", _UUID), column("low", _TIME), column("high", _TIME), name="wanted"
    )
    return wanted.render_derived()


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


def _plain(table: Any, name: str) -> Any:
    found = getattr(table, name)
    if isinstance(found.type, Uuid):
        return sql_cast(found, Text).label(name)
    return found
