"""Names, traces and metrics, without an SDK and with the real one in memory."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cuo_supervisor import telemetry as t
from cuo_supervisor import telemetry_sdk as sdk
from cuo_supervisor.errors import PersonaMismatch, PersonaUnknown

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LOW = "0af7651916cd43dd8448eb211c80319c"[:16] + "0" * 15 + "1"
HIGH = LOW[:16] + "f" * 16


def ids(trace_id: str) -> t.TraceIds:
    return t.TraceIds(trace_id, "00f067aa0ba902b7")


def header(trace_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-00f067aa0ba902b7-{flags}"


class Rig:
    """Telemetry on a real SDK that keeps everything in memory."""

    def __init__(self, *, ratio: float = 1.0, tail: bool = True) -> None:
        self.exporter = InMemorySpanExporter()
        processor: SpanProcessor = SimpleSpanProcessor(self.exporter)
        if tail:
            self.provider = sdk.tracer_provider(processor, ratio=ratio)
        else:
            self.provider = TracerProvider()
            self.provider.add_span_processor(processor)
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.telemetry = t.Telemetry(tracer_provider=self.provider, meter_provider=self.meters)

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        found = []
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for each in scope.metrics:
                    if each.name == metric:
                        found += [(dict(p.attributes or {}), p) for p in each.data.data_points]
        return found


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def sparse() -> Iterator[Rig]:
    """One in a hundred plain successes is kept."""
    made = Rig(ratio=0.01)
    yield made
    made.close()


def request(
    telemetry: t.Telemetry,
    trace_ids: t.TraceIds | None = None,
    *,
    outcome: str | None = "success",
    persona_key: str = "cfo",
    dry_run: bool = False,
    error: BaseException | None = None,
) -> t.RouteSpan:
    with telemetry.route_span(
        trace_ids or t.parse_traceparent(CALLER),
        request_id="01REQ",
        tenant_id="tenant",
        subject_id_hash16="9b1deb4d3b7d4bad",
        persona_key=persona_key,
        query="validate MST 0301479073",
        dry_run=dry_run,
    ) as route:
        for node in t.NODES:
            with telemetry.node_span(node, {"request_id": "01REQ"}):
                pass
        if error is not None:
            raise error
        route.outcome = outcome
        route.path_taken, route.confidence, route.llm_used = "auto", 0.92, False
    return route


@pytest.mark.clause("101-16")
def test_names_are_the_published_ones() -> None:
    """Dashboards and alerts hang on these strings."""
    assert (t.SPAN_ROUTE, t.SPAN_DRY_RUN) == ("cuo.supervisor.route", "cuo.dry_run")
    assert [t.SPAN_NODE_PREFIX + node for node in t.NODES] == [
        "cuo.supervisor.node.parse",
        "cuo.supervisor.node.rule_score",
        "cuo.supervisor.node.branch",
        "cuo.supervisor.node.llm_cascade",
        "cuo.supervisor.node.invoke",
        "cuo.supervisor.node.record",
    ]
    assert {
        t.METRIC_ROUTE_TOTAL,
        t.METRIC_ROUTE_LATENCY_MS,
        t.METRIC_CASCADE_TOTAL,
        t.METRIC_PERSONA_DEFER_TOTAL,
        t.METRIC_DESTRUCTIVE_TOTAL,
    } == {
        "cuo_supervisor_route_total",
        "cuo_supervisor_route_latency_ms",
        "cuo_supervisor_llm_cascade_total",
        "cuo_supervisor_persona_defer_blocks_total",
        "cuo_supervisor_destructive_block_total",
    }


@pytest.mark.clause("101-14", "101-15")
@pytest.mark.criterion("101-AC23", "101-AC24")
def test_spans_of_a_request(rig: Rig) -> None:
    """One route span under the caller's, six node spans under it, all attributes in place."""
    request(rig.telemetry)
    *nodes, route = rig.spans
    assert route.name == "cuo.supervisor.route"
    assert [span.name for span in nodes] == [t.SPAN_NODE_PREFIX + node for node in t.NODES]
    assert route.context is not None
    assert {span.parent and span.parent.span_id for span in nodes} == {route.context.span_id}
    assert t.trace_id_hex(route.context) == TRACE
    assert route.parent is not None
    assert route.parent.span_id == 0x00F067AA0BA902B7
    assert dict(route.attributes or {}) == {
        "request_id": "01REQ",
        "tenant_id": "tenant",
        "subject_id_hash16": "9b1deb4d3b7d4bad",
        "persona_key": "cfo",
        "query": "validate MST 0301479073",
        "dry_run": False,
        "path_taken": "auto",
        "confidence": 0.92,
        "llm_used": False,
        "outcome": "success",
    }


