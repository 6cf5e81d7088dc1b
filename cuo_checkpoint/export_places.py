"""Which runs a bundle holds, where each lies, and which are read together."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, Text, func, literal, select, union

from cuo_checkpoint import bundle_verify
from cuo_checkpoint.models import AuditRow, LogRow, PendingWriteRow, RunIndex, Tombstone
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.row_queries import Span
from cuo_checkpoint.run_queries import EARLIER, finite

__all__ = ["RETENTION", "RunPlace", "batches", "places_of", "runs_of"]

RETENTION: Final = uuid.UUID(bundle_verify.RETENTION)

_LOOKED_UP: Final = 1000
"""Runs whose index rows are read in one query."""

_ROWS: Final = 1000
"""Log rows of a batch, by the index; a run that has more is a batch."""

_RUNS: Final = 200
_MONTHS: Final = 3
"""Months that a batch may open; a run that lies in more is a batch."""


class RunPlace(NamedTuple):
    """Where a run lies and what the index says of it; `state` is "" for one the index lost."""

    run_id: uuid.UUID
    thread_id: str
    state: str
    outcome: str | None
    first_at: dt.datetime
    newest_at: dt.datetime
    log_rows: int

    @property
    def span(self) -> Span:
        """Between which instants its rows lie."""
        return self.first_at - EARLIER, self.newest_at


def runs_of(conn: Connection, tenant_id: uuid.UUID, month: Month) -> list[uuid.UUID]:
    """Every run with a row in the month, by id."""
    tables = (AuditRow, LogRow, PendingWriteRow, Tombstone)
    queries = [
        select(table.run_id)
        .where(table.tenant_id == tenant_id)
        .where(table.created_at >= month.start, table.created_at < month.end)
        .distinct()
        for table in tables
    ]
    return sorted(conn.execute(union(*queries)).scalars())


def places_of(
    conn: Connection, tenant_id: uuid.UUID, runs: Sequence[uuid.UUID]
) -> Iterator[RunPlace]:
    """Where these runs lie, in this order; one of which no row speaks is passed over.

    Before all others stands the chain of retention, where there is one: it says which rows of which
    runs were dropped lawfully.
    """
    wanted = [RETENTION, *(run for run in runs if run != RETENTION)]
    for start in range(0, len(wanted), _LOOKED_UP):
        some = wanted[start : start + _LOOKED_UP]
        query = select(
            *(column for column in finite(RunIndex) if column.name in RunPlace._fields)
        ).where(RunIndex.tenant_id == tenant_id, RunIndex.run_id.in_(some))
        found = {row.run_id: RunPlace(**row._asdict()) for row in conn.execute(query)}
        for run in some:
            place = found.get(run)
            if place is None and (run != RETENTION or run in runs):
                place = _lost(conn, tenant_id, run)
            if place is not None:
                yield place


def batches(places: Iterable[RunPlace]) -> Iterator[list[RunPlace]]:
    """Runs to be read together, in their order: few rows, and near in time."""
    batch: list[RunPlace] = []
    rows = 0
    first = last = Month(1, 1)
    for place in places:
        low, high = Month.of(place.span[0]), Month.of(place.span[1])
        near = min(first, low).until(max(last, high)) < _MONTHS
        if batch and not (near and rows + place.log_rows <= _ROWS and len(batch) < _RUNS):
            yield batch
            batch, rows = [], 0
        first, last = (min(first, low), max(last, high)) if batch else (low, high)
        batch.append(place)
        rows += place.log_rows
    if batch:
        yield batch


def _lost(conn: Connection, tenant_id: uuid.UUID, run_id: uuid.UUID) -> RunPlace | None:
    """Where a run without an index row lies: looked for in every month."""
    spans = [
        select(
            literal("" if table is AuditRow else None, Text).label("thread"),
            func.min(table.created_at).label("low"),
            func.max(table.created_at).label("high"),
        ).where(table.tenant_id == tenant_id, table.run_id == run_id)
        for table in (AuditRow, LogRow)
    ]
    found = [row for query in spans for row in conn.execute(query) if row.low is not None]
    if not found:
        return None
    threads = (
        select(LogRow.thread_id)
        .where(LogRow.tenant_id == tenant_id, LogRow.run_id == run_id)
        .limit(1)
    )
    thread = conn.execute(threads).scalar_one_or_none() or "lost"
    low, high = min(row.low for row in found), max(row.high for row in found)
    return RunPlace(run_id, thread, "", None, low, high, 0)
