"""One trace from caller to skill, no label that tells who or what, and collectors that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import StatusCode

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit
from telemetry_signals import Signals

from cuo_checkpoint import telemetry_names as store_names
from cuo_supervisor import telemetry as t
from cuo_supervisor import telemetry_names as names
from cuo_supervisor import telemetry_sdk as sdk
from cuo_supervisor.cascade import GatewayFailure
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.errors import PersonaUnknown, SupervisorError
from cuo_supervisor.supervisor import Answer, Supervisor

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
QUIET = [logging.getLogger("opentelemetry")]


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals().listening() as made:
        yield made


@pytest.fixture
def made(shared_place: Any, tmp_path: Path, signals: Signals) -> Callable[..., Supervisor]:
    def make(**options: Any) -> Supervisor:
        options.setdefault("telemetry", signals.telemetry)
        return kit.make(shared_place.app, ledger=tmp_path / "ledger", **options)

    return make


def header_of(signals: Signals, span: str) -> str:
    return t.traceparent_of(signals.span(span).get_span_context())  # type: ignore[no-untyped-call]


@pytest.mark.clause("101-14", "101-15")
@pytest.mark.criterion("101-AC23", "101-AC24", "101-AC31")
async def test_one_trace_from_caller_to_skill(
    made: Callable[..., Supervisor], signals: Signals, tenant_id: str, tmp_path: Path, lens: Any
) -> None:
    """Caller, request, nodes, model call, skill and rows are one trace; each call names its node."""
    model = kit.Reciter(kit.DUNNING)
    who = kit.identity(tenant_id)
    async with made(model=model) as supervisor:
        decision = await supervisor.route(kit.CASCADE, identity=who, traceparent=CALLER)
    assert decision.path_taken == "cascade_then_auto"
    route = signals.span(t.SPAN_ROUTE)
    assert {t.trace_id_hex(span.context) for span in signals.spans} == {TRACE}
    assert route.parent is not None
    assert route.parent.span_id == 0x00F067AA0BA902B7
    nodes = [span for span in signals.spans if span.name.startswith(t.SPAN_NODE_PREFIX)]
    assert {span.name.removeprefix(t.SPAN_NODE_PREFIX) for span in nodes} == set(t.NODES)
    assert route.context is not None
    assert {span.parent and span.parent.span_id for span in nodes} == {route.context.span_id}
    assert model.asked[0]["traceparent"] == header_of(signals, "cuo.supervisor.node.llm_cascade")
    ran = (tmp_path / "ledger").read_text().split()
    assert ran[2] == header_of(signals, "cuo.supervisor.node.invoke")
    assert {row["trace_id"] for row in lens.rows(str(kit.run_of(decision)))} == {TRACE}
    said = dict(route.attributes or {})
    assert said["tenant_id"] == tenant_id
    assert said["persona_key"] == "genie"
    assert said["subject_id_hash16"] == subject_hash16(who.subject_id)
    assert said["request_id"] == decision.request_id
    assert (said["path_taken"], said["outcome"], said["llm_used"], said["confidence"]) == (
        "cascade_then_auto",
        "success",
        True,
        0.85,
    )
    assert "severity" not in said
    assert signals.counted(store_names.TRACE_MISSING) == {}


@pytest.mark.clause("101-14", "101-16", "101-20")
@pytest.mark.criterion("101-AC25", "101-AC26", "101-AC28")
async def test_real_requests_are_counted_and_a_dry_run_is_called_one(
    made: Callable[..., Supervisor], signals: Signals, tenant_id: str, lens: Any
) -> None:
    """By outcome, persona and path; a block by persona and operation, a cascade by its end; each
    dry run leaves its span, and neither row nor count."""
    who = kit.identity(tenant_id, persona="cfo")
    async with made() as supervisor:
        for query in (kit.AUTO, kit.AUTO, "send invoice", kit.CASCADE, kit.MATRIX):
            await supervisor.route(query, persona_key="cfo", identity=who)
        recorded = len(lens.audit("cuo.routing_decision"))
        assert [span.name for span in signals.spans].count(t.SPAN_DRY_RUN) == 0
        for query in (kit.AUTO, "asdfghjkl"):
            await supervisor.route(query, persona_key="cfo", identity=who, do_record=False)
    assert recorded == len(lens.audit("cuo.routing_decision")) == 5
    assert [span.name for span in signals.spans].count(t.SPAN_DRY_RUN) == 2
    counted = signals.counted(names.METRIC_ROUTE_TOTAL)
    assert counted == {
        ("success", "auto", "cfo"): 2,
        ("success", "cascade_then_auto", "cfo"): 1,
        ("routed_false", "ask", "cfo"): 1,
        ("routed_false", "auto", "cfo"): 1,
    }
    assert signals.counted(names.METRIC_PERSONA_DEFER_TOTAL) == {("invoice_emit", "cfo"): 1}
    assert signals.counted(names.METRIC_CASCADE_TOTAL) == {("success",): 1}


async def test_a_malformed_header_starts_a_trace_of_its_own(
    made: Callable[..., Supervisor], signals: Signals, tenant_id: str, lens: Any
) -> None:
    """Spans and rows share the fresh id, and nothing of the header is left."""
    who = kit.identity(tenant_id)
    async with made() as supervisor:
        decision = await supervisor.route(
            kit.AUTO, identity=who, traceparent=f"00-{TRACE}-{'0' * 16}-01"
        )
    (trace_id,) = {t.trace_id_hex(span.context) for span in signals.spans}
    assert trace_id not in (TRACE, "0" * 32)
    assert {row["trace_id"] for row in lens.rows(str(kit.run_of(decision)))} == {trace_id}


@pytest.mark.parametrize(
    ("outcome", "failure", "severity", "level"),
    [
        ("gateway_unreachable", "gateway_unreachable", 2, logging.ERROR),
        ("gateway_error", "gateway_error", 3, logging.WARNING),
        ("residency_denied", "residency_denied", 3, logging.WARNING),
        ("budget_exceeded", "budget_exceeded", 3, logging.WARNING),
        ("timeout", "cascade_timeout", 3, logging.WARNING),
    ],
)
async def test_a_failure_has_its_severity_everywhere(
    signals: Signals,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    outcome: Any,
    failure: str,
    severity: int,
    level: int,
) -> None:
    """On the node's span and the route's, in the counter, and as the log event's level."""
    model = kit.Reciter(GatewayFailure(outcome, None, "fixed"))
    made = kit.make(None, ledger=tmp_path / "l", model=model, telemetry=signals.telemetry)
    who = kit.identity(str(uuid.uuid4()), local=True)
    with caplog.at_level(logging.INFO, "cuo_supervisor"):
        await made.route(kit.CASCADE, identity=who, do_record=False)
    for name in (t.SPAN_ROUTE, "cuo.supervisor.node.llm_cascade"):
        said = dict(signals.span(name).attributes or {})
        assert (said["failure"], said["severity"]) == (failure, severity)
    assert signals.counted(names.METRIC_FAILURES_TOTAL) == {(failure, str(severity)): 1}
    (event,) = [r for r in caplog.records if getattr(r, "event", "") == "request.ended"]
    assert event.levelno == level
    assert event.fields["failure"] == failure  # type: ignore[attr-defined]


