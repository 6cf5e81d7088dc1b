"""The verifier finds what a superuser changes behind the triggers' back, and says what it was."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.verify import RunVerification

Attack = Callable[[psycopg.Connection[Any], dict[str, Any]], object]


@pytest.fixture
def reader(shared_place: Any, tenant_id: str) -> Iterator[RunReader]:
    """A reader of this test's tenant."""
    with RunReader(shared_place.app, tenant_id=tenant_id) as made:
        yield made


class State(TypedDict, total=False):
    """What the graph carries."""

    go: bool
    text: str
    answer: str


def graph(store: PostgresCheckpointer) -> Any:
    """Two nodes, the second of which asks; the state is large enough to be shared."""
    made = StateGraph(State)
    made.add_node("a", lambda state: {"text": "x" * 20_000})
    made.add_node("b", lambda state: {"answer": interrupt("sure?")})
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    made.add_edge("b", END)
    return made.compile(store)


def run_graph(store: PostgresCheckpointer, thread: str = "t") -> uuid.UUID:
    """One run through an interrupt and its answer; returns its id."""
    run_id = uuid.uuid4()
    config: Any = {"configurable": {"thread_id": thread, "run_id": run_id}}
    graph(store).invoke({"go": True}, config, durability="sync")
    graph(store).invoke(Command(resume="yes"), config, durability="sync")
    return run_id


def attacked(
    shared_place: Any, reader: RunReader, run_id: uuid.UUID, attack: Attack
) -> RunVerification:
    """The verdict after a superuser did `attack` with every trigger off; then undoes it."""
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        attack(conn, {"t": reader.tenant_id, "r": run_id})
        conn.commit()
    return reader.verify(run_id)


def test_sound_runs_are_sound(store: Any, reader: RunReader) -> None:
    """A finished run, a waiting one, one of single rows and a deleted thread's all verify."""
    finished = reader.verify(run_graph(store))
    assert finished.problems == ()
    assert finished.rows > 5
    assert finished.chain_rows > finished.rows
    assert finished.writes > 2
    waiting = uuid.uuid4()
    config: Any = {"configurable": {"thread_id": "w", "run_id": waiting}}
    graph(store).invoke({"go": True}, config, durability="sync")
    assert reader.verify(waiting).ok
    lone = uuid.uuid4()
    CheckpointWriter(store).write(lone, "node_entered", {"a": 1.5, "b": "đ\x7f\n"}, node_name="n")
    assert reader.verify(lone).ok
    store.delete_thread("t")
    runs = reader.list_runs().runs
    assert len(runs) == 4
    assert [reader.verify(run.run_id).problems for run in runs] == [()] * 4


def sql(text: str) -> Attack:
    """An attack of one statement."""
    return lambda conn, params: conn.execute(text, params)


def rewritten(bytes_of: str) -> Attack:
    """Chain row 3 with other bytes, and the digest that fits them."""
    return sql(
        f"UPDATE cuo_memory_audit SET row_bytes = {bytes_of}, row_sha256 ="
        f" sha256('\\x63756f2f726f772f763100'::bytea || prev_sha256 || {bytes_of})"
        " WHERE tenant_id = %(t)s AND run_id = %(r)s AND chain_seq = 3"
    )


def swapped(conn: psycopg.Connection[Any], params: dict[str, Any]) -> None:
    """Chain rows 3 and 4 in each other's place."""
    for old, new in ((3, 1003), (4, 3), (1003, 4)):
        conn.execute(
            f"UPDATE cuo_memory_audit SET chain_seq = {new} WHERE tenant_id = %(t)s"
            f" AND run_id = %(r)s AND chain_seq = {old}",
            params,
        )


