"""What the store tells of itself, read from a real SDK in memory while real graphs run."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, errors, gauges
from cuo_checkpoint import telemetry_names as names
from cuo_checkpoint.keys import KeyRing, generate
from cuo_checkpoint.models import PARTITIONED_TABLES
from cuo_checkpoint.records import MAX_STATE_BYTES

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))
from telemetry_signals import Signals

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class State(TypedDict, total=False):
    n: int
    big: str


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals().listening() as made:
        yield made


def graph(store: PostgresCheckpointer, *nodes: Any) -> Any:
    built = StateGraph(State)
    for i, node in enumerate(nodes):
        built.add_node(f"n{i}", node)
        built.add_edge(f"n{i - 1}" if i else START, f"n{i}")
    built.add_edge(f"n{len(nodes) - 1}", END)
    return built.compile(store)


def config(trace: str | None = TRACE) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid.uuid4()), "trace_id": trace}}


def add(state: State) -> State:
    return {"n": state.get("n", 0) + 1}


def ask(state: State) -> State:
    return {"n": interrupt("?")}


def test_a_run_is_timed_and_its_rows_are_counted(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals, drive: Any, lens: Any
) -> None:
    """Each writing call has a latency, each committed row counts under its kind, in both colours."""
    drive(graph(make_store(), add, add), "invoke", {"n": 0}, config(), durability="sync")
    counted = signals.counted(names.ROWS_WRITTEN)
    assert counted == {
        ("run_started",): 1,
        ("node_entered",): 2,
        ("node_completed",): 2,
        ("edge_traversed",): 3,
        ("run_completed",): 1,
    }
    assert sum(counted.values()) == len(lens.rows())
    timed = signals.timed(names.WRITE_LATENCY)
    assert ("put", "ok") in timed
    assert {outcome for _, outcome in timed} == {"ok"}
    assert all(5.0 in point.explicit_bounds for point in timed.values())
    assert all(0 < point.min <= point.max < 60_000 for point in timed.values())
    assert signals.counted(names.RESUME_TOTAL) == {("new",): 1}
    assert signals.counted(names.TRACE_MISSING) == {}
    assert signals.counted(names.FAILURES_TOTAL) == {}


def test_how_a_run_resumed(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals, lens: Any
) -> None:
    """A first run finds nothing, an answered one its own state, a second one its thread's."""
    made, where = graph(make_store(), add, ask), config()
    made.invoke({"n": 0}, where, durability="sync")
    made.invoke(Command(resume=7), where, durability="sync")
    made.invoke({"n": 0}, where, durability="sync")
    assert signals.counted(names.RESUME_TOTAL) == {
        ("new",): 1,
        ("resumed",): 1,
        ("loaded",): 1,
    }


def test_a_state_that_cannot_be_read_back(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals, lens: Any
) -> None:
    """A resume that meets a type it may not rebuild counts as unreadable, and as a failure."""
    from dataclasses import make_dataclass

    kind = make_dataclass("Kind", [("n", int)])
    kind.__module__ = __name__
    globals()["Kind"] = kind
    where = config()
    graph(make_store(allowed_types=[kind]), lambda state: {"big": kind(1)}, ask).invoke(
        {"n": 0}, where, durability="sync"
    )
    with pytest.raises(errors.DeserialiseError):
        graph(make_store(), add, ask).invoke(Command(resume=1), where, durability="sync")
    assert signals.counted(names.RESUME_TOTAL)["unreadable",] == 1
    assert signals.counted(names.FAILURES_TOTAL)["state_unreadable", "2"] == 1


