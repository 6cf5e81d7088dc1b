"""`CheckpointWriter`, the primitive under the store, and states in full and shared (D3.2, D4.11)."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from cuo_checkpoint import CheckpointKind, CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.errors import (
    InvalidIdentifier,
    ParentMissing,
    StateTooLarge,
    TenantRequired,
    ThreadDeleted,
    UnserialisableValue,
)
from cuo_checkpoint.records import MAX_STATE_BYTES, SHARE_ABOVE_BYTES

Drive = Callable[..., Any]


@pytest.fixture
def write(store: PostgresCheckpointer, colour: str) -> Callable[..., uuid.UUID]:
    """Writes one row in the test's colour."""
    writer = CheckpointWriter(store)

    def call(*args: Any, **options: Any) -> uuid.UUID:
        if colour == "sync":
            return writer.write(*args, **options)

        async def run() -> uuid.UUID:
            try:
                return await writer.awrite(*args, **options)
            finally:
                await store.aclose()

        return asyncio.run(run())

    return call


def test_a_run_by_hand(write: Any, lens: Any) -> None:
    """A service that is no graph leaves the six kinds, each under the one before, chained."""
    run = uuid.uuid4()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    for kind, more in (
        ("run_started", {}),
        ("node_entered", {"node_name": "n"}),
        (CheckpointKind.NODE_COMPLETED, {"node_name": "n"}),
        ("edge_traversed", {"edge_from": "n", "edge_to": "__end__"}),
        ("run_completed", {}),
    ):
        made = write(run, kind, {"at": str(kind)}, trace_id=trace, **more)
    assert lens.events() == ["started", ">n", "<n", "n->__end__", "done"]
    rows = lens.rows(str(run))
    assert rows[-1]["checkpoint_id"] == made
    assert [r["parent_checkpoint_id"] for r in rows] == [None] + [
        r["checkpoint_id"] for r in rows[:-1]
    ]
    assert {r["trace_id"] for r in rows} == {trace}
    assert lens.audit()[-1]["kind"] == "close"
    assert lens.query("SELECT state, outcome FROM cuo_runs WHERE tenant_id = $T") == [
        {"state": "closed", "outcome": "run_completed"}
    ]


def test_a_parent_may_be_named(write: Any, lens: Any) -> None:
    """A row hangs where its writer says, if that is an older row of the tenant."""
    run = uuid.uuid4()
    first = write(run, "run_started", {})
    write(run, "node_entered", {}, node_name="a")
    named = write(run, "node_entered", {}, node_name="b", parent_checkpoint_id=first)
    (row,) = [r for r in lens.rows() if r["checkpoint_id"] == named]
    assert row["parent_checkpoint_id"] == first
    with pytest.raises(ParentMissing):
        write(run, "node_entered", {}, parent_checkpoint_id=uuid.uuid4())


def test_another_tenants_row_is_no_parent(
    store: PostgresCheckpointer, other_tenant_id: str, lens: Any
) -> None:
    """A row of another tenant does not exist for this one, not even as a parent."""
    writer = CheckpointWriter(store)
    theirs = writer.write(uuid.uuid4(), "run_started", {}, tenant_id=other_tenant_id)
    with pytest.raises(ParentMissing):
        writer.write(uuid.uuid4(), "run_started", {}, parent_checkpoint_id=theirs)
    assert lens.rows() == []


def test_a_ulid_and_a_text_name_runs_too(write: Any, lens: Any) -> None:
    """Any text names a run: a UUID itself, anything else the same UUID each time."""
    write("job-17", "run_started", {})
    write("job-17", "run_completed", {})
    assert lens.events() == ["started", "done"]
    assert len({r["run_id"] for r in lens.rows()}) == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"kind": "node_skipped"}, ValueError),
        ({"run_id": ""}, InvalidIdentifier),
        ({"thread_id": "a\x00b"}, InvalidIdentifier),
        ({"tenant_id": "not-a-uuid"}, InvalidIdentifier),
        ({"state": {"x": object()}}, UnserialisableValue),
        ({"state": {"x": "y" * MAX_STATE_BYTES}}, StateTooLarge),
    ],
    ids=["kind", "run", "thread", "tenant", "type", "size"],
)
def test_a_wrong_row_is_refused_whole(
    write: Any, lens: Any, wrong: dict[str, Any], error: type[Exception]
) -> None:
    """A typed error, and nothing stored."""
    given: dict[str, Any] = {"run_id": uuid.uuid4(), "kind": "run_started", "state": {}} | wrong
    with pytest.raises(error):
        write(given.pop("run_id"), given.pop("kind"), given.pop("state"), **given)
    assert lens.rows() == []
    assert lens.audit() == []


def test_no_tenant_no_row(make_store: Any) -> None:
    """Without a tenant nothing is written."""
    writer = CheckpointWriter(make_store(tenant_id=None))
    with pytest.raises(TenantRequired):
        writer.write(uuid.uuid4(), "run_started", {})