ONE_LOG = (
    "(SELECT checkpoint_id FROM cuo_langgraph_checkpoints WHERE tenant_id = %(t)s AND run_id ="
    " %(r)s AND kind = 'node_completed' ORDER BY seq LIMIT 1)"
)
LOG = "cuo_langgraph_checkpoints WHERE tenant_id = %(t)s AND run_id = %(r)s"
ATTACKS: dict[str, tuple[Attack, str]] = {
    "an edge is redirected": (
        sql(
            f"UPDATE cuo_langgraph_checkpoints SET edge_to = 'c' WHERE checkpoint_id IN"
            f" (SELECT checkpoint_id FROM {LOG} AND edge_to = 'b')"
        ),
        "a column was changed",
    ),
    "a parent is changed": (
        sql(
            f"UPDATE cuo_langgraph_checkpoints SET parent_checkpoint_id = NULL"
            f" WHERE checkpoint_id = {ONE_LOG}"
        ),
        "a column was changed",
    ),
    "a time is changed": (
        sql(
            f"UPDATE cuo_langgraph_checkpoints SET created_at = created_at + interval '1 us'"
            f" WHERE checkpoint_id = {ONE_LOG}"
        ),
        "a column was changed",
    ),
    "a state is edited": (
        sql(
            "UPDATE cuo_langgraph_checkpoints SET state_json = state_json || '{\"x\": 1}'"
            f" WHERE checkpoint_id = {ONE_LOG}"
        ),
        "its state is not the one that was digested",
    ),
    "a shared state points elsewhere": (
        sql(
            "UPDATE cuo_langgraph_checkpoints SET state_json ="
            " jsonb_build_object('$state_of', gen_random_uuid())"
            " WHERE tenant_id = %(t)s AND run_id = %(r)s AND state_json ? '$state_of'"
        ),
        "the state it shares is not there",
    ),
    "LangGraph's document is edited": (
        sql(
            'UPDATE cuo_langgraph_checkpoints SET langgraph = langgraph || \'{"ts": "1970"}\''
            " WHERE tenant_id = %(t)s AND run_id = %(r)s AND langgraph ? 'channel_versions'"
        ),
        "its langgraph is not the one that was digested",
    ),
    "a log row is deleted": (
        sql(f"DELETE FROM cuo_langgraph_checkpoints WHERE checkpoint_id = {ONE_LOG}"),
        "is missing",
    ),
    "a log row is added": (
        sql(
            "INSERT INTO cuo_langgraph_checkpoints SELECT (jsonb_populate_record(c,"
            " jsonb_build_object('checkpoint_id', gen_random_uuid()))).* FROM"
            f" cuo_langgraph_checkpoints c WHERE checkpoint_id = {ONE_LOG}"
        ),
        "no chain row speaks of it",
    ),
    "a log row moves to another run": (
        sql(
            f"UPDATE cuo_langgraph_checkpoints SET run_id = gen_random_uuid()"
            f" WHERE checkpoint_id = {ONE_LOG}"
        ),
        "is missing",
    ),
    "a human's answer is edited": (
        sql(
            "UPDATE cuo_langgraph_writes SET value = '\"no\"' WHERE tenant_id = %(t)s"
            " AND run_id = %(r)s AND channel = '__resume__'"
        ),
        "its value is not the one that was digested",
    ),
    "a write is deleted": (
        sql(
            "DELETE FROM cuo_langgraph_writes WHERE tenant_id = %(t)s AND run_id = %(r)s"
            " AND channel = '__resume__'"
        ),
        "are not those stored",
    ),
    "a write changes channel": (
        sql(
            "UPDATE cuo_langgraph_writes SET channel = 'other' WHERE tenant_id = %(t)s"
            " AND run_id = %(r)s AND channel = '__interrupt__'"
        ),
        "a column was changed",
    ),
    "a chain row is deleted": (
        sql(
            "DELETE FROM cuo_memory_audit WHERE tenant_id = %(t)s AND run_id = %(r)s"
            " AND chain_seq = 4"
        ),
        "chain row 4: row is missing",
    ),
    "the chain's tail is cut": (
        sql(
            "DELETE FROM cuo_memory_audit WHERE tenant_id = %(t)s AND run_id = %(r)s"
            " AND kind = 'close'"
        ),
        "index: chain_seq of cuo_runs is not what the rows give",
    ),
    "the whole chain is deleted": (
        sql("DELETE FROM cuo_memory_audit WHERE tenant_id = %(t)s AND run_id = %(r)s"),
        "every audit row is missing",
    ),
    "a chain row's bytes are edited": (
        rewritten("set_byte(row_bytes, 9, 57)"),
        "chain row 4: does not follow the row before",
    ),
    "a chain row's bytes become noise": (
        rewritten("'\\xff00'"),
        "chain row 3: what it says cannot be read",
    ),
    "a chain row's body is edited": (
        sql(
            "UPDATE cuo_memory_audit SET body = '{}' WHERE tenant_id = %(t)s"
            " AND run_id = %(r)s AND chain_seq = 1"
        ),
        "chain row 1: column for 'body' is not what its bytes say",
    ),
    "a number in a chain row's body is spelled otherwise": (
        sql(
            "UPDATE cuo_memory_audit SET body = regexp_replace(body, '(\"log_rows\":[0-9]+)',"
            " '\\1.0') WHERE tenant_id = %(t)s AND run_id = %(r)s AND kind = 'close'"
        ),
        "column for 'body' is not what its bytes say",
    ),
    "a log row's number is one that JSON has not": (
        sql(
            "UPDATE cuo_langgraph_checkpoints SET seq = 2::bigint ^ 60"
            f" WHERE checkpoint_id = {ONE_LOG}"
        ),
        "a column was changed",
    ),
    "a chain row's kind is edited": (
        sql(
            "UPDATE cuo_memory_audit SET kind = 'hold' WHERE tenant_id = %(t)s"
            " AND run_id = %(r)s AND chain_seq = 1"
        ),
        "chain row 1: column for 'kind' is not what its bytes say",
    ),
    "two chain rows change places": (
        swapped,
        "chain row 3: does not follow the row before",
    ),
    "the index counts wrongly": (
        sql("UPDATE cuo_runs SET log_rows = 1 WHERE tenant_id = %(t)s AND run_id = %(r)s"),
        "index: log_rows of cuo_runs is not what the rows give: 1 against",
    ),
    "the index reopens the run": (
        sql("UPDATE cuo_runs SET state = 'open' WHERE tenant_id = %(t)s AND run_id = %(r)s"),
        "index: state of cuo_runs is not what the rows give: open against closed",
    ),
    "the index is lost": (
        sql("DELETE FROM cuo_runs WHERE tenant_id = %(t)s AND run_id = %(r)s"),
        "index: the run is missing from cuo_runs",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_reported(store: Any, shared_place: Any, reader: RunReader, name: str) -> None:
    """Each change is reported for what it is, and a sound run beside it stays sound."""
    sound = run_graph(store, "other")
    run_id = run_graph(store)
    assert reader.verify(run_id).ok
    attack, finding = ATTACKS[name]
    verdict = attacked(shared_place, reader, run_id, attack)
    assert not verdict.ok
    assert any(finding in problem for problem in verdict.problems), verdict.problems
    assert reader.verify(sound).ok
    json.dumps(verdict.to_json())


def test_a_consistently_edited_row_is_still_found(
    store: Any, shared_place: Any, reader: RunReader
) -> None:
    """Whoever also recomputes a row's own digests is found by the chain, which holds the old one."""
    run_id = run_graph(store)

    def attack(conn: psycopg.Connection[Any], params: dict[str, Any]) -> None:
        # With its trigger on, the database itself would give the forged row a fitting digest.
        conn.execute("SET session_replication_role = origin")
        conn.execute("ALTER TABLE cuo_langgraph_checkpoints DISABLE TRIGGER cuo_no_change")
        conn.execute("ALTER TABLE cuo_langgraph_checkpoints DISABLE TRIGGER cuo_no_change_stmt")
        forged = hashlib.sha256(b'{"forged":true}').digest()
        conn.execute(
            "CREATE TEMP TABLE copy ON COMMIT DROP AS SELECT * FROM cuo_langgraph_checkpoints"
            f" WHERE checkpoint_id = {ONE_LOG}",
            params,
        )
        conn.execute(
            "DELETE FROM cuo_langgraph_checkpoints c USING copy"
            " WHERE c.checkpoint_id = copy.checkpoint_id"
        )
        conn.execute(
            "UPDATE copy SET state_json = '{\"forged\": true}', state_sha256 = %s", [forged]
        )
        conn.execute("ALTER TABLE cuo_langgraph_checkpoints DISABLE TRIGGER cuo_log_after")
        conn.execute("INSERT INTO cuo_langgraph_checkpoints SELECT * FROM copy")
        for trigger in ("cuo_no_change", "cuo_no_change_stmt", "cuo_log_after"):
            conn.execute(f"ALTER TABLE cuo_langgraph_checkpoints ENABLE TRIGGER {trigger}")

    verdict = attacked(shared_place, reader, run_id, attack)
    assert any("not the one chain row" in problem for problem in verdict.problems)
    assert not any("columns and row_sha256 disagree" in p for p in verdict.problems)


def test_many_problems_are_counted_not_listed(
    store: Any, shared_place: Any, reader: RunReader
) -> None:
    """A run damaged throughout gives a readable report."""
    run_id = uuid.uuid4()
    writer = CheckpointWriter(store)
    for _ in range(60):
        writer.write(run_id, "node_entered", {}, node_name="n")
    verdict = attacked(
        shared_place,
        reader,
        run_id,
        sql(
            "UPDATE cuo_langgraph_checkpoints SET node_name = 'm' WHERE tenant_id = %(t)s"
            " AND run_id = %(r)s"
        ),
    )
    assert len(verdict.problems) == 51
    assert verdict.problems[-1] == "and 70 more"


def test_the_databases_strings_are_canonical(shared_place: Any) -> None:
    """cuo_jcs spells every character as RFC 8785 does, or the digests could not agree."""
    from cuo_checkpoint.canonical import canonical_bytes

    spans = [range(1, 0x800), range(0x2000, 0x2100), range(0xFFF0, 0x10010), [0xD7FF, 0xE000]]
    texts = ["".join(map(chr, span)) for span in spans] + ["\U0010ffff", "", '\\"/']
    with psycopg.connect(shared_place.admin) as conn:
        for text in texts:
            (spelled,) = conn.execute("SELECT cuo_jcs(%s)", [text]).fetchone() or ("",)
            assert spelled.encode() == canonical_bytes(text)
