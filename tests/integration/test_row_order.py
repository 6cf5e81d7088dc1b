"""A row never reaches the log before the row it hangs under, however the calls race."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.db import Call


class State(TypedDict, total=False):
    steps: str


def nested(store: PostgresCheckpointer, inner: Callable[[State], State]) -> Any:
    """outer -> sub(inner) -> last."""
    sub = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    graph = StateGraph(State)
    graph.add_node("outer", lambda s: {"steps": s.get("steps", "") + "o"})
    graph.add_node("sub", sub)
    graph.add_node("last", lambda s: {"steps": s["steps"] + "l"})
    graph.add_edge(START, "outer").add_edge("outer", "sub").add_edge("sub", "last")
    graph.add_edge("last", END)
    return graph.compile(checkpointer=store)


def slow_root(store: PostgresCheckpointer) -> PostgresCheckpointer:
    """What the root namespace appends takes a while longer to reach the server."""
    execute = store._sync._execute

    def later(call: Call, months: bytes) -> Any:
        if call.query == store.plans.statements.append and call.params[2] == "":
            time.sleep(0.15)
        return execute(call, months)

    store._sync._execute = later  # type: ignore[method-assign]
    return store


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_subgraphs_rows_wait_for_the_row_that_entered_it(
    make_store: Callable[..., PostgresCheckpointer], lens: Any, durability: str
) -> None:
    """With durability "async" the outer put may still be under way when the inner one starts."""
    graph = nested(slow_root(make_store()), lambda s: {"steps": s["steps"] + "i"})
    config = {"configurable": {"thread_id": "t"}}
    assert graph.invoke({}, config, durability=durability) == {"steps": "oil"}
    assert sorted(lens.events(causal=True)) == sorted(
        ["started", "__start__->outer", ">outer", "<outer", "outer->sub", ">sub", "sub/>__start__",
         "sub/__start__->inner", "sub/>inner", "sub/<inner", "sub/inner->__end__", "<sub",
         "sub->last", ">last", "<last", "last->__end__", "done"]
    )  # fmt: skip


def test_durability_exit_waits_for_nothing_that_does_not_come(
    make_store: Callable[..., PostgresCheckpointer], lens: Any
) -> None:
    """Most checkpoints are never put then; a pause inside a subgraph must not wait for them."""
    sub = StateGraph(State).add_node("inner", lambda s: {"steps": s["steps"] + "i"})
    sub.add_node("then", lambda s: {"steps": s["steps"] + "t"})
    sub.add_edge(START, "inner").add_edge("inner", "then")
    graph = StateGraph(State).add_node("sub", sub.compile(interrupt_before=["then"]))
    compiled = graph.add_edge(START, "sub").compile(checkpointer=make_store(allow_exit=True))
    config = {"configurable": {"thread_id": "t"}}
    begun = time.monotonic()
    compiled.invoke({"steps": ""}, config, durability="exit")
    assert compiled.invoke(None, config, durability="exit") == {"steps": "it"}
    assert time.monotonic() - begun < 10


def test_a_pause_inside_a_subgraph_waits_too(
    make_store: Callable[..., PostgresCheckpointer], lens: Any
) -> None:
    """The rows of a task's writes hang under rows that other calls are still storing."""

    def ask(state: State) -> State:
        return {"steps": state["steps"] + interrupt("which?")}

    graph = nested(slow_root(make_store()), ask)
    config = {"configurable": {"thread_id": "t"}}
    graph.invoke({}, config, durability="async")
    forked = graph.update_state(config, {"steps": "forked"})
    graph.invoke(None, forked, durability="async")
    assert lens.rows()


def test_a_failure_inside_a_subgraph_waits_too(
    make_store: Callable[..., PostgresCheckpointer], lens: Any
) -> None:
    """The row that ends a failed run comes after the rows under way."""

    def fail(state: State) -> State:
        raise RuntimeError("boom")

    graph = nested(slow_root(make_store()), fail)
    with pytest.raises(RuntimeError):
        graph.invoke({}, {"configurable": {"thread_id": "t"}}, durability="async")
    assert lens.events(causal=True)[-1] == "failed:RuntimeError"
