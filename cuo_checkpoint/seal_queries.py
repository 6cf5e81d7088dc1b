"""The queries of sealing and of checking seals, as SQLAlchemy expressions. Pure.

All take the tenant; the auditor sets it in its transaction too, since what it inserts is bound to
it. None reads a chain row that an earlier seal has read.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    LargeBinary,
    Text,
    column,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import aliased

from cuo_checkpoint import digests
from cuo_checkpoint.models import AuditRow, RunIndex, SealHead, SealLeaf
from cuo_checkpoint.run_queries import EARLIER, AnySelect, finite

__all__ = [
    "LOCK",
    "advanced",
    "chain_rows",
    "first_leaf_since",
    "head_rows",
    "leaf_hashes",
    "leaf_rows",
    "newest_leaf",
    "rows_as_sealed",
    "rows_at",
    "run_ends",
    "tenants",
    "unsealed",
]

LOCK: Final = (
    "SELECT pg_advisory_xact_lock(hashtextextended('cuo/seal/' || :schema || '/' || :tenant, 0))"
)
"""One sealer a tenant: whoever waits finds nothing left to seal."""

_UUIDS: Final = ARRAY(postgresql.UUID(as_uuid=True))


def tenants() -> AnySelect:
    """Every tenant that has runs."""
    return select(RunIndex.tenant_id).distinct().order_by(RunIndex.tenant_id)


def head_rows(tenant_id: uuid.UUID) -> AnySelect:
    """The tenant's signed heads, in order."""
    return (
        select(*finite(SealHead)).where(SealHead.tenant_id == tenant_id).order_by(SealHead.head_no)
    )


def leaf_rows(tenant_id: uuid.UUID, low: int, high: int) -> AnySelect:
    """Leaves from `low` up to, not including, `high`."""
    return (
        select(*finite(SealLeaf))
        .where(SealLeaf.tenant_id == tenant_id)
        .where(SealLeaf.leaf_index >= low, SealLeaf.leaf_index < high)
        .order_by(SealLeaf.leaf_index)
    )


def first_leaf_since(tenant_id: uuid.UUID, at: dt.datetime) -> AnySelect:
    """The number of the first leaf that was sealed at an instant or later, if any was."""
    return select(func.min(SealLeaf.leaf_index)).where(
        SealLeaf.tenant_id == tenant_id, SealLeaf.sealed_at >= at
    )


def leaf_hashes(tenant_id: uuid.UUID, size: int) -> AnySelect:
    """The hashes of the first `size` leaves."""
    return (
        select(SealLeaf.leaf_sha256)
        .where(SealLeaf.tenant_id == tenant_id, SealLeaf.leaf_index < size)
        .order_by(SealLeaf.leaf_index)
    )


def newest_leaf(tenant_id: uuid.UUID, run_ids: Sequence[uuid.UUID], size: int) -> AnySelect:
    """The newest leaf below `size` of each of the runs that has one."""
    return (
        select(*finite(SealLeaf))
        .where(SealLeaf.tenant_id == tenant_id, SealLeaf.run_id.in_(run_ids))
        .where(SealLeaf.leaf_index < size)
        .ext(postgresql.distinct_on(SealLeaf.run_id))
        .order_by(SealLeaf.run_id, SealLeaf.leaf_index.desc())
    )


def advanced(tenant_id: uuid.UUID, after: uuid.UUID, limit: int) -> AnySelect:
    """Runs whose head is not the one sealed last, by run id above `after`.

    Compares index with index: one look-up of the newest leaf for each run of the tenant.
    """
    leaf = (
        select(SealLeaf.chain_seq, SealLeaf.row_sha256, SealLeaf.head_at)
        .where(SealLeaf.tenant_id == RunIndex.tenant_id, SealLeaf.run_id == RunIndex.run_id)
        .order_by(SealLeaf.leaf_index.desc())
        .limit(1)
        .lateral("leaf")
    )
    return (
        select(
            RunIndex.run_id,
            RunIndex.chain_seq,
            RunIndex.first_at,
            RunIndex.newest_at,
            leaf.c.chain_seq.label("sealed_seq"),
            leaf.c.row_sha256.label("sealed_sha256"),
            leaf.c.head_at.label("sealed_at"),
        )
        .outerjoin(leaf, literal(True))
        .where(RunIndex.tenant_id == tenant_id, RunIndex.run_id > after, RunIndex.chain_seq > 0)
        .where(
            leaf.c.chain_seq.is_distinct_from(RunIndex.chain_seq)
            | leaf.c.row_sha256.is_distinct_from(RunIndex.chain_head)
        )
        .order_by(RunIndex.run_id)
        .limit(limit)
    )