def test_the_worst_failure_is_the_requests(signals: Signals) -> None:
    """Of several the most severe is named, and a success with a failure is no plain one."""
    kept = signals.telemetry
    with kept.route_span(
        t.parse_traceparent(f"00-{TRACE[:16]}{'f' * 16}-00f067aa0ba902b7-01"),
        request_id="r",
        tenant_id="t",
        subject_id_hash16="s",
        persona_key="cfo",
    ) as route:
        with kept.node_span("record"):
            kept.failure("scrub_failed")
        kept.failure("skill_failed")
        route.outcome = "success"
    said = dict(signals.span(t.SPAN_ROUTE).attributes or {})
    assert (said["failure"], said["severity"]) == ("scrub_failed", 2)
    assert names.failure_of_error(ValueError("x")) == "internal_error"
    assert names.failure_of_error(KeyboardInterrupt()) is None
    assert names.failure_of_error(PersonaUnknown("x", ())) is None


async def test_a_scrubber_that_fails_is_told(
    made: Callable[..., Supervisor],
    signals: Signals,
    tenant_id: str,
    monkeypatch: pytest.MonkeyPatch,
    lens: Any,
) -> None:
    """The row says so instead of the text, and so do span and counter."""
    from cuo_supervisor.core import audit

    monkeypatch.setattr(audit, "scrub", lambda text: "[SCAN-FAILED]")
    async with made() as supervisor:
        await supervisor.route("send invoice", identity=kit.identity(tenant_id), do_invoke=False)
    assert signals.counted(names.METRIC_FAILURES_TOTAL) == {("scrub_failed", "2"): 1}
    assert dict(signals.span(t.SPAN_ROUTE).attributes or {})["severity"] == 2