@pytest.mark.clause("102-2", "102-7")
def test_a_missing_trace_id_is_told_and_fails_nothing(
    make_store: Callable[..., PostgresCheckpointer],
    signals: Signals,
    lens: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows say zeros, a metric counts, one event names the run, the run completes (D4.7)."""
    with caplog.at_level(logging.INFO, "cuo_checkpoint"):
        graph(make_store(), add).invoke({"n": 0}, config(None), durability="sync")
    assert {row["trace_id"] for row in lens.rows()} == {"0" * 32}
    assert signals.counted(names.TRACE_MISSING)[()] >= 1
    assert signals.counted(names.FAILURES_TOTAL) == {("trace_id_missing", "2"): 1}
    told = [r for r in caplog.records if getattr(r, "event", "") == "store.trace_id_missing"]
    assert len(told) == 1
    assert told[0].fields["run_id"] == str(lens.rows()[0]["run_id"])  # type: ignore[attr-defined]
    assert told[0].levelno == logging.ERROR


def test_refusals_count_as_conflicts(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals, lens: Any
) -> None:
    """Another's bytes under the same id, a stale parent, a deleted thread: each under its name."""
    store, where = make_store(strict_parent=True), config()
    place = {"configurable": {**where["configurable"], "checkpoint_ns": ""}}
    first = empty_checkpoint()
    put = store.put(place, first, {"source": "loop", "step": 0}, {})
    with pytest.raises(errors.CheckpointConflict):
        store.put(place, {**first, "channel_values": {"n": 1}}, {"source": "loop", "step": 0}, {})
    store.put(put, empty_checkpoint(), {"source": "loop", "step": 1}, {})
    with pytest.raises(errors.StaleParent):
        store.put(put, empty_checkpoint(), {"source": "loop", "step": 1}, {})
    store.delete_thread(where["configurable"]["thread_id"])
    with pytest.raises(errors.ThreadDeleted):
        store.put(place, empty_checkpoint(), {"source": "loop", "step": 0}, {})
    assert signals.counted(names.CONFLICTS) == {
        ("overwrite_refused",): 1,
        ("stale_parent",): 1,
        ("thread_deleted",): 1,
    }
    assert signals.counted(names.FAILURES_TOTAL) == {("write_conflict", "3"): 3}
    assert signals.timed(names.WRITE_LATENCY)["put", "refused"].count == 3
    assert signals.timed(names.WRITE_LATENCY)["tombstone", "ok"].count == 1


@pytest.mark.parametrize(
    ("value", "kind", "failure", "severity"),
    [
        ("x" * (MAX_STATE_BYTES + 1), errors.StateTooLarge, "state_too_large", "2"),
        (object(), errors.UnserialisableValue, "state_serialise_failed", "1"),
    ],
)
def test_a_state_that_cannot_be_stored(
    make_store: Callable[..., PostgresCheckpointer],
    signals: Signals,
    lens: Any,
    value: Any,
    kind: type[Exception],
    failure: str,
    severity: str,
) -> None:
    """It counts under its severity, and the event about it holds no part of the state."""
    with pytest.raises(kind):
        graph(make_store(), lambda state: {"big": value}).invoke(
            {"n": 0}, config(), durability="sync"
        )
    assert signals.counted(names.FAILURES_TOTAL)[failure, severity] >= 1


def test_a_lost_database_is_a_failure_of_severity_1(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals
) -> None:
    """Nobody at the address: the call fails as ever, and the metric says so."""
    store = make_store("postgresql://cyberos_app@127.0.0.1:1/none?connect_timeout=1")
    store._sync._given = _Refusing()  # type: ignore[assignment]
    with pytest.raises(errors.StoreUnavailable):
        graph(store, add).invoke({"n": 0}, config(), durability="sync")
    assert signals.counted(names.FAILURES_TOTAL)["database_lost", "1"] >= 1
    assert signals.counted(names.RESUME_TOTAL) == {("unavailable",): 1}


class _Refusing:
    """A pool whose connections never come."""

    def getconn(self) -> Any:
        from psycopg_pool import PoolTimeout

        raise PoolTimeout("none")

    def get_stats(self) -> dict[str, int]:
        return {}


def test_what_another_service_writes_counts_too(
    make_store: Callable[..., PostgresCheckpointer], signals: Signals, lens: Any
) -> None:
    """`CheckpointWriter` and copies are timed and counted like a graph's calls."""
    store, run = make_store(), uuid.uuid4()
    CheckpointWriter(store).write(run, "run_started", {"n": 1}, trace_id=TRACE)
    where = config()
    graph(store, add).invoke({"n": 0}, where, durability="sync")
    before = sum(signals.counted(names.ROWS_WRITTEN).values())
    store.copy_thread(where["configurable"]["thread_id"], str(uuid.uuid4()))
    assert signals.timed(names.WRITE_LATENCY)["write", "ok"].count == 1
    assert signals.timed(names.WRITE_LATENCY)["copy_thread", "ok"].count == 1
    after = sum(signals.counted(names.ROWS_WRITTEN).values())
    assert after - before == len(lens.rows()) - before > 0


def test_labels_are_closed(
    make_store: Callable[..., PostgresCheckpointer],
    signals: Signals,
    lens: Any,
    tenant_id: str,
) -> None:
    """Whatever threads, nodes and texts a run has, labels come from the published sets."""
    secret = "an.nguyen@example.vn 0912345678"
    built = StateGraph(State)
    built.add_node(secret, lambda state: {"big": secret})
    built.add_edge(START, secret)
    where = {"configurable": {"thread_id": secret, "trace_id": TRACE}}
    built.compile(make_store()).invoke({"n": 0}, where, durability="sync")
    signals.store.start_at_zero()
    known = {
        "operation": set(names.OPERATIONS.values()),
        "outcome": set(names.OUTCOMES),
        "result": set(names.RESUME_RESULTS),
        "kind": set(names.ROW_KINDS) | set(names.CONFLICT_KINDS.values()),
        "failure": set(names.FAILURES),
        "severity": {"1", "2", "3"},
    }
    seen = list(signals.labels())
    assert seen
    for metric, label, value in seen:
        assert label in names.METRICS[metric].labels
        assert value in known[label]


def test_without_a_listener_a_plan_runs_as_it_is(store: PostgresCheckpointer, lens: Any) -> None:
    """With the API alone nothing wraps the plan, and nothing is kept."""
    from cuo_checkpoint.telemetry import StoreTelemetry, Watch

    plan = store.plans.setup()
    watch = Watch(StoreTelemetry(), "put")
    assert watch.over(plan) is plan
    plan.close()


class _Torn:
    """A meter provider that raises for everything."""

    def get_meter(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("telemetry is down")


def test_broken_telemetry_fails_no_run(
    make_store: Callable[..., PostgresCheckpointer], lens: Any
) -> None:
    """A provider that raises changes nothing about what is stored."""
    from cuo_checkpoint import telemetry

    with telemetry.using(telemetry.StoreTelemetry(_Torn())):  # type: ignore[arg-type]
        out = graph(make_store(), add).invoke({"n": 0}, config(), durability="sync")
    assert out == {"n": 1}
    assert len(lens.rows()) == 6


# -- gauges ------------------------------------------------------------------------------------


def values(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], float]]]:
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(p.attributes or {}), p.value) for p in metric.data.data_points]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_gauges_of_a_real_database(
    app_dsn: str, auditor_dsn: str, owner_dsn: str, open_tmp_path: Path, tenant_id: str
) -> None:
    """Months ahead, rows and, for who may see them all, the age of what no seal covers."""
    from cuo_checkpoint.head_files import HeadFolder
    from cuo_checkpoint.seal import Sealer

    assert gauges.observe(app_dsn, everyone_dsn=auditor_dsn).seal_age == 0.0
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        graph(store, add).invoke({"n": 0}, config(), durability="sync")
    time.sleep(0.3)
    with psycopg.connect(owner_dsn, autocommit=True) as conn:
        conn.execute("ANALYZE cuo_langgraph_checkpoints")
    seen = gauges.observe(app_dsn, everyone_dsn=auditor_dsn)
    assert seen.months_ahead == 3
    assert seen.rows["cuo_langgraph_checkpoints"] == 6
    assert seen.seal_age is not None
    assert 0.3 <= seen.seal_age < 60
    assert seen.archive_failures == 0
    ring = KeyRing((generate("test"),))
    open_tmp_path.chmod(0o755)
    with Sealer(auditor_dsn, ring=ring, folder=HeadFolder(open_tmp_path)) as sealer:
        sealer.seal(uuid.UUID(tenant_id))
    assert gauges.observe(auditor_dsn).seal_age == 0.0
    # The application sees one tenant at a time, so it does not claim to know.
    blind = gauges.observe(app_dsn)
    assert blind.seal_age is None
    assert blind.archive_failures is None
    assert {p.metric for p in gauges.points(blind)} == {names.TABLE_ROWS, names.MONTHS_AHEAD}


