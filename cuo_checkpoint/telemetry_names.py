"""What the store tells of itself, by name: metrics with their labels, log events, failures.

Dashboards and alert rules hang on these strings; docs/telemetry.md explains each, and a test holds
the two together. Labels come from closed sets: never a tenant, a thread, a run, a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cuo_checkpoint import errors
from cuo_checkpoint.records import CheckpointKind

__all__ = [
    "ARCHIVE_FAILURES", "CONFLICTS", "CONFLICT_KINDS", "EVENTS", "FAILURES", "FAILURES_TOTAL",
    "LEVELS", "METRICS", "MONTHS_AHEAD", "OBSERVATION_AGE", "OPERATIONS", "OUTCOMES",
    "POOL_CONNECTIONS", "POOL_WAITING", "RESUME_RESULTS", "RESUME_TOTAL", "ROWS_WRITTEN",
    "SEAL_AGE", "TABLE_ROWS", "TRACE_MISSING", "WRITE_BUCKETS_MS", "WRITE_LATENCY", "Metric",
    "failure_of",
]  # fmt: skip

WRITE_LATENCY: Final = "cuo_checkpoint_write_latency_ms"
RESUME_TOTAL: Final = "cuo_checkpoint_resume_total"
ROWS_WRITTEN: Final = "cuo_checkpoint_rows_written_total"
CONFLICTS: Final = "cuo_checkpoint_chain_conflicts_total"
TRACE_MISSING: Final = "cuo_checkpoint_trace_id_missing_total"
FAILURES_TOTAL: Final = "cuo_checkpoint_failures_total"
POOL_CONNECTIONS: Final = "cuo_checkpoint_pool_connections"
POOL_WAITING: Final = "cuo_checkpoint_pool_waiting"
MONTHS_AHEAD: Final = "cuo_checkpoint_months_ahead"
TABLE_ROWS: Final = "cuo_checkpoint_table_rows"
SEAL_AGE: Final = "cuo_checkpoint_seal_age_seconds"
ARCHIVE_FAILURES: Final = "cuo_checkpoint_archive_failures"
OBSERVATION_AGE: Final = "cuo_checkpoint_observation_age_seconds"


class Metric(NamedTuple):
    """One metric as published. `kind` is counter, histogram or gauge."""

    kind: str
    labels: tuple[str, ...]
    says: str


METRICS: Final[Mapping[str, Metric]] = {
    WRITE_LATENCY: Metric(
        "histogram",
        ("operation", "outcome"),
        "Time of one writing call, from its begin to its commit, in milliseconds.",
    ),
    RESUME_TOTAL: Metric("counter", ("result",), "Graph runs that asked for their state."),
    ROWS_WRITTEN: Metric("counter", ("kind",), "Log rows committed by this process."),
    CONFLICTS: Metric("counter", ("kind",), "Writes the log refused, for another came first."),
    TRACE_MISSING: Metric("counter", (), "Appends without a trace id; their rows say zeros."),
    FAILURES_TOTAL: Metric("counter", ("failure", "severity"), "Failures of the store."),
    POOL_CONNECTIONS: Metric("gauge", ("pool", "state"), "Connections of this process's pools."),
    POOL_WAITING: Metric("gauge", ("pool",), "Calls that wait for a connection."),
    MONTHS_AHEAD: Metric("gauge", (), "Months ready after the current one; -1: not even that."),
    TABLE_ROWS: Metric("gauge", ("table",), "Rows of a table, as the planner estimates them."),
    SEAL_AGE: Metric("gauge", (), "Age of the oldest chain row that no seal covers, in seconds."),
    ARCHIVE_FAILURES: Metric("gauge", (), "Archive jobs that failed in the last two days."),
    OBSERVATION_AGE: Metric("gauge", (), "Age of the values read from the database, in seconds."),
}

WRITE_BUCKETS_MS: Final = (
    0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 25.0, 50.0, 100.0, 250.0, 1000.0, 5000.0,
)  # fmt: skip
"""Holds the promised 5 ms as an edge, so that it can be read off exactly."""

OPERATIONS: Final[Mapping[str, str]] = {
    "put": "put",
    "put_writes": "put_writes",
    "append_event": "write",
    "claim": "claim",
    "tombstone": "tombstone",
    "copy_thread": "copy_thread",
    "run_ended": "run_end",
}
"""A writing plan's name to the label `operation`. Reading plans have no latency here."""

OUTCOMES: Final = ("ok", "refused", "failed", "cancelled")
RESUME_RESULTS: Final = ("resumed", "loaded", "new", "unreadable", "unavailable", "failed")
CONFLICT_KINDS: Final[Mapping[type[errors.CheckpointError], str]] = {
    errors.CheckpointConflict: "overwrite_refused",
    errors.StaleParent: "stale_parent",
    errors.RunClosed: "run_closed",
    errors.ThreadDeleted: "thread_deleted",
    errors.ParentMissing: "parent_missing",
}
ROW_KINDS: Final = tuple(kind.value for kind in CheckpointKind)

FAILURES: Final[Mapping[str, int]] = {
    "audit_failed": 1,
    "database_lost": 1,
    "schema_not_ready": 1,
    "state_serialise_failed": 1,
    "chain_broken": 1,
    "state_too_large": 2,
    "state_unreadable": 2,
    "write_refused": 2,
    "trace_id_missing": 2,
    "archive_failed": 2,
    "index_disagrees": 2,
    "write_conflict": 3,
}
"""Failures and their severity: 1 wakes someone, 2 today, 3 this week."""

LEVELS: Final[Mapping[int, int]] = {1: 50, 2: 40, 3: 30}
"""Severity to the level of the log event: critical, error, warning."""

EVENTS: Final[Mapping[str, str]] = {
    "store.failure": "a call failed for a reason of the table above",
    "store.trace_id_missing": "a run began without a trace id",
    "archive.finished": "a command of cuo-archive ended",
    "log": "another library's message, scrubbed or left out",
    "remark": "a line written to standard error by something that knows no events",
}

_BY_ERROR: Final[tuple[tuple[type[errors.CheckpointError], str], ...]] = (
    (errors.AuditFailed, "audit_failed"),
    (errors.StoreUnavailable, "database_lost"),
    (errors.SchemaNotReady, "schema_not_ready"),
    (errors.StateTooLarge, "state_too_large"),
    (errors.SerialiseError, "state_serialise_failed"),
    (errors.DeserialiseError, "state_unreadable"),
    (errors.ChainBroken, "chain_broken"),
    (errors.RetentionFailed, "archive_failed"),
    *((kind, "write_conflict") for kind in CONFLICT_KINDS),
    (errors.WriteRefused, "write_refused"),
)


def failure_of(error: BaseException) -> str | None:
    """The failure an error of the store means; None for a caller's mistake and for others' errors."""
    for kind, name in _BY_ERROR:
        if isinstance(error, kind):
            return name
    return None
