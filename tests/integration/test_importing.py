"""A stock LangGraph Postgres saver's database, copied into the log."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.errors import SchemaNotReady, StoreUnavailable
from cuo_checkpoint.importing import ImportReport, import_langgraph
from cuo_checkpoint.runs import RunReader

COMMAND = Path(sys.executable).with_name("cyberos-cuo")


@dataclasses.dataclass
class Invoice:
    """A class of the user's."""

    number: int


class State(MessagesState, total=False):
    tags: deque[str]
    answer: str
    invoice: Any


class Plain(TypedDict, total=False):
    value: Any


@pytest.fixture
def stock(cluster: Any, empty_database: str) -> Iterator[tuple[str, PostgresSaver]]:
    """A stock saver's database, and how to reach it."""
    dsn = cluster.dsn(empty_database)
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        yield dsn, saver


def chat(saver: Any, ask: bool = True) -> Any:
    """Two nodes, the second one asking a person."""

    def talk(state: State) -> Any:
        return {"messages": [AIMessage("hello", id="a1")], "tags": deque(["x", "y"], maxlen=5)}

    def approve(state: State) -> Any:
        return {"answer": interrupt({"question": "sure?"}) if ask else "no"}

    made = StateGraph(State).add_node("talk", talk).add_node("approve", approve)
    made.add_edge(START, "talk").add_edge("talk", "approve").add_edge("approve", END)
    return made.compile(checkpointer=saver)


def holding(saver: Any, value: Any) -> Any:
    made = StateGraph(Plain).add_node("give", lambda s: {"value": value})
    made.add_edge(START, "give").add_edge("give", END)
    return made.compile(checkpointer=saver)


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def history(saver: Any, thread: str) -> list[Any]:
    return [
        (
            t.config["configurable"]["checkpoint_id"],
            (t.parent_config or {}).get("configurable", {}).get("checkpoint_id"),
            t.checkpoint["channel_values"],
            t.checkpoint["channel_versions"],
            t.metadata["step"],
            t.pending_writes,
        )
        for t in saver.list(config(thread))
    ]


def test_history_and_writes_are_the_same(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """Every checkpoint: id, parent, values with their types, versions, step, pending writes."""
    source, saver = stock
    for thread in ("one", "two"):
        chat(saver).invoke({"messages": [HumanMessage("hi", id="h1")]}, config(thread))
    report = import_langgraph(source, store)
    assert (report.threads, report.checkpoints, report.copied) == (2, 6, 6)
    assert report.refused == []
    assert history(store, "one") == history(saver, "one")
    newest = store.get_tuple(config("two"))
    assert newest is not None
    tags = newest.checkpoint["channel_values"]["tags"]
    assert type(tags) is deque
    assert [w[1] for w in newest.pending_writes or []] == ["__interrupt__"]


def test_a_waiting_graph_goes_on_in_the_new_store(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """What the stock saver left waiting is answered here, under the versions it began with."""
    source, saver = stock
    chat(saver).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    import_langgraph(source, store)
    found = chat(store).invoke(Command(resume="yes"), config("t"), durability="sync")
    assert found["answer"] == "yes"
    again = chat(store, ask=False).invoke({"messages": [HumanMessage("more")]}, config("t"))
    assert again["answer"] == "no"
    assert len(again["messages"]) == 3


def test_a_second_time_copies_only_what_is_new(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """The same command takes an interrupted copy up again."""
    source, saver = stock
    graph = chat(saver)
    graph.invoke({"messages": [HumanMessage("hi")]}, config("t"))
    import_langgraph(source, store)
    before = len(lens.rows())
    again = import_langgraph(source, store)
    assert (again.copied, again.already_there) == (0, 3)
    assert len(lens.rows()) == before
    graph.invoke(Command(resume="yes"), config("t"))
    third = import_langgraph(source, store)
    assert third.refused == []
    assert history(store, "t") == history(saver, "t")


def test_a_dry_run_stores_nothing(stock: Any, store: PostgresCheckpointer, lens: Any) -> None:
    """It reads and encodes all the same, and says what would be copied."""
    source, saver = stock
    chat(saver).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    report = import_langgraph(source, store, dry_run=True)
    assert (report.copied, report.dry_run) == (3, True)
    assert lens.rows() == []


def test_one_thread_can_be_named(stock: Any, store: PostgresCheckpointer) -> None:
    """The others stay where they are."""
    source, saver = stock
    for thread in ("one", "two"):
        holding(saver, 1).invoke({}, config(thread))
    assert import_langgraph(source, store, thread="two").threads == 1
    assert list(store.list(config("one"))) == []
    assert list(store.list(config("two"))) != []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Invoice(1), "value"),
        ([{"b": Invoice(2)}], "value[0].b"),
        ({"list": [Invoice(3)]}, "value.list[0]"),
    ],
)
def test_a_class_that_is_not_allowed_is_reported_with_its_path(
    stock: Any, store: PostgresCheckpointer, lens: Any, value: Any, path: str
) -> None:
    """Its checkpoint is refused; nothing is stored as a dict that was an object."""
    source, saver = stock
    holding(saver, value).invoke({}, config("t"))
    report = import_langgraph(source, store)
    assert [(r.path, r.type_name) for r in report.refused] == [(path, f"{__name__}.Invoice")] * len(
        report.refused
    )
    assert report.refused
    assert report.copied == report.checkpoints - len(report.refused)
    assert "Invoice" not in json.dumps(lens.rows(), default=str)


