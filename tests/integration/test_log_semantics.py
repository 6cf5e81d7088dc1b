"""Which rows each kind of graph leaves, hand-written, for blocking and awaiting callers (D4.10)."""

from __future__ import annotations

import asyncio
import itertools
import operator
import random
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from cuo_checkpoint import PostgresCheckpointer

Drive = Callable[..., Any]
Store = PostgresCheckpointer


class State(TypedDict, total=False):
    """What every graph here carries."""

    seen: Annotated[list[str], operator.add]
    go: str


def step(name: str) -> Callable[[State], State]:
    """A node that leaves its name."""
    return lambda state: {"seen": [name]}


def linear(*names: str) -> StateGraph[State]:
    """Nodes in a row."""
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, step(name))
    for source, target in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(source, target)
    return graph


def at(thread: str = "t", **more: Any) -> dict[str, Any]:
    """A config for a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def told(events: str) -> list[str]:
    """Rows as the lens spells them, one word each."""
    return events.split()


def settled(events: list[str]) -> list[str]:
    """Events with neighbours of one kind sorted: LangGraph keeps a node's edges in a set, so which of
    two parallel nodes comes first differs from process to process."""
    kinds = itertools.groupby(events, lambda e: "->" if "->" in e else e[0])
    return [event for _, group in kinds for event in sorted(group)]


LINEAR = told("""started __start__->a
    >a <a a->b
    >b <b b->__end__ done""")


def test_a_linear_run(drive: Drive, store: Store, lens: Any) -> None:
    """Each node is entered and completed once, each edge stands once, the run starts and ends."""
    result = drive(linear("a", "b").compile(store), "invoke", {"seen": []}, at())
    assert result == {"seen": ["a", "b"]}
    assert lens.events() == LINEAR


@pytest.mark.clause("102-2", "102-7", "102-9")
@pytest.mark.criterion("102-AC3", "102-AC5", "102-AC9")
def test_five_nodes_leave_one_trace(drive: Drive, store: Store, lens: Any) -> None:
    """A five-node run has 5 + 5 node rows, six edges and one trace id throughout."""
    names = [f"n{i}" for i in range(5)]
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    drive(linear(*names).compile(store), "invoke", {"seen": []}, at(trace_id=trace))
    kinds = [row["kind"] for row in lens.rows()]
    assert {k: kinds.count(k) for k in kinds} == {
        "run_started": 1,
        "node_entered": 5,
        "node_completed": 5,
        "edge_traversed": 6,
        "run_completed": 1,
    }
    assert {row["trace_id"] for row in [*lens.rows(), *lens.audit()]} == {trace}


@pytest.mark.clause("102-2")
@pytest.mark.criterion("102-AC4")
def test_states_are_those_the_nodes_saw(drive: Drive, store: Store, lens: Any) -> None:
    """node_entered shows the state the node saw, node_completed the one after its superstep."""
    drive(linear("a", "b").compile(store), "invoke", {"seen": ["in"]}, at())
    shown = {
        (row["kind"], row["node_name"]): row["state_json"]["seen"]
        for row in lens.rows()
        if row["node_name"]
    }
    assert shown == {
        ("node_entered", "a"): ["in"],
        ("node_completed", "a"): ["in", "a"],
        ("node_entered", "b"): ["in", "a"],
        ("node_completed", "b"): ["in", "a", "b"],
    }


@pytest.mark.criterion("102-AC17")
def test_order_by_step_phase_ordinal_is_causal(drive: Drive, store: Store, lens: Any) -> None:
    """Sorting by (step, phase, ordinal) gives the causal order without the arrival order."""
    drive(linear("a", "b").compile(store), "invoke", {"seen": []}, at())
    assert lens.events(causal=True) == LINEAR


def test_a_conditional_edge(drive: Drive, store: Store, lens: Any) -> None:
    """Only the branch taken is logged."""
    graph = StateGraph(State)
    for name in "abc":
        graph.add_node(name, step(name))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: state["go"], {"left": "b", "right": "c"})
    drive(graph.compile(store), "invoke", {"seen": [], "go": "right"}, at())
    assert lens.events() == (told("started __start__->a >a <a a->c >c <c c->__end__ done"))


def fan() -> StateGraph[State]:
    """a, then b and c at once, then d when both are through."""
    graph = StateGraph(State)
    for name in "abcd":
        graph.add_node(name, step(name))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("a", "c")
    graph.add_edge(["b", "c"], "d")
    graph.add_edge("d", END)
    return graph


def test_fan_out_and_join(drive: Drive, store: Store, lens: Any) -> None:
    """Both branches are logged; the join has one cause as parent and names the other."""
    drive(fan().compile(store), "invoke", {"seen": []}, at())
    assert settled(lens.events()) == (
        told("started __start__->a >a <a a->b a->c >b >c <b <c b->d c->d >d <d d->__end__ done")
    )
    rows = lens.rows()
    entered = next(r for r in rows if r["kind"] == "node_entered" and r["node_name"] == "d")
    edges = [str(r["checkpoint_id"]) for r in rows if r["edge_to"] == "d"]
    assert [str(entered["parent_checkpoint_id"]), *entered["langgraph"]["also"]] == edges


def test_a_join_after_unequal_branches(drive: Drive, store: Store, lens: Any) -> None:
    """A join waits for the longer branch; both edges into it are logged when they happen."""
    graph = StateGraph(State)
    for name in ("a", "b", "b2", "c", "d"):
        graph.add_node(name, step(name))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("a", "c")
    graph.add_edge("b", "b2")
    graph.add_edge(["b2", "c"], "d")
    drive(graph.compile(store), "invoke", {"seen": []}, at())
    assert settled(lens.events()) == (
        told(
            "started __start__->a >a <a a->b a->c >b >c <b <c b->b2 c->d >b2 <b2 b2->d >d <d"
            " d->__end__ done"
        )
    )


def test_sends(drive: Drive, store: Store, lens: Any) -> None:
    """Each Send is an entry and a completion of its own, caused by an edge of its own."""
    graph = StateGraph(State)
    graph.add_node("a", step("a"))
    graph.add_node("w", step("w"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: [Send("w", {"go": str(i)}) for i in range(3)])
    drive(graph.compile(store), "invoke", {"seen": []}, at())
    assert lens.events() == (
        told(
            "started __start__->a >a <a a->w a->w a->w >w >w >w <w <w <w"
            " w->__end__ w->__end__ w->__end__ done"
        )
    )
    entered = [r["parent_checkpoint_id"] for r in lens.rows() if r["node_name"] == "w"][:3]
    assert len(set(entered)) == 3


def test_command_goto(drive: Drive, store: Store, lens: Any) -> None:
    """Command(goto) is an edge like any other."""
    graph = StateGraph(State)

    def a(state: State) -> Command[Any]:
        return Command(update={"seen": ["a"]}, goto="c")

    graph.add_node("a", a, destinations=("b", "c"))
    graph.add_node("b", step("b"))
    graph.add_node("c", step("c"))
    graph.add_edge(START, "a")
    drive(graph.compile(store), "invoke", {"seen": []}, at())
    assert lens.events() == (told("started __start__->a >a <a a->c >c <c c->__end__ done"))


def test_a_subgraph_logs_under_its_namespace(drive: Drive, store: Store, lens: Any) -> None:
    """A subgraph's rows stand under its namespace, inside the entry and completion of its node."""
    drive(nested().compile(store), "invoke", {"seen": []}, at())
    assert lens.events() == (
        told(
            "started __start__->a >a <a a->sub >sub"
            " sub/>__start__ sub/__start__->x sub/>x sub/<x sub/x->y sub/>y sub/<y sub/y->__end__"
            " <sub sub->__end__ done"
        )
    )
    rows = lens.rows()
    outer = next(r for r in rows if r["node_name"] == "sub" and r["kind"] == "node_entered")
    inner = next(r for r in rows if r["checkpoint_ns"])
    assert inner["parent_checkpoint_id"] == outer["checkpoint_id"]


