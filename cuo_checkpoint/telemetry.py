"""Counts and times what the store does, through the OpenTelemetry API alone.

Without an SDK a call costs a microsecond and a plan runs as it is. Nothing here can fail a call:
what goes wrong in telemetry is swallowed. Names and labels are in `telemetry_names`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from opentelemetry import metrics

from cuo_checkpoint import errors, ids
from cuo_checkpoint import telemetry_names as names
from cuo_checkpoint.db import Plan

__all__ = [
    "RESUME", "StoreTelemetry", "Watch", "current", "pool_use", "using", "watch", "watch_pools",
]  # fmt: skip

T = TypeVar("T")

RESUME: Final = "resume"
"""Marks the call by which a graph's run asks for its state."""

_SCOPE: Final = "cuo_checkpoint"
_log: Final = logging.getLogger("cuo_checkpoint")
_log.addHandler(logging.NullHandler())  # silent until an entry point sets logging up


class StoreTelemetry:
    """The store's instruments on the given provider, by default the global one, made when needed."""

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        self._provider = meter_provider
        self._instruments: dict[str, metrics.Counter | metrics.Histogram] = {}
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        """Whether anybody listens: the API's own providers forget what they are told."""
        provider = self._provider or metrics.get_meter_provider()
        return not type(provider).__module__.startswith("opentelemetry.metrics")

    def start_at_zero(self) -> None:
        """Makes the counters that alerts look at appear now, or their first count looks like none."""
        for failure, severity in names.FAILURES.items():
            labels = {"failure": failure, "severity": str(severity)}
            self._add(names.FAILURES_TOTAL, labels, 0)
        for kind in names.CONFLICT_KINDS.values():
            self._add(names.CONFLICTS, {"kind": kind}, 0)
        self._add(names.TRACE_MISSING, {}, 0)

    def wrote(self, operation: str, outcome: str, elapsed_ms: float) -> None:
        """One writing call is over."""
        with contextlib.suppress(Exception):
            histogram = self._instrument(names.WRITE_LATENCY)
            if isinstance(histogram, metrics.Histogram):
                histogram.record(elapsed_ms, {"operation": operation, "outcome": outcome})

    def resumed(self, result: str) -> None:
        """A graph's run asked for its state."""
        self._add(names.RESUME_TOTAL, {"result": result})

    def appended(self, append: Any) -> None:
        """An append is committed: its rows count by kind, and a missing trace id is told."""
        try:
            for kind, rows in Counter(str(event.kind.value) for event in append.events).items():
                self._add(names.ROWS_WRITTEN, {"kind": kind}, rows)
            if append.run[1] == ids.ZERO_TRACE:
                self._add(names.TRACE_MISSING, {})
                if any(event.kind == "run_started" for event in append.events):
                    self.failure("trace_id_missing")
                    _tell("store.trace_id_missing", "trace_id_missing", append.run)
        except Exception:
            return

    def failed(self, error: BaseException, run: tuple[Any, str] | None) -> None:
        """A call ended in this error, which the caller gets all the same."""
        conflict = names.CONFLICT_KINDS.get(type(error))  # type: ignore[arg-type]
        if conflict is not None:
            self._add(names.CONFLICTS, {"kind": conflict})
        failure = names.failure_of(error)
        if failure is not None:
            self.failure(failure)
            _tell("store.failure", failure, run, error=type(error).__name__)

    def failure(self, name: str) -> None:
        """Counts one failure of the table."""
        labels = {"failure": name, "severity": str(names.FAILURES[name])}
        self._add(names.FAILURES_TOTAL, labels)

    def _add(self, name: str, labels: Mapping[str, str], amount: int = 1) -> None:
        with contextlib.suppress(Exception):
            counter = self._instrument(name)
            if isinstance(counter, metrics.Counter):
                counter.add(amount, labels)

    def _instrument(self, name: str) -> metrics.Counter | metrics.Histogram:
        found = self._instruments.get(name)
        if found is None:
            with self._lock:
                meter = (self._provider or metrics.get_meter_provider()).get_meter(_SCOPE)
                spec = names.METRICS[name]
                if spec.kind == "histogram":
                    # No unit: exporters to Prometheus would append it to the published name.
                    found = meter.create_histogram(
                        name,
                        description=spec.says,
                        explicit_bucket_boundaries_advisory=names.WRITE_BUCKETS_MS,
                    )
                else:
                    found = meter.create_counter(name, description=spec.says)
                self._instruments[name] = found
        return found


