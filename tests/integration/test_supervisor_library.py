"""`run_supervisor` and `Supervisor` for programs that import them."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit

from cuo_supervisor import run_supervisor, run_supervisor_sync
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.errors import UsageError
from cuo_supervisor.ports import Clock
from cuo_supervisor.replay import replay_run
from cuo_supervisor.supervisor import Supervisor


@pytest.fixture
def supervisor(shared_place: Any, tmp_path: Path) -> Supervisor:
    return kit.make(shared_place.app, ledger=tmp_path / "ledger")


@pytest.mark.slow
@pytest.mark.clause("101-2")
async def test_two_hundred_requests_at_once_share_a_small_pool(
    supervisor: Supervisor, lens: Any, tenant_id: str
) -> None:
    """Three connections, one loop: every request is decided and recorded once."""
    who = kit.identity(tenant_id)
    queries = itertools.cycle([kit.AUTO, "send invoice", "asdfghjkl", kit.CASCADE])
    async with supervisor:
        decided = await asyncio.gather(
            *(
                run_supervisor(query, identity=who, supervisor=supervisor)
                for _, query in zip(range(200), queries, strict=False)
            )
        )
    assert len({decision.request_id for decision in decided}) == 200
    rows = kit.bodies(lens, "cuo.routing_decision")
    assert {row["request_id"] for row in rows} == {d.request_id for d in decided}
    assert len(rows) == 200
    lens.prove()


THREADS, EACH, LOOPS, AT_ONCE = 16, 10, 4, 10


class Source:
    """A caller's own ids and time, for any number of threads: numbers in order, none twice."""

    def __init__(self) -> None:
        self.given: list[uuid.UUID] = []
        self._lock = threading.Lock()

    def new_id(self) -> uuid.UUID:
        with self._lock:
            self.given.append(
                uuid.UUID(int=(0x0193_2F3A_5B00 << 80) | (7 << 76) | (2 << 62) | len(self.given))
            )
            return self.given[-1]

    def clock(self) -> Clock:
        return Clock(
            time_ns=lambda: 1_747_920_731_000_000_000,
            monotonic=time.monotonic,
            new_id=self.new_id,
            random_bytes=os.urandom,
        )


