"""Many writers, several loops, forks and cancelled calls (D4.1, D4.4)."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from psycopg_pool import AsyncConnectionPool
from typing_extensions import TypedDict

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.errors import CheckpointConflict

Make = Callable[..., PostgresCheckpointer]


class State(TypedDict, total=False):
    """A counter."""

    n: int


def two_nodes(store: PostgresCheckpointer) -> Any:
    """a, then b."""
    graph = StateGraph(State)
    for name in "ab":
        graph.add_node(name, lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    return graph.compile(store)


def at(thread: str = "t", **more: Any) -> Any:
    """A config."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def point(value: Any) -> Any:
    """A checkpoint that holds one value."""
    made: Any = empty_checkpoint()
    made["channel_values"] = {"x": value}
    made["channel_versions"] = {"x": 1}
    return made


WHOLE = ["started", "__start__->a", ">a", "<a", "a->b", ">b", "<b", "b->__end__", "done"]


@pytest.mark.slow
def test_thirty_two_writers_on_one_tenant(make_store: Make, lens: Any) -> None:
    """32 graphs at once on threads of their own: every run whole, every chain sound."""
    graph = two_nodes(make_store(max_connections=8))
    with ThreadPoolExecutor(32) as threads:
        for done in [
            threads.submit(graph.invoke, {"n": 0}, at(f"t{i:02}"), durability="sync")
            for i in range(64)
        ]:
            assert done.result(100) == {"n": 2}
    for i in range(64):
        assert lens.events(f"t{i:02}") == WHOLE


@pytest.mark.slow
async def test_thirty_two_awaiting_writers(make_store: Make, lens: Any) -> None:
    """The same, awaiting, on two connections."""
    store = make_store(max_connections=2)
    graph = two_nodes(store)
    async with store:
        await asyncio.gather(
            *(graph.ainvoke({"n": 0}, at(f"t{i:02}"), durability="sync") for i in range(32))
        )
    for i in range(32):
        assert lens.events(f"t{i:02}") == WHOLE


@pytest.mark.slow
def test_many_writers_on_one_thread(make_store: Make, lens: Any) -> None:
    """Sixteen writers on one thread: nothing lost, one order of arrival without gaps or doubles."""
    store = make_store(max_connections=8)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: store.put(at(), point(n), {}, {"x": 1}), range(64)))
    found = [t.checkpoint["channel_values"]["x"] for t in store.list(at())]
    assert sorted(found) == list(range(64))
    assert [row["seq"] for row in lens.rows()] == list(range(1, 65))


@pytest.mark.slow
def test_graphs_that_meet_on_one_thread(make_store: Make, lens: Any) -> None:
    """Runs that write to one thread at once are both there, whole, each with rows of its own."""
    stores = [make_store(), make_store()]
    gate = threading.Barrier(2)

    def work(store: PostgresCheckpointer) -> None:
        gate.wait(30)
        two_nodes(store).invoke({"n": 0}, at(), durability="sync")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, stores))
    runs: dict[Any, list[str]] = {}
    for row, word in zip(lens.rows(), lens.events(), strict=True):
        runs.setdefault(row["run_id"], []).append(word)
    assert list(runs.values()) == [WHOLE, WHOLE]


def test_one_checkpoint_delivered_many_times_at_once(make_store: Make, lens: Any) -> None:
    """Duplicates that race with one another leave one row; another content is refused."""
    store = make_store(max_connections=8)
    checkpoint = point("same")
    gate = threading.Barrier(8)

    def work(n: int) -> bool:
        gate.wait(30)
        try:
            given = checkpoint if n % 2 else {**checkpoint, "channel_values": {"x": "other"}}
            store.put(at(), given, {}, {"x": 1})
        except CheckpointConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        stored = list(threads.map(work, range(8)))
    assert sum(stored) == 4
    assert len(lens.rows()) == 1
    assert len(lens.audit("refused_overwrite")) == 4


def test_one_claim_is_won_once(make_store: Make, lens: Any) -> None:
    """Of many that claim an effect at once exactly one may run it, and nobody may later."""
    store = make_store(max_connections=8)
    run = str(uuid.uuid4())
    gate = threading.Barrier(8)

    def work(n: int) -> bool:
        gate.wait(30)
        return store.claim(at(run_id=run), "effect", n)

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 1
    assert not make_store().claim(at(run_id=run), "effect", 9)
    assert make_store().claim(at(run_id=run), "another", 1)


def test_a_slow_transaction_hides_no_row(make_store: Make, shared_place: Any, lens: Any) -> None:
    """A writer that began earlier and is stored later is the newest, and hides nothing older."""
    store = make_store(max_connections=2)
    store.put(at(), point(0), {}, {"x": 1})
    tenant = str(lens.tenant)
    insert = (
        "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind, state_json,"
        " trace_id, thread_id, lg_checkpoint_id, langgraph, state_sha256, langgraph_sha256)"
        " SELECT gen_random_uuid(), tenant_id, gen_random_uuid(), 'run_started', state_json,"
        " trace_id, thread_id, '1e0', langgraph, state_sha256, langgraph_sha256"
        " FROM cuo_langgraph_checkpoints WHERE tenant_id = %s LIMIT 1"
    )
    with psycopg.connect(shared_place.app) as slow:
        slow.execute("SELECT set_config('auth.tenant_id', %s, true), now()", [tenant])
        time.sleep(0.05)
        store.put(at(), point(1), {}, {"x": 1})
        slow.execute(insert, [tenant])
    assert len(list(store.list(at()))) == 3
    newest = store.get_tuple(at())
    assert newest is not None
    assert newest.config["configurable"]["checkpoint_id"] == "1e0"


