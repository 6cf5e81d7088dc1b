"""Special writes (interrupt, resume, error): several in one call, in several calls, versions of old."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from cuo_checkpoint import PostgresCheckpointer


class State(TypedDict, total=False):
    answers: list[str]


def stored(store: PostgresCheckpointer, thread: str, versions: Any = 1) -> Any:
    """A checkpoint put outside any run; the config that names it."""
    made = empty_checkpoint()
    made["channel_values"] = {"a": 1}
    made["channel_versions"] = {"a": versions}
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return store.put(config, made, {"source": "loop", "step": 0}, {"a": versions})


def test_the_last_of_several_special_writes_of_one_call_is_served(
    store: PostgresCheckpointer, drive: Callable[..., Any], lens: Any
) -> None:
    """A node that asks twice resumes with two resume writes in one call; the last one counts."""
    config = stored(store, "t")
    writes = [("__resume__", ["x"]), ("__resume__", ["x", "y"]), ("a", 2)]
    drive(store, "put_writes", config, writes, str(uuid.uuid4()))
    found = store.get_tuple(config)
    assert found is not None
    kept = [(w[1], w[2]) for w in found.pending_writes or []]
    assert kept == [("__resume__", ["x", "y"]), ("a", 2)]


def test_a_node_that_asks_many_times_gets_every_answer(
    make_store: Callable[..., PostgresCheckpointer], drive: Callable[..., Any], lens: Any
) -> None:
    """Each resume repeats the earlier answers beside the new one."""

    def ask(state: State) -> State:
        return {"answers": [interrupt(f"question {i}") for i in range(3)]}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    compiled = graph.compile(checkpointer=make_store())
    config = {"configurable": {"thread_id": "t"}}
    drive(compiled, "invoke", {}, config)
    for answer in "abc":
        result = drive(compiled, "invoke", Command(resume=answer), config)
    assert result == {"answers": ["a", "b", "c"]}


def test_versions_that_are_text_go_on_as_text(store: PostgresCheckpointer) -> None:
    """Checkpoints that come from a saver with textual versions can be continued: the order holds."""
    versions = ["00000000000000000000000000000009.0.7361", None, 4]
    made = [store.get_next_version(version, None) for version in versions]
    assert made[1:] == [1, 5]
    first = made[0]
    assert isinstance(first, str)
    assert first > versions[0]  # type: ignore[operator]
    assert store.get_next_version(first, None) > first
    assert first.split(".")[0] == "0" * 30 + "10"
