"""What no saver call shows: cancellation, merge errors, time-outs, static breakpoints."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.db import Call
from cuo_checkpoint.errors import WriteRefused


class State(TypedDict):
    x: str


async def quick(state: State) -> State:
    return {"x": state["x"] + "q"}


async def endless(state: State) -> State:
    await asyncio.sleep(60)
    return state


Log = Callable[[str], list[str]]


@pytest.fixture
def log(app_dsn: str, tenant_id: str) -> Log:
    """The kinds (and nodes) of a thread's log rows, in order, read as the application role."""

    def read(thread: str) -> list[str]:
        with psycopg.connect(app_dsn) as conn:
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant_id])
            rows = conn.execute(
                "SELECT kind, node_name FROM cuo_langgraph_checkpoints WHERE thread_id = %s"
                " AND kind <> 'edge_traversed' ORDER BY seq",
                [thread],
            ).fetchall()
        return [f"{kind} {node}" if node else kind for kind, node in rows]

    return read


def run_state(app_dsn: str, tenant_id: str, thread: str) -> tuple[Any, ...]:
    with psycopg.connect(app_dsn) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant_id])
        row = conn.execute(
            "SELECT state, outcome FROM cuo_runs WHERE thread_id = %s", [thread]
        ).fetchone()
    assert row is not None
    return row


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


async def test_a_cancelled_run_is_logged_as_failed(app_dsn: str, tenant_id: str, log: Log) -> None:
    """LangGraph makes no call when a single running task is cancelled; the log says so anyway."""
    graph = StateGraph(State)
    graph.add_node("endless", endless)
    graph.add_edge(START, "endless")
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        compiled = graph.compile(checkpointer=store)
        task = asyncio.create_task(
            compiled.ainvoke({"x": ""}, config("cancelled"), durability="sync")
        )
        while "node_entered endless" not in log("cancelled"):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert log("cancelled") == ["run_started", "node_entered endless", "run_failed"]
    assert run_state(app_dsn, tenant_id, "cancelled") == ("closed", "run_failed")


async def test_a_merge_error_fails_the_run_after_its_nodes_completed(
    app_dsn: str, tenant_id: str, log: Log
) -> None:
    """Two nodes writing one channel both completed; the superstep did not."""
    graph = StateGraph(State)
    graph.add_node("a", quick)
    graph.add_node("b", quick)
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        with pytest.raises(InvalidUpdateError):
            await graph.compile(checkpointer=store).ainvoke(
                {"x": ""}, config("merge"), durability="sync"
            )
    rows = log("merge")
    assert rows[0] == "run_started"
    assert sorted(rows[3:-1]) == ["node_completed a", "node_completed b"]
    assert rows[-1] == "run_failed"


async def test_a_static_breakpoint_waits_and_its_run_goes_on(
    app_dsn: str, tenant_id: str, log: Log
) -> None:
    """interrupt_before leaves the run waiting, not open; a resume completes the same run."""
    graph = StateGraph(State)
    graph.add_node("a", quick)
    graph.add_node("b", quick)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", END)
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        compiled = graph.compile(checkpointer=store, interrupt_before=["b"])
        await compiled.ainvoke({"x": ""}, config("static"), durability="sync")
        assert run_state(app_dsn, tenant_id, "static") == ("waiting", None)
        await compiled.ainvoke(None, config("static"), durability="sync")
    assert run_state(app_dsn, tenant_id, "static") == ("closed", "run_completed")
    assert log("static").count("run_started") == 1
    assert log("static").count("node_entered b") == 1


