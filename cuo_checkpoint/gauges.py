"""What is read from the database now and then: months ahead, rows, age of the oldest unsealed row.

A scrape never waits for the database: it tells what was read last and, when that is old, has it
read again by a thread of its own. What a role may not see is left out, not told as zero: only an
auditor sees every tenant's seals.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation
from psycopg import sql
from psycopg.rows import dict_row

from cuo_checkpoint import catalog, telemetry
from cuo_checkpoint import telemetry_names as names
from cuo_checkpoint.catalog import MonthTable
from cuo_checkpoint.cuts import SYSTEM_TENANT
from cuo_checkpoint.models import PARTITIONED_TABLES
from cuo_checkpoint.partitions import Month

__all__ = ["FRESH_SECONDS", "Gauges", "Observed", "Point", "observe", "points"]

FRESH_SECONDS: Final = 30.0
"""What was read this recently is told again."""

_PATIENCE_MS: Final = 3000
"""How long the database may take for one statement; a scrape tells the older values meanwhile."""

_EVERYONE: Final[LiteralString] = """
SELECT EXISTS (SELECT FROM pg_policy p, unnest(p.polroles) AS r(role)
               WHERE p.polrelid = to_regclass({runs}) AND p.polname IN ('cuo_auditor_reads', 'cuo_owner_reads')
                 AND pg_has_role(current_user, r.role, 'USAGE')) AS everyone, now() AS now
"""
"""Whether the role sees every tenant; else what follows would be nobody's or one tenant's."""

_UNSEALED: Final[LiteralString] = """
SELECT extract(epoch FROM now() - min(oldest.at))::float8 AS age
FROM (SELECT r.tenant_id, min(r.first_at) AS first_at, max(r.newest_at) AS newest_at
      FROM {runs_table} r GROUP BY 1) AS t
LEFT JOIN LATERAL (SELECT h.sealed_at FROM {heads} h WHERE h.tenant_id = t.tenant_id
                   ORDER BY h.head_no DESC LIMIT 1) AS s ON true
CROSS JOIN LATERAL (SELECT min(a.created_at) AS at FROM {audit} a WHERE a.tenant_id = t.tenant_id
                    AND a.kind = 'cuo.checkpoint_written' AND a.created_at >= t.first_at
                    AND a.created_at > coalesce(s.sealed_at, t.first_at - interval '1 second')) AS oldest
WHERE s.sealed_at IS NULL OR t.newest_at > s.sealed_at
"""
"""Per tenant with rows newer than its newest signed head: the oldest of them."""

_ARCHIVE: Final[LiteralString] = """
SELECT count(*) AS failed FROM {audit} WHERE tenant_id = {system} AND kind = 'cuo.checkpoint_archive_failed'
  AND created_at > now() - interval '2 days'
"""
"""What the archive told of its own failures."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one gauge."""

    metric: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """What one look at the database showed. None: this role may not see it."""

    months_ahead: int | None
    rows: Mapping[str, int]
    seal_age: float | None
    archive_failures: int | None


def observe(dsn: str, *, schema: str = "public", everyone_dsn: str | None = None) -> Observed:
    """Looks once. `everyone_dsn`: a role that sees every tenant's seals, if `dsn` does not.

    Raises the store's errors, StoreUnavailable above all.
    """
    with catalog.catalog(dsn) as conn:
        _hurry(conn)
        now = _one(conn, "SELECT now() AS now")["now"]
        found = catalog.months(conn, schema)
    seal_age, failed = _seen_by_auditors(everyone_dsn or dsn, schema)
    return Observed(_ahead(found, Month.of(now)), _rows(found), seal_age, failed)


def _seen_by_auditors(dsn: str, schema: str) -> tuple[float | None, int | None]:
    def named(table: str) -> sql.Identifier:
        return sql.Identifier(schema, table)

    with catalog.catalog(dsn) as conn:
        _hurry(conn)
        runs = sql.Literal(named("cuo_runs").as_string(None))
        if not conn.execute(sql.SQL(_EVERYONE).format(runs=runs)).fetchone()["everyone"]:  # type: ignore[index]
            return None, None
        parts = {
            "runs_table": named("cuo_runs"),
            "heads": named("cuo_seal_heads"),
            "audit": named("cuo_memory_audit"),
            "system": sql.Literal(str(SYSTEM_TENANT)),
        }
        age = _one(conn, sql.SQL(_UNSEALED).format(**parts))["age"]
        failed = _one(conn, sql.SQL(_ARCHIVE).format(**parts))["failed"]
    return (0.0 if age is None else max(0.0, age)), int(failed)


