"""The index tables can be thrown away: the log gives them back, row for row (D3.3)."""

from __future__ import annotations

import json
import uuid
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive_cli, rebuild_index

LEASES = {"lease_owner", "lease_until"}


class State(TypedDict, total=False):
    """What the graph carries."""

    ask: bool
    fail: bool
    answer: str


def graph(store: PostgresCheckpointer) -> Any:
    """A subgraph, then a node that asks or fails if told to."""
    inner = StateGraph(State)
    inner.add_node("i", lambda state: {})
    inner.add_edge(START, "i")

    def last(state: State) -> State:
        if state.get("fail"):
            raise ValueError("told to")
        return {"answer": interrupt("sure?")} if state.get("ask") else {}

    made = StateGraph(State)
    made.add_node("sub", inner.compile())
    made.add_node("last", last)
    made.add_edge(START, "sub")
    made.add_edge("sub", "last")
    made.add_edge("last", END)
    return made.compile(store)


@pytest.fixture
def busy(app_dsn: str, tenant_id: str) -> str:
    """A tenant with a run of every kind and a thread in every condition."""

    def config(thread: str, run: uuid.UUID | None = None) -> Any:
        return {"configurable": {"thread_id": thread, "run_id": run or uuid.uuid4()}}

    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        made = graph(store)
        made.invoke({}, config("done"), durability="sync")
        made.invoke({"ask": True}, config("waits"), durability="sync")
        asked = config("asked")
        made.invoke({"ask": True}, asked, durability="sync")
        made.invoke(Command(resume="yes"), asked, durability="sync")
        with pytest.raises(ValueError, match="told to"):
            made.invoke({"fail": True}, config("failed"), durability="sync")
        again = config("again")
        with pytest.raises(ValueError, match="told to"):
            made.invoke({"fail": True}, again, durability="sync")
        made.update_state(again, {"fail": False})
        made.invoke(None, again, durability="sync")
        paused = StateGraph(State)
        paused.add_node("p", lambda state: {})
        paused.add_edge(START, "p")
        paused.compile(store, interrupt_before=["p"]).invoke(
            {}, config("paused"), durability="sync"
        )
        for _ in range(3):
            made.invoke({}, config("pruned"), durability="sync")
        store.prune(["pruned"])
        made.invoke({}, config("pruned"), durability="sync")
        gone = uuid.uuid4()
        made.invoke({}, config("part", gone), durability="sync")
        made.invoke({}, config("part"), durability="sync")
        store.delete_for_runs([str(gone)])
        made.invoke({}, config("gone"), durability="sync")
        store.delete_thread("gone")
        store.copy_thread("done", "copy")
        writer = CheckpointWriter(store)
        run = uuid.uuid4()
        writer.write(run, "run_started", {"n": 1})
        writer.write(run, "node_entered", {"n": 1}, node_name="n")
        lone: Any = {"configurable": {"thread_id": "lone", "checkpoint_ns": ""}}
        checkpoint: Any = {
            "v": 4,
            "id": "1f0c0000-0000-6000-8000-000000000001",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"x": 1},
            "channel_versions": {"x": 1},
            "versions_seen": {},
            "updated_channels": None,
        }
        saved = store.put(lone, checkpoint, {"source": "input", "step": -1}, {"x": 1})
        store.put_writes(saved, [("x", 2)], "task-1")
    return tenant_id


def index(admin_dsn: str, tenant: str, table: str) -> list[dict[str, Any]]:
    """The tenant's rows of an index table, but for leases."""
    with psycopg.connect(admin_dsn, row_factory=dict_row) as conn:
        rows = conn.execute(
            f"SELECT * FROM {table} t WHERE tenant_id = %s ORDER BY t::text", [tenant]
        ).fetchall()
    return [{k: v for k, v in row.items() if k not in LEASES} for row in rows]


def behind(admin_dsn: str, statement: str, *params: Any) -> None:
    """A change by a superuser with triggers off."""
    with psycopg.connect(admin_dsn) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(statement, params)


def test_a_busy_tenants_index_is_what_its_log_gives(busy: str, archiver_dsn: str) -> None:
    """No difference, whatever was done."""
    assert rebuild_index.differences(archiver_dsn, tenant_id=uuid.UUID(busy)) == []