async def test_a_failed_run_carried_on_under_its_own_id_starts_once(
    app_dsn: str, tenant_id: str, log: Log
) -> None:
    """A run named by its id goes on as itself: no second run_started, and it is open until it ends."""
    calls = 0

    async def flaky(state: State) -> State:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("first time")
        return {"x": "done"}

    graph = StateGraph(State)
    graph.add_node("flaky", flaky)
    graph.add_edge(START, "flaky")
    named = config("named", run_id=str(uuid.uuid4()))
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        with pytest.raises(RuntimeError):
            await graph.compile(checkpointer=store).ainvoke({"x": ""}, named, durability="sync")
        assert run_state(app_dsn, tenant_id, "named") == ("closed", "run_failed")
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        await graph.compile(checkpointer=store).ainvoke(None, named, durability="sync")
    assert log("named") == [
        "run_started",
        "node_entered flaky",
        "run_failed",
        "node_entered flaky",
        "node_completed flaky",
        "run_completed",
    ]
    assert run_state(app_dsn, tenant_id, "named") == ("closed", "run_completed")


async def test_each_end_of_a_run_closes_its_chain_once(app_dsn: str, tenant_id: str) -> None:
    """Cancelled, then carried on: two ends, each with one close that says which; nothing after the
    last, which counts."""
    calls = 0

    async def stuck_once(state: State) -> State:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(60)
        return {"x": "done"}

    graph = StateGraph(State)
    graph.add_node("stuck", stuck_once)
    graph.add_edge(START, "stuck")
    run = str(uuid.uuid4())
    named = config("closing", run_id=run)

    def told() -> list[str]:
        with psycopg.connect(app_dsn) as conn:
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant_id])
            rows = conn.execute(
                "SELECT kind, body::jsonb ->> 'outcome', body::jsonb ->> 'kind' FROM cuo_memory_audit"
                " WHERE run_id = %s ORDER BY chain_seq",
                [run],
            ).fetchall()
        return [outcome or kind for row, outcome, kind in rows if row != "write_set"]

    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        compiled = graph.compile(checkpointer=store)
        task = asyncio.create_task(compiled.ainvoke({"x": ""}, named, durability="sync"))
        while calls == 0:  # noqa: ASYNC110 - the node tells
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        first = told()
        assert first[-2:] == ["run_failed", "run_failed"]  # the log row and its close
        assert first.count("run_failed") == 2
        await compiled.ainvoke(None, named, durability="sync")
    whole = told()
    assert whole[: len(first)] == first
    assert whole[-2:] == ["run_completed", "run_completed"]
    assert (whole.count("run_failed"), whole.count("run_completed")) == (2, 2)


@pytest.mark.parametrize("broken", range(1, 5))
async def test_a_step_that_is_not_stored_leaves_nothing_unread(
    app_dsn: str, tenant_id: str, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append that fails raises once; the writes parked for it, and the loop, keep quiet."""
    graph = StateGraph(State)
    graph.add_node("a", quick)
    graph.add_node("b", quick)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    noise: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    async with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        whole, count = store.plans._append, 0

        def failing(what: Any) -> Call:
            nonlocal count
            count += 1
            return Call(b"SELECT 1 / 0", ()) if count >= broken else whole(what)

        monkeypatch.setattr(store.plans, "_append", failing)
        with pytest.raises(WriteRefused):
            await graph.compile(checkpointer=store).ainvoke(
                {"x": ""}, config(f"broken-{broken}"), durability="sync"
            )
        await asyncio.sleep(0.02)
        gc.collect()
    assert noise == []


async def test_closing_does_not_wait_for_a_server_that_is_not_there(tenant_id: str) -> None:
    """Interrupted while it connects, a store is closed at once and without an error."""
    store = PostgresCheckpointer("host=127.0.0.1 port=9 user=x dbname=x", tenant_id=tenant_id)
    opening = asyncio.create_task(store.asetup())
    await asyncio.sleep(0.2)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(5):
        await store.aclose()


async def test_a_run_without_a_store_is_left_alone() -> None:
    """The handler is in every run of the process and does nothing to those not ours."""
    graph = StateGraph(State)
    graph.add_node("a", quick)
    graph.add_edge(START, "a")
    assert await graph.compile().ainvoke({"x": ""}, config("none")) == {"x": "q"}
