"""What `cuo-archive` does, without its command line: months, reports, verification of many runs."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import Connection, func, select

from cuo_checkpoint import _sql, partitions
from cuo_checkpoint.catalog import MonthTable, catalog, months
from cuo_checkpoint.cuts import Cuts, Drop, month_root
from cuo_checkpoint.errors import SchemaNotReady
from cuo_checkpoint.models import (
    PARTITIONED_TABLES,
    AuditRow,
    Hold,
    LogRow,
    PendingWriteRow,
    RunIndex,
    Tombstone,
)
from cuo_checkpoint.run_check import RunVerification
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.sessions import open_engine, reading
from cuo_checkpoint.translating import checked_conninfo, translated, without_conninfo
from cuo_checkpoint.verify import cuts_of
from cuo_checkpoint.verify_many import verdicts

__all__ = [
    "MonthsReport",
    "VerifyReport",
    "ensure_partitions",
    "sees_all",
    "status",
    "tenants_of",
    "verify",
]

_SETTLED: Final = dt.timedelta(minutes=5)
"""Rows older than this are committed: every write is one statement, which takes seconds at most."""

_SEES_ALL: Final = sql.SQL("""
SELECT EXISTS (SELECT FROM pg_policy p, unnest(p.polroles) AS r(role)
               WHERE p.polrelid = to_regclass({table}) AND p.polname IN ('cuo_auditor_reads', 'cuo_owner_reads')
                 AND pg_has_role(current_user, r.role, 'USAGE')) AS sees
""")
"""Whether the connected role reads every tenant's rows."""


@dataclass(frozen=True, slots=True)
class MonthsReport:
    """Which partitions were made now, and all that are there."""

    made: list[str]
    present: list[MonthTable]

    def to_json(self) -> dict[str, Any]:
        return {"made": self.made, "present": [month.name for month in self.present]}


@dataclass(slots=True)
class VerifyReport:
    """What verifying many runs showed. `strays` are rows that no run accounts for."""

    runs: int = 0
    rows: int = 0
    chain_rows: int = 0
    writes: int = 0
    broken: list[RunVerification] = field(default_factory=list)
    cut: list[RunVerification] = field(default_factory=list)
    """Runs, sound or not, of which rows went with months that retention dropped."""

    drops: list[tuple[uuid.UUID, Drop]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.broken and not self.strays

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "runs": self.runs,
            "rows": self.rows,
            "chain_rows": self.chain_rows,
            "writes": self.writes,
            "broken": [verdict.to_json() for verdict in self.broken],
            "cut": [verdict.to_json() for verdict in self.cut],
            "dropped_months": [
                {
                    "tenant_id": str(tenant),
                    "month": str(drop.month),
                    "told_in": drop.chain_seq,
                    "told_at": drop.at,
                    "sealed_at": drop.sealed_at,
                }
                for tenant, drop in self.drops
            ],
            "strays": self.strays,
        }


def ensure_partitions(dsn: str, *, schema: str = "public") -> MonthsReport:
    """Makes the current month and the next three where they are missing; again, makes nothing.

    Any of the log's roles may. Raises StoreUnavailable, and SchemaNotReady for a database that is
    not migrated or a role without the right.
    """
    conninfo = checked_conninfo(dsn.replace("postgresql+psycopg://", "postgresql://", 1))
    try:
        with psycopg.connect(conninfo, prepare_threshold=None, client_encoding="utf8") as conn:
            rows = conn.execute(_sql.Statements(schema).ensure_partitions).fetchall()
    except psycopg.Error as error:
        raise translated(error) from without_conninfo(error)
    with catalog(dsn) as looking:
        return MonthsReport(sorted(name for (name,) in rows), months(looking, schema))


