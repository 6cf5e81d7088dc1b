"""The calls that emit spans, metrics and the log event of a request. Names are in `telemetry_names`.

Nothing here can fail a run: what goes wrong in telemetry is counted and forgotten. Only the route
span may hold a person's text (`query`); every other span, label and log event holds names, numbers
and ids.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from typing import Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from cuo_supervisor import telemetry_names as names
from cuo_supervisor.route_record import CURRENT, RouteSpan, labels_of, log_context, log_end
from cuo_supervisor.telemetry_names import (
    ATTR_CASCADE_OUTCOME,
    ATTR_CONFIDENCE,
    ATTR_DROPPED_CANDIDATES,
    ATTR_DRY_RUN,
    ATTR_ERROR_TYPE,
    ATTR_FAILURE,
    ATTR_GATE,
    ATTR_LLM_ATTEMPTS,
    ATTR_LLM_USED,
    ATTR_OUTCOME,
    ATTR_PATH_TAKEN,
    ATTR_PERSONA_KEY,
    ATTR_QUERY,
    ATTR_REASON,
    ATTR_REQUEST_ID,
    ATTR_SEVERITY,
    ATTR_SKILL_NAME,
    ATTR_SUBJECT_ID_HASH16,
    ATTR_TENANT_ID,
    CASCADE_LABELS,
    METRIC_CASCADE_TOTAL,
    METRIC_DESTRUCTIVE_TOTAL,
    METRIC_FAILURES_TOTAL,
    METRIC_PERSONA_DEFER_TOTAL,
    METRIC_ROUTE_LATENCY_MS,
    METRIC_ROUTE_TOTAL,
    NODES,
    SPAN_DRY_RUN,
    SPAN_NODE_PREFIX,
    SPAN_ROUTE,
)
from cuo_supervisor.trace_context import (
    NO_TRACE,
    TraceIds,
    current_traceparent,
    new_trace,
    parse_traceparent,
    trace_id_hex,
    traceparent_of,
)

__all__ = [
    "ATTR_CASCADE_OUTCOME", "ATTR_CONFIDENCE", "ATTR_DROPPED_CANDIDATES", "ATTR_DRY_RUN",
    "ATTR_ERROR_TYPE", "ATTR_FAILURE", "ATTR_GATE", "ATTR_LLM_ATTEMPTS", "ATTR_LLM_USED",
    "ATTR_OUTCOME", "ATTR_PATH_TAKEN", "ATTR_PERSONA_KEY", "ATTR_QUERY", "ATTR_REASON",
    "ATTR_REQUEST_ID", "ATTR_SEVERITY", "ATTR_SKILL_NAME", "ATTR_SUBJECT_ID_HASH16",
    "ATTR_TENANT_ID", "CASCADE_LABELS", "METRIC_CASCADE_TOTAL", "METRIC_DESTRUCTIVE_TOTAL",
    "METRIC_FAILURES_TOTAL", "METRIC_PERSONA_DEFER_TOTAL", "METRIC_ROUTE_LATENCY_MS",
    "METRIC_ROUTE_TOTAL", "NODES", "NO_TRACE", "SPAN_DRY_RUN", "SPAN_NODE_PREFIX", "SPAN_ROUTE",
    "RouteSpan", "Telemetry", "TraceIds", "current_traceparent", "default", "log_context",
    "new_trace", "node_span", "parse_traceparent", "route_span", "trace_id_hex", "traceparent_of",
]  # fmt: skip

_SCOPE: Final = "cuo_supervisor"
_PERSONA_CHARS: Final = 64
"""A persona key is at most 30 characters; what is longer is no key, and not worth keeping."""

_T = TypeVar("_T")
_Value = str | int | float | bool


class Telemetry:
    """Emits to the given providers, by default to the global ones, found when first needed."""

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._instruments: dict[str, metrics.Counter | metrics.Histogram] = {}
        self._skills: set[str] = set()
        self.failures = 0
        """Times that telemetry itself went wrong. Approximate under threads."""

    @contextmanager
    def route_span(
        self,
        ids: TraceIds,
        *,
        request_id: str,
        tenant_id: str,
        subject_id_hash16: str,
        persona_key: str,
        query: str | None = None,
        dry_run: bool = False,
    ) -> Iterator[RouteSpan]:
        """The span of one request, and its counter, latency and log event when it ends.

        It continues the caller's trace, or is the root of the minted one. An exception sets
        the outcome when the body has not, leaves its type (never its text), and passes on.
        A dry run has a `cuo.dry_run` span inside and is not counted.
        """
        attributes: dict[str, _Value] = {
            ATTR_REQUEST_ID: request_id,
            ATTR_TENANT_ID: tenant_id,
            ATTR_SUBJECT_ID_HASH16: subject_id_hash16,
            ATTR_PERSONA_KEY: persona_key[:_PERSONA_CHARS],
            ATTR_DRY_RUN: dry_run,
        }
        if query is not None:
            attributes[ATTR_QUERY] = query
        span = self._start(SPAN_ROUTE, attributes, ids)
        record = RouteSpan(ids, span, request_id)
        held = CURRENT.set(record)
        began = time.perf_counter()
        caught: BaseException | None = None
        try:
            with self._current(span):
                if dry_run:
                    with self._inner(SPAN_DRY_RUN, {ATTR_REQUEST_ID: request_id}):
                        yield record
                else:
                    yield record
        except BaseException as error:
            caught = error
            record.outcome = record.outcome or names.outcome_of_error(error)
            self._mark_failed(span, error)
            raise
        finally:
            elapsed_ms = (time.perf_counter() - began) * 1000.0
            self._safely(lambda: self._conclude(record, caught), None)
            self._safely(lambda: span.set_attributes(_clean(record.attributes())), None)
            if not dry_run:
                self._count_route(record, persona_key, elapsed_ms)
            self._safely(span.end, None)
            self._safely(
                lambda: log_end(record, persona_key, elapsed_ms, dry_run=dry_run, error=caught),
                None,
            )
            with contextlib.suppress(ValueError):  # closed in another context than it was opened in
                CURRENT.reset(held)

    @contextmanager
    def node_span(
        self, node: str, attributes: Mapping[str, _Value] | None = None
    ) -> Iterator[Span]:
        """The span of one node, under whatever span is in force. Keep text out of it."""
        with self._inner(SPAN_NODE_PREFIX + node, attributes or {}) as span:
            yield span

    def note(self, **attributes: _Value | None) -> None:
        """Adds names and numbers to the span in force. Keep text out of it."""
        known = {name: value for name, value in attributes.items() if value is not None}
        self._safely(lambda: trace.get_current_span().set_attributes(_clean(known)), None)

    def failure(self, name: str) -> None:
        """Notes a failure of the table: on the span in force, on the request, in the counter."""
        severity = names.FAILURES[name]
        route = CURRENT.get()
        if route is not None:
            route.failures.append(name)
        self.note(failure=name, severity=severity)
        self._add(METRIC_FAILURES_TOTAL, {"failure": name, "severity": str(severity)})

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Counts what an exception means where no request's span is open."""
        try:
            yield
        except Exception as error:
            name = names.failure_of_error(error)
            if name is not None and CURRENT.get() is None:
                self.failure(name)
            raise

    def cascade(self, outcome: str) -> None:
        """Count one model cascade by its outcome."""
        self.note(cascade_outcome=outcome if outcome in CASCADE_LABELS else names.OTHER)
        if outcome in names.CASCADE_FAILURES:
            self.failure(names.CASCADE_FAILURES[outcome])
        self._add(METRIC_CASCADE_TOTAL, {"outcome": CASCADE_LABELS.get(outcome, names.OTHER)})

    def persona_defer_block(self, persona_key: str, operation: str) -> None:
        """Count one refusal by a persona's matrix."""
        labels = {
            "persona": names.persona_label(persona_key),
            "operation": names.operation_label(operation),
        }
        self._add(METRIC_PERSONA_DEFER_TOTAL, labels)

    def destructive_block(self, skill: str) -> None:
        """Count one stop of a destructive skill. `skill` is a catalogue's name@version."""
        if skill not in self._skills and len(self._skills) < names.SKILLS_MAX:
            self._skills.add(skill)
        label = skill if skill in self._skills else names.OTHER
        self._add(METRIC_DESTRUCTIVE_TOTAL, {"skill": label})

    def span_dropped(self) -> None:
        """Count one span that the sampler could not hold."""
        self._add(names.METRIC_SPANS_DROPPED_TOTAL, {})

    def start_at_zero(self) -> None:
        """Makes the counters that alerts look at appear now, or their first count looks like none."""
        for name, severity in names.FAILURES.items():
            self._add(METRIC_FAILURES_TOTAL, {"failure": name, "severity": str(severity)}, 0)
        for label in sorted(set(CASCADE_LABELS.values())):
            self._add(METRIC_CASCADE_TOTAL, {"outcome": label}, 0)

    def _conclude(self, record: RouteSpan, error: BaseException | None) -> None:
        failure = (
            names.failure_of(record.outcome, record.reason)
            if error is None
            else names.failure_of_error(error)
        )
        if failure is not None:
            self.failure(failure)

    def _count_route(self, record: RouteSpan, persona_key: str, elapsed_ms: float) -> None:
        labels = labels_of(record, persona_key)
        self._add(METRIC_ROUTE_TOTAL, labels)

        def observe() -> None:
            histogram = self._instrument(METRIC_ROUTE_LATENCY_MS)
            if isinstance(histogram, metrics.Histogram):
                histogram.record(elapsed_ms, {"path_taken": labels["path_taken"]})

        self._safely(observe, None)

    def _add(self, name: str, labels: Mapping[str, str], amount: int = 1) -> None:
        def add() -> None:
            counter = self._instrument(name)
            if isinstance(counter, metrics.Counter):
                counter.add(amount, labels)

        self._safely(add, None)

    def _instrument(self, name: str) -> metrics.Counter | metrics.Histogram:
        found = self._instruments.get(name)
        if found is None:
            provider = self._meter_provider or metrics.get_meter_provider()
            meter = provider.get_meter(_SCOPE)
            spec = names.METRICS[name]
            if spec.kind == "histogram":
                # No unit: exporters to Prometheus would append "_milliseconds" to the name.
                found = meter.create_histogram(
                    name,
                    description=spec.says,
                    explicit_bucket_boundaries_advisory=names.ROUTE_BUCKETS_MS,
                )
            else:
                found = meter.create_counter(name, description=spec.says)
            self._instruments[name] = found
        return found

    @contextmanager
    def _inner(self, name: str, attributes: Mapping[str, _Value]) -> Iterator[Span]:
        span = self._start(name, attributes, None)
        try:
            with self._current(span):
                yield span
        except BaseException as error:
            self._mark_failed(span, error)
            raise
        finally:
            self._safely(span.end, None)

    def _start(self, name: str, attributes: Mapping[str, _Value], ids: TraceIds | None) -> Span:
        def start() -> Span:
            provider = self._tracer_provider or trace.get_tracer_provider()
            clean = _clean(attributes)
            parent: Context | None = None
            if ids is not None:
                minting = getattr(getattr(provider, "id_generator", None), "minting", None)
                if not ids.remote and minting is not None:
                    # Our own generator can make the span the minted ids speak of: a true root.
                    with minting(ids):
                        return provider.get_tracer(_SCOPE).start_span(
                            name, Context(), attributes=clean
                        )
                parent = trace.set_span_in_context(
                    trace.NonRecordingSpan(ids.span_context()), Context()
                )
            return provider.get_tracer(_SCOPE).start_span(name, parent, attributes=clean)

        fallback: Span = trace.INVALID_SPAN
        if ids is not None:
            fallback = trace.NonRecordingSpan(ids.span_context())
        return self._safely(start, fallback)

    @contextmanager
    def _current(self, span: Span) -> Iterator[None]:
        """Make the span the one in force; an invalid one leaves things as they are."""
        token: Token[Context] | None = None
        if span.get_span_context().is_valid:
            attach = otel_context.attach
            token = self._safely(lambda: attach(trace.set_span_in_context(span)), None)
        try:
            yield
        finally:
            if token is not None:
                held = token
                self._safely(lambda: otel_context.detach(held), None)

    def _mark_failed(self, span: Span, error: BaseException) -> None:
        def mark() -> None:
            # A run that waits for a person leaves its node by an exception, and nothing is wrong.
            if any(kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__):
                return
            span.set_attribute(ATTR_ERROR_TYPE, type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))

        self._safely(mark, None)

    def _safely(self, act: Callable[[], _T], fallback: _T) -> _T:
        try:
            return act()
        except Exception:
            self.failures += 1
            return fallback


def _clean(attributes: Mapping[str, _Value]) -> dict[str, _Value]:
    """Values every exporter can send: one lone surrogate would lose a whole batch of spans."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in attributes.items()
    }


default: Final = Telemetry()
"""The process's own, on the global providers."""

route_span = default.route_span
node_span = default.node_span