@pytest.mark.clause("101-16")
async def test_a_run_that_waits_is_no_error(
    made: Callable[..., Supervisor], signals: Signals, tenant_id: str, lens: Any
) -> None:
    """Its node's span has no error; stop and resume are counted; the answer goes on in the trace."""
    who = kit.identity(tenant_id, persona="coo", approver=True, local=True)
    async with made() as supervisor:
        waiting = await supervisor.route(
            kit.DESTRUCTIVE, persona_key="coo", identity=who, traceparent=CALLER
        )
        assert waiting.reason == "approval_required"
        invoke = signals.span("cuo.supervisor.node.invoke")
        assert invoke.status.status_code is StatusCode.UNSET
        assert "error.type" not in (invoke.attributes or {})
        await supervisor.resume(kit.run_of(waiting), Answer(False, "no"), identity=who)
    assert signals.counted(names.METRIC_DESTRUCTIVE_TOTAL) == {("vietnam-bank-transfer@1.0",): 1}
    assert signals.counted(store_names.RESUME_TOTAL)[("resumed",)] == 1
    assert {t.trace_id_hex(span.context) for span in signals.spans} == {TRACE}
    assert signals.counted(names.METRIC_FAILURES_TOTAL) == {}


@pytest.mark.clause("101-16")
async def test_no_label_tells_who_or_what(
    made: Callable[..., Supervisor], signals: Signals, tenant_id: str, lens: Any
) -> None:
    """Real runs of a hostile caller, on every path: no tenant, person or text in any label, of any
    metric, and labels from the published sets alone."""
    secrets = ("an.nguyen@example.vn", "0912345678", "x" * 5000, 'a"} 1\ncuo_fake 2')
    who = kit.identity(tenant_id, subject_id="subject-of-someone", persona="cfo")
    async with made() as supervisor:
        for query in (kit.AUTO, "send invoice", "asdfghjkl", kit.CASCADE, kit.MATRIX):
            await supervisor.route(
                f"{query} {secrets[0]}", persona_key="cfo", identity=who, do_invoke=True
            )
        for persona in (*secrets, "\ud800", "genie\n"):
            with pytest.raises(SupervisorError):
                await supervisor.route("x", persona_key=persona, identity=who, do_record=False)
    seen = list(signals.labels())
    assert {metric for metric, _, _ in seen} >= {
        names.METRIC_ROUTE_TOTAL,
        store_names.WRITE_LATENCY,
    }
    specs: dict[str, Any] = {**names.METRICS, **store_names.METRICS}
    for metric, label, value in seen:
        assert label in specs[metric].labels
        assert tenant_id not in value
        assert "subject-of" not in value
        assert len(value) < 60
        assert not any(secret in value for secret in (*secrets, "asdfghjkl"))


def test_ten_thousand_skills_and_a_thousand_personas(signals: Signals) -> None:
    """Whatever the catalogue holds and callers ask for, the number of series stays bounded."""
    for n in range(10_000):
        signals.telemetry.destructive_block(f"skill-{n}@1.0")
        signals.telemetry.persona_defer_block(f"persona-{n}", f"operation-{n}")
        signals.telemetry.cascade(f"outcome-{n}")
    found = signals.metrics()
    assert len(found[names.METRIC_DESTRUCTIVE_TOTAL]) == names.SKILLS_MAX + 1
    assert len(found[names.METRIC_PERSONA_DEFER_TOTAL]) == 1
    assert len(found[names.METRIC_CASCADE_TOTAL]) == 1


def test_attributes_are_bounded_and_can_be_sent(signals: Signals) -> None:
    """Huge values are cut, a lone surrogate becomes a question mark: no exporter chokes on them."""
    for query in ("ạ" * 10_000_000, "\ud800 nợ \x00", "e\u0301"):
        with signals.telemetry.route_span(
            t.parse_traceparent(None),
            request_id="r",
            tenant_id="t",
            subject_id_hash16="s",
            persona_key="p" * 10_000,
            query=query,
        ) as route:
            route.outcome = "timeout"
    first, second, third = (dict(span.attributes or {}) for span in signals.spans)
    assert len(str(first["query"])) <= 16 * 1024
    assert len(str(first["persona_key"])) <= 64
    assert second["query"] == "? nợ \x00"
    assert third["query"] == "e\u0301"
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    assert encode_spans(signals.spans).SerializeToString()


def test_held_spans_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests of many spans each push out the oldest, whole; none is lost on the way."""
    assert sdk._TOTAL_MAX == 16_384
    monkeypatch.setattr(sdk, "_TOTAL_MAX", 1638)
    signals = Signals(ratio=0.0)
    sampler = signals.tracing._active_span_processor._span_processors[0]
    tracer = signals.tracing.get_tracer("x")
    from opentelemetry import trace as api

    roots = []
    for _ in range(50):
        root = tracer.start_span(t.SPAN_ROUTE)
        roots.append(root)
        for _ in range(40):
            tracer.start_span("child", api.set_span_in_context(root)).end()
        assert sampler._total <= 1638
    assert len(signals.spans) == 50 * 40 - sampler._total
    assert len(signals.spans) % 40 == 0
    for root in roots:
        root.set_attribute("outcome", "success")
        root.end()
    assert sampler._total == 0
    assert not sampler._held
    signals.tracing.shutdown()


# -- collectors --------------------------------------------------------------------------------


class Collector:
    """A collector on loopback that takes, hangs, resets or answers 500."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.taken: list[tuple[str, bytes]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join(5)
        self._server.close()
        for held in self._held:
            held.close()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._server.accept()
            except OSError:
                return
            if self.mode == "hang":
                self._held.append(conn)
            elif self.mode == "reset":
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                conn.close()
            else:
                threading.Thread(target=self._answer, args=(conn,), daemon=True).start()

    def _answer(self, conn: socket.socket) -> None:
        with conn, conn.makefile("rb") as file:
            while line := file.readline():
                path, length = line.split()[1].decode(), 0
                while (field := file.readline().strip().lower()) != b"":
                    if field.startswith(b"content-length:"):
                        length = int(field.split(b":")[1])
                self.taken.append((path, file.read(length)))
                status = b"500 no" if self.mode == "500" else b"200 OK"
                conn.sendall(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")


@pytest.fixture
def exporting() -> Iterator[Callable[[str], tuple[t.Telemetry, list[Any]]]]:
    """Telemetry that sends to an address as `serve` does."""
    level = [logger.level for logger in QUIET]
    for logger in QUIET:
        logger.setLevel(logging.CRITICAL)

    def make(url: str) -> tuple[t.Telemetry, list[Any]]:
        tracing = sdk.tracer_provider(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=f"{url}/v1/traces"), schedule_delay_millis=20
            ),
            ratio=1.0,
        )
        metering = MeterProvider(
            [
                PeriodicExportingMetricReader(
                    OTLPMetricExporter(endpoint=f"{url}/v1/metrics"),
                    export_interval_millis=30,
                )
            ],
            shutdown_on_exit=False,
        )
        telemetry = t.Telemetry(tracer_provider=tracing, meter_provider=metering)
        return telemetry, [tracing, metering]

    yield make
    for logger, was in zip(QUIET, level, strict=True):
        logger.setLevel(was)


