"""Verifying runs as they lie in the database: reads rows, has `run_check` judge them.

Memory stays small: rows stream, and of each only its id and digests are kept. Time grows with the
number of rows and the size of their states.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Text, select, tuple_, union
from sqlalchemy import cast as sql_cast

from cuo_checkpoint import chain, digests, run_queries
from cuo_checkpoint.cuts import RETENTION_RUN, Cuts
from cuo_checkpoint.models import (
    AuditRow,
    Hold,
    LogRow,
    PendingWriteRow,
    RunIndex,
    SealLeaf,
    Tombstone,
)
from cuo_checkpoint.run_check import RunChecker, RunVerification
from cuo_checkpoint.run_records import rfc3339

__all__ = ["RunVerification", "all_runs", "cuts_of", "verify_run"]

_FETCH: Final = 50
"""Rows per fetch: 50 states of 190 kB are 10 MB, of the cap's 5 MB a quarter of a gigabyte."""

_FEW: Final = 20
"""Runs of so few rows are fetched at once: a cursor costs two round trips more for each query."""

_TOLD: Final = 100
"""Rows between two tellings of progress."""

_PLACES: Final = 500
"""Checkpoints asked for in one query of pending writes."""


def verify_run(
    conn: Connection,
    tenant_id: uuid.UUID,
    run_id: uuid.UUID,
    index: Row[Any] | None,
    settled_before: dt.datetime | None = None,
    cuts: Cuts | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> RunVerification | None:
    """Recomputes one run within the caller's snapshot; None when no row speaks of it.

    Without an index row every month is searched, since nothing says where the run lies. Rows
    older than `settled_before` are counted by table, for comparison with the tables themselves.
    `cuts` are the tenant's, if the caller has read them already.
    """
    span = None if index is None else run_queries.span(index)
    few = index is not None and index.log_rows <= _FEW
    if cuts is None:
        cuts = cuts_of(conn, tenant_id)
    checker = RunChecker(tenant_id, run_id, settled_before, cuts)
    chain = _between(_chain(tenant_id, run_id), AuditRow.created_at, span)
    checker.chain(_rows(conn, chain, few))
    for row in _rows(conn, _between(_log(tenant_id, run_id), LogRow.created_at, span), few):
        checker.log_row(row)
        if checker.rows % _TOLD == 0:
            progress(checker.rows)
    if index is None and not checker.chain_rows and not checker.rows:
        return None
    if index is not None:
        checker.threads.add(index.thread_id)
    places = checker.write_places()
    for start in range(0, len(places), _PLACES):
        writes = _writes(tenant_id, run_id, places[start : start + _PLACES])
        for row in _rows(conn, _between(writes, PendingWriteRow.created_at, span), few):
            checker.write_row(row)
    for row in _rows(conn, _tombstones(tenant_id, run_id, checker.threads), few):
        checker.tombstone_row(row)
    if run_id == RETENTION_RUN:
        holds = select(Hold.__table__).where(Hold.tenant_id == tenant_id)
        for row in _rows(conn, holds, few):
            checker.hold_row(row)
    checker.index(None if index is None else index._asdict())
    return checker.result()


def cuts_of(conn: Connection, tenant_id: uuid.UUID) -> Cuts:
    """What the tenant's chain says of dropped months; nothing where none was dropped.

    A row whose digest does not follow from its bytes, or that drops a month before its time, is
    passed over: what it would excuse is then reported as missing, and itself with its own chain.
    """
    cuts = Cuts()
    index = select(RunIndex.__table__).where(
        RunIndex.tenant_id == tenant_id, RunIndex.run_id == RETENTION_RUN
    )
    own = conn.execute(index).one_or_none()
    if own is None:
        return cuts
    rows = _chain(tenant_id, RETENTION_RUN).where(AuditRow.kind == "month_dropped")
    leaves = conn.execute(
        select(SealLeaf.chain_seq, SealLeaf.sealed_at)
        .where(SealLeaf.tenant_id == tenant_id, SealLeaf.run_id == RETENTION_RUN)
        .order_by(SealLeaf.leaf_index)
    ).all()

    def sealed(number: int) -> Iterator[str]:
        return (rfc3339(leaf.sealed_at) for leaf in leaves if leaf.chain_seq >= number)

    for row in conn.execute(_between(rows, AuditRow.created_at, run_queries.span(own))):
        if chain.link(row.prev_sha256, row.row_bytes) == row.row_sha256:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                cuts.add(json.loads(row.row_bytes), next(sealed(row.chain_seq), None))
    return cuts


def all_runs(
    conn: Connection, tenant_id: uuid.UUID | None
) -> Iterator[tuple[uuid.UUID, uuid.UUID]]:
    """(tenant, run) of everything any row speaks of, in order; of one tenant or of all.

    Taken from the rows as well as from the index, so that a run the index lost is not passed over.
    """
    sources = [
        select(table.tenant_id, table.run_id).distinct()
        for table in (RunIndex, AuditRow, LogRow, PendingWriteRow, Tombstone)
    ]
    if tenant_id is not None:
        sources = [query.where(query.selected_columns[0] == tenant_id) for query in sources]
    found = union(*sources).subquery()
    query = select(found.c.tenant_id, found.c.run_id).order_by(found.c.tenant_id, found.c.run_id)
    for row in conn.execute(query, execution_options={"yield_per": 1000}):
        yield row[0], row[1]


def _rows(conn: Connection, query: Select[Any], few: bool) -> Iterator[Mapping[str, Any]]:
    options = {} if few else {"yield_per": _FETCH}
    for row in conn.execute(query, execution_options=options):
        yield row._asdict()


def _between(
    query: Select[Any], column: Any, span: tuple[dt.datetime, dt.datetime] | None
) -> Select[Any]:
    return query if span is None else query.where(column.between(*span))


def _chain(tenant_id: uuid.UUID, run_id: uuid.UUID) -> Select[Any]:
    return (
        select(AuditRow.__table__)
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == run_id)
        .order_by(AuditRow.chain_seq)
    )


def _log(tenant_id: uuid.UUID, run_id: uuid.UUID) -> Select[Any]:
    return (
        select(
            *(getattr(LogRow, name) for name in digests.LOG_COLUMNS),
            LogRow.row_sha256,
            sql_cast(LogRow.state_json, Text).label("state"),
            sql_cast(LogRow.langgraph, Text).label("langgraph"),
        )
        .where(LogRow.tenant_id == tenant_id, LogRow.run_id == run_id)
        .order_by(LogRow.seq)
    )


def _writes(
    tenant_id: uuid.UUID, run_id: uuid.UUID, places: Sequence[tuple[str, str, str]]
) -> Select[Any]:
    """By the table's key: it has no index on runs, and a thread may be long."""
    w = PendingWriteRow
    return select(
        *(getattr(w, name) for name in digests.WRITE_COLUMNS),
        w.row_sha256,
        sql_cast(w.value, Text).label("value"),
    ).where(
        w.tenant_id == tenant_id,
        tuple_(w.thread_id, w.checkpoint_ns, w.lg_checkpoint_id).in_(places),
        w.run_id == run_id,
    )


def _tombstones(tenant_id: uuid.UUID, run_id: uuid.UUID, threads: Collection[str]) -> Select[Any]:
    return select(
        *(getattr(Tombstone, name) for name in digests.TOMBSTONE_COLUMNS), Tombstone.row_sha256
    ).where(
        Tombstone.tenant_id == tenant_id,
        Tombstone.thread_id.in_(sorted(threads)),
        Tombstone.run_id == run_id,
    )
