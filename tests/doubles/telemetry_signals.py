"""Reads what telemetry said, from the SDK's in-memory exporters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cuo_checkpoint import telemetry as store_telemetry
from cuo_supervisor import telemetry as t
from cuo_supervisor import telemetry_sdk as sdk

__all__ = ["Signals"]


class Signals:
    """A real SDK in memory, under the supervisor's telemetry and, inside `listening`, the store's."""

    def __init__(self, *, ratio: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = sdk.tracer_provider(SimpleSpanProcessor(self.exporter), ratio=ratio)
        self.reader = InMemoryMetricReader()
        self.metering = MeterProvider([self.reader])
        self.telemetry = t.Telemetry(tracer_provider=self.tracing, meter_provider=self.metering)
        self.store = store_telemetry.StoreTelemetry(self.metering)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Signals]:
        """The store of this process reports here, until the block ends."""
        with store_telemetry.using(self.store):
            yield self
        self.tracing.shutdown()
        self.metering.shutdown()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        """The one span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def metrics(self) -> dict[str, list[Any]]:
        """Every metric's points now."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for each in scope.metrics:
                    found.setdefault(each.name, []).extend(each.data.data_points)
        return found

    def counted(self, metric: str) -> dict[tuple[str, ...], float]:
        """Values of a counter or gauge, by its labels' values in the order of their names."""
        return {_values(p): p.value for p in self.metrics().get(metric, [])}

    def timed(self, metric: str) -> dict[tuple[str, ...], Any]:
        """Points of a histogram, by its labels' values in the order of their names."""
        return {_values(p): p for p in self.metrics().get(metric, [])}

    def labels(self) -> Iterator[tuple[str, str, str]]:
        """(metric, label, value), of everything."""
        for name, found in self.metrics().items():
            for point in found:
                for label, value in (point.attributes or {}).items():
                    yield name, label, str(value)


def _values(point: Any) -> tuple[str, ...]:
    return tuple(str(value) for _, value in sorted((point.attributes or {}).items()))