def test_the_archive_prints_what_only_an_auditor_sees(
    shared_place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As text Prometheus reads, or as a file replaced whole that others may read."""
    from cuo_checkpoint import archive_cli

    monkeypatch.setenv("CUO_DATABASE_URL", shared_place.auditor)
    assert archive_cli.main(["metrics"]) == 0
    said = capsys.readouterr().out
    told = dict(line.rsplit(" ", 1) for line in said.splitlines() if not line.startswith("#"))
    assert set(told) == {
        names.MONTHS_AHEAD,
        names.SEAL_AGE,
        names.ARCHIVE_FAILURES,
        *(f'{names.TABLE_ROWS}{{table="{table}"}}' for table in PARTITIONED_TABLES),
    }
    assert told[names.MONTHS_AHEAD] == "3"
    out = tmp_path / "cuo.prom"
    out.write_text("old")
    assert archive_cli.main(["metrics", "--out", str(out)]) == 0
    assert out.read_text().startswith("# HELP cuo_checkpoint_archive_failures ")
    assert out.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [out]
    assert archive_cli.main(["metrics", "--out", str(tmp_path / "no" / "where")]) == 64


def test_months_ahead_counts_without_a_gap() -> None:
    """A month that one table lacks ends the count; without the current one it is -1."""
    from cuo_checkpoint.catalog import MonthTable
    from cuo_checkpoint.partitions import Month

    now = Month(2026, 11)

    def there(*missing: tuple[str, int]) -> list[MonthTable]:
        return [
            MonthTable(parent, f"{parent}{n}", now.plus(n), 1, 1)
            for parent in PARTITIONED_TABLES
            for n in range(4)
            if (parent, n) not in missing
        ]

    assert gauges._ahead(there(), now) == 3
    assert gauges._ahead(there((PARTITIONED_TABLES[1], 2)), now) == 1
    assert gauges._ahead(there((PARTITIONED_TABLES[2], 0)), now) == -1


def test_a_scrape_never_waits_and_never_fails() -> None:
    """A database that hangs or fails leaves what was read before, with its age; looks are rare."""
    looks: list[float] = []
    clock = [100.0]
    behave: list[Any] = [gauges.Observed(3, {"t": 5}, 1.5, 0)]

    def look() -> gauges.Observed:
        looks.append(clock[0])
        found = behave[0]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, float):
            time.sleep(found)
        return found if isinstance(found, gauges.Observed) else gauges.Observed(9, {}, None, None)

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    made = gauges.Gauges(
        look, meter_provider=provider, fresh_seconds=30.0, monotonic=lambda: clock[0]
    )

    def settled() -> None:
        until = time.monotonic() + 5
        while made._looking and time.monotonic() < until:
            time.sleep(0.005)

    values(reader)
    settled()
    for _ in range(5):
        found = values(reader)
    assert looks == [100.0]
    assert found[names.MONTHS_AHEAD] == [({}, 3)]
    assert found[names.SEAL_AGE] == [({}, 1.5)]
    assert found[names.TABLE_ROWS] == [({"table": "t"}, 5)]
    behave[0] = 1.0  # hangs for a second
    clock[0] = 200.0
    began = time.monotonic()
    assert values(reader)[names.MONTHS_AHEAD] == [({}, 3)]
    assert time.monotonic() - began < 0.5
    values(reader)
    assert looks == [100.0, 200.0]  # one at a time
    settled()
    behave[0] = errors.StoreUnavailable("gone")
    clock[0] = 300.0
    values(reader)
    settled()
    clock[0] = 320.0
    found = values(reader)
    assert looks == [100.0, 200.0, 300.0]  # a failed look is not repeated at once either
    assert found[names.MONTHS_AHEAD] == [({}, 9)]
    assert found[names.OBSERVATION_AGE] == [({}, 120.0)]
    made.close()
    clock[0] = 900.0
    values(reader)
    settled()
    assert len(looks) == 3
    provider.shutdown()


def test_pool_use(make_store: Callable[..., PostgresCheckpointer], lens: Any) -> None:
    """Connections in use, idle and allowed are told by kind of pool, without the database."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    gauges.Gauges(lambda: gauges.Observed(0, {}, None, None), meter_provider=provider)
    store = make_store(max_connections=4)
    store.setup()
    before = pool(reader)
    with store._sync.pool().connection():
        during = pool(reader)
    assert during["used"] == before["used"] + 1
    assert before["max"] >= 4
    assert ({"pool": "sync"}, 0) in values(reader)[names.POOL_WAITING]
    store.close()
    assert pool(reader)["max"] == before["max"] - 4
    provider.shutdown()


def pool(reader: InMemoryMetricReader) -> dict[str, float]:
    return {
        labels["state"]: value
        for labels, value in values(reader)[names.POOL_CONNECTIONS]
        if labels["pool"] == "sync"
    }
