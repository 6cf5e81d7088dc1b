"""The process's OpenTelemetry metrics as Prometheus text (exposition format 0.0.4).

Instruments are made through the OpenTelemetry API; the SDK's own in-memory reader collects them
when somebody looks. So the same numbers go out over OTLP, and no second client library counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
    Sum,
)

__all__ = ["MEDIA_TYPE", "Metrics", "exposition"]

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What is counted since the start. Give `reader` to the meter provider."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()

    def text(self) -> str:
        """All of it now."""
        return exposition(self.reader.get_metrics_data())


def exposition(data: Any) -> str:
    """The text for collected metrics; empty for none."""
    lines: list[str] = []
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                lines += _metric(metric)
    return "".join(f"{line}\n" for line in lines)


def _metric(metric: Any) -> Iterator[str]:
    data, name = metric.data, _name(metric.name)
    if isinstance(data, Histogram):
        kind = "histogram"
    elif isinstance(data, Sum) and data.is_monotonic:
        kind = "counter"
    elif isinstance(data, (Sum, Gauge)):
        kind = "gauge"
    else:
        return
    if metric.description:
        yield f"# HELP {name} {_help(metric.description)}"
    yield f"# TYPE {name} {kind}"
    for point in data.data_points:
        labels = {_name(key): str(value) for key, value in (point.attributes or {}).items()}
        if isinstance(point, NumberDataPoint):
            yield f"{name}{_labels(labels)} {_number(point.value)}"
        elif isinstance(point, HistogramDataPoint):
            yield from _histogram(name, labels, point)


def _histogram(name: str, labels: Mapping[str, str], point: HistogramDataPoint) -> Iterator[str]:
    below = 0
    for bound, count in zip((*point.explicit_bounds, math.inf), point.bucket_counts, strict=True):
        below += count
        yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {below}"
    yield f"{name}_sum{_labels(labels)} {_number(point.sum)}"
    yield f"{name}_count{_labels(labels)} {point.count}"


def _name(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    said = ",".join(f'{key}="{_quoted(value)}"' for key, value in sorted(labels.items()))
    return "{" + said + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