def test_an_allowed_class_is_copied_as_what_it_was(
    stock: Any, make_store: Callable[..., PostgresCheckpointer], lens: Any
) -> None:
    """The source may rebuild it, and the store may keep it."""
    source, saver = stock
    holding(saver, [Invoice(7)]).invoke({}, config("t"))
    store = make_store(allowed_types=[Invoice])
    report = import_langgraph(source, store, allowed_types=[(__name__, "Invoice")])
    assert report.refused == []
    newest = store.get_tuple(config("t"))
    assert newest is not None
    assert newest.checkpoint["channel_values"]["value"] == [Invoice(7)]


def test_even_a_store_that_takes_any_type_takes_no_placeholder(
    stock: Any, make_store: Callable[..., PostgresCheckpointer]
) -> None:
    """allowed_types="any" is about the store; the source still rebuilds only what it is told."""
    source, saver = stock
    holding(saver, Invoice(7)).invoke({}, config("t"))
    report = import_langgraph(source, make_store(allowed_types="any"))
    assert {r.type_name for r in report.refused} == {f"{__name__}.Invoice"}


def test_metadata_is_copied_by_name_only(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """The stock saver keeps what stood in `configurable`, api keys too; here it is asked for."""
    source, saver = stock
    holding(saver, 1).invoke({}, config("t", api_key="sk-secret-marker", customer="acme"))
    report = import_langgraph(source, store, keep_metadata=["customer"])
    assert report.metadata_left_out["api_key"] == report.checkpoints
    found = list(store.list(config("t"), filter={"customer": "acme"}))
    assert len(found) == report.checkpoints
    assert "sk-secret-marker" not in json.dumps(lens.rows(), default=str)


def test_a_thread_deleted_here_stays_deleted(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """It is named in the report, and the other threads are copied."""
    source, saver = stock
    for thread in ("gone", "kept"):
        holding(saver, 1).invoke({}, config(thread))
    import_langgraph(source, store)
    store.delete_thread("gone")
    report = import_langgraph(source, store)
    assert report.deleted_threads == ["gone"]
    assert store.get_tuple(config("gone")) is None


def test_the_copied_runs_verify(
    stock: Any, store: PostgresCheckpointer, shared_place: Any, tenant_id: str
) -> None:
    """What was imported is chained and digested like anything else."""
    source, saver = stock
    chat(saver).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    import_langgraph(source, store)
    with RunReader(shared_place.app, tenant_id=uuid.UUID(tenant_id)) as reader:
        runs = reader.list_runs().runs
        assert runs
        for run in runs:
            assert reader.verify(run.run_id).ok


def test_one_run_id_in_many_threads_becomes_a_run_for_each(
    stock: Any, store: PostgresCheckpointer, lens: Any
) -> None:
    """The stock saver does not mind; here a run has one thread, and copying again finds the same."""
    source, saver = stock
    run = str(uuid.uuid4())
    for thread in ("one", "two"):
        holding(saver, thread).invoke({}, config(thread, run_id=run))
    report = import_langgraph(source, store)
    assert (report.refused, report.copied) == ([], report.checkpoints)
    again = import_langgraph(source, store)
    assert (again.copied, again.already_there) == (0, report.checkpoints)
    threads_of: dict[Any, set[str]] = {}
    for row in lens.rows():
        threads_of.setdefault(row["run_id"], set()).add(row["thread_id"])
    assert threads_of.pop(uuid.UUID(run)) == {"one"}
    assert list(threads_of.values()) == [{"two"}]
    assert [t.metadata["run_id"] for t in store.list(config("two"))][:1] == [run]


def test_the_source_is_read_in_a_read_only_session(stock: Any, store: PostgresCheckpointer) -> None:
    """Nothing in it changes, not even by accident."""
    source, saver = stock
    holding(saver, 1).invoke({}, config("t"))
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations")

    def all_rows() -> list[Any]:
        with psycopg.connect(source) as conn:
            return [conn.execute(f"SELECT * FROM {t} ORDER BY 1, 2").fetchall() for t in tables[:3]]

    before = all_rows()
    import_langgraph(source, store)
    assert all_rows() == before


def test_a_database_without_stock_tables_is_named_as_such(
    cluster: Any, empty_database: str, store: PostgresCheckpointer
) -> None:
    """The message says what is missing and where to look."""
    with pytest.raises(SchemaNotReady, match="no tables of LangGraph's"):
        import_langgraph(cluster.dsn(empty_database), store)


def test_an_unreachable_source_is_unavailable(store: PostgresCheckpointer) -> None:
    """No bare driver error, and no address in it."""
    with pytest.raises(StoreUnavailable):
        import_langgraph("host=/nowhere dbname=x connect_timeout=1", store)


def test_progress_is_told_after_every_thread(stock: Any, store: PostgresCheckpointer) -> None:
    """With the running totals, so that a long copy shows that it moves."""
    source, saver = stock
    for thread in ("a", "b", "c"):
        holding(saver, 1).invoke({}, config(thread))
    told: list[tuple[int, str]] = []

    def note(report: ImportReport, thread: str) -> None:
        told.append((report.threads, thread))

    import_langgraph(source, store, progress=note)
    assert told == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.slow
def test_the_command_copies_into_the_local_database(stock: Any, open_tmp_path: Path) -> None:
    """JSON on stdout, remarks on stderr, exit 65 when something was refused and 0 after --allow."""
    source, saver = stock
    holding(saver, Invoice(7)).invoke({}, config("refused"))
    holding(saver, 1).invoke({}, config("fine"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUO_", "CYBEROS_", "PG"))}
    env = clean | {"CUO_DATA_DIR": str(open_tmp_path / "data")}
    command = [str(COMMAND), "runs", "import-langgraph", "--from", source, "--json"]
    first = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert first.returncode == 65, first.stderr
    report = json.loads(first.stdout)
    assert report["threads"] == 2
    assert {r["thread_id"] for r in report["refused"]} == {"refused"}
    assert "checkpoints so far" in first.stderr
    text = subprocess.run(
        [*command[:-1], "--thread", "fine"],
        env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert text.returncode == 0
    assert "0 copied, 3 there already, 0 refused" in text.stdout