@pytest.mark.clause("101-24")
def test_the_text_stays_in_the_route_span(rig: Rig) -> None:
    """The query is an attribute of the route span and of nothing else."""
    request(rig.telemetry)
    with pytest.raises(ValueError, match="0301479073"):
        request(rig.telemetry, error=ValueError("MST 0301479073"))
    for span in rig.spans:
        text = f"{span.attributes} {span.events} {span.status.description}"
        assert ("0301479073" in text) is (span.name == t.SPAN_ROUTE)
        if span.name == t.SPAN_ROUTE:
            assert "0301479073" not in f"{span.events} {span.status.description}"


def test_nodes_follow_across_tasks(rig: Rig) -> None:
    """Nodes that run in tasks of their own, and at once, hang under the right request."""

    async def node(name: str) -> None:
        with rig.telemetry.node_span(name):
            await asyncio.sleep(0.001)

    async def one(trace_id: str) -> None:
        with rig.telemetry.route_span(
            t.parse_traceparent(header(trace_id)),
            request_id="r",
            tenant_id="t",
            subject_id_hash16="s",
            persona_key="cfo",
        ):
            await asyncio.gather(*(asyncio.create_task(node(name)) for name in t.NODES))

    async def both() -> None:
        await asyncio.gather(one(LOW), one(HIGH))

    asyncio.run(both())
    for trace_id in (LOW, HIGH):
        mine = [span for span in rig.spans if t.trace_id_hex(span.context) == trace_id]
        (route,) = (span for span in mine if span.name == t.SPAN_ROUTE)
        assert route.context is not None
        assert len(mine) == 7
        parents = {span.parent and span.parent.span_id for span in mine if span is not route}
        assert parents == {route.context.span_id}


def test_minted_trace_is_a_true_root(rig: Rig) -> None:
    """Without a caller the ids minted first are those of the route span, which has no parent."""
    fresh = t.new_trace(lambda n: bytes(range(1, n + 1)))
    request(rig.telemetry, fresh)
    route = rig.spans[-1]
    assert route.parent is None
    assert route.context is not None
    assert t.trace_id_hex(route.context) == fresh.trace_id
    assert trace.format_span_id(route.context.span_id) == fresh.span_id
    request(rig.telemetry, t.new_trace(lambda n: bytes(range(2, n + 2))))
    assert t.trace_id_hex(rig.spans[-1].context) != fresh.trace_id


def test_minted_trace_under_a_foreign_sdk() -> None:
    """With somebody else's provider the trace id is still the minted one."""
    rig = Rig(tail=False)
    fresh = t.new_trace(lambda n: bytes(range(1, n + 1)))
    request(rig.telemetry, fresh)
    assert {t.trace_id_hex(span.context) for span in rig.spans} == {fresh.trace_id}
    rig.close()


