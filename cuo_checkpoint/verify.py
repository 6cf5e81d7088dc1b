"""Verifying runs as they lie in the database: reads rows, has `run_check` judge them.

Runs are read many at a time: a query for each run would cost more than judging its rows. Memory stays
small: rows stream, and of each only its id and digests are kept until its run is judged. Time grows
with the number of rows and the size of their states.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, select, union

from cuo_checkpoint import chain, row_queries, run_queries
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
from cuo_checkpoint.sessions import streamed

__all__ = ["RunVerification", "all_runs", "cuts_of", "verify_run", "verify_runs"]

_FETCH: Final = 500
"""Rows per fetch, where each has 2 kB at most as stored: that is half a megabyte uncompressed at worst."""

_SIZES: Final[tuple[tuple[bool | None, int | None], ...]] = ((False, _FETCH), (True, 20))
"""Small documents, then large ones: 20 of 190 kB are 4 MB, of the cap's 5 MB a tenth of a gigabyte."""

_AT_ONCE: Final[tuple[tuple[bool | None, int | None], ...]] = ((None, None),)
_FEW: Final = 20
"""Log rows up to which everything is fetched at once: a cursor costs two round trips a query."""

_TOLD: Final = 100
"""Rows between two tellings of progress."""

_PLACES: Final = 2000
"""Checkpoints asked for in one query of pending writes."""

Indexed = tuple[uuid.UUID, Row[Any] | None]
"""A run and its row of the index, if it has one."""


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
    if cuts is None:
        cuts = cuts_of(conn, tenant_id)
    (verdict,) = verify_runs(conn, tenant_id, [(run_id, index)], settled_before, cuts, progress)
    return verdict


def verify_runs(
    conn: Connection,
    tenant_id: uuid.UUID,
    runs: Sequence[Indexed],
    settled_before: dt.datetime | None,
    cuts: Cuts,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[RunVerification | None]:
    """`verify_run` of several at once, in their order. Put together few rows and near months."""
    places = [(run, None if index is None else run_queries.span(index)) for run, index in runs]
    checkers = {str(run): RunChecker(tenant_id, run, settled_before, cuts) for run, _ in runs}
    few = sum(_FEW + 1 if index is None else index.log_rows for _, index in runs) <= _FEW
    sizes = _AT_ONCE if few else _SIZES
    rows = streamed(conn, row_queries.chains(tenant_id, places), None if few else _FETCH)
    unread = dict(checkers)
    for name, links in itertools.groupby(rows, key=lambda row: row["run_id"]):
        unread.pop(name).chain(links)
    for checker in unread.values():
        checker.chain(())
    done = 0
    for large, fetch in sizes:
        for row in streamed(conn, row_queries.log(tenant_id, places, large=large), fetch):
            checkers[row["run_id"]].log_row(row)
            done += 1
            if done % _TOLD == 0:
                progress(done)
    there = {}
    for run, index in runs:
        checker = checkers[str(run)]
        if index is None and not checker.chain_rows and not checker.rows:
            continue
        if index is not None:
            checker.threads.add(index.thread_id)
        there[str(run)] = checker
    _side_tables(conn, tenant_id, places, there, sizes)
    for run, index in runs:
        if str(run) in there:
            there[str(run)].index(None if index is None else index._asdict())
    return [there[str(run)].result() if str(run) in there else None for run, _ in runs]


def _side_tables(
    conn: Connection,
    tenant_id: uuid.UUID,
    places: Sequence[row_queries.Place],
    checkers: Mapping[str, RunChecker],
    sizes: Sequence[tuple[bool | None, int | None]],
) -> None:
    """Pending writes, tombstones and, for the chain of retention, holds."""
    spans = {str(run): span for run, span in places}
    wanted = (
        (uuid.UUID(name), place, spans[name])
        for name, checker in checkers.items()
        for place in checker.write_places()
    )
    while batch := list(itertools.islice(wanted, _PLACES)):
        for large, fetch in sizes:
            for row in streamed(conn, row_queries.writes(tenant_id, batch, large=large), fetch):
                checkers[row["run_id"]].write_row(row)
    threads = {thread for checker in checkers.values() for thread in checker.threads}
    query = row_queries.tombstones(tenant_id, [run for run, _ in places], threads)
    for row in streamed(conn, query, _FETCH):
        checker = checkers.get(str(row["run_id"]))
        if checker is not None and row["thread_id"] in checker.threads:
            checker.tombstone_row(row)
    retention = checkers.get(str(RETENTION_RUN))
    if retention is not None:
        holds = select(*run_queries.finite(Hold)).where(Hold.tenant_id == tenant_id)
        for row in streamed(conn, holds, _FETCH):
            retention.hold_row(row)


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
    low, high = run_queries.span(own)
    rows = (
        select(AuditRow.__table__)
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == RETENTION_RUN)
        .where(AuditRow.kind == "month_dropped", AuditRow.created_at.between(low, high))
        .order_by(AuditRow.chain_seq)
    )
    leaves = conn.execute(
        select(SealLeaf.chain_seq, SealLeaf.sealed_at)
        .where(SealLeaf.tenant_id == tenant_id, SealLeaf.run_id == RETENTION_RUN)
        .order_by(SealLeaf.leaf_index)
    ).all()

    def sealed(number: int) -> Iterator[str]:
        return (rfc3339(leaf.sealed_at) for leaf in leaves if leaf.chain_seq >= number)

    for row in conn.execute(rows):
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
