"""Dropping months past the floor, legal holds, and runs whose approval has run out.

Every judgement is the database's (migration 0003): these functions ask, repeat and report. The
floor, the holds, the seals and what threads in use still need are checked there, under its locks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from cuo_checkpoint.errors import (
    CheckpointError,
    RetentionFailed,
    RetentionRefused,
    RunUnknown,
    StoreUnavailable,
)
from cuo_checkpoint.partitions import FLOOR_MONTHS, Month
from cuo_checkpoint.translating import checked_conninfo, translated, without_conninfo

__all__ = [
    "DropReport",
    "HoldRecord",
    "MonthFacts",
    "WaitingRun",
    "connected",
    "drop",
    "expired_approvals",
    "holds",
    "place_hold",
    "release_hold",
    "report",
]

Connection = psycopg.Connection[dict[str, Any]]

_REPORT: Final[LiteralString] = "SELECT cuo_retention_report(%s) AS found"
_DROP: Final[LiteralString] = "SELECT cuo_drop_month(%s, %s, %s, %s) AS found"
_FAILED: Final[LiteralString] = "SELECT cuo_archive_failed(%s, %s, %s)"
_HOLD: Final[LiteralString] = "SELECT cuo_hold(%s, %s, %s, %s, %s) AS id"
_HOLDS: Final[LiteralString] = "SELECT * FROM cuo_list_holds(%s)"
_WAITING: Final[LiteralString] = "SELECT * FROM cuo_waiting_runs(%s)"

_TRIES: Final = 30
"""Times the log is asked for; with the pauses between them, about 15 seconds."""

_WAIT_MS: Final = 100
"""How long one try may hold up everybody else. Measured in docs/retention.md."""

_BUSY: Final = ("55P03", "40P01", "40001", "CU011")
"""Somebody else was using the log, or one of the month's runs went on: later will do."""


@dataclass(frozen=True, slots=True)
class MonthFacts:
    """What a month holds; `refusals` are (code, detail) of what forbids dropping it.

    `rows` by table; `size` in bytes with indexes; `status` is due, refused, dropped or absent.
    Codes: young, clock, hold, run, thread, delta, unsealed, uneven, blind, incomplete.
    """

    month: Month
    status: str
    rows: dict[str, int] = field(default_factory=dict)
    size: int = 0
    runs: int = 0
    tenants: int = 0
    newest_row: str | None = None
    refusals: list[tuple[str, str]] = field(default_factory=list)
    locked_ms: float | None = None
    tries: int | None = None

    @classmethod
    def read(cls, found: dict[str, Any]) -> MonthFacts:
        """From what the database's functions return."""
        year, month = str(found["month"]).split("-")
        refusals = [(why["code"], why["detail"]) for why in found["refusals"]]
        return cls(
            Month(int(year), int(month)),
            found.get("status") or ("refused" if refusals else "due"),
            found.get("rows", {}),
            found.get("bytes", 0),
            found.get("runs", 0),
            found.get("tenants", 0),
            found.get("newest_row"),
            refusals,
            found.get("locked_ms"),
            found.get("tries"),
        )

    @property
    def young(self) -> bool:
        """Whether it is not due at all, whatever else would keep it."""
        return any(code == "young" for code, _ in self.refusals)

    def to_json(self) -> dict[str, Any]:
        return {
            "month": str(self.month),
            "status": self.status,
            "rows": self.rows,
            "bytes": self.size,
            "runs": self.runs,
            "tenants": self.tenants,
            "newest_row": self.newest_row,
            "refusals": [{"code": code, "detail": detail} for code, detail in self.refusals],
            "locked_ms": self.locked_ms,
            "tries": self.tries,
        }