def asking(*names: str) -> StateGraph[State]:
    """A graph whose middle node asks a person."""
    graph = StateGraph(State)

    def ask(state: State) -> State:
        return {"seen": [str(interrupt("ok?"))]}

    graph.add_node("a", step("a"))
    graph.add_node("ask", ask)
    graph.add_node("b", step("b"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "ask")
    graph.add_edge("ask", "b")
    return graph


def test_interrupt_and_resume_are_one_run(drive: Drive, make_store: Any, lens: Any) -> None:
    """A pause is no event; the resume continues the same run in another process's store."""
    drive(asking().compile(make_store()), "invoke", {"seen": []}, at())
    assert lens.events() == told("started __start__->a >a <a a->ask >ask")
    assert lens.query("SELECT state FROM cuo_runs WHERE tenant_id = $T") == [{"state": "waiting"}]
    assert len(lens.audit("waiting")) == 1
    result = drive(asking().compile(make_store()), "invoke", Command(resume="yes"), at())
    assert result["seen"] == ["a", "yes", "b"]
    assert lens.events() == (
        told("started __start__->a >a <a a->ask >ask >ask <ask ask->b >b <b b->__end__ done")
    )
    assert lens.query("SELECT state, outcome FROM cuo_runs WHERE tenant_id = $T") == [
        {"state": "closed", "outcome": "run_completed"}
    ]


def test_a_waiting_run_says_which_interrupt_it_waits_for(
    drive: Drive, store: Store, lens: Any
) -> None:
    """The waiting row of the chain names the interrupt ids the caller was given."""
    result = drive(asking().compile(store), "invoke", {"seen": []}, at())
    (row,) = lens.audit("waiting")
    assert result["__interrupt__"][0].id in row["body"]


def failing(fails: list[int]) -> StateGraph[State]:
    """a, then b, which raises while `fails` lasts, then c."""
    graph = StateGraph(State)

    def b(state: State) -> State:
        if fails:
            fails.pop()
            raise ValueError("the secret is 42")
        return {"seen": ["b"]}

    graph.add_node("a", step("a"))
    graph.add_node("b", b)
    graph.add_node("c", step("c"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")
    return graph


def test_a_raise_ends_the_run_and_a_resume_starts_another(
    drive: Drive, store: Store, lens: Any
) -> None:
    """A node's error ends its run; invoking with None finishes the work in a run of its own."""
    graph = failing([1]).compile(store)
    with pytest.raises(ValueError, match="the secret"):
        drive(graph, "invoke", {"seen": []}, at())
    first = told("started __start__->a >a <a a->b >b failed:ValueError")
    assert lens.events() == first
    assert drive(graph, "invoke", None, at())["seen"] == ["a", "b", "c"]
    assert lens.events() == [
        *first,
        *told("started >b <b b->c >c <c c->__end__ done"),
    ]
    outcomes = lens.query("SELECT outcome FROM cuo_runs WHERE tenant_id = $T ORDER BY first_at")
    assert [r["outcome"] for r in outcomes] == ["run_failed", "run_completed"]


def test_an_error_message_does_not_enter_a_log_row(drive: Drive, store: Store, lens: Any) -> None:
    """run_failed says the error's type; what its message quotes stays out of log and audit rows."""
    with pytest.raises(ValueError, match="the secret"):
        drive(failing([1]).compile(store), "invoke", {"seen": []}, at())
    for row in lens.rows():
        assert "the secret" not in str(row)
    assert all("the secret" not in row["body"] for row in lens.audit())


def test_a_failed_sibling_leaves_the_finished_one_completed(
    drive: Drive, store: Store, lens: Any
) -> None:
    """Of two parallel nodes one fails: the finished one is logged, and not run again at resume."""
    ran: list[str] = []
    fails = [1]
    graph = StateGraph(State)

    def good(state: State) -> State:
        ran.append("good")
        return {"seen": ["good"]}

    def bad(state: State) -> State:
        time.sleep(0.2)
        if fails:
            fails.pop()
            raise KeyError("x")
        return {"seen": ["bad"]}

    graph.add_node("good", good)
    graph.add_node("bad", bad)
    graph.add_edge(START, "good")
    graph.add_edge(START, "bad")
    compiled = graph.compile(store)
    with pytest.raises(KeyError):
        drive(compiled, "invoke", {"seen": []}, at())
    head = told("started __start__->good __start__->bad")
    events = lens.events()
    assert events[:3] in (head, [head[0], head[2], head[1]])
    assert sorted(events[3:5]) == [">bad", ">good"]
    assert events[5:] == ["<good", "failed:KeyError"]
    drive(compiled, "invoke", None, at())
    assert ran == ["good"]
    again = lens.events()[7:]
    assert again[0] == "started"
    assert sorted(again[1:-1]) == sorted([">bad", "<bad", "good->__end__", "bad->__end__"])
    assert again[-1] == "done"


def test_retries_inside_a_policy_are_one_entry(drive: Drive, store: Store, lens: Any) -> None:
    """A node that succeeds at its second attempt is entered and completed once in the calls' view."""
    fails = [1]
    graph = StateGraph(State)

    def b(state: State) -> State:
        if fails:
            fails.pop()
            raise ConnectionError("again")
        return {"seen": ["b"]}

    graph.add_node("b", b, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    graph.add_edge(START, "b")
    drive(graph.compile(store), "invoke", {"seen": []}, at())
    events = lens.events()
    assert [e for e in events if e != ">b"] == told("started __start__->b <b b->__end__ done")
    assert events.count(">b") in (1, 2)


def test_update_state_is_no_run(drive: Drive, store: Store, lens: Any) -> None:
    """update_state on a finished thread leaves one row, which claims no node ran."""
    graph = linear("a").compile(store)
    drive(graph, "invoke", {"seen": []}, at())
    drive(graph, "update_state", at(), {"seen": ["by hand"]})
    assert lens.events() == told("started __start__->a >a <a a->__end__ done <__update__")
    assert drive(graph, "get_state", at()).values == {"seen": ["a", "by hand"]}
    assert lens.query("SELECT FROM cuo_runs WHERE tenant_id = $T AND state <> 'closed'") == []


def test_update_state_joins_the_run_that_waits(drive: Drive, store: Store, lens: Any) -> None:
    """A correction made while a run waits belongs to that run, which then continues."""
    graph = asking().compile(store)
    drive(graph, "invoke", {"seen": []}, at())
    drive(graph, "update_state", at(), {"go": "left"}, as_node="a")
    drive(graph, "invoke", None, at())
    drive(graph, "invoke", Command(resume="yes"), at())
    assert len({row["run_id"] for row in lens.rows()}) == 1
    assert lens.events()[-1] == "done"


def test_update_state_naming_the_waiting_run_leaves_it_waiting(
    drive: Drive, store: Store, lens: Any
) -> None:
    """A correction that spells out the waiting run's id does not close that run."""
    run = str(uuid.uuid4())
    graph = asking().compile(store)
    drive(graph, "invoke", {"seen": []}, at(run_id=run))
    drive(graph, "update_state", at(run_id=run), {"go": "left"})
    assert lens.query("SELECT state FROM cuo_runs WHERE tenant_id = $T") == [{"state": "waiting"}]


def test_time_travel_forks(drive: Drive, store: Store, lens: Any) -> None:
    """Running on from an older checkpoint is a new run; both branches stay in the log."""
    graph = linear("a", "b").compile(store)
    drive(graph, "invoke", {"seen": []}, at())
    older = next(s for s in drive(graph, "get_state_history", at()) if s.next == ("b",))
    drive(graph, "invoke", None, older.config)
    assert lens.events() == [*LINEAR, *told("started >b <b b->__end__ done")]
    assert len({row["run_id"] for row in lens.rows()}) == 2


def test_the_step_limit_fails_the_run(drive: Drive, store: Store, lens: Any) -> None:
    """GraphRecursionError is a failed run, also when nothing was left to do."""
    graph = StateGraph(State)
    graph.add_node("a", step("a"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "a")
    with pytest.raises(GraphRecursionError):
        drive(graph.compile(store), "invoke", {"seen": []}, at() | {"recursion_limit": 2})
    assert lens.events() == (
        told("started __start__->a >a <a a->a >a <a a->a >a failed:GraphRecursionError")
    )


def test_a_functional_graph(colour: str, drive: Drive, store: Store, lens: Any) -> None:
    """@entrypoint starts, is entered and completed, and ends; its @task calls are its writes."""
    if colour == "sync":

        @task
        def double(n: int) -> int:
            return 2 * n

        @entrypoint(checkpointer=store)
        def flow(n: int) -> int:
            return double(n).result() + 1

        graph: Any = flow
    else:

        @task
        async def adouble(n: int) -> int:
            return 2 * n

        @entrypoint(checkpointer=store)
        async def aflow(n: int) -> int:
            return await adouble(n) + 1

        graph = aflow
    begun = time.monotonic()
    assert drive(graph, "invoke", 3, at()) == 7
    assert time.monotonic() - begun < 5, "a call was waited for that never comes"
    name = "flow" if colour == "sync" else "aflow"
    assert lens.events() == told(f"started >{name} <{name} {name}->__end__ done")


def test_the_same_thread_again_is_another_run(drive: Drive, store: Store, lens: Any) -> None:
    """Fresh input on a finished thread starts a second run with rows of its own."""
    graph = linear("a").compile(store)
    one = told("started __start__->a >a <a a->__end__ done")
    drive(graph, "invoke", {"seen": []}, at())
    drive(graph, "invoke", {"seen": []}, at())
    assert lens.events() == [*one, *one]
    assert len({row["run_id"] for row in lens.rows()}) == 2


def test_invoking_a_finished_thread_with_none_logs_nothing(
    drive: Drive, store: Store, lens: Any
) -> None:
    """A run that had nothing to do opens no run."""
    graph = linear("a").compile(store)
    drive(graph, "invoke", {"seen": []}, at())
    before = lens.events()
    drive(graph, "invoke", None, at())
    assert lens.events() == before


def test_static_breakpoints(drive: Drive, store: Store, lens: Any) -> None:
    """A pause before a node leaves the run open; going on completes it as one run."""
    graph = linear("a", "b").compile(store, interrupt_before=["b"])
    drive(graph, "invoke", {"seen": []}, at())
    assert lens.events() == LINEAR[:6]
    drive(graph, "invoke", None, at())
    assert lens.events() == LINEAR
    assert len({row["run_id"] for row in lens.rows()}) == 1


def test_reading_the_thread_from_inside_a_node_disturbs_nothing(
    drive: Drive, colour: str, store: Store, lens: Any
) -> None:
    """A node that reads its own thread's state leaves the same rows as one that does not."""
    graph = StateGraph(State)
    compiled: list[Any] = []

    def sync_b(state: State) -> State:
        assert compiled[0].get_state(at()).values["seen"] == ["a"]
        return {"seen": ["b"]}

    async def async_b(state: State) -> State:
        assert (await compiled[0].aget_state(at())).values["seen"] == ["a"]
        return {"seen": ["b"]}

    graph.add_node("a", step("a"))
    graph.add_node("b", sync_b if colour == "sync" else async_b)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    compiled.append(graph.compile(store))
    drive(compiled[0], "invoke", {"seen": []}, at())
    assert lens.events() == LINEAR


def test_a_graph_run_inside_a_node_on_another_thread(
    drive: Drive, colour: str, store: Store, lens: Any
) -> None:
    """A node that runs another graph on a thread of its own mixes neither thread's rows."""
    inner = linear("x").compile(store)
    graph = StateGraph(State)

    def sync_b(state: State) -> State:
        inner.invoke({"seen": []}, at("inner"))
        return {"seen": ["b"]}

    async def async_b(state: State) -> State:
        await inner.ainvoke({"seen": []}, at("inner"))
        return {"seen": ["b"]}

    graph.add_node("a", step("a"))
    graph.add_node("b", sync_b if colour == "sync" else async_b)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    drive(graph.compile(store), "invoke", {"seen": []}, at())
    assert lens.events("t") == LINEAR
    ended = lens.events("inner")
    assert [e.rpartition("/")[2] for e in ended if "x" in e] == [
        "__start__->x", ">x", "<x", "x->__end__",
    ]  # fmt: skip


class Jittery(PostgresCheckpointer):
    """Delivers pending writes late, as busy thread pools and loops do."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        time.sleep(random.random() * 0.02)
        super().put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.sleep(random.random() * 0.02)
        await super().aput_writes(config, writes, task_id, task_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_late_writes_lose_and_double_no_edge(
    colour: str, shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """With up to 20 ms between a task and its writes, 100 runs each have the same edges."""
    expected = sorted(
        told("started __start__->a >a <a a->b a->c >b >c <b <c b->d c->d >d <d d->__end__ done")
    )
    runs = 100
    saver: BaseCheckpointSaver[Any] = Jittery(
        shared_place.app, tenant_id=tenant_id, max_connections=8
    )

    async def many() -> None:
        async with saver:  # type: ignore[attr-defined]
            graph = fan().compile(saver)
            gate = asyncio.Semaphore(8)

            async def one(i: int) -> None:
                async with gate:
                    await graph.ainvoke({"seen": []}, at(f"t{i:03}"))

            await asyncio.gather(*(one(i) for i in range(runs)))

    if colour == "sync":
        with saver:  # type: ignore[attr-defined]
            graph = fan().compile(saver)
            graph.batch(
                [{"seen": []}] * runs,
                [at(f"t{i:03}") | {"max_concurrency": 8} for i in range(runs)],
            )  # type: ignore[arg-type]
    else:
        asyncio.run(many())
    by_thread: dict[str, list[str]] = {}
    for row, word in zip(lens.rows(), lens.events(), strict=True):
        by_thread.setdefault(row["thread_id"], []).append(word)
    assert len(by_thread) == runs
    for thread, events in by_thread.items():
        assert sorted(events) == expected, thread
        assert events[-1] == "done"


def nested() -> StateGraph[State]:
    """a, then a subgraph of x and y."""
    graph = StateGraph(State)
    graph.add_node("a", step("a"))
    graph.add_node("sub", linear("x", "y").compile())
    graph.add_edge(START, "a")
    graph.add_edge("a", "sub")
    return graph


def nested_side_by_side() -> StateGraph[State]:
    """Three subgraphs at once, then a node that joins them."""
    graph = StateGraph(State)
    names = ("s1", "s2", "s3")
    for name in names:
        graph.add_node(name, linear("x", "y").compile())
        graph.add_edge(START, name)
    graph.add_node("d", step("d"))
    graph.add_edge(list(names), "d")
    return graph


def test_subgraphs_side_by_side(drive: Drive, store: Store, lens: Any) -> None:
    """Subgraphs that run at once each leave their own rows under their own node's entry."""
    drive(nested_side_by_side().compile(store), "invoke", {"seen": []}, at())
    for name in ("s1", "s2", "s3"):
        inside = [e.partition("/")[2] for e in lens.events() if e.startswith(f"{name}/")]
        assert inside == told(">__start__ __start__->x >x <x x->y >y <y y->__end__")
    rows = {row["checkpoint_id"]: row for row in lens.rows()}
    firsts = [r for r in rows.values() if r["checkpoint_ns"] and r["node_name"] == "__start__"]
    for row in firsts:
        cause = rows[row["parent_checkpoint_id"]]
        assert (cause["kind"], cause["node_name"]) == (
            "node_entered",
            row["checkpoint_ns"].split(":")[0],
        )
    assert lens.events()[-1] == "done"


@pytest.mark.parametrize(
    "make", [fan, nested, nested_side_by_side], ids=["fan", "nested", "side-by-side"]
)
def test_async_durability_leaves_the_same_rows(
    drive: Drive, store: Store, lens: Any, make: Callable[[], StateGraph[State]]
) -> None:
    """durability="async", LangGraph's default, leaves the rows and causes that "sync" does."""
    graph = make().compile(store)
    drive(graph, "invoke", {"seen": []}, at("sync"))
    drive(graph, "invoke", {"seen": []}, at("async"), durability="async")
    assert sorted(lens.events("async")) == sorted(lens.events("sync"))
    assert causes(lens.rows("async")) == causes(lens.rows("sync"))
    assert lens.events("async")[-1] == "done"


def causes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Which row hangs under which, by what they say."""

    def said(row: dict[str, Any] | None) -> tuple[Any, ...]:
        if row is None:
            return ()
        names = ("kind", "node_name", "edge_from", "edge_to", "step")
        return (row["checkpoint_ns"].split(":")[0], *(str(row[n]) for n in names))

    by_id = {row["checkpoint_id"]: row for row in rows}
    return sorted((said(row), said(by_id.get(row["parent_checkpoint_id"]))) for row in rows)


@pytest.mark.slow
def test_a_very_late_write_loses_no_edge(shared_place: Any, tenant_id: str, lens: Any) -> None:
    """Writes that a starved machine delivers three seconds late still give their edges."""

    class Starved(PostgresCheckpointer):
        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            time.sleep(3)
            super().put_writes(config, writes, task_id, task_path)

    with Starved(shared_place.app, tenant_id=tenant_id) as store:
        graph = StateGraph(State)
        graph.add_node("a", step("a"))
        graph.add_node("b", step("b"))
        graph.add_edge(START, "a")
        graph.add_edge(START, "b")
        graph.compile(store).invoke({"seen": []}, at(), durability="sync")
    assert sorted(e for e in lens.events() if "->" in e) == [
        "__start__->a",
        "__start__->b",
        "a->__end__",
        "b->__end__",
    ]


def test_one_worker_does_not_stall(store: Store, lens: Any) -> None:
    """A graph limited to one worker thread neither waits for itself nor loses an edge."""
    begun = time.monotonic()
    linear("a", "b").compile(store).invoke({"seen": []}, at() | {"max_concurrency": 1})
    assert lens.events() == LINEAR
    assert time.monotonic() - begun < 5
