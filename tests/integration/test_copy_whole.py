"""A thread is copied whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import CheckpointConflict


def fill(store: PostgresCheckpointer, thread: str, n: int, **values: Any) -> list[str]:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    ids = []
    for i in range(n):
        made = empty_checkpoint()
        made["channel_values"] = {"i": i, **values}
        made["channel_versions"] = {"i": i + 1}
        config = store.put(config, made, {"source": "loop", "step": i}, {})
        store.put_writes(config, [("i", i), ("j", [i])], f"task {i}", f"~path {i}")
        ids.append(made["id"])
    return ids


def test_a_copy_equals_its_source(
    store: PostgresCheckpointer, drive: Callable[..., Any], lens: Any
) -> None:
    """Every checkpoint with its writes, under LangGraph's own ids."""
    fill(store, "source", 5)
    drive(store, "copy_thread", "source", "target")

    def seen(thread: str) -> list[Any]:
        return [
            (t.config["configurable"]["checkpoint_id"], t.checkpoint, t.pending_writes)
            for t in store.list({"configurable": {"thread_id": thread}})
        ]

    assert len(seen("target")) == 5
    assert seen("target") == seen("source")


def test_copying_again_changes_nothing(
    store: PostgresCheckpointer, drive: Callable[..., Any], lens: Any
) -> None:
    """Whoever did not hear that a copy succeeded may ask for it again; metadata stay the same."""
    fill(store, "source", 3)
    drive(store, "copy_thread", "source", "target")
    before = len(lens.rows())
    drive(store, "copy_thread", "source", "target")
    assert len(lens.rows()) == before
    source, target = (
        [t.metadata for t in store.list({"configurable": {"thread_id": thread}})]
        for thread in ("source", "target")
    )
    assert source == target


def test_a_copy_that_fails_half_way_leaves_nothing(
    store: PostgresCheckpointer, drive: Callable[..., Any], lens: Any
) -> None:
    """The last of three checkpoints stands in the target with other bytes: none is copied."""
    names = fill(store, "source", 3)
    other = empty_checkpoint()
    other["id"] = names[2]
    store.put({"configurable": {"thread_id": "target"}}, other, {"source": "loop", "step": 9}, {})
    with pytest.raises(CheckpointConflict):
        drive(store, "copy_thread", "source", "target")
    assert len(list(store.list({"configurable": {"thread_id": "target"}}))) == 1


def test_a_copy_is_one_transaction(
    store: PostgresCheckpointer, shared_place: Any, lens: Any
) -> None:
    """All rows of a copy carry one time: that of its transaction."""
    fill(store, "source", 4)
    store.copy_thread("source", "target")
    assert len({row["created_at"] for row in lens.rows("target")}) == 1
    with psycopg.connect(shared_place.admin) as conn:
        writes = conn.execute(
            "SELECT count(DISTINCT created_at) FROM cuo_langgraph_writes"
            " WHERE tenant_id = %s AND thread_id = 'target'",
            (lens.tenant,),
        ).fetchone()
    assert writes == (1,)