def test_a_deleted_thread_takes_no_row(write: Any, store: PostgresCheckpointer, lens: Any) -> None:
    """The tombstone holds for this writer as for graphs."""
    run = uuid.uuid4()
    write(run, "run_started", {}, thread_id="t")
    store.delete_thread("t")
    with pytest.raises(ThreadDeleted):
        write(run, "run_completed", {}, thread_id="t")


@pytest.mark.parametrize("trace", [None, "", "xyz", "0" * 32, "4BF92F3577B34DA6A3CE929D0E0E4736"])
def test_a_missing_or_malformed_trace_is_zeros(write: Any, lens: Any, trace: Any) -> None:
    """It never fails a write."""
    write(uuid.uuid4(), "run_started", {}, trace_id=trace)
    assert [r["trace_id"] for r in lens.rows()] == ["0" * 32]


# -- states ------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    """A state of any size."""

    text: str
    other: Annotated[str, lambda old, new: new]


def growing(store: PostgresCheckpointer, size: int) -> Any:
    """Two parallel nodes under a state of some size, so that a superstep has many rows."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"text": "x" * size, "other": "small"})
    graph.add_node("b", lambda state: {"other": "b"})
    graph.add_node("c", lambda state: {"other": "c"})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("a", "c")
    return graph.compile(store)


def at() -> Any:
    """A config."""
    return {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("size", [100, SHARE_ABOVE_BYTES - 200, SHARE_ABOVE_BYTES + 200, 300_000])
def test_every_row_shows_its_state_in_full(
    drive: Drive, store: PostgresCheckpointer, lens: Any, size: int
) -> None:
    """Up to 8 kB every row holds its state; above, a superstep's rows refer to one; the view shows all."""
    drive(growing(store, size), "invoke", {"text": "", "other": ""}, at())
    stored = lens.query(
        "SELECT kind, node_name, step, state_json FROM cuo_langgraph_checkpoints"
        " WHERE tenant_id = $T ORDER BY seq"
    )
    shared = [r for r in stored if "$state_of" in r["state_json"]]
    assert bool(shared) == (size > SHARE_ABOVE_BYTES)
    for row in lens.rows():
        assert "$state_of" not in row["state_json"]
        if row["node_name"] in ("b", "c"):
            assert row["state_json"]["text"] == "x" * size
    if shared:
        steps = {r["step"] for r in shared}
        whole = [r for r in stored if r["step"] in steps and "$state_of" not in r["state_json"]]
        assert len(whole) == len(steps)


def test_a_state_that_looks_like_a_reference_is_none(write: Any, lens: Any) -> None:
    """A channel named like the store's own mark is data, escaped and shown as it was."""
    write(uuid.uuid4(), "run_started", {"$state_of": "01900000-0000-7000-8000-000000000000"})
    (row,) = lens.rows()
    assert "01900000-0000-7000-8000-000000000000" in row["state_text"]
    assert "$state_of" in row["state_text"]


def test_five_megabytes_are_refused_and_the_run_ends(
    drive: Drive, store: PostgresCheckpointer, lens: Any
) -> None:
    """Refused before the database sees it, naming the largest channel; the last good state stays."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"text": "good", "other": "small"})
    graph.add_node("b", lambda state: {"text": "x" * (MAX_STATE_BYTES + 1)})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    with pytest.raises(StateTooLarge) as refused:
        drive(graph.compile(store), "invoke", {"text": ""}, at())
    assert refused.value.largest[0][0] == "text"
    assert "thread t" in str(refused.value)
    assert lens.events()[-1] == "failed:StateTooLarge"
    assert lens.rows()[-1]["state_json"] == {"text": "good", "other": "small"}
    assert "<b" not in lens.events()
    largest = lens.query(
        "SELECT coalesce(max(length(value::text)), 0) AS n FROM cuo_langgraph_writes"
        " WHERE tenant_id = $T"
    )
    assert largest[0]["n"] < MAX_STATE_BYTES


def test_many_middling_channels_are_counted_together(
    drive: Drive, store: PostgresCheckpointer, lens: Any
) -> None:
    """Two channels of 3 MB each are 6 MB of state; the larger ones are named first."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"text": "x" * 3_000_000, "other": "y" * 2_900_000})
    graph.add_edge(START, "a")
    with pytest.raises(StateTooLarge) as refused:
        drive(graph.compile(store), "invoke", {"text": ""}, at())
    assert [name for name, _ in refused.value.largest] == ["text", "other"]
    assert lens.events()[-1] == "failed:StateTooLarge"


def test_nothing_of_a_state_reaches_the_audit_rows_or_the_log_output(
    drive: Drive, store: PostgresCheckpointer, lens: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Audit rows hold digests of states, never states."""
    marker = f"marker-{uuid.uuid4()}"
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"text": marker})
    graph.add_edge(START, "a")
    with caplog.at_level(logging.DEBUG):
        drive(graph.compile(store), "invoke", {"text": marker}, at())
    assert marker in lens.rows()[-1]["state_text"]
    for row in lens.audit():
        assert marker not in row["body"]
        json.loads(row["body"])
    assert marker not in caplog.text