def _hurry(conn: psycopg.Connection[Any]) -> None:
    conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(_PATIENCE_MS)))


def _one(conn: psycopg.Connection[Any], query: Any) -> dict[str, Any]:
    row = conn.cursor(row_factory=dict_row).execute(query).fetchone()
    return row or {}


def _ahead(found: Sequence[MonthTable], current: Month) -> int:
    """Months ready in every table, counted from the current one without a gap."""
    there = {
        parent: {m.month for m in found if m.parent == parent} for parent in PARTITIONED_TABLES
    }
    ready = 0
    while all(current.plus(ready) in months for months in there.values()):
        ready += 1
    return ready - 1


def _rows(found: Sequence[MonthTable]) -> dict[str, int]:
    return {
        parent: sum(m.rows or 0 for m in found if m.parent == parent)
        for parent in PARTITIONED_TABLES
    }


def points(seen: Observed) -> list[Point]:
    """The values to publish; what this role may not see has none."""
    told = [Point(names.TABLE_ROWS, rows, {"table": table}) for table, rows in seen.rows.items()]
    for metric, value in (
        (names.MONTHS_AHEAD, seen.months_ahead),
        (names.SEAL_AGE, seen.seal_age),
        (names.ARCHIVE_FAILURES, seen.archive_failures),
    ):
        if value is not None:
            told.append(Point(metric, value))
    return told


class Gauges:
    """The store's gauges on a meter provider, by default the global one. Close it at the end.

    `look` reads the database, in a thread; see `observe`. A look that fails is tried again with the
    next scrape, and OBSERVATION_AGE says how old the values told are.
    """

    def __init__(
        self,
        look: Callable[[], Observed],
        *,
        meter_provider: metrics.MeterProvider | None = None,
        fresh_seconds: float = FRESH_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._fresh = fresh_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._looking = False
        self._closed = False
        self._tried = float("-inf")
        self._told: list[Point] = []
        self._at: float | None = None
        meter = (meter_provider or metrics.get_meter_provider()).get_meter("cuo_checkpoint")
        for name, spec in names.METRICS.items():
            if spec.kind == "gauge":
                meter.create_observable_gauge(name, [self._callback(name)], description=spec.says)

    def refresh(self) -> None:
        """Has the database looked at now, unless that is under way or was done just before."""
        with self._lock:
            now = self._monotonic()
            if self._looking or self._closed or now - self._tried < self._fresh:
                return
            self._looking, self._tried = True, now
        threading.Thread(target=self._read, name="cuo-gauges", daemon=True).start()

    def close(self) -> None:
        """No more looks. What was read last is still told, with its age."""
        self._closed = True

    def _read(self) -> None:
        try:
            told = points(self._look())
        except Exception:
            told = None
        with self._lock:
            self._looking = False
            if told is not None:
                self._told, self._at = told, self._monotonic()

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def told(options: CallbackOptions) -> Iterable[Observation]:
            with contextlib.suppress(Exception):
                return [Observation(p.value, dict(p.labels)) for p in self._now(name)]
            return []

        return told

    def _now(self, name: str) -> list[Point]:
        if name in (names.POOL_CONNECTIONS, names.POOL_WAITING):
            return _pools(name)
        self.refresh()
        if name == names.OBSERVATION_AGE:
            return [] if self._at is None else [Point(name, self._monotonic() - self._at)]
        return [point for point in self._told if point.metric == name]


def _pools(name: str) -> list[Point]:
    use = telemetry.pool_use()
    if name == names.POOL_WAITING:
        return [Point(name, n["waiting"], {"pool": pool}) for pool, n in use.items()]
    return [
        Point(name, n[state], {"pool": pool, "state": state})
        for pool, n in use.items()
        for state in ("used", "idle", "max")
    ]