def chain_rows(
    tenant_id: uuid.UUID,
    runs: Sequence[tuple[uuid.UUID, int, int]],
    between: tuple[dt.datetime, dt.datetime],
) -> AnySelect:
    """Chain rows of (run, above this seq, up to that one), by run and seq, in these months."""
    wanted = func.unnest(
        sql_cast([run for run, _, _ in runs], _UUIDS),
        sql_cast([low for _, low, _ in runs], ARRAY(BigInteger)),
        sql_cast([high for _, _, high in runs], ARRAY(BigInteger)),
    ).table_valued(
        column("run_id", postgresql.UUID(as_uuid=True)),
        column("low", BigInteger),
        column("high", BigInteger),
        name="wanted",
    )
    wanted = wanted.render_derived()
    # OFFSET 0 keeps the planner from joining the other way round: a month that was never analysed
    # looks empty to it, and it would read the whole tenant for each batch.
    rows = (
        select(*(getattr(AuditRow, name) for name in digests.LINK_COLUMNS))
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == wanted.c.run_id)
        .where(AuditRow.chain_seq > wanted.c.low, AuditRow.chain_seq <= wanted.c.high)
        .where(AuditRow.created_at.between(between[0] - EARLIER, between[1]))
        .offset(0)
        .lateral("found")
    )
    return (
        select(rows)
        .select_from(wanted)
        .join(rows, literal(True))
        .order_by(rows.c.run_id, rows.c.chain_seq)
    )


def rows_as_sealed(
    tenant_id: uuid.UUID, sealed: Sequence[tuple[int, uuid.UUID, int, bytes, dt.datetime]]
) -> AnySelect:
    """The numbers of those (number, run, seq, digest, time) for which the chain holds just that row."""
    numbers, runs, seqs, digests, times = zip(*sealed, strict=True)
    # Arrays, not VALUES: a statement with thousands of parameters costs more to build than to run.
    wanted = func.unnest(
        sql_cast(list(numbers), ARRAY(BigInteger)),
        sql_cast(list(runs), _UUIDS),
        sql_cast(list(seqs), ARRAY(BigInteger)),
        sql_cast(list(digests), ARRAY(LargeBinary)),
        sql_cast(list(times), ARRAY(postgresql.TIMESTAMP(timezone=True))),
    ).table_valued(
        column("number", BigInteger),
        column("run_id", postgresql.UUID(as_uuid=True)),
        column("chain_seq", BigInteger),
        column("row_sha256", LargeBinary),
        column("at", postgresql.TIMESTAMP(timezone=True)),
        name="wanted",
    )
    wanted = wanted.render_derived()
    row = (
        select(AuditRow.chain_seq)
        .where(
            AuditRow.tenant_id == tenant_id,
            AuditRow.run_id == wanted.c.run_id,
            AuditRow.chain_seq == wanted.c.chain_seq,
            AuditRow.created_at == wanted.c.at,
            AuditRow.row_sha256 == wanted.c.row_sha256,
        )
        .limit(1)
        .lateral("found")
    )
    return select(wanted.c.number).select_from(wanted).join(row, literal(True))


def rows_at(tenant_id: uuid.UUID, places: Sequence[tuple[uuid.UUID, int]]) -> AnySelect:
    """The chain rows at (run, seq), wherever they lie. Looks into every month."""
    return select(
        AuditRow.run_id, AuditRow.chain_seq, AuditRow.row_sha256, AuditRow.created_at
    ).where(
        AuditRow.tenant_id == tenant_id,
        tuple_(AuditRow.run_id, AuditRow.chain_seq).in_(places),
    )


def run_ends(tenant_id: uuid.UUID, run_ids: Sequence[uuid.UUID]) -> AnySelect:
    """The last chain row of each run that has any. Looks into every month."""
    return (
        select(AuditRow.run_id, AuditRow.chain_seq, AuditRow.row_sha256, AuditRow.created_at)
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id.in_(run_ids))
        .ext(postgresql.distinct_on(AuditRow.run_id))
        .order_by(AuditRow.run_id, AuditRow.chain_seq.desc())
    )


def unsealed(tenant_id: uuid.UUID) -> AnySelect:
    """Chain rows, runs and the oldest time of what no leaf covers yet: what could still be cut."""
    leaf = aliased(SealLeaf)
    newest = (
        select(func.max(leaf.chain_seq))
        .where(leaf.tenant_id == RunIndex.tenant_id, leaf.run_id == RunIndex.run_id)
        .scalar_subquery()
    )
    gap = RunIndex.chain_seq - func.coalesce(newest, 0)
    inner = (
        select(gap.label("gap"), RunIndex.newest_at.label("at"))
        .where(RunIndex.tenant_id == tenant_id)
        .subquery()
    )
    return select(
        func.coalesce(sql_cast(func.sum(inner.c.gap), BigInteger), 0).label("rows"),
        func.count().label("runs"),
        sql_cast(func.min(inner.c.at), Text).label("since"),
    ).where(inner.c.gap > 0)