def test_without_an_sdk() -> None:
    """With the API alone a request has a trace id and hands the caller's header on as it came."""
    quiet = t.Telemetry(
        tracer_provider=trace.NoOpTracerProvider(), meter_provider=NoOpMeterProvider()
    )
    with quiet.route_span(
        t.parse_traceparent(CALLER),
        request_id="r",
        tenant_id="t",
        subject_id_hash16="s",
        persona_key="cfo",
    ) as route:
        assert route.trace_id == TRACE
        with quiet.node_span("llm_cascade"):
            assert t.current_traceparent() == CALLER
    assert t.current_traceparent("none") == "none"
    assert quiet.failures == 0


@pytest.mark.clause("101-15")
def test_calls_out_name_the_node(rig: Rig) -> None:
    """With an SDK the header of an outgoing call names the node's span in the same trace."""
    with (
        rig.telemetry.route_span(
            t.parse_traceparent(CALLER),
            request_id="r",
            tenant_id="t",
            subject_id_hash16="s",
            persona_key="cfo",
        ) as route,
        rig.telemetry.node_span("invoke") as node,
    ):
        expected = t.traceparent_of(node.get_span_context())
        assert t.current_traceparent() == expected
        assert expected.split("-")[1] == TRACE == route.traceparent.split("-")[1]
        assert expected != route.traceparent


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PersonaMismatch("cuo-cto@0.4.1", "cuo-cfo@0.4.1"), "persona_mismatch"),
        (PersonaUnknown("x", ("cfo",)), "unknown_persona"),
        (RuntimeError("boom"), "other"),
        (KeyboardInterrupt(), "other"),
        (asyncio.CancelledError(), "other"),
    ],
)
def test_exceptions_pass_and_are_marked(rig: Rig, error: BaseException, outcome: str) -> None:
    """An exception leaves through the span unchanged, which says its type and an outcome."""
    with pytest.raises(type(error)) as caught:
        request(rig.telemetry, error=error)
    assert caught.value is error
    route = rig.spans[-1]
    assert (route.attributes or {})["outcome"] == outcome
    assert (route.attributes or {})["error.type"] == type(error).__name__
    assert route.status.status_code is StatusCode.ERROR
    assert route.status.description == type(error).__name__
    assert not route.events


def test_dry_run(rig: Rig) -> None:
    """A dry run has its own span inside and is in no metric."""
    request(rig.telemetry, dry_run=True)
    assert rig.names[-2:] == ["cuo.dry_run", "cuo.supervisor.route"]
    assert (rig.spans[-1].attributes or {})["dry_run"] is True
    assert rig.points(t.METRIC_ROUTE_TOTAL) == []


@pytest.mark.clause("101-16")
@pytest.mark.criterion("101-AC25")
def test_route_metrics(rig: Rig) -> None:
    """Each request counts once under three labels, and its latency under one."""
    request(rig.telemetry)
    request(rig.telemetry, persona_key="chief-financial-officer")
    request(rig.telemetry, outcome="routed_false")
    counted = {
        tuple(sorted(labels.items())): p.value for labels, p in rig.points(t.METRIC_ROUTE_TOTAL)
    }
    base = (("path_taken", "auto"), ("persona", "cfo"))
    assert counted == {
        (("outcome", "success"), *base): 2,
        (("outcome", "routed_false"), *base): 1,
    }
    ((labels, point),) = rig.points(t.METRIC_ROUTE_LATENCY_MS)
    assert labels == {"path_taken": "auto"}
    assert point.count == 3
    assert {30.0, 50.0, 3500.0} <= set(point.explicit_bounds)