@dataclass(frozen=True, slots=True)
class DropReport:
    """The months that were looked at, oldest first, and whether this only looked."""

    dry_run: bool
    older_than_months: int
    months: list[MonthFacts]

    def to_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "older_than_months": self.older_than_months,
            "months": [month.to_json() for month in self.months],
        }


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """A legal hold; `run_id` None means everything of the tenant."""

    tenant_id: uuid.UUID
    hold_id: uuid.UUID
    run_id: uuid.UUID | None
    reason: str
    placed_by: str
    created_at: dt.datetime
    released_at: dt.datetime | None
    release_reason: str | None
    released_by: str | None

    @property
    def in_force(self) -> bool:
        return self.released_at is None


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that waits for an answer which no longer counts."""

    tenant_id: uuid.UUID
    run_id: uuid.UUID
    thread_id: str
    first_at: dt.datetime
    newest_at: dt.datetime


def report(
    dsn: str, *, schema: str = "public", older_than_months: int = FLOOR_MONTHS
) -> list[MonthFacts]:
    """The months that may be due, with what forbids dropping each. Changes nothing.

    Raises RetentionRefused for fewer than 84 months, StoreUnavailable, SchemaNotReady.
    """
    with connected(dsn, schema) as conn:
        rows = conn.execute(_REPORT, [older_than_months]).fetchall()
    return [MonthFacts.read(row["found"]) for row in rows]


def drop(
    dsn: str,
    *,
    schema: str = "public",
    older_than_months: int = FLOOR_MONTHS,
    dry_run: bool = False,
    tries: int = _TRIES,
    wait_ms: int = _WAIT_MS,
    progress: Callable[[MonthFacts], None] = lambda month: None,
) -> DropReport:
    """Drops every month that is due and not refused, oldest first, each in its own transaction.

    Killed at any point it leaves whole months only, and the next call goes on. Called twice or at
    once, each month goes once. A month that fails stops it: RetentionFailed, after the failure was
    told in the system tenant's chain (if the database can still be reached for that).
    """
    found = [
        month
        for month in report(dsn, schema=schema, older_than_months=older_than_months)
        if not month.young
    ]
    if dry_run:
        return DropReport(True, older_than_months, found)
    done: list[MonthFacts] = []
    for month in found:
        if month.status == "due":
            month = _dropped(dsn, schema, month.month, older_than_months, tries, wait_ms)
        progress(month)
        done.append(month)
    return DropReport(False, older_than_months, done)


def place_hold(
    dsn: str,
    tenant_id: uuid.UUID,
    run_id: uuid.UUID | None,
    *,
    reason: str,
    by: str,
    schema: str = "public",
) -> uuid.UUID:
    """Keeps a run, or everything of a tenant, from being dropped. Returns the hold's id.

    Waits for a drop that is under way. Raises RunUnknown when the tenant has no such run, or, where
    none is named, nothing at all.
    """
    try:
        with connected(dsn, schema) as conn:
            row = conn.execute(_HOLD, [tenant_id, run_id, None, reason, by]).fetchone()
    except RunUnknown:
        if run_id is None:
            raise RunUnknown(f"tenant {tenant_id} has nothing in this log") from None
        raise
    return uuid.UUID(str((row or {})["id"]))


def release_hold(
    dsn: str, tenant_id: uuid.UUID, hold_id: uuid.UUID, *, reason: str, by: str, schema: str
) -> uuid.UUID:
    """Ends a hold by a row that says so. Raises RunUnknown when no such hold is in force."""
    with connected(dsn, schema) as conn:
        row = conn.execute(_HOLD, [tenant_id, None, hold_id, reason, by]).fetchone()
    return uuid.UUID(str((row or {})["id"]))


def holds(
    dsn: str, *, tenant_id: uuid.UUID | None = None, schema: str = "public"
) -> list[HoldRecord]:
    """Every hold ever placed, of one tenant or of all, oldest first."""
    with connected(dsn, schema) as conn:
        return [HoldRecord(**row) for row in conn.execute(_HOLDS, [tenant_id])]


def expired_approvals(
    dsn: str, *, schema: str = "public", older_than: dt.timedelta = dt.timedelta(hours=24)
) -> list[WaitingRun]:
    """Waiting runs that began longer ago than this, oldest first, of every tenant."""
    with connected(dsn, schema) as conn:
        return [WaitingRun(**row) for row in conn.execute(_WAITING, [older_than])]


def _dropped(
    dsn: str, schema: str, month: Month, older_than: int, tries: int, wait_ms: int
) -> MonthFacts:
    try:
        with connected(dsn, schema) as conn:
            row = conn.execute(_DROP, [month.start.date(), older_than, tries, wait_ms]).fetchone()
        return MonthFacts.read((row or {})["found"])
    except (CheckpointError, KeyboardInterrupt) as error:
        cause = error.__cause__
        state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
        told = _tell_failure(dsn, schema, month, state or type(error).__name__)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise RetentionFailed(str(month), str(error), busy=state in _BUSY, told=told) from error


def _tell_failure(dsn: str, schema: str, month: Month, error: str) -> bool:
    try:
        with connected(dsn, schema) as conn:
            conn.execute(_FAILED, [month.start.date(), "drop", error])
    except CheckpointError:
        return False
    return True


@contextlib.contextmanager
def connected(dsn: str, schema: str) -> Iterator[Connection]:
    """One connection in autocommit: each call is one transaction, so nothing is half done."""
    conninfo = checked_conninfo(dsn.replace("postgresql+psycopg://", "postgresql://", 1))
    try:
        with psycopg.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=None,
            client_encoding="utf8",
            row_factory=dict_row,
        ) as conn:
            conn.execute(
                sql.SQL(
                    "SELECT set_config('search_path', {}, false),"
                    " set_config('datestyle', 'ISO, YMD', false),"
                    " set_config('default_transaction_isolation', 'read committed', false)"
                ).format(sql.Literal(sql.Identifier(schema).as_string(conn)))
            )
            yield conn
    except psycopg.Error as error:
        state = error.sqlstate
        first_line = (error.diag.message_primary or "").strip()
        if state == "CU010":
            raise RetentionRefused(first_line) from error
        if state == "CU012":
            raise RunUnknown(first_line) from error
        if state in _BUSY:
            raise StoreUnavailable(
                "the log was in use at every try; the next run will do it"
            ) from error
        raise translated(error) from without_conninfo(error)
