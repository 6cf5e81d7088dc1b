"""LangGraph's public conformance suite, as cyberos_app, and delta channels beyond it (D4.2)."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import START, StateGraph

from cuo_checkpoint import PostgresCheckpointer

CAPABILITIES = (
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
)
Drive = Callable[..., Any]


@pytest.mark.parametrize("capability", CAPABILITIES)
async def test_conformance(shared_place: Any, lens_of: Any, capability: str) -> None:
    """Every test of the capability passes, and the log it leaves is sound: nothing was changed."""
    tenants: list[str] = []

    @checkpointer_test(name="cuo")
    async def made() -> AsyncIterator[PostgresCheckpointer]:
        tenants.append(str(uuid.uuid4()))
        async with PostgresCheckpointer(
            shared_place.app, tenant_id=tenants[-1], max_connections=3
        ) as store:
            yield store

    report = await validate(made, capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert result.detected
    assert result.passed
    assert result.tests_skipped == 0
    assert result.tests_passed > 0
    for tenant in tenants:
        lens_of(shared_place.admin, tenant).prove()


def joined(old: list[str] | None, new: list[list[str]]) -> list[str]:
    """The channel's reducer: all lists in a row."""
    return [*(old or []), *(item for part in new for item in part)]


def chat(store: PostgresCheckpointer, *, every: int = 1000) -> Any:
    """One node that answers, on a channel that stores differences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        channel = DeltaChannel(joined, snapshot_frequency=every)
        state_type: Any = TypedDict(  # type: ignore[operator]
            "State", {"messages": Annotated[list[str], channel]}, total=False
        )

        def answer(state: dict[str, Any]) -> dict[str, Any]:
            return {"messages": [f"re:{state['messages'][-1]}"]}

        graph = StateGraph(state_type)
        graph.add_node("answer", answer)
        graph.add_edge(START, "answer")
        return graph.compile(store)


def at(**more: Any) -> Any:
    """A config."""
    return {"configurable": {"thread_id": "t", **more}}


TWO_TURNS = ["a", "re:a", "b", "re:b"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [1000, 2])
def test_a_delta_channel_is_rebuilt(drive: Drive, make_store: Any, lens: Any, every: int) -> None:
    """Its history is put together again in another process, whatever was snapshotted."""
    for text in ("a", "b"):
        drive(chat(make_store(), every=every), "invoke", {"messages": [text]}, at())
    graph = chat(make_store(), every=every)
    assert drive(graph, "get_state", at()).values["messages"] == TWO_TURNS
    history = [s.values.get("messages", []) for s in drive(graph, "get_state_history", at())]
    assert history[0] == TWO_TURNS
    assert ["a", "re:a"] in history
    assert ["a"] in history


@pytest.mark.filterwarnings("ignore")
def test_a_delta_channel_after_a_fork(drive: Drive, make_store: Any, lens: Any) -> None:
    """Both branches have their own history; neither sees the other's writes."""
    graph = chat(make_store())
    for text in ("a", "b"):
        drive(graph, "invoke", {"messages": [text]}, at())
    older = next(
        s
        for s in drive(graph, "get_state_history", at())
        if s.values.get("messages") == ["a", "re:a"] and not s.next
    )
    drive(graph, "invoke", {"messages": ["c"]}, older.config)
    assert drive(graph, "get_state", at()).values["messages"] == ["a", "re:a", "c", "re:c"]
    tips = [s.values.get("messages") for s in drive(graph, "get_state_history", at())]
    assert TWO_TURNS in tips


@pytest.mark.filterwarnings("ignore")
def test_a_delta_channel_after_prune(drive: Drive, make_store: Any, lens: Any) -> None:
    """prune hides older checkpoints and breaks no channel that is rebuilt from them."""
    store = make_store()
    graph = chat(store)
    for text in ("a", "b"):
        drive(graph, "invoke", {"messages": [text]}, at())
    drive(store, "prune", ["t"])
    assert len(drive(graph, "get_state_history", at())) == 1
    assert drive(graph, "get_state", at()).values["messages"] == TWO_TURNS
    again = chat(make_store())
    drive(again, "invoke", {"messages": ["c"]}, at())
    assert drive(again, "get_state", at()).values["messages"] == [*TWO_TURNS, "c", "re:c"]


@pytest.mark.filterwarnings("ignore")
def test_a_delta_channel_starts_anew_behind_a_tombstone(
    drive: Drive, make_store: Any, lens: Any
) -> None:
    """After delete_thread and reopening, nothing of the old history leaks into the new one."""
    store = make_store()
    graph = chat(store)
    drive(graph, "invoke", {"messages": ["a"]}, at())
    drive(store, "delete_thread", "t")
    drive(store, "reopen_thread", "t")
    drive(graph, "invoke", {"messages": ["b"]}, at())
    assert drive(graph, "get_state", at()).values["messages"] == ["b", "re:b"]


@pytest.mark.filterwarnings("ignore")
def test_a_delta_channel_in_a_copy(drive: Drive, make_store: Any, lens: Any) -> None:
    """A copied thread has the whole history, and goes on by itself."""
    store = make_store()
    graph = chat(store)
    for text in ("a", "b"):
        drive(graph, "invoke", {"messages": [text]}, at())
    drive(store, "copy_thread", "t", "u")
    there = {"configurable": {"thread_id": "u"}}
    assert drive(graph, "get_state", there).values["messages"] == TWO_TURNS
    drive(graph, "invoke", {"messages": ["c"]}, there)
    assert drive(graph, "get_state", there).values["messages"] == [*TWO_TURNS, "c", "re:c"]
    assert drive(graph, "get_state", at()).values["messages"] == TWO_TURNS


def test_a_run_deleted_takes_its_writes_along(store: PostgresCheckpointer, lens: Any) -> None:
    """delete_for_runs hides a run's checkpoints and the writes it left on others'."""
    from langgraph.checkpoint.base import empty_checkpoint

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    saved = store.put(config, empty_checkpoint(), {"run_id": "one"}, {})  # type: ignore[typeddict-unknown-key]
    other: Any = {"configurable": {**saved["configurable"], "run_id": "two"}}
    store.put_writes(other, [("w", 1)], "task")
    store.delete_for_runs(["two"])
    found = store.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == []
