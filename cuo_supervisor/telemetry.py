"""Names of spans, attributes and metrics, and the few calls that emit them.

Nothing here can fail a run: what goes wrong in telemetry is counted and forgotten. Labels come
from closed sets, anything else becomes "other"; tenants are never labels. Only the route span
may hold a person's text (`query`); every other span holds names, numbers and ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from typing import Final, TypeVar, get_args

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from cuo_supervisor.core.models import Outcome, PathTaken
from cuo_supervisor.core.operations import OPERATIONS
from cuo_supervisor.core.personas import PERSONAS
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
    "ATTR_CASCADE_OUTCOME",
    "ATTR_CONFIDENCE",
    "ATTR_DRY_RUN",
    "ATTR_ERROR_TYPE",
    "ATTR_LLM_USED",
    "ATTR_OUTCOME",
    "ATTR_PATH_TAKEN",
    "ATTR_PERSONA_KEY",
    "ATTR_QUERY",
    "ATTR_REQUEST_ID",
    "ATTR_SUBJECT_ID_HASH16",
    "ATTR_TENANT_ID",
    "CASCADE_LABELS",
    "METRIC_CASCADE_TOTAL",
    "METRIC_DESTRUCTIVE_TOTAL",
    "METRIC_PERSONA_DEFER_TOTAL",
    "METRIC_ROUTE_LATENCY_MS",
    "METRIC_ROUTE_TOTAL",
    "NODES",
    "NO_TRACE",
    "SPAN_DRY_RUN",
    "SPAN_NODE_PREFIX",
    "SPAN_ROUTE",
    "RouteSpan",
    "Telemetry",
    "TraceIds",
    "current_traceparent",
    "default",
    "new_trace",
    "node_span",
    "parse_traceparent",
    "route_span",
    "trace_id_hex",
    "traceparent_of",
]

SPAN_ROUTE: Final = "cuo.supervisor.route"
SPAN_NODE_PREFIX: Final = "cuo.supervisor.node."
SPAN_DRY_RUN: Final = "cuo.dry_run"
NODES: Final = ("parse", "rule_score", "branch", "llm_cascade", "invoke", "record")

ATTR_TENANT_ID: Final = "tenant_id"
ATTR_SUBJECT_ID_HASH16: Final = "subject_id_hash16"
ATTR_PERSONA_KEY: Final = "persona_key"
ATTR_PATH_TAKEN: Final = "path_taken"
ATTR_CONFIDENCE: Final = "confidence"
ATTR_LLM_USED: Final = "llm_used"
ATTR_OUTCOME: Final = "outcome"
ATTR_REQUEST_ID: Final = "request_id"
ATTR_QUERY: Final = "query"
ATTR_CASCADE_OUTCOME: Final = "cascade_outcome"
ATTR_DRY_RUN: Final = "dry_run"
ATTR_ERROR_TYPE: Final = "error.type"

METRIC_ROUTE_TOTAL: Final = "cuo_supervisor_route_total"
METRIC_ROUTE_LATENCY_MS: Final = "cuo_supervisor_route_latency_ms"
METRIC_CASCADE_TOTAL: Final = "cuo_supervisor_llm_cascade_total"
METRIC_PERSONA_DEFER_TOTAL: Final = "cuo_supervisor_persona_defer_blocks_total"
METRIC_DESTRUCTIVE_TOTAL: Final = "cuo_supervisor_destructive_block_total"

CASCADE_LABELS: Final[Mapping[str, str]] = {
    "success": "success",
    "timeout": "timeout",
    "schema_violation": "schema_violation",
    "unknown_skill": "schema_violation",
    "bad_arguments": "schema_violation",
    "gateway_error": "gateway_error",
    "gateway_unreachable": "gateway_error",
    "residency_denied": "gateway_error",
    "budget_exceeded": "gateway_error",
    "not_ready": "gateway_error",
}
"""Ten outcomes of a cascade to the metric's four; the route span holds the precise one."""

_OTHER: Final = "other"
_SCOPE: Final = "cuo_supervisor"
_OUTCOMES: Final = frozenset(get_args(Outcome))
_PATHS: Final = frozenset(get_args(PathTaken))
_PERSONA_LABELS: Final = {
    name: persona.short for persona in PERSONAS.values() for name in (persona.short, persona.key)
}
_BUCKETS_MS: Final = (
    1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 250.0, 500.0,
    1000.0, 2000.0, 3000.0, 3500.0, 5000.0, 10000.0,
)  # fmt: skip
"""Holds each promised limit (30, 50, 3500 ms) as an edge, so that it can be read off exactly."""
_SKILLS_MAX: Final = 256
"""Distinct skill labels in one process. A catalogue is far smaller; this bounds a mistake."""

_T = TypeVar("_T")


class RouteSpan:
    """What is known of a request so far. Set it as it becomes known; it is emitted at the end."""

    def __init__(self, ids: TraceIds, span: Span) -> None:
        self.ids = ids
        self.outcome: str | None = None
        self.path_taken: str | None = None
        self.confidence: float | None = None
        self.llm_used: bool = False
        self.cascade_outcome: str | None = None
        self._span = span

    @property
    def trace_id(self) -> str:
        return self.ids.trace_id

    @property
    def traceparent(self) -> str:
        """For calls made on behalf of the request as a whole."""
        return traceparent_of(self._span.get_span_context()) or self.ids.traceparent

    def attributes(self) -> dict[str, str | float | bool]:
        known = {
            ATTR_OUTCOME: self.outcome,
            ATTR_PATH_TAKEN: self.path_taken,
            ATTR_CONFIDENCE: self.confidence,
            ATTR_LLM_USED: self.llm_used,
            ATTR_CASCADE_OUTCOME: self.cascade_outcome,
        }
        return {name: value for name, value in known.items() if value is not None}


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
        """The span of one request, and its counter and latency when it ends.

        It continues the caller's trace, or is the root of the minted one. An exception sets
        the outcome when the body has not, leaves its type (never its text), and passes on.
        A dry run has a `cuo.dry_run` span inside and is not counted.
        """
        attributes: dict[str, str | int | float | bool] = {
            ATTR_REQUEST_ID: request_id,
            ATTR_TENANT_ID: tenant_id,
            ATTR_SUBJECT_ID_HASH16: subject_id_hash16,
            ATTR_PERSONA_KEY: persona_key,
            ATTR_DRY_RUN: dry_run,
        }
        if query is not None:
            attributes[ATTR_QUERY] = query
        span = self._start(SPAN_ROUTE, attributes, ids)
        record = RouteSpan(ids, span)
        began = time.perf_counter()
        try:
            with self._current(span):
                if dry_run:
                    with self._inner(SPAN_DRY_RUN, {ATTR_REQUEST_ID: request_id}):
                        yield record
                else:
                    yield record
        except BaseException as error:
            record.outcome = record.outcome or _outcome_of(error)
            self._mark_failed(span, error)
            raise
        finally:
            elapsed_ms = (time.perf_counter() - began) * 1000.0
            self._safely(lambda: span.set_attributes(record.attributes()), None)
            if not dry_run:
                self._count_route(record, persona_key, elapsed_ms)
            self._safely(span.end, None)

    @contextmanager
    def node_span(
        self, node: str, attributes: Mapping[str, str | int | float | bool] | None = None
    ) -> Iterator[Span]:
        """The span of one node, under whatever span is in force. Keep text out of it."""
        with self._inner(SPAN_NODE_PREFIX + node, attributes or {}) as span:
            yield span

    def cascade(self, outcome: str) -> None:
        """Count one model cascade by its outcome."""
        self._add(METRIC_CASCADE_TOTAL, {"outcome": CASCADE_LABELS.get(outcome, _OTHER)})

    def persona_defer_block(self, persona_key: str, operation: str) -> None:
        """Count one refusal by a persona's matrix."""
        known = operation if operation in OPERATIONS else _OTHER
        labels = {"persona": _PERSONA_LABELS.get(persona_key, _OTHER), "operation": known}
        self._add(METRIC_PERSONA_DEFER_TOTAL, labels)

    def destructive_block(self, skill: str) -> None:
        """Count one stop of a destructive skill. `skill` is a catalogue's name@version."""
        if skill not in self._skills and len(self._skills) < _SKILLS_MAX:
            self._skills.add(skill)
        label = skill if skill in self._skills else _OTHER
        self._add(METRIC_DESTRUCTIVE_TOTAL, {"skill": label})

    def _count_route(self, record: RouteSpan, persona_key: str, elapsed_ms: float) -> None:
        path = record.path_taken if record.path_taken in _PATHS else _OTHER
        labels = {
            "outcome": record.outcome if record.outcome in _OUTCOMES else _OTHER,
            "persona": _PERSONA_LABELS.get(persona_key, _OTHER),
            "path_taken": path,
        }
        self._add(METRIC_ROUTE_TOTAL, {name: str(value) for name, value in labels.items()})

        def observe() -> None:
            histogram = self._instrument(METRIC_ROUTE_LATENCY_MS)
            if isinstance(histogram, metrics.Histogram):
                histogram.record(elapsed_ms, {"path_taken": str(path)})

        self._safely(observe, None)

    def _add(self, name: str, labels: Mapping[str, str]) -> None:
        def add() -> None:
            counter = self._instrument(name)
            if isinstance(counter, metrics.Counter):
                counter.add(1, labels)

        self._safely(add, None)

    def _instrument(self, name: str) -> metrics.Counter | metrics.Histogram:
        found = self._instruments.get(name)
        if found is None:
            provider = self._meter_provider or metrics.get_meter_provider()
            meter = provider.get_meter(_SCOPE)
            if name == METRIC_ROUTE_LATENCY_MS:
                # No unit: exporters to Prometheus would append "_milliseconds" to the name.
                found = meter.create_histogram(
                    name,
                    description="Time from entry to answer, in milliseconds.",
                    explicit_bucket_boundaries_advisory=_BUCKETS_MS,
                )
            else:
                found = meter.create_counter(name, description=_DESCRIPTIONS[name])
            self._instruments[name] = found
        return found

    @contextmanager
    def _inner(
        self, name: str, attributes: Mapping[str, str | int | float | bool]
    ) -> Iterator[Span]:
        span = self._start(name, attributes, None)
        try:
            with self._current(span):
                yield span
        except BaseException as error:
            self._mark_failed(span, error)
            raise
        finally:
            self._safely(span.end, None)

    def _start(
        self, name: str, attributes: Mapping[str, str | int | float | bool], ids: TraceIds | None
    ) -> Span:
        def start() -> Span:
            provider = self._tracer_provider or trace.get_tracer_provider()
            parent: Context | None = None
            if ids is not None:
                minting = getattr(getattr(provider, "id_generator", None), "minting", None)
                if not ids.remote and minting is not None:
                    # Our own generator can make the span the minted ids speak of: a true root.
                    with minting(ids):
                        return provider.get_tracer(_SCOPE).start_span(
                            name, Context(), attributes=attributes
                        )
                parent = _holding(ids)
            return provider.get_tracer(_SCOPE).start_span(name, parent, attributes=attributes)

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
            span.set_attribute(ATTR_ERROR_TYPE, type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))

        self._safely(mark, None)

    def _safely(self, act: Callable[[], _T], fallback: _T) -> _T:
        try:
            return act()
        except Exception:
            self.failures += 1
            return fallback


_DESCRIPTIONS: Final = {
    METRIC_ROUTE_TOTAL: "Requests routed, by outcome, persona and path.",
    METRIC_CASCADE_TOTAL: "Model cascades, by outcome.",
    METRIC_PERSONA_DEFER_TOTAL: "Refusals by a persona's matrix, by persona and operation.",
    METRIC_DESTRUCTIVE_TOTAL: "Destructive skills stopped for approval, by skill.",
}
_BY_ERROR: Final = {
    "persona_mismatch": "persona_mismatch",
    "persona_version_mismatch": "persona_mismatch",
    "persona_unknown": "unknown_persona",
}


def _outcome_of(error: BaseException) -> str:
    return _BY_ERROR.get(str(getattr(error, "error", "")), _OTHER)


def _holding(ids: TraceIds) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(ids.span_context()), Context())


default: Final = Telemetry()
"""The process's own, on the global providers."""

route_span = default.route_span
node_span = default.node_span