@pytest.mark.clause("101-16")
@pytest.mark.criterion("101-AC26")
def test_other_metrics(rig: Rig) -> None:
    """Cascades, matrix refusals and destructive stops count under closed labels."""
    for outcome in (*t.CASCADE_LABELS, "surprise"):
        rig.telemetry.cascade(outcome)
    counted = {labels["outcome"]: p.value for labels, p in rig.points(t.METRIC_CASCADE_TOTAL)}
    assert counted == {
        "success": 1,
        "timeout": 1,
        "schema_violation": 3,
        "gateway_error": 5,
        "other": 1,
    }
    rig.telemetry.persona_defer_block("chief-financial-officer", "invoice_emit")
    rig.telemetry.persona_defer_block("nobody", "made_up")
    seen = [labels for labels, _ in rig.points(t.METRIC_PERSONA_DEFER_TOTAL)]
    assert {"persona": "cfo", "operation": "invoice_emit"} in seen
    assert {"persona": "other", "operation": "other"} in seen
    rig.telemetry.destructive_block("vietnam-bank-transfer@1.0")
    assert [labels for labels, _ in rig.points(t.METRIC_DESTRUCTIVE_TOTAL)] == [
        {"skill": "vietnam-bank-transfer@1.0"}
    ]


def test_labels_are_bounded(rig: Rig) -> None:
    """No input makes the number of label values grow without end, and no tenant is a label."""
    for n in range(1000):
        rig.telemetry.destructive_block(f"skill-{n}@1.0")
        rig.telemetry.persona_defer_block(f"persona-{n}", f"operation-{n}")
        rig.telemetry.cascade(f"outcome-{n}")
    request(rig.telemetry, persona_key="someone@example.com", outcome="text 0301479073")
    assert len(rig.points(t.METRIC_DESTRUCTIVE_TOTAL)) == 257
    assert len(rig.points(t.METRIC_PERSONA_DEFER_TOTAL)) == 1
    assert len(rig.points(t.METRIC_CASCADE_TOTAL)) == 1
    for metric in (t.METRIC_ROUTE_TOTAL, t.METRIC_ROUTE_LATENCY_MS):
        for labels, _ in rig.points(metric):
            assert set(labels) <= {"outcome", "persona", "path_taken"}
            assert "tenant" not in labels.values()
            assert labels.get("persona", "other") == "other"
            assert labels.get("outcome", "other") == "other"


class Broken(trace.TracerProvider):
    def get_tracer(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("telemetry is down")


class BrokenMeters(NoOpMeterProvider):
    def get_meter(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("telemetry is down")


def test_telemetry_never_fails_a_run() -> None:
    """Providers that raise are counted; the request and its ids are as ever."""
    broken = t.Telemetry(tracer_provider=Broken(), meter_provider=BrokenMeters())
    route = request(broken)
    broken.cascade("success")
    broken.persona_defer_block("cfo", "invoice_emit")
    broken.destructive_block("x@1")
    assert (route.trace_id, route.traceparent) == (TRACE, CALLER)
    assert broken.failures >= 8
    with pytest.raises(ValueError, match="mine"):
        request(broken, error=ValueError("mine"))


def test_exporter_that_raises_never_fails_a_run() -> None:
    """A processor that raises at every span is counted too."""

    class Raising(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError(span.name)

    provider = sdk.tracer_provider(Raising(), ratio=1.0)
    telemetry = t.Telemetry(tracer_provider=provider, meter_provider=NoOpMeterProvider())
    assert request(telemetry).outcome == "success"
    assert telemetry.failures == 1
    provider.shutdown()


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "",
        "garbage",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7",
        f"00-{TRACE}-00f067aa0ba902b7-01-extra",
        f"00-{TRACE[:-1]}-00f067aa0ba902b7-01",
        CALLER + "\n00",
        CALLER + " " * 600,
        "é" * 55,
    ],
)
def test_malformed_headers_start_a_fresh_trace(bad: str | None) -> None:
    """A header that breaks W3C's rules is as good as none."""
    got = t.parse_traceparent(bad, random=lambda n: b"\xab" * n)
    assert got == t.TraceIds("ab" * 16, "ab" * 8)
    assert got.sampled
    assert not got.remote


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True)])
def test_well_formed_headers_are_continued(flags: str, sampled: bool) -> None:
    """The caller's ids, flags and state are taken over and given back unchanged."""
    text = header(TRACE, flags)
    got = t.parse_traceparent(text, tracestate="vendor=1,other=2")
    assert (got.traceparent, got.sampled, got.remote) == (text, sampled, True)
    assert got.tracestate == "vendor=1,other=2"
    assert t.traceparent_of(got.span_context()) == text
    assert t.trace_id_hex(got) == t.trace_id_hex(got.span_context()) == TRACE