# -- loops, forks, cancelled calls ---------------------------------------------------------------


def test_several_loops_use_one_store(make_store: Make, lens: Any) -> None:
    """One store serves loops one after the other and at once, each with connections of its own."""
    store = make_store(max_connections=2)

    async def use(n: int) -> Any:
        try:
            await asyncio.gather(
                *(store.aput(at(f"t{n}-{i}"), point(i), {}, {"x": 1}) for i in range(5))
            )
            found = await store.aget_tuple(at(f"t{n}-3"))
            return found.checkpoint["channel_values"] if found else None
        finally:
            await store.aclose()

    for n in range(2):
        assert asyncio.run(use(n)) == {"x": 3}
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda n: asyncio.run(use(n)), range(2, 5))) == [{"x": 3}] * 3


def _in_child(store: PostgresCheckpointer, thread: str, told: Any) -> None:
    """What a forked child does with the store it inherited."""
    try:
        store.put(at(thread), point(thread), {}, {"x": 1})
        found = store.get_tuple(at("parent"))
        told.put(found.checkpoint["channel_values"]["x"] if found else None)
    except BaseException as error:  # the parent must hear of it
        told.put(repr(error))
        raise


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_children_use_the_store_they_inherited(make_store: Make, lens: Any) -> None:
    """Children write on connections of their own; the parent's still work afterwards."""
    store = make_store(max_connections=2)
    store.put(at("parent"), point("parent"), {}, {"x": 1})
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    children = [fork.Process(target=_in_child, args=(store, f"c{i}", told)) for i in range(3)]
    for child in children:
        child.start()
    assert [told.get(timeout=60) for _ in children] == ["parent"] * 3
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for i in range(3):
        found = store.get_tuple(at(f"c{i}"))
        assert found is not None
    store.put(at("after"), point(1), {}, {"x": 1})


@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.05])
async def test_a_cancelled_call_leaves_nothing_behind(
    shared_place: Any, tenant_id: str, lens: Any, after: float
) -> None:
    """Whenever aput is cancelled, its row is whole or absent, and the connection is clean and usable."""
    async with AsyncConnectionPool(
        shared_place.app, min_size=1, max_size=1, kwargs={"autocommit": True}, open=False
    ) as pool:
        store = PostgresCheckpointer(pool, tenant_id=tenant_id)
        for i in range(8):
            call = asyncio.ensure_future(store.aput(at(f"t{i}"), point(i), {}, {"x": 1}))
            await asyncio.sleep(after)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        async with pool.connection() as conn:
            assert conn.info.transaction_status.name == "IDLE"
            cursor = await conn.execute("SELECT current_setting('auth.tenant_id', true)")
            assert await cursor.fetchone() in ((None,), ("",))
        await store.aput(at("last"), point("last"), {}, {"x": 1})
        assert await store.aget_tuple(at("last")) is not None
    assert all(row["kind"] == "node_completed" for row in lens.rows())


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.05, 0.15, 0.3])
async def test_a_cancelled_run_can_be_gone_on_with(
    make_store: Make, lens: Any, after: float
) -> None:
    """Whatever a cancelled graph left, a fresh store completes it; no event is missing or doubled."""
    store = make_store(max_connections=2)
    async with store:
        graph = two_nodes(store)
        call = asyncio.ensure_future(graph.ainvoke({"n": 0}, at(), durability="sync"))
        await asyncio.sleep(after)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    again = make_store()
    async with again:
        graph = two_nodes(again)
        if await again.aget_tuple(at()) is not None:
            await graph.ainvoke(None, at(), durability="sync")
        else:
            await graph.ainvoke({"n": 0}, at(), durability="sync")
        assert (await graph.aget_state(at())).values == {"n": 2}
    nodes = [e for e in lens.events() if e[0] == "<"]
    assert nodes == ["<a", "<b"]
    assert lens.events()[-1] in ("done", "failed:CancelledError")


async def test_many_first_callers_open_one_pool(make_store: Make, lens: Any) -> None:
    """Calls that meet on a store just made share its pool, also when the first one is cancelled."""
    store = make_store(max_connections=2)
    async with store:
        first = asyncio.ensure_future(store.aget_tuple(at()))
        others = [asyncio.ensure_future(store.aget_tuple(at())) for _ in range(10)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await asyncio.gather(*others) == [None] * 10


def test_many_first_threads_open_one_pool(
    shared_place: Any, tenant_id: str, make_store: Make
) -> None:
    """Threads that meet on a store just made share its pool."""
    name = f"first-{tenant_id}"
    store = make_store(f"{shared_place.app}&application_name={name}", max_connections=2)
    gate = threading.Barrier(12)

    def work(_: int) -> Any:
        gate.wait(30)
        return store.get_tuple(at())

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(work, range(12))) == [None] * 12
    with psycopg.connect(shared_place.admin) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name]
        ).fetchone()
    assert row is not None
    assert row[0] <= 2


@pytest.mark.slow
def test_direct_writers_and_graphs_share_a_tenant(make_store: Make, lens: Any) -> None:
    """Single rows of other services and whole graphs at once: no deadlock, every chain sound."""
    store = make_store(max_connections=6)
    writer = CheckpointWriter(store)
    run = uuid.uuid4()
    writer.write(run, "run_started", {})

    def rows(n: int) -> None:
        for i in range(10):
            writer.write(run, "node_entered", {"i": i}, node_name=f"w{n}")

    graph = two_nodes(store)
    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(rows, n) for n in range(4)]
        jobs += [threads.submit(graph.invoke, {"n": 0}, at(f"g{n}")) for n in range(8)]
        for job in jobs:
            job.result(100)
    assert len(lens.rows(str(run))) == 41
