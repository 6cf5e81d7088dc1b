"""Sending telemetry: needs the `otel` extra. Imported by entry points only, when asked to.

Which traces are kept is decided when a request ends, since only then its outcome is known:
plain successes by trace id at a small ratio, everything else always.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from cuo_supervisor import telemetry
from cuo_supervisor.telemetry import ATTR_OUTCOME, ATTR_SEVERITY, SPAN_ROUTE
from cuo_supervisor.trace_context import TraceIds

__all__ = ["SUCCESS_RATIO", "CuoSampler", "MintedIds", "install", "shut_down", "tracer_provider"]

SUCCESS_RATIO: Final = 0.01
_ROOTS_MAX: Final = 2048
_SPANS_MAX: Final = 512
_TOTAL_MAX: Final = 16_384
_KEPT_MAX: Final = 4096
_ATTRIBUTE_CHARS: Final = 16 * 1024
"""As long as a query may be; nothing else in a span comes near."""

_Key = tuple[int, int]
"""Trace id and span id."""


@dataclass(slots=True)
class _Held:
    spans: list[ReadableSpan] = field(default_factory=list)
    members: set[_Key] = field(default_factory=set)


class CuoSampler(SpanProcessor):
    """Holds a request's spans until its route span ends, then passes all on or drops all.

    Spans belong to the nearest route span above them, else to the topmost span of this
    process. A topmost span that is no route (an HTTP request, say) is kept when it failed,
    when a request inside it was kept, or by ratio. More than 2048 open requests, or 16384
    spans held: the oldest request is passed on undecided. More than 512 spans in one: the
    surplus is dropped and counted.
    """

    def __init__(self, following: SpanProcessor, *, ratio: float = SUCCESS_RATIO) -> None:
        if not 0.0 <= ratio <= 1.0:
            raise ValueError("ratio must lie in [0, 1]")
        self._following = following
        self._bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self._lock = threading.Lock()
        self._root_of: dict[_Key, _Key] = {}
        self._held: OrderedDict[_Key, _Held] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._total = 0
        self.dropped = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        own = (span.context.trace_id, span.context.span_id)
        overflow: list[ReadableSpan] = []
        with self._lock:
            parent = span.parent
            root = own
            if parent is not None and not parent.is_remote and span.name != SPAN_ROUTE:
                root = self._root_of.get((parent.trace_id, parent.span_id), own)
            self._root_of[own] = root
            self._held.setdefault(root, _Held()).members.add(own)
            if root == own and len(self._held) > _ROOTS_MAX:
                overflow = self._give_up_oldest()
        self._pass_on(overflow)
        self._following.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None:
            return
        own = (context.trace_id, context.span_id)
        chosen: list[ReadableSpan] = []
        lost = False
        with self._lock:
            root = self._root_of.get(own, own)
            held = self._held.get(root)
            if held is None:
                # Its request was decided before it ended: it follows that decision.
                chosen = [span] if self._keep(span) else []
            elif root != own:
                if len(held.spans) < _SPANS_MAX:
                    held.spans.append(span)
                    self._total += 1
                    if self._total > _TOTAL_MAX:
                        chosen = self._give_up_oldest()
                else:
                    self.dropped += 1
                    lost = True
            else:
                self._forget(self._held.pop(own))
                if self._keep(span):
                    self._remember(context.trace_id)
                    chosen = [*held.spans, span]
        if lost:
            telemetry.default.span_dropped()
        self._pass_on(chosen)

    def shutdown(self) -> None:
        """Pass on what is undecided: a request cut short is no plain success."""
        self._pass_on(self._drain())
        self._following.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush what is decided; open requests stay until they end."""
        return self._following.force_flush(timeout_millis)

    def _keep(self, span: ReadableSpan) -> bool:
        context = span.context
        if context is None or span.status.status_code is StatusCode.ERROR:
            return True
        if context.trace_id in self._kept:
            return True
        attributes = span.attributes or {}
        if span.name == SPAN_ROUTE and (
            attributes.get(ATTR_OUTCOME) != "success" or ATTR_SEVERITY in attributes
        ):
            return True
        return bool((context.trace_id & ((1 << 64) - 1)) < self._bound)

    def _remember(self, trace_id: int) -> None:
        self._kept[trace_id] = None
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)

    def _give_up_oldest(self) -> list[ReadableSpan]:
        """Decides the oldest request now, in favour of keeping it."""
        oldest, held = self._held.popitem(last=False)
        self._forget(held)
        self._remember(oldest[0])
        return held.spans

    def _forget(self, held: _Held) -> None:
        """Let go of every span of a decided request, ended or not."""
        self._total -= len(held.spans)
        for key in held.members:
            self._root_of.pop(key, None)

    def _drain(self) -> list[ReadableSpan]:
        with self._lock:
            spans = [span for held in self._held.values() for span in held.spans]
            self._held.clear()
            self._root_of.clear()
            self._total = 0
        return spans

    def _pass_on(self, spans: Sequence[ReadableSpan]) -> None:
        for span in spans:
            self._following.on_end(span)


class MintedIds(IdGenerator):
    """Random ids, except for the route span of a trace whose ids were minted beforehand."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._next: ContextVar[TraceIds | None] = ContextVar("cuo_minted_ids", default=None)

    @contextmanager
    def minting(self, ids: TraceIds) -> Iterator[None]:
        """Spans started inside get these ids; start exactly one."""
        token = self._next.set(ids)
        try:
            yield
        finally:
            self._next.reset(token)

    def generate_trace_id(self) -> int:
        ids = self._next.get()
        return int(ids.trace_id, 16) if ids else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        ids = self._next.get()
        return int(ids.span_id, 16) if ids else self._random.generate_span_id()


def tracer_provider(following: SpanProcessor, *, ratio: float = SUCCESS_RATIO) -> TracerProvider:
    """A provider that records everything and lets `CuoSampler` choose.

    The caller's "not sampled" flag does not stop recording, or its failures would be lost.
    """
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({"service.name": "cyberos-cuo"}),
        id_generator=MintedIds(),
        span_limits=SpanLimits(max_span_attribute_length=_ATTRIBUTE_CHARS),
        # Entry points shut down themselves, within a time; at exit it would take as long as it likes.
        shutdown_on_exit=False,
    )
    provider.add_span_processor(CuoSampler(following, ratio=ratio))
    return provider


def install(
    *, exporter: SpanExporter | None = None, readers: Sequence[MetricReader] | None = None
) -> tuple[TracerProvider, MeterProvider]:
    """Make this process send telemetry. By default over OTLP/HTTP as the OTEL_* variables say.

    Call once, from an entry point, and `shut_down` what it returns at the end.
    """
    # A collector that is away is no remark for whoever runs a command; serve's log still tells of it.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    if readers is None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())]
    tracing = tracer_provider(BatchSpanProcessor(exporter))
    metering = MeterProvider(
        readers,
        resource=Resource.create({"service.name": "cyberos-cuo"}),
        shutdown_on_exit=False,
    )
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(metering)
    return tracing, metering


class _Stoppable(Protocol):
    def shutdown(self) -> None: ...


def shut_down(providers: Sequence[_Stoppable], *, seconds: float) -> None:
    """Sends what is left and stops, all at once and within so many seconds, whatever the far side does.

    What could not be sent by then is lost.
    """
    until = time.monotonic() + seconds
    workers = [
        threading.Thread(target=_quietly, args=(provider.shutdown,), daemon=True)
        for provider in providers
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))


def _quietly(act: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        act()