def status(dsn: str, *, schema: str = "public") -> dict[str, Any]:
    """Months, estimated rows and bytes of each table, and whether the coming month is there.

    Estimates are the planner's, null before the first ANALYZE; bytes include indexes.
    Raises SchemaNotReady when the schema holds no log.
    """
    with catalog(dsn) as conn:
        row = conn.execute("SELECT now() AS now").fetchone() or {}
        found = months(conn, schema)
    if not found:
        raise SchemaNotReady(
            f"schema {schema!r} holds no log.",
            remedy="Run as the owner role: alembic upgrade head.",
        )
    tables, missing = [], []
    for parent in PARTITIONED_TABLES:
        own = sorted((m for m in found if m.parent == parent), key=lambda m: m.month or (0, 0))
        known = [m.month for m in own if m.month is not None]
        estimates = [m.rows for m in own if m.rows is not None]
        tables.append(
            {
                "table": parent,
                "months": [
                    {
                        "month": None if m.month is None else str(m.month),
                        "partition": m.name,
                        "rows_estimate": m.rows,
                        "bytes": m.size,
                    }
                    for m in own
                ],
                "oldest": str(min(known)) if known else None,
                "newest": str(max(known)) if known else None,
                "rows_estimate": sum(estimates) if estimates else None,
                "bytes": sum(m.size for m in own),
            }
        )
        missing += [
            month.partition_of(parent)
            for month in partitions.missing_months(known, row["now"], ahead=1)
        ]
    return {
        "schema": schema,
        "now": rfc3339(row["now"]),
        "tables": tables,
        "missing": missing,
    }


def tenants_of(dsn: str, run_id: uuid.UUID, *, schema: str = "public") -> list[uuid.UUID]:
    """The tenants in which a run of this id is indexed, as far as the role sees them."""
    engine = open_engine(dsn, schema=schema, connections=1)
    try:
        with reading(engine, None) as conn:
            query = select(RunIndex.tenant_id).where(RunIndex.run_id == run_id)
            return list(conn.execute(query).scalars())
    finally:
        engine.dispose()


def sees_all(dsn: str, *, schema: str = "public") -> bool:
    """Whether the role of `dsn` reads every tenant: the auditor does, the application does not."""
    table = sql.Literal(sql.Identifier(schema, "cuo_runs").as_string(None))
    with catalog(dsn) as conn:
        row = conn.execute(_SEES_ALL.format(table=table)).fetchone()
    return bool(row and row["sees"])


