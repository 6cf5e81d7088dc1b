"""Trace ids: taken from the caller's W3C traceparent, or minted when there is none to take.

A request has one trace id from its first moment, whether or not an SDK is installed, because
the log and the audit rows carry it too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = [
    "NO_TRACE",
    "TraceIds",
    "current_traceparent",
    "new_trace",
    "parse_traceparent",
    "trace_id_hex",
    "traceparent_of",
]

NO_TRACE: Final = "0" * 32
"""What a row says when there is no trace id."""

_SAMPLED: Final = 1
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class TraceIds:
    """One position in one trace. `remote`: it is the caller's span, else an id minted here."""

    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    remote: bool = False
    tracestate: str = ""

    @property
    def sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def span_context(self) -> SpanContext:
        return SpanContext(
            int(self.trace_id, 16),
            int(self.span_id, 16),
            is_remote=self.remote,
            trace_flags=trace.TraceFlags(self.flags),
            trace_state=trace.TraceState.from_header([self.tracestate] if self.tracestate else []),
        )


def new_trace(random: Callable[[int], bytes]) -> TraceIds:
    """A fresh trace; `random(n)` yields n random bytes.

    All-zero ids mean "none" in W3C's terms, so a source that yields them gets ones instead.
    """
    trace_id = random(16).hex()
    span_id = random(8).hex()
    return TraceIds(
        trace_id if trace_id.strip("0") else "0" * 31 + "1",
        span_id if span_id.strip("0") else "0" * 15 + "1",
    )


def parse_traceparent(
    header: str | None,
    *,
    tracestate: str | None = None,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> TraceIds:
    """The caller's trace, or a fresh one when the header is absent or malformed. Never fails."""
    carrier = {"traceparent": header} if header else {}
    if tracestate:
        carrier["tracestate"] = tracestate
    context = trace.get_current_span(_PROPAGATOR.extract(carrier, Context())).get_span_context()
    if not context.is_valid:
        return new_trace(random)
    return TraceIds(
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        int(context.trace_flags),
        remote=True,
        tracestate=context.trace_state.to_header(),
    )


def trace_id_hex(source: TraceIds | SpanContext | None) -> str:
    """32 lower-case hex digits; zeros when there is no valid id."""
    if isinstance(source, TraceIds):
        return source.trace_id
    if source is None or not source.is_valid:
        return NO_TRACE
    return trace.format_trace_id(source.trace_id)


def traceparent_of(source: TraceIds | SpanContext) -> str:
    """The header for a call made from this position; empty when the position is not valid."""
    if isinstance(source, TraceIds):
        return source.traceparent
    if not source.is_valid:
        return ""
    trace_id, span_id = trace.format_trace_id(source.trace_id), trace.format_span_id(source.span_id)
    return f"00-{trace_id}-{span_id}-{int(source.trace_flags):02x}"


def current_traceparent(default: TraceIds | str = "") -> str:
    """The header for a call made now: of the span in force, else `default`.

    Without an SDK the span in force is the caller's own, so the caller's header goes out as
    it came in.
    """
    current = traceparent_of(trace.get_current_span().get_span_context())
    return current or (default.traceparent if isinstance(default, TraceIds) else default)