def call(number: int, tenants: list[str]) -> dict[str, Any]:
    """One of the 200 calls: its own subject, trace and tax code, so that nothing is like another's."""
    query, path = (
        (f"validate MST {number:010d}", "auto"),
        (f"send invoice {number:04d}", "ask"),
        ("asdfghjkl" + "q" * number, "defer"),
        (f"{kit.CASCADE} {number:04d}", "cascade_then_auto"),
    )[number % 4]
    return {
        "query": query,
        "path": path,
        "subject": f"subject-{number}",
        "tenant": tenants[number // 4 % len(tenants)],
        "trace": f"{number + 1:032x}",
    }


@pytest.mark.slow
@pytest.mark.clause("101-2", "101-8")
@pytest.mark.criterion("101-AC17")
def test_two_hundred_calls_at_once_from_threads_and_loops(
    shared_place: Any, lens_of: Any, tmp_path: Path
) -> None:
    """Sixteen threads that block and four with a loop of ten calls each, all at once, on one
    supervisor with the caller's own store, clock and ids: every call gets its own decision, has one
    decision row, its own subject, query, trace and tenant, one run of its skill, and a whole chain.
    """
    source = Source()
    runner = kit.CountingRunner(tmp_path / "ledger")
    supervisor = Supervisor(
        catalog=load_catalog(),
        store=CuoStore(Place(shared_place.app, "public"), max_connections=2),
        model=kit.Reciter(kit.DUNNING),
        runner=runner,
        clock=source.clock(),
    )
    tenants = [str(uuid.uuid4()) for _ in range(4)]
    calls = [call(number, tenants) for number in range(THREADS * EACH + LOOPS * AT_ONCE)]
    decided: dict[int, Any] = {}
    failed: list[BaseException] = []
    together = threading.Barrier(THREADS + LOOPS)

    def options(number: int) -> dict[str, Any]:
        one = calls[number]
        return {
            "identity": kit.identity(one["tenant"], one["subject"]),
            "traceparent": f"00-{one['trace']}-{'b' * 16}-01",
            "supervisor": supervisor,
        }

    def blocking(numbers: range) -> None:
        for number in numbers:
            decided[number] = run_supervisor_sync(calls[number]["query"], **options(number))

    async def awaiting(numbers: range) -> None:
        async with supervisor:
            given = await asyncio.gather(
                *(run_supervisor(calls[n]["query"], **options(n)) for n in numbers)
            )
        decided.update(zip(numbers, given, strict=True))

    def work(do: Any, numbers: range) -> None:
        try:
            together.wait(30)
            do(numbers)
        except BaseException as error:
            failed.append(error)

    blocked = THREADS * EACH
    threads = [
        *(
            threading.Thread(target=work, args=(blocking, range(at, at + EACH)))
            for at in range(0, blocked, EACH)
        ),
        *(
            threading.Thread(
                target=work, args=(lambda ns: asyncio.run(awaiting(ns)), range(at, at + AT_ONCE))
            )
            for at in range(blocked, len(calls), AT_ONCE)
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failed == []
    assert len(decided) == len(calls) == 200
    ids = {str(ULID.from_uuid(given)) for given in source.given}
    assert {d.request_id for d in decided.values()} == ids
    assert len(ids) == len(source.given) == 200, "an id was asked for twice, or not of the caller"

    ran = sorted(line.split()[1:] for line in runner.ledger.read_text().splitlines())
    rows: dict[str, dict[str, Any]] = {}
    states: dict[str, Any] = {}
    for tenant in tenants:
        lens = lens_of(shared_place.admin, tenant)
        found = kit.bodies(lens, "cuo.routing_decision")
        assert len(found) == sum(one["tenant"] == tenant for one in calls)
        rows |= {row["request_id"]: row for row in found}
        for log in lens.rows():
            if log["kind"] == "run_completed" and not log["thread_id"].startswith("$"):
                state = log["state_json"]
                states[state["request_id"]] = (tenant, state)
        lens.prove()
    assert len(rows) == 200
    expected = []
    for number, one in enumerate(calls):
        decision = decided[number]
        row, (tenant, state) = rows[decision.request_id], states[decision.request_id]
        assert (tenant, state["query"], state["subject_id"]) == (
            one["tenant"],
            one["query"],
            one["subject"],
        )
        assert (row["tenant_id"], row["trace_id"]) == (one["tenant"], one["trace"])
        assert row["subject_id_hash16"] == subject_hash16(one["subject"])
        assert (decision.path_taken, row["path_taken"]) == (one["path"], one["path"])
        assert decision.ts_ns_start == decision.ts_ns_end == 1_747_920_731_000_000_000
        if one["path"] in ("auto", "cascade_then_auto"):
            expected.append((decision.request_id, one["trace"]))
    assert [(request, trace.split("-")[1]) for request, trace in ran] == sorted(expected)


async def test_the_blocking_twin_names_the_other_inside_a_loop(supervisor: Supervisor) -> None:
    """UsageError at once, instead of a loop that waits for itself."""
    with pytest.raises(UsageError, match="await run_supervisor"):
        run_supervisor_sync(kit.AUTO, supervisor=supervisor)


async def test_a_verified_identity_cannot_be_overridden(
    supervisor: Supervisor, tenant_id: str
) -> None:
    """Tenant and subject as arguments are for local mode only."""
    with pytest.raises(UsageError):
        await run_supervisor(
            kit.AUTO,
            identity=kit.identity(tenant_id),
            tenant_id=str(uuid.uuid4()),
            supervisor=supervisor,
        )


@pytest.mark.clause("101-3")
async def test_clock_ids_and_randomness_are_the_callers(
    shared_place: Any, tenant_id: str, tmp_path: Path
) -> None:
    """With all of them fixed two tenants' decisions are equal to the last byte."""
    run_id = uuid.UUID("01932f3a-5b00-7000-8000-000000000001")
    clock = Clock(
        time_ns=lambda: 1_747_920_731_000_000_000,
        monotonic=lambda: 0.0,
        new_id=lambda: run_id,
        random_bytes=lambda n: b"\x01" * n,
    )
    told = []
    for tenant in (tenant_id, str(uuid.uuid4())):
        made = kit.make(shared_place.app, ledger=tmp_path / "ledger", clock=clock)
        async with made:
            decision = await made.route(kit.CASCADE, identity=kit.identity(tenant))
        told.append(decision.model_dump_json())
        assert decision.request_id == str(ULID.from_uuid(run_id))
        assert decision.ts_ns_start == decision.ts_ns_end == 1_747_920_731_000_000_000
    assert told[0] == told[1]


@pytest.mark.slow
async def test_a_catalogue_reloaded_under_load_is_whole_for_every_request(
    shared_place: Any, lens: Any, tenant_id: str, tmp_path: Path
) -> None:
    """Each request is decided, recorded, kept and replayed with the one catalogue it began with."""
    shipped = load_catalog()
    fewer = Catalog.of([skill for skill in shipped.skills if "mst" not in skill.name])
    made = kit.make(shared_place.app, ledger=tmp_path / "ledger")
    who = kit.identity(tenant_id)
    stop = threading.Event()

    def reload() -> None:
        for catalog in itertools.cycle((fewer, shipped)):
            made.catalog = catalog
            if stop.wait(0.002):
                return

    worker = threading.Thread(target=reload)
    worker.start()
    try:
        async with made:
            decided = await asyncio.gather(
                *(made.route(kit.AUTO, identity=who) for _ in range(40)),
            )
            stop.set()
            by_hash = {d.catalog_snapshot_hash: d for d in decided}
            assert set(by_hash) <= {shipped.snapshot_hash, fewer.snapshot_hash}
            for one in decided:
                known = one.catalog_snapshot_hash == shipped.snapshot_hash
                assert (one.skill_chosen == "vietnam-mst-validate@1.0") is known
                assert one.reason is None
            for one in by_hash.values():
                replay = await replay_run(made._store, kit.run_of(one), identity=who)
                assert replay.identical, replay.differences
    finally:
        stop.set()
        worker.join()
    rows = kit.bodies(lens, "cuo.routing_decision")
    assert len(rows) == 40
    assert not any(row["catalog_changed"] for row in rows)


PROGRAM = """
import asyncio, os, sys
from cuo_supervisor import run_supervisor, run_supervisor_sync
first = run_supervisor_sync("send invoice", do_record=False)
second = run_supervisor_sync("send invoice")
async def main():
    return await asyncio.gather(*(
        run_supervisor(query, tenant_id=os.environ["TENANT"], subject_id="me")
        for query in ("what should we do about the unpaid Q4 contract", "asdfghjkl", "validate MST 0301479073")
    ))
third = asyncio.run(main())
print(first.path_taken, second.path_taken, *(d.path_taken for d in third),
      third[0].cascade_outcome)
"""


@pytest.mark.slow
@pytest.mark.clause("101-2", "101-6")
def test_a_program_needs_one_import_and_leaves_nothing_behind(
    tmp_path: Path, open_tmp_path: Path
) -> None:
    """Local mode, dry run first, both colours, the cascade through a gateway; the server stops."""
    from loopback_gateway import LoopbackGateway

    home = open_tmp_path
    with LoopbackGateway() as gateway:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "CUO_DATA_DIR": str(home),
                "CYBEROS_AI_GATEWAY_URL": gateway.url,
                "TENANT": str(uuid.uuid4()),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
    assert ended.stderr == ""
    assert ended.stdout.split()[:2] == ["ask", "ask"]
    path, *rest, outcome = ended.stdout.split()[2:]
    assert outcome == "success", "the library's own supervisor loads its model client"
    assert path in ("cascade_then_auto", "cascade_then_ask")
    assert rest == ["defer", "auto"]
    ends = time.monotonic() + 20
    while list(home.rglob("postmaster.pid")):
        assert time.monotonic() < ends, "the local server was left running"
        time.sleep(0.1)


@pytest.mark.slo
@pytest.mark.slow
@pytest.mark.clause("101-21")
async def test_a_recorded_rule_path_takes_less_than_50_ms(
    supervisor: Supervisor, tenant_id: str, record_property: Any
) -> None:
    """With the log on, nothing invoked: the process's own time of 95 of 100; wall time is reported.

    The promise of 50 ms is made for a request without a store (see test_graph). With one, the wall
    time is mostly seven commits of a shared disk, which `scripts/bench supervisor` shows beside it.
    """
    watch = kit.Stopwatch()
    async with supervisor:
        for _ in range(100):
            with watch.lap():
                await supervisor.route(kit.AUTO, identity=kit.identity(tenant_id), do_invoke=False)
    record_property("latency", watch.told())
    assert watch.own(95) < 50, watch.told()