def verify(
    dsn: str,
    *,
    schema: str = "public",
    tenant_id: uuid.UUID | None = None,
    run_id: uuid.UUID | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerifyReport:
    """Verifies one run (tenant and run), a tenant's runs, or all (neither; needs an auditor).

    A log in use can be verified: each run is read in one snapshot. Beyond single runs it also
    counts: rows that lie outside every run's months or places are strays. `progress`
    is told (runs done, runs indexed) after each run. Raises RunUnknown for a run that is not there.
    """
    report = VerifyReport()
    with RunReader(dsn, tenant_id=tenant_id or uuid.UUID(int=0), schema=schema) as reader:
        if run_id is not None:
            _add(report, reader.verify(run_id))
            return report
        with reading(reader.engine, tenant_id) as conn:
            cutoff = conn.execute(select(func.now())).scalar_one() - _SETTLED
            total = _count(conn, RunIndex, tenant_id)
            settled: Counter[tuple[str, uuid.UUID]] = Counter()
            cuts = {tenant: cuts_of(conn, tenant) for tenant in _tenants(conn, tenant_id)}
            report.drops = [
                (tenant, drop)
                for tenant, cut in sorted(cuts.items())
                for _, drop in sorted(cut.drops.items())
            ]
            for verdict in verdicts(reader.engine, conn, tenant_id, cutoff, cuts):
                _add(report, verdict)
                for table, count in verdict.settled.items():
                    settled[table, verdict.tenant_id] += count
                progress(report.runs, total)
        for named in (report.broken, report.cut):
            named.sort(key=lambda verdict: (verdict.tenant_id, verdict.run_id))
        with reading(reader.engine, tenant_id) as conn:
            for model in (LogRow, AuditRow, PendingWriteRow, Tombstone, Hold):
                outlived = _outlived(conn, model, cuts, report) if model in _MONTHLESS else {}
                report.strays += _strays(conn, model, tenant_id, cutoff, settled, outlived)
        with catalog(dsn) as looking:
            report.strays += _months_amiss(months(looking, schema), cuts, tenant_id is None)
    return report


def _add(report: VerifyReport, verdict: RunVerification) -> None:
    report.runs += 1
    report.rows += verdict.rows
    report.chain_rows += verdict.chain_rows
    report.writes += verdict.writes
    if not verdict.ok:
        report.broken.append(verdict)
    if verdict.dropped:
        report.cut.append(verdict)


def _count(conn: Connection, model: Any, tenant_id: uuid.UUID | None) -> int:
    query = select(func.count()).select_from(model)
    if tenant_id is not None:
        query = query.where(model.tenant_id == tenant_id)
    return int(conn.execute(query).scalar_one())


def _strays(
    conn: Connection,
    model: Any,
    tenant_id: uuid.UUID | None,
    cutoff: dt.datetime,
    settled: Counter[tuple[str, uuid.UUID]],
    outlived: dict[uuid.UUID, int],
) -> list[str]:
    query = select(model.tenant_id, func.count()).where(model.created_at < cutoff)
    if tenant_id is not None:
        query = query.where(model.tenant_id == tenant_id)
    table = str(model.__tablename__)
    return [
        f"tenant {tenant}: {count - known} rows of {table} lie outside every run"
        for tenant, count in conn.execute(query.group_by(model.tenant_id))
        if count != (known := settled[table, tenant] + outlived.get(tenant, 0))
    ]


_MONTHLESS: Final = (Tombstone, Hold)


def _tenants(conn: Connection, tenant_id: uuid.UUID | None) -> list[uuid.UUID]:
    if tenant_id is not None:
        return [tenant_id]
    return list(conn.execute(select(RunIndex.tenant_id).distinct()).scalars())


def _outlived(
    conn: Connection, model: Any, cuts: dict[uuid.UUID, Cuts], report: VerifyReport
) -> dict[uuid.UUID, int]:
    """How many rows of a table without months each tenant has from months that were dropped.

    Their chain rows went with the month; its root stands for them, where it was told.
    """
    counted: dict[uuid.UUID, int] = {}
    for tenant, cut in cuts.items():
        for month, tables in cut.months.items():
            query = select(model.row_sha256).where(
                model.tenant_id == tenant,
                model.created_at >= month.start,
                model.created_at < month.end,
            )
            rows = list(conn.execute(query).scalars())
            counted[tenant] = counted.get(tenant, 0) + len(rows)
            said = tables.get(model.__tablename__)
            if said is not None and said != {"rows": len(rows), "sha256": month_root(rows).hex()}:
                report.strays.append(
                    f"tenant {tenant}: {model.__tablename__} of {month} are not those that were "
                    "there when the month was dropped"
                )
    return counted


def _months_amiss(
    present: list[MonthTable], cuts: dict[uuid.UUID, Cuts], everything: bool
) -> list[str]:
    """Months that are there though they were dropped and, seen as a whole, those that are not."""
    dropped = {month for cut in cuts.values() for month in (*cut.months, *cut.whole)}
    amiss = [f"{m.name} is there, but was dropped" for m in present if m.month in dropped]
    if not everything:
        return amiss
    for parent in PARTITIONED_TABLES:
        there = {m.month for m in present if m.parent == parent and m.month is not None}
        oldest = min(there | dropped, default=None)
        for n in range(oldest.until(max(there)) if oldest is not None and there else 0):
            month = oldest.plus(n) if oldest is not None else None
            if month is not None and month not in there | dropped:
                amiss.append(f"{month.partition_of(parent)} is missing, and no drop speaks of it")
    return amiss