@given(st.text(max_size=80))
def test_any_header_yields_valid_ids(text: str) -> None:
    """Whatever comes in, the ids are 32 and 16 lower-case hex digits and not all zero."""
    got = t.parse_traceparent(text)
    assert re.fullmatch(r"[0-9a-f]{32}", got.trace_id)
    assert re.fullmatch(r"[0-9a-f]{16}", got.span_id)
    assert got.span_context().is_valid


def test_no_trace_is_zeros() -> None:
    """A missing or invalid position reads as zeros and yields no header."""
    assert t.trace_id_hex(None) == t.trace_id_hex(trace.INVALID_SPAN_CONTEXT) == "0" * 32
    assert t.traceparent_of(trace.INVALID_SPAN_CONTEXT) == ""


def test_zero_random_is_not_an_id() -> None:
    """A source of zeros does not yield the ids that mean none."""
    assert t.new_trace(bytes).span_context().is_valid


@pytest.mark.clause("101-14")
@pytest.mark.parametrize(
    ("trace_id", "outcome", "kept"),
    [
        (LOW, "success", True),
        (HIGH, "success", False),
        (HIGH, "routed_false", True),
        (HIGH, "invoke_error", True),
        (HIGH, "timeout", True),
        (HIGH, None, True),
    ],
)
def test_tail_sampling(sparse: Rig, trace_id: str, outcome: str | None, kept: bool) -> None:
    """Successes are kept by trace id, everything else always, whole or not at all."""
    request(sparse.telemetry, t.parse_traceparent(header(trace_id)), outcome=outcome)
    assert len(sparse.spans) == (7 if kept else 0)


def test_unsampled_callers_failures_are_kept(sparse: Rig) -> None:
    """The caller's wish not to sample does not hide a failure."""
    request(sparse.telemetry, t.parse_traceparent(header(HIGH, "00")), outcome="invoke_error")
    assert len(sparse.spans) == 7


def test_failing_nodes_alone_do_not_decide(sparse: Rig) -> None:
    """A node's error inside a request that succeeded follows the request."""
    with sparse.telemetry.route_span(
        t.parse_traceparent(header(HIGH)),
        request_id="r",
        tenant_id="t",
        subject_id_hash16="s",
        persona_key="cfo",
    ) as route:
        with pytest.raises(KeyError), sparse.telemetry.node_span("invoke"):
            raise KeyError("x")
        route.outcome = "success"
    assert sparse.spans == []


