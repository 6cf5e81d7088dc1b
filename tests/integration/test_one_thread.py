"""A run lives in one thread (D4.10): its id in a second one is refused, and nothing is stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.errors import RunElsewhere

RUN = uuid.UUID("00000000-0000-7000-8000-00000000aaaa")


class State(TypedDict, total=False):
    n: int


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "run_id": str(RUN)}}


def graph(store: PostgresCheckpointer) -> Any:
    made = StateGraph(State).add_node("a", lambda s: {"n": s["n"] + 1})
    return made.add_edge(START, "a").add_edge("a", END).compile(checkpointer=store)


def put(store: PostgresCheckpointer, thread: str) -> None:
    made = empty_checkpoint()
    made["channel_values"], made["channel_versions"] = {"n": 1}, {"n": 1}
    store.put(at(thread), made, {"source": "input", "step": -1}, {"n": 1})


WAYS: dict[str, Callable[[PostgresCheckpointer], Any]] = {
    "writer": lambda s: CheckpointWriter(s).write(RUN, "run_started", {}, thread_id="other"),
    "put": lambda s: put(s, "other"),
    "put_writes": lambda s: s.put_writes(
        {"configurable": at("other")["configurable"] | {"checkpoint_id": "1f0"}}, [("n", 1)], "t"
    ),
    "claim": lambda s: s.claim(at("other"), "effect", 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_call_takes_a_run_to_another_thread(
    store: PostgresCheckpointer, lens: Any, way: str
) -> None:
    """The refusal is typed; the run's rows and its chain are what they were."""
    put(store, "t")
    before = lens.rows(), lens.audit()
    with pytest.raises(RunElsewhere, match=str(RUN)):
        WAYS[way](store)
    assert (lens.rows(), lens.audit()) == before


def test_a_graph_with_the_run_of_another_thread_does_not_start(
    store: PostgresCheckpointer, lens: Any, drive: Any
) -> None:
    """No node runs; the first run, and its one root, stay as they are."""
    drive(graph(store), "invoke", {"n": 0}, at("t"))
    before = lens.events()
    with pytest.raises(RunElsewhere):
        drive(graph(store), "invoke", {"n": 5}, at("other"))
    assert lens.events() == before
    assert lens.rows("other") == []


def test_a_row_inserted_by_hand_does_not_either(
    store: PostgresCheckpointer, shared_place: Any, lens: Any
) -> None:
    """The database refuses it, whoever writes the statement."""
    put(store, "t")
    with psycopg.connect(shared_place.app) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [str(lens.tenant)])
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(
                "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind, state_json,"
                " trace_id, thread_id, state_sha256) SELECT gen_random_uuid(), tenant_id, run_id,"
                " 'run_started', state_json, trace_id, 'other', state_sha256"
                " FROM cuo_langgraph_checkpoints WHERE tenant_id = %s",
                [lens.tenant],
            )
    assert refused.value.sqlstate == "CU006"