@pytest.mark.clause("101-14")
@pytest.mark.parametrize("fault", ["hang", "refuse", "reset", "500", "dns"])
def test_a_bad_collector_neither_slows_nor_fails_a_run(
    exporting: Callable[[str], tuple[t.Telemetry, list[Any]]], tmp_path: Path, fault: str
) -> None:
    """Runs are as quick as without one, while exports fail behind them; the end is bounded."""
    collector = Collector("hang" if fault == "refuse" else fault)
    url = "http://no-such-host.invalid" if fault == "dns" else collector.url
    if fault == "refuse":
        collector.close()
    telemetry, providers = exporting(url)
    who = kit.identity(str(uuid.uuid4()), local=True)
    quiet = kit.make(None, ledger=tmp_path / "l", telemetry=t.Telemetry())
    made = kit.make(None, ledger=tmp_path / "l", telemetry=telemetry)

    async def runs(supervisor: Supervisor, n: int) -> list[float]:
        spent = []
        for _ in range(n):
            began = time.perf_counter()
            decision = await supervisor.route(
                "send invoice", identity=who, do_record=False, traceparent=CALLER
            )
            spent.append(time.perf_counter() - began)
            assert decision.path_taken == "ask"
        return sorted(spent)

    without = asyncio.run(runs(quiet, 20))
    within = asyncio.run(runs(made, 40))
    # A run that waited for the collector would take its time-out, ten seconds, or a connect's.
    assert within[len(within) // 2] < without[len(without) // 2] + 0.05
    assert within[-1] < 2.0
    began = time.monotonic()
    sdk.shut_down(providers, seconds=0.4)
    assert time.monotonic() - began < 2.0
    assert telemetry.failures == 0
    collector.close()


@pytest.mark.clause("101-14", "101-16")
def test_a_real_receiver_gets_spans_and_metrics(
    exporting: Callable[[str], tuple[t.Telemetry, list[Any]]], tmp_path: Path
) -> None:
    """OTLP over HTTP, as protobuf: the published names, the caller's trace, the counted request."""
    collector = Collector("take")
    telemetry, providers = exporting(collector.url)
    made = kit.make(None, ledger=tmp_path / "l", telemetry=telemetry)
    who = kit.identity(str(uuid.uuid4()), persona="cfo")

    async def go() -> None:
        await made.route(
            "send invoice",
            persona_key="cfo",
            identity=who,
            do_record=False,
            traceparent=CALLER,
        )

    asyncio.run(go())
    with telemetry.route_span(
        t.parse_traceparent(CALLER),
        request_id="r",
        tenant_id="t",
        subject_id_hash16="s",
        persona_key="cfo",
    ) as route:
        route.outcome, route.path_taken = "success", "auto"
    sdk.shut_down(providers, seconds=10)
    collector.close()
    spans = [
        span
        for path, body in collector.taken
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {span.name for span in spans} >= {
        t.SPAN_ROUTE,
        t.SPAN_DRY_RUN,
        "cuo.supervisor.node.parse",
        "cuo.supervisor.node.record",
    }
    metrics = {
        metric.name: metric
        for path, body in collector.taken
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (point,) = metrics[names.METRIC_ROUTE_TOTAL].sum.data_points
    said = {a.key: a.value.string_value for a in point.attributes}
    assert said == {"outcome": "success", "persona": "cfo", "path_taken": "auto"}
    (timed,) = metrics[names.METRIC_ROUTE_LATENCY_MS].histogram.data_points
    assert list(timed.explicit_bounds) == list(names.ROUTE_BUCKETS_MS)