def test_ratio_is_about_one_in_a_hundred() -> None:
    """Over many traces the share of plain successes kept is near the ratio."""
    rig = Rig(ratio=0.1)
    for n in range(2000):
        digest = (n * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
        with rig.telemetry.route_span(
            ids(f"{n + 1:016x}{digest:016x}"),
            request_id="r",
            tenant_id="t",
            subject_id_hash16="s",
            persona_key="cfo",
        ) as route:
            route.outcome = "success"
    assert 150 <= len(rig.spans) <= 250
    rig.close()


def test_enclosing_span_follows_its_request(sparse: Rig) -> None:
    """A server's own span around a request is kept if the request was, else by ratio."""
    tracer = sparse.provider.get_tracer("server")
    for trace_id, outcome, expected in (
        (HIGH, "success", []),
        (HIGH[:-1] + "e", "timeout", ["POST /route", t.SPAN_ROUTE]),
    ):
        sparse.exporter.clear()
        parent = trace.set_span_in_context(
            trace.NonRecordingSpan(t.parse_traceparent(header(trace_id)).span_context())
        )
        with tracer.start_as_current_span("POST /route", parent) as server:
            inner = t.parse_traceparent(t.traceparent_of(server.get_span_context()))
            request(sparse.telemetry, inner, outcome=outcome)
        names = [name for name in sparse.names if not name.startswith(t.SPAN_NODE_PREFIX)]
        assert sorted(names) == expected


def test_two_requests_in_one_trace(sparse: Rig) -> None:
    """Requests of one trace that overlap are decided each on its own."""
    common: Any = {"tenant_id": "t", "subject_id_hash16": "s", "persona_key": "cfo"}
    caller = t.parse_traceparent(header(HIGH))
    with sparse.telemetry.route_span(caller, request_id="outer", **common) as outer:
        with sparse.telemetry.node_span("parse"):
            pass
        with sparse.telemetry.route_span(caller, request_id="inner", **common) as inner:
            inner.outcome = "success"
        assert sparse.spans == []
        outer.outcome = "timeout"
    assert sparse.names == ["cuo.supervisor.node.parse", "cuo.supervisor.route"]


def test_shutdown_keeps_the_undecided(sparse: Rig) -> None:
    """What was cut short is passed on at shutdown."""
    opened = sparse.telemetry.route_span(
        t.parse_traceparent(header(HIGH)),
        request_id="r",
        tenant_id="t",
        subject_id_hash16="s",
        persona_key="cfo",
    )
    with opened:
        with sparse.telemetry.node_span("parse"):
            pass
        sparse.provider.shutdown()
        assert sparse.names == ["cuo.supervisor.node.parse"]


def test_sampler_is_bounded() -> None:
    """Requests that never end push out the oldest, whose spans are passed on."""
    exporter = InMemorySpanExporter()
    sampler = sdk.CuoSampler(SimpleSpanProcessor(exporter), ratio=0.0)
    provider = TracerProvider()
    provider.add_span_processor(sampler)
    tracer = provider.get_tracer("x")
    first = tracer.start_span(t.SPAN_ROUTE)
    tracer.start_span("child", trace.set_span_in_context(first)).end()
    for _ in range(2048):
        tracer.start_span(t.SPAN_ROUTE)
    assert [span.name for span in exporter.get_finished_spans()] == ["child"]
    root = tracer.start_span(t.SPAN_ROUTE)
    for _ in range(600):
        tracer.start_span("child", trace.set_span_in_context(root)).end()
    assert sampler.dropped == 600 - 512
    exporter.clear()
    root.end()
    assert len(exporter.get_finished_spans()) == 513
    first.end()
    assert exporter.get_finished_spans()[-1].name == t.SPAN_ROUTE
    exporter.clear()
    provider.shutdown()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_ratio_is_checked(ratio: float) -> None:
    """A ratio outside 0 to 1 is a mistake."""
    with pytest.raises(ValueError, match="ratio"):
        sdk.CuoSampler(SimpleSpanProcessor(InMemorySpanExporter()), ratio=ratio)


def test_the_sdk_is_optional() -> None:
    """Importing and using telemetry loads no SDK."""
    code = (
        "import sys; from cuo_supervisor import telemetry as t\n"
        "with t.node_span('parse'): pass\n"
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_install_sends_from_the_global_providers() -> None:
    """After install the module's own functions reach the exporter and the reader."""
    code = """
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from cuo_supervisor import telemetry as t, telemetry_sdk as sdk
exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracing, metering = sdk.install(exporter=exporter, readers=[reader])
with t.route_span(t.parse_traceparent(None), request_id="r", tenant_id="t",
                  subject_id_hash16="s", persona_key="cfo") as route:
    route.outcome = "timeout"
tracing.force_flush()
assert [s.name for s in exporter.get_finished_spans()] == ["cuo.supervisor.route"]
assert "cuo_supervisor_route_total" in reader.get_metrics_data().to_json()
tracing.shutdown(); metering.shutdown()
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
