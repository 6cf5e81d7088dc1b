"""A graph's `update_state` outside a run: two calls on the store, one run in the log."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import StateUpdate

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import StateTooLarge
from cuo_checkpoint.runs import RunReader

Drive = Callable[..., Any]
Store = PostgresCheckpointer

KINDS = ["open", "write_set", "cuo.checkpoint_written", "close"]


class State(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


def made(store: Store) -> Any:
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"seen": ["a"]})
    graph.add_node("b", lambda state: {"seen": ["b"]})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return graph.compile(store)


def at(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t", **more}}


def by_hand(lens: Any) -> list[dict[str, Any]]:
    """The runs that no graph made, in order."""
    return lens.query(  # type: ignore[no-any-return]
        "SELECT * FROM cuo_runs WHERE tenant_id = $T AND outcome IS DISTINCT FROM 'run_completed'"
        " ORDER BY first_at"
    )


def kinds(lens: Any, run_id: uuid.UUID) -> list[str]:
    return [row["kind"] for row in lens.audit() if row["run_id"] == run_id]


def sound(lens: Any, place: Any) -> None:
    """Every run verifies, and the index is what the log gives."""
    with RunReader(place.app, tenant_id=lens.tenant) as reader:
        for run in lens.query("SELECT run_id FROM cuo_runs WHERE tenant_id = $T"):
            assert reader.verify(run["run_id"]).problems == ()
    with psycopg.connect(place.owner) as conn:
        found = conn.execute("SELECT cuo_rebuild_index(%s, false)", [lens.tenant]).fetchall()
    assert found == []


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("update_state", [{"seen": ["x"]}]),
        ("update_state", [{"seen": ["x"]}, "a"]),
        ("update_state", [{"seen": ["x"]}, "__input__"]),
        (
            "bulk_update_state",
            [[[StateUpdate({"seen": ["x"]}, "a"), StateUpdate({"seen": ["y"]}, "b")]]],
        ),
    ],
    ids=["last node", "a node", "as input", "two nodes at once"],
)
def test_an_update_is_one_run_with_its_rows(
    drive: Drive, store: Store, lens: Any, shared_place: Any, method: str, args: list[Any]
) -> None:
    """Its writes and its checkpoint stand in one chain, which ends with one word of its end."""
    graph = made(store)
    drive(graph, "invoke", {"seen": []}, at())
    drive(graph, method, at(), *args)
    (run,) = by_hand(lens)
    assert (run["state"], run["outcome"], run["log_rows"]) == ("closed", "direct", 1)
    told = kinds(lens, run["run_id"])
    assert told == [KINDS[0], *[KINDS[1]] * (told.count("write_set")), *KINDS[2:]]
    assert told.count("write_set") == (2 if method.startswith("bulk") else 1)
    close = next(row for row in lens.audit("close") if row["run_id"] == run["run_id"])
    assert json.loads(close["body"]) == {"log_rows": 1, "outcome": "direct"}
    state = drive(graph, "get_state", at())
    assert "x" in state.values["seen"] or state.next == ("__start__",) or state.next == ("a",)
    sound(lens, shared_place)


def test_an_update_of_a_run_by_its_id_is_one_too(
    drive: Drive, store: Store, lens: Any, shared_place: Any
) -> None:
    """An id that the caller names is used for both halves."""
    graph, run = made(store), uuid.uuid4()
    drive(graph, "invoke", {"seen": []}, at())
    drive(graph, "update_state", at(run_id=str(run)), {"seen": ["x"]})
    (found,) = by_hand(lens)
    assert found["run_id"] == run
    assert kinds(lens, run) == KINDS
    sound(lens, shared_place)


def test_every_update_is_a_run_of_its_own(
    drive: Drive, store: Store, lens: Any, shared_place: Any
) -> None:
    """One after the other, two supersteps of one call, and one from an older checkpoint."""
    graph = made(store)
    drive(graph, "invoke", {"seen": []}, at())
    older = next(s for s in drive(graph, "get_state_history", at()) if s.next == ("b",))
    drive(graph, "update_state", at(), {"seen": ["x"]})
    drive(
        graph,
        "bulk_update_state",
        at(),
        [[StateUpdate({"seen": ["y"]}, "a")], [StateUpdate({"seen": ["z"]}, "b")]],
    )
    drive(graph, "update_state", older.config, {"seen": ["fork"]})
    found = by_hand(lens)
    assert [run["log_rows"] for run in found] == [1] * 4
    assert [kinds(lens, run["run_id"]) for run in found] == [
        *[KINDS] * 3,
        # What is written on a checkpoint that others follow already, LangGraph does not store there.
        [kind for kind in KINDS if kind != "write_set"],
    ]
    sound(lens, shared_place)


def test_what_an_update_left_unfinished_the_next_one_ends(
    drive: Drive, store: Store, lens: Any, shared_place: Any
) -> None:
    """Its checkpoint is refused: the run stays open, and the next update takes it up."""
    graph = made(store)
    drive(graph, "invoke", {"seen": []}, at())
    with pytest.raises(StateTooLarge):
        drive(graph, "update_state", at(), {"seen": ["x" * 2_700_000, "y" * 2_700_000]})
    assert by_hand(lens) == []  # writes as large are refused as well
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.plans, "_encoded", too_large)
        with pytest.raises(StateTooLarge):
            drive(graph, "update_state", at(), {"seen": ["x"]})
    (run,) = by_hand(lens)
    assert (run["state"], run["log_rows"]) == ("open", 0)
    sound(lens, shared_place)
    drive(graph, "update_state", at(), {"seen": ["y"]})
    (run,) = by_hand(lens)
    assert (run["state"], run["outcome"], run["log_rows"]) == ("closed", "direct", 1)
    sound(lens, shared_place)


def too_large(*_: Any) -> Any:
    raise StateTooLarge(9, 5, [("seen", 9)])


def test_a_graph_that_goes_on_after_half_an_update_begins_its_run(
    drive: Drive, store: Store, lens: Any, shared_place: Any
) -> None:
    """The open run has no row yet, so its first one says that it started."""
    graph = made(store)
    drive(graph, "invoke", {"seen": []}, at())
    older = next(s for s in drive(graph, "get_state_history", at()) if s.next == ("b",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.plans, "_encoded", too_large)
        with pytest.raises(StateTooLarge):
            drive(graph, "update_state", at(), {"seen": ["x"]})
    drive(graph, "invoke", None, older.config)
    assert lens.events()[-5:] == ["started", ">b", "<b", "b->__end__", "done"]
    drive(graph, "update_state", at(), {"seen": ["y"]})
    assert {run["state"] for run in lens.query("SELECT * FROM cuo_runs WHERE tenant_id = $T")} == {
        "closed"
    }
    sound(lens, shared_place)


def test_writes_by_hand_alone_are_a_run_that_is_over(
    drive: Drive, store: Store, lens: Any, shared_place: Any
) -> None:
    """Nothing is known to follow them."""
    graph = made(store)
    drive(graph, "invoke", {"seen": []}, at())
    here = drive(graph, "get_state", at()).config
    drive(store, "put_writes", here, [("seen", ["x"])], str(uuid.uuid4()))
    (run,) = by_hand(lens)
    assert (run["state"], run["outcome"], run["log_rows"]) == ("closed", "direct", 0)
    assert kinds(lens, run["run_id"]) == ["open", "write_set", "close"]
    sound(lens, shared_place)
