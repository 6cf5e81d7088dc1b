"""The supervisor's own times: scorer, scrubber, rule path with and without the log, start-up.

CPU time where one function is meant, wall time where a person waits. The machines that run this
are shared: a floor measured in the same run (a bare LangGraph of as many nodes, a bare Python
start) stands beside each wall time, and of a recorded request also the CPU time it took here and in
the database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import psycopg
from langgraph.graph import END, START, StateGraph
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from cuo_checkpoint import telemetry as store_telemetry
from cuo_checkpoint.local import local_database
from cuo_checkpoint.logs import logging_to
from cuo_supervisor import telemetry_sdk
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.scoring import score_one_off
from cuo_supervisor.core.scrub import scrub
from cuo_supervisor.identity import LOCAL_IDENTITY
from cuo_supervisor.route_record import log_context
from cuo_supervisor.supervisor import Supervisor
from cuo_supervisor.telemetry import Telemetry

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
QUERY = "validate MST 0301479073"


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(len(ordered) * share))]  # noqa: E731
    return {"p50_ms": round(statistics.median(ordered), 3), "p95_ms": round(at(0.95), 3)}


def cpu(call: Callable[[], object], n: int) -> dict[str, float]:
    """CPU milliseconds of one call."""
    for _ in range(max(5, n // 10)):
        call()
    times = []
    for _ in range(n):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1000)
    return percentiles(times)


def hundred_skills() -> Catalog:
    """The shipped skills under other names until there are a hundred."""
    shipped = load_catalog().skills
    made = list(shipped)
    while len(made) < 100:
        base = shipped[len(made) % len(shipped)]
        made.append(base.model_copy(update={"name": f"{base.name}-x{len(made)}"}))
    return Catalog.of(made)


def queries() -> list[dict[str, Any]]:
    lines = (FIXTURES / "heldout_queries.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def precision() -> dict[str, Any]:
    """How often an automatic pick was right, with the lower end of its 95 % Wilson interval."""
    catalog, right, picked = load_catalog(), 0, 0
    items = queries()
    for item in items:
        scored = score_one_off(item["query"], get_persona(item.get("persona", "genie")), catalog)
        if scored and scored[0].confidence >= 0.70:
            picked += 1
            right += scored[0].skill_name.partition("@")[0] == item.get("skill")
    z, share = 1.96, right / picked if picked else 0.0
    centre = share + z * z / (2 * picked)
    spread = z * math.sqrt(share * (1 - share) / picked + z * z / (4 * picked * picked))
    return {
        "queries": len(items),
        "auto": picked,
        "right": right,
        "wilson_lower": round((centre - spread) / (1 + z * z / picked), 4),
    }


def bare_graph() -> Any:
    """Five nodes that do nothing: what LangGraph itself takes."""

    class State(TypedDict, total=False):
        n: int

    async def node(state: State) -> State:
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(State)
    for i in range(5):
        graph.add_node(f"n{i}", node)
    graph.add_edge(START, "n0")
    for i in range(4):
        graph.add_edge(f"n{i}", f"n{i + 1}")
    graph.add_edge("n4", END)
    return graph.compile()


async def rule_path(rounds: int) -> dict[str, Any]:
    """Wall time of one request by rule: dry, and recorded in PostgreSQL without invoking."""
    found: dict[str, Any] = {}
    bare = bare_graph()
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder:
        Path(folder).chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
        with local_database(data_dir=Path(folder)) as server:
            store = CuoStore(Place(server.app_dsn, "public"), max_connections=2)
            async with Supervisor(
                catalog=load_catalog(), store=store, model=None, runner=None
            ) as made:
                times: dict[str, list[float]] = {"bare_langgraph": [], "dry": [], "recorded": []}
                computed: dict[str, list[float]] = {name: [] for name in times}
                served: list[float] = []

                async def one(name: str, call: Callable[[], Any]) -> None:
                    began, cpu_began = time.perf_counter(), time.process_time()
                    await call()
                    times[name].append((time.perf_counter() - began) * 1000)
                    computed[name].append((time.process_time() - cpu_began) * 1000)

                backends: list[int] = []
                for i in range(rounds + 10):
                    if i == 10:
                        times = {name: [] for name in times}
                        computed = {name: [] for name in times}
                        served.clear()
                        backends = server_processes(server.admin_dsn)
                    await one("bare_langgraph", lambda: bare.ainvoke({"n": 0}))
                    await one(
                        "dry", lambda: made.route(QUERY, identity=LOCAL_IDENTITY, do_record=False)
                    )
                    before = cpu_of(backends)
                    await one(
                        "recorded",
                        lambda: made.route(QUERY, identity=LOCAL_IDENTITY, do_invoke=False),
                    )
                    served.append(cpu_of(backends) - before)
                found = {name: percentiles(values) for name, values in times.items()}
                found |= {f"{name}, own CPU": percentiles(v) for name, v in computed.items()}
                found["recorded, the database's CPU"] = percentiles(served)
    return found


def server_processes(admin_dsn: str) -> list[int]:
    """The database's processes that serve the application's role; of a local server, so visible."""
    with psycopg.connect(admin_dsn) as conn:
        found = conn.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'cyberos_app'")
        return [pid for (pid,) in found]


def cpu_of(processes: Sequence[int]) -> float:
    """CPU milliseconds that processes have had; 0 where the kernel does not tell."""
    stats = [Path(f"/proc/{pid}/schedstat") for pid in processes]
    return sum(int(stat.read_text().split()[0]) / 1e6 for stat in stats if stat.exists())


async def telemetry_cost(rounds: int) -> dict[str, Any]:
    """What telemetry adds to a recorded request by rule: on and off in turn, in one run.

    On: spans held, sampled at 1 % and exported over OTLP to a collector on loopback, metrics of
    supervisor and store collected every second, events formatted and written. Off: the API alone.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder, collector() as url:
        Path(folder).chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
        tracing = telemetry_sdk.tracer_provider(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url}/v1/traces"))
        )
        exporter = OTLPMetricExporter(endpoint=f"{url}/v1/metrics")
        metering = MeterProvider(
            [PeriodicExportingMetricReader(exporter, export_interval_millis=1000)],
            shutdown_on_exit=False,
        )
        on = Telemetry(tracer_provider=tracing, meter_provider=metering)
        listening = store_telemetry.StoreTelemetry(metering)
        with (
            local_database(data_dir=Path(folder)) as server,
            open(os.devnull, "w") as void,  # noqa: ASYNC230 - as above
        ):
            store = CuoStore(Place(server.app_dsn, "public"), max_connections=2)
            options: dict[str, Any] = {"store": store, "model": None, "runner": None}
            made = {
                "off": Supervisor(catalog=load_catalog(), telemetry=Telemetry(), **options),
                "on": Supervisor(catalog=load_catalog(), telemetry=on, **options),
            }
            times: dict[str, list[float]] = {"off": [], "on": []}
            computed: dict[str, list[float]] = {"off": [], "on": []}
            for i in range(rounds + 10):
                for name in ("off", "on") if i % 2 else ("on", "off"):
                    with contextlib.ExitStack() as stack:
                        if name == "on":
                            stack.enter_context(store_telemetry.using(listening))
                            stack.enter_context(logging_to(void, context=log_context))
                        began, cpu_began = time.perf_counter(), time.thread_time()
                        await made[name].route(QUERY, identity=LOCAL_IDENTITY, do_invoke=False)
                        if i >= 10:
                            times[name].append((time.perf_counter() - began) * 1000)
                            computed[name].append((time.thread_time() - cpu_began) * 1000)
            found = {name: percentiles(values) for name, values in times.items()}
            found |= {f"{name}, CPU": percentiles(values) for name, values in computed.items()}
            for kind in ("p50_ms", "p95_ms"):
                found[f"added {kind}"] = round(found["on"][kind] - found["off"][kind], 3)
                cpu_added = found["on, CPU"][kind] - found["off, CPU"][kind]
                found[f"added {kind}, CPU"] = round(cpu_added, 3)
            await store.aclose()
        telemetry_sdk.shut_down([tracing, metering], seconds=5)
    return found


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """An OTLP receiver on loopback that takes everything, in a process of its own."""
    code = (
        "import http.server as h\n"
        "class C(h.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        self.rfile.read(int(self.headers['content-length'])); self.send_response(200)\n"
        "        self.send_header('content-length', '0'); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), C); print(s.server_address[1], flush=True)\n"
        "s.serve_forever()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        yield f"http://127.0.0.1:{made.stdout.readline().strip()}"
        made.kill()


def commands(rounds: int) -> dict[str, Any]:
    """Wall time of whole commands beside a bare Python start."""
    found: dict[str, Any] = {}
    entry = "from cuo_supervisor.cli.main import main; main()"
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder:
        Path(folder).chmod(0o755)
        env = os.environ | {"CUO_DATA_DIR": folder}
        with local_database(data_dir=Path(folder)):
            calls = {
                "python -c pass": ["-c", "pass"],
                "--help": ["-c", entry, "--help"],
                "route, rule path, warm store": [
                    "-c",
                    entry,
                    "supervisor",
                    "route",
                    "--no-invoke",
                    "--query",
                    QUERY,
                ],
            }
            for name, arguments in calls.items():
                times = []
                for i in range(rounds + 1):
                    began = time.perf_counter()
                    subprocess.run(
                        [sys.executable, *arguments], env=env, capture_output=True, check=True
                    )
                    if i:
                        times.append((time.perf_counter() - began) * 1000)
                found[name] = percentiles(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only-telemetry", action="store_true", help="what telemetry adds")
    args = parser.parse_args()
    if args.only_telemetry:
        print(json.dumps(asyncio.run(telemetry_cost(args.rounds)), indent=2))
        return
    persona, shipped, many = get_persona("cfo"), load_catalog(), hundred_skills()
    texts = [item["query"] for item in queries()]
    turn = iter(range(10**9))
    short = ("Gọi 0912 345 678 hoặc viết an@example.vn về MST 0301479073, STK 0011001234567. " * 3)[
        :200
    ]
    report = {
        "scorer, 7 skills (CPU)": cpu(
            lambda: score_one_off(texts[next(turn) % len(texts)], persona, shipped), 600
        ),
        "scorer, 100 skills (CPU)": cpu(
            lambda: score_one_off(texts[next(turn) % len(texts)], persona, many), 600
        ),
        "scrubber, 200 characters (CPU)": cpu(lambda: scrub(short), 300),
        "scrubber, 8 kB (CPU)": cpu(lambda: scrub((short + " lời nhắn. ") * 38), 40),
        "precision at auto": precision(),
        "rule path": asyncio.run(rule_path(args.rounds)),
        "rule path, recorded: telemetry on against off": asyncio.run(telemetry_cost(args.rounds)),
        "commands": commands(max(3, args.rounds // 40)),
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
