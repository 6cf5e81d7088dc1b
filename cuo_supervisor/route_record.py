"""What is known of one request: its span's attributes, its labels, its log event."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span
from ulid import ULID

from cuo_supervisor import telemetry_names as names
from cuo_supervisor.trace_context import TraceIds, traceparent_of

__all__ = ["CURRENT", "RouteSpan", "labels_of", "log_context", "log_end"]

_log: Final = logging.getLogger("cuo_supervisor")
_log.addHandler(logging.NullHandler())  # silent until an entry point sets logging up


class RouteSpan:
    """What is known of a request so far. Set it as it becomes known; it is emitted at the end."""

    def __init__(self, ids: TraceIds, span: Span, request_id: str = "") -> None:
        self.ids = ids
        self.request_id = request_id
        self.outcome: str | None = None
        self.path_taken: str | None = None
        self.confidence: float | None = None
        self.llm_used: bool = False
        self.reason: str | None = None
        self.cascade_outcome: str | None = None
        self.failures: list[str] = []
        self._span = span

    @property
    def trace_id(self) -> str:
        return self.ids.trace_id

    @property
    def run_id(self) -> str:
        """The request's ULID as the UUID that rows and logs name."""
        try:
            return str(ULID.from_str(self.request_id).to_uuid())
        except ValueError:
            return self.request_id

    @property
    def traceparent(self) -> str:
        """For calls made on behalf of the request as a whole."""
        return traceparent_of(self._span.get_span_context()) or self.ids.traceparent

    @property
    def failure(self) -> str | None:
        """The worst failure so far; of equal ones the first."""
        return min(self.failures, key=names.FAILURES.__getitem__, default=None)

    @property
    def severity(self) -> int | None:
        return names.FAILURES[self.failure] if self.failure is not None else None

    def attributes(self) -> dict[str, str | float | bool]:
        known = {
            names.ATTR_OUTCOME: self.outcome,
            names.ATTR_PATH_TAKEN: self.path_taken,
            names.ATTR_CONFIDENCE: self.confidence,
            names.ATTR_LLM_USED: self.llm_used,
            names.ATTR_REASON: self.reason,
            names.ATTR_CASCADE_OUTCOME: self.cascade_outcome,
            names.ATTR_FAILURE: self.failure,
            names.ATTR_SEVERITY: self.severity,
        }
        return {name: value for name, value in known.items() if value is not None}


CURRENT: Final[ContextVar[RouteSpan | None]] = ContextVar("cuo_route", default=None)


def log_context() -> dict[str, str]:
    """The trace and the run at work here, for log events."""
    found: dict[str, str] = {}
    route = CURRENT.get()
    if route is not None:
        return {"trace_id": route.trace_id, "run_id": route.run_id}
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        found["trace_id"] = trace.format_trace_id(context.trace_id)
    return found


def labels_of(record: RouteSpan, persona_key: str) -> dict[str, str]:
    """The labels of the counter; what no set knows is "other"."""

    def known(value: str | None, among: frozenset[str]) -> str:
        return value if value is not None and value in among else names.OTHER

    return {
        "outcome": known(record.outcome, names.OUTCOMES),
        "persona": names.persona_label(persona_key),
        "path_taken": known(record.path_taken, names.PATHS),
    }


def log_end(
    record: RouteSpan,
    persona_key: str,
    elapsed_ms: float,
    *,
    dry_run: bool,
    error: BaseException | None,
) -> None:
    """Logs the end of a request, at the level of its worst failure."""
    level = logging.INFO if record.severity is None else names.LEVELS[record.severity]
    if not _log.isEnabledFor(level):
        return
    fields: dict[str, Any] = {
        **labels_of(record, persona_key),
        "reason": record.reason,
        "cascade_outcome": record.cascade_outcome,
        "duration_ms": round(elapsed_ms, 1),
        "dry_run": dry_run,
        "error": None if error is None else type(error).__name__,
        "failure": record.failure,
        "severity": record.severity,
    }
    said = {name: value for name, value in fields.items() if value is not None}
    _log.log(level, "request.ended", extra={"event": "request.ended", "fields": said})