def test_a_lost_index_comes_back_row_for_row(busy: str, admin_dsn: str, archiver_dsn: str) -> None:
    """Both tables emptied by a superuser and rebuilt are what they were, and runs go on."""
    before = {t: index(admin_dsn, busy, t) for t in ("cuo_runs", "cuo_threads")}
    assert len(before["cuo_runs"]) > 12
    assert {r["state"] for r in before["cuo_runs"]} == {"open", "waiting", "closed"}
    behind(admin_dsn, "DELETE FROM cuo_runs")
    behind(admin_dsn, "DELETE FROM cuo_threads")
    found = rebuild_index.differences(archiver_dsn)
    assert {one.columns for one in found} == {("missing",)}
    assert index(admin_dsn, busy, "cuo_runs") == []
    assert rebuild_index.rebuild(archiver_dsn) == found
    after = {t: index(admin_dsn, busy, t) for t in before}
    for table, rows in before.items():
        keys = [c for c in ("run_id", "thread_id", "checkpoint_ns") if c in rows[0]]
        key = lambda row, keys=keys: [str(row[k]) for k in keys]  # noqa: E731
        assert sorted(after[table], key=key) == sorted(rows, key=key)
    assert rebuild_index.differences(archiver_dsn) == []


RUN_CHANGES = {
    "thread_id": "'elsewhere'",
    "state": "'open'",
    "outcome": "'run_failed'",
    "trace_id": "repeat('a', 32)",
    "first_at": "first_at - interval '1 day'",
    "newest_at": "newest_at + interval '1 day'",
    "log_rows": "log_rows + 1",
    "last_rows": "ARRAY[gen_random_uuid()]",
    "chain_seq": "chain_seq + 1",
    "chain_head": "sha256('x')",
    "hidden": "NOT hidden",
}
THREAD_CHANGES = {
    "head_seq": "head_seq + 1",
    "newest_seq": "newest_seq - 1",
    "newest_id": "'other'",
    "newest_at": "newest_at - interval '1 day'",
    "greatest_id": "'ffff'",
    "greatest_write_id": "'ffff'",
    "first_at": "first_at + interval '1 day'",
    "last_write_at": "last_write_at + interval '1 day'",
    "hidden_seq": "hidden_seq + 1000",
    "deleted": "NOT deleted",
}


@pytest.mark.parametrize(
    ("table", "changes"), [("cuo_runs", RUN_CHANGES), ("cuo_threads", THREAD_CHANGES)]
)
def test_each_column_is_compared_and_mended(
    app_dsn: str,
    admin_dsn: str,
    archiver_dsn: str,
    tenant_id: str,
    table: str,
    changes: dict[str, str],
) -> None:
    """A change of any one column is named, alone, and undone."""
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        config: Any = {"configurable": {"thread_id": "t", "run_id": uuid.uuid4()}}
        graph(store).invoke({"ask": True}, config, durability="sync")
        graph(store).invoke(Command(resume="yes"), config, durability="sync")
    known = {c for row in index(admin_dsn, tenant_id, table) for c in row}
    assert set(changes) == known - {"tenant_id", "run_id", "checkpoint_ns"} - (
        {"thread_id"} if table == "cuo_threads" else set()
    )
    before = index(admin_dsn, tenant_id, table)
    where = "" if table == "cuo_runs" else " AND checkpoint_ns = ''"
    for column, value in changes.items():
        behind(
            admin_dsn,
            f"UPDATE {table} SET {column} = {value} WHERE tenant_id = %s{where}",
            tenant_id,
        )
        found = rebuild_index.rebuild(archiver_dsn, tenant_id=uuid.UUID(tenant_id))
        assert [one.columns for one in found if one.table == table] == [(column,)], column
        assert index(admin_dsn, tenant_id, table) == before, column


def test_a_row_that_the_log_knows_nothing_of_goes(
    app_dsn: str, admin_dsn: str, archiver_dsn: str, tenant_id: str
) -> None:
    """An invented run is named and removed."""
    behind(
        admin_dsn,
        "INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id, chain_head)"
        " VALUES (%s, gen_random_uuid(), 't', repeat('0', 32), sha256(''))",
        tenant_id,
    )
    assert [one.columns for one in rebuild_index.rebuild(archiver_dsn)] == [("not in the log",)]
    assert index(admin_dsn, tenant_id, "cuo_runs") == []


def test_the_command(
    busy: str,
    admin_dsn: str,
    archiver_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """Comparing shows and ends with 65; applying mends and ends with 0."""
    behind(admin_dsn, "UPDATE cuo_runs SET log_rows = 0 WHERE log_rows > 0")
    monkeypatch.setenv("CUO_DATABASE_URL", archiver_dsn)
    assert archive_cli.main(["rebuild-index"]) == 65
    assert "log_rows" in capsys.readouterr().out
    assert archive_cli.main(["rebuild-index", "--apply", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["applied"] is True
    assert {c for one in shown["differences"] for c in one["columns"]} == {"log_rows"}
    assert archive_cli.main(["rebuild-index", "--tenant", busy]) == 0