class Watch:
    """One call into the store: how long it took, how it ended, what it committed."""

    __slots__ = ("_began", "_on", "_operation", "_result", "_run", "_telemetry")

    def __init__(self, telemetry: StoreTelemetry, operation: str) -> None:
        self._telemetry = telemetry
        self._operation = operation
        self._on = telemetry.active
        self._result: str | None = None
        self._run: tuple[Any, str] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on:
            label = names.OPERATIONS.get(self._operation)
            if label is not None:
                elapsed_ms = (time.perf_counter() - self._began) * 1000.0
                self._telemetry.wrote(label, _outcome(error), elapsed_ms)
            if self._result is not None:
                self._telemetry.resumed(self._result if error is None else _unresumed(error))
        if error is not None:
            self._telemetry.failed(error, self._run)

    def over(self, plan: Plan[T]) -> Plan[T]:
        """The same plan; while somebody listens, what its calls commit is counted."""
        return self._counted(plan) if self._on else plan

    def _counted(self, plan: Plan[T]) -> Plan[T]:
        try:
            step = next(plan)
            while True:
                about = getattr(step, "about", None)
                appends = () if about is None or about == RESUME else _listed(about)
                if appends:
                    self._run = appends[0].run
                try:
                    rows = yield step
                except BaseException as error:
                    if about == RESUME:
                        self._result = "failed"
                    step = plan.throw(error)
                    continue
                if about == RESUME:
                    self._result = _found(rows)
                elif appends and rows[0][0] != "duplicate":
                    for append in appends:
                        self._telemetry.appended(append)
                step = plan.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            plan.close()


def _listed(about: Any) -> Sequence[Any]:
    return about if isinstance(about, Sequence) else (about,)


def _found(rows: Any) -> str:
    """What a run found: `GET` gives the checkpoint's id first and the open run eighth."""
    if rows[0][0] is None:
        return "new"
    return "resumed" if rows[0][7] else "loaded"


def _unresumed(error: BaseException) -> str:
    if isinstance(error, errors.DeserialiseError):
        return "unreadable"
    if isinstance(error, (errors.StoreUnavailable, errors.SchemaNotReady)):
        return "unavailable"
    return "failed"


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, (errors.StoreUnavailable, errors.SchemaNotReady, errors.AuditFailed)):
        return "failed"
    return "refused" if isinstance(error, errors.CheckpointError) else "failed"


def _tell(event: str, failure: str, run: tuple[Any, str] | None, **fields: Any) -> None:
    severity = names.FAILURES[failure]
    said: dict[str, Any] = {"failure": failure, "severity": severity, **fields}
    if run is not None:
        said |= {"run_id": str(run[0]), "trace_id": run[1]}
    with contextlib.suppress(Exception):
        _log.log(names.LEVELS[severity], event, extra={"event": event, "fields": said})


_current: StoreTelemetry = StoreTelemetry()


def current() -> StoreTelemetry:
    """The process's own."""
    return _current


@contextlib.contextmanager
def using(telemetry: StoreTelemetry) -> Iterator[StoreTelemetry]:
    """Makes another one the process's own for a while: the global provider can be set only once."""
    global _current
    before, _current = _current, telemetry
    try:
        yield telemetry
    finally:
        _current = before


def watch(plan: Plan[Any]) -> Watch:
    """Watches one call, whose plan's name says which."""
    return Watch(_current, getattr(plan, "__name__", ""))


class _Driver(Protocol):
    def pools(self) -> Sequence[Any]: ...


_drivers: Final[dict[str, weakref.WeakSet[_Driver]]] = {
    "sync": weakref.WeakSet(),
    "async": weakref.WeakSet(),
}


def watch_pools(blocking: _Driver, awaiting: _Driver) -> None:
    """Counts a store's connections in the pool gauges for as long as it lives."""
    _drivers["sync"].add(blocking)
    _drivers["async"].add(awaiting)


def pool_use() -> dict[str, dict[str, int]]:
    """Connections by kind of pool: used, idle, max, and the calls that wait for one."""
    found: dict[str, dict[str, int]] = {}
    for kind, drivers in _drivers.items():
        total = found[kind] = {"used": 0, "idle": 0, "max": 0, "waiting": 0}
        for driver in list(drivers):
            for pool in driver.pools():
                stats = pool.get_stats()
                idle, size = stats.get("pool_available", 0), stats.get("pool_size", 0)
                total["used"] += max(0, size - idle)
                total["idle"] += idle
                total["max"] += stats.get("pool_max", 0)
                total["waiting"] += stats.get("requests_waiting", 0)
    return found
