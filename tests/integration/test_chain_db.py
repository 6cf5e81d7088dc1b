"""The database's side of the audit chain: what it computes, and what it refuses (D6.2)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import ChainLink, genesis, link, verify_links
from cuo_checkpoint.errors import AuditFailed, ChainBroken

# Text PostgreSQL can hold: control characters, quotes, backslashes, beyond the BMP; no NUL.
TEXT = st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=30
)
HARD = st.sampled_from(
    [
        '"',
        "\\",
        "\b\f\n\r\t",
        "\x01\x1f\x7f",
        "\u2028\u2029",
        "é\u0301",
        "𝄞😀",
        "\ufffe\uffff",
        "/",
        "$T",
    ]
)
WORDS = TEXT | HARD


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(thread=WORDS, node=WORDS, edge=WORDS)
def test_server_and_python_agree_to_the_byte(
    store: PostgresCheckpointer, lens_of: Any, shared_place: Any, thread: str, node: str, edge: str
) -> None:
    """Digests and bytes the server computed are those of RFC 8785, whatever the names hold."""
    tenant = str(uuid.uuid4())
    run = uuid.uuid4()
    writer = CheckpointWriter(store)
    writer.write(run, "run_started", {}, tenant_id=tenant, thread_id=thread)
    writer.write(
        run, "node_entered", {node: edge}, tenant_id=tenant, thread_id=thread, node_name=node
    )
    writer.write(
        run, "edge_traversed", {}, tenant_id=tenant, thread_id=thread, edge_from=node, edge_to=edge
    )  # fmt: skip
    lens = lens_of(shared_place.admin, tenant)
    lens.prove()
    for row in lens.audit():
        content = json.loads(row["row_bytes"])
        assert canonical_bytes(content) == row["row_bytes"]
        assert canonical_bytes(content["body"]).decode() == row["body"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53) + 1, 2**53 - 1)
        | st.floats(-(2.0**53) + 1, 2.0**53 - 1)
        | WORDS,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.text(st.characters(max_codepoint=0xD7FF, exclude_characters="\x00"), max_size=8),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_the_canonical_form_is_one_and_the_same(shared_place: Any, body: Any) -> None:
    """cuo_canonical writes what Python's RFC 8785 writes; numbers from 2^53 on are not audited."""
    text = canonical_bytes({"k": body}).decode()
    with psycopg.connect(shared_place.owner) as conn:
        row = conn.execute("SELECT cuo_canonical(%s::jsonb)", [text]).fetchone()
    assert row == (text,)


class State(TypedDict, total=False):
    """A state with the reserved outbox."""

    x: int
    cuo_audit_outbox: list[dict[str, Any]]


def graph_with(rows: list[dict[str, Any]], store: PostgresCheckpointer) -> Any:
    """One node that hands rows to the store."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"x": 1, "cuo_audit_outbox": rows})
    graph.add_edge(START, "a")
    return graph.compile(store)


def at() -> Any:
    """A config."""
    return {"configurable": {"thread_id": "t"}}


def test_a_row_handed_over_is_chained_with_its_step(
    drive: Callable[..., Any], store: PostgresCheckpointer, lens: Any
) -> None:
    """An outbox row stands in the chain beside the step it belongs to, in canonical form, once."""
    body = {"b": 0.1 + 0.2, "a": ["é", {"z": 1e-7, "y": None}], "n": 12345.678}
    drive(
        graph_with([{"kind": "cuo.routing_decision", "body": body}], store),
        "invoke",
        {"x": 0},
        at(),
    )
    (row,) = lens.audit("cuo.routing_decision")
    assert json.loads(row["body"]) == body
    steps = [json.loads(r["body"])["seq"] for r in lens.audit("cuo.checkpoint_written")]
    assert steps == sorted(steps)
    (near,) = lens.query(
        "SELECT count(*) AS n FROM cuo_memory_audit a JOIN cuo_langgraph_checkpoints c"
        " ON c.tenant_id = a.tenant_id AND c.created_at = a.created_at"
        " AND c.kind = 'node_completed' WHERE a.tenant_id = $T AND a.kind = 'cuo.routing_decision'"
    )
    assert near["n"] == 1


@pytest.mark.parametrize(
    "kind",
    [
        "close",
        "open",
        "cuo.checkpoint_written",
        "write_set",
        "tombstone",
        "month_dropped",
        "nonsense",
    ],
)
def test_a_graph_cannot_speak_for_the_store(
    drive: Callable[..., Any], store: PostgresCheckpointer, lens: Any, kind: str
) -> None:
    """A row of a kind the store alone writes fails the step, which then did not happen."""
    with pytest.raises(Exception, match=r"audit|refused"):
        drive(graph_with([{"kind": kind, "body": {}}], store), "invoke", {"x": 0}, at())
    assert "<a" not in lens.events()
    assert lens.audit(kind) == [] or kind in ("open", "cuo.checkpoint_written", "write_set")


def test_what_cannot_be_chained_is_audit_failed(
    drive: Callable[..., Any], store: PostgresCheckpointer, lens: Any
) -> None:
    """The error says that it was the audit that failed."""
    with pytest.raises(AuditFailed):
        drive(graph_with([{"kind": "close", "body": {}}], store), "invoke", {"x": 0}, at())


@pytest.fixture
def a_run(store: PostgresCheckpointer) -> uuid.UUID:
    """A run with three rows."""
    run = uuid.uuid4()
    writer = CheckpointWriter(store)
    for kind in ("run_started", "node_entered", "node_completed"):
        writer.write(run, kind, {}, node_name="n")
    return run


def owner_inserts(
    place: Any, tenant: str, run: uuid.UUID, seq: int, prev: bytes, **wrong: Any
) -> None:
    """Inserts an audit row as the owner, who may name every column."""
    data = canonical_bytes({"made": "up"})
    values = {
        "t": tenant, "r": run, "seq": seq, "bytes": data, "prev": prev, "sha": link(prev, data),
    } | wrong  # fmt: skip
    with psycopg.connect(place.owner, autocommit=True) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant])
        conn.execute(
            "INSERT INTO cuo_memory_audit (tenant_id, run_id, chain_seq, kind, trace_id, body,"
            " row_bytes, prev_sha256, row_sha256) VALUES (%(t)s, %(r)s, %(seq)s,"
            " 'cuo.routing_decision', repeat('0', 32), '{}', %(bytes)s, %(prev)s, %(sha)s)",
            values,
        )


@pytest.mark.parametrize("offset", [-1, 0, 2, 5])
def test_the_owner_cannot_leave_the_head(
    shared_place: Any, tenant_id: str, a_run: uuid.UUID, lens: Any, offset: int
) -> None:
    """A row that repeats, precedes or skips a position is refused, with a sound digest too."""
    (run,) = lens.query("SELECT chain_seq, chain_head FROM cuo_runs WHERE tenant_id = $T")
    with pytest.raises(psycopg.Error) as refused:
        owner_inserts(shared_place, tenant_id, a_run, run["chain_seq"] + offset, run["chain_head"])
    assert refused.value.sqlstate == "CU009"


@pytest.mark.parametrize("wrong", ["prev", "digest", "run"])
def test_the_owner_cannot_link_elsewhere(
    shared_place: Any, tenant_id: str, a_run: uuid.UUID, lens: Any, wrong: str
) -> None:
    """The next row must follow the head, by a digest of its own bytes, in a run that exists."""
    (run,) = lens.query("SELECT chain_seq, chain_head FROM cuo_runs WHERE tenant_id = $T")
    prev = b"\0" * 32 if wrong == "prev" else run["chain_head"]
    which = uuid.uuid4() if wrong == "run" else a_run
    more = {"sha": b"\1" * 32} if wrong == "digest" else {}
    with pytest.raises(psycopg.Error):
        owner_inserts(shared_place, tenant_id, which, run["chain_seq"] + 1, prev, **more)


def test_a_row_that_extends_the_head_moves_it(
    shared_place: Any, tenant_id: str, a_run: uuid.UUID, lens: Any
) -> None:
    """What the owner adds at the head is part of the chain: the next row follows it."""
    (run,) = lens.query("SELECT chain_seq, chain_head FROM cuo_runs WHERE tenant_id = $T")
    owner_inserts(shared_place, tenant_id, a_run, run["chain_seq"] + 1, run["chain_head"])
    (after,) = lens.query("SELECT chain_seq, chain_head FROM cuo_runs WHERE tenant_id = $T")
    assert after["chain_seq"] == run["chain_seq"] + 1
    assert after["chain_head"] == link(run["chain_head"], canonical_bytes({"made": "up"}))
    lens.prove = lambda: None  # the row made up here is about nothing, which verification says


@pytest.mark.parametrize(
    "body",
    [
        '{"b":1,"a":2}',
        '{"a": 1}',
        '{"a":1.0}',
        "[]",
        '"x"',
        "null",
        '{"a":1,"a":1}',
        '{"a":"\\u0041"}',
    ],
)
def test_a_body_in_another_form_is_refused(
    shared_place: Any, tenant_id: str, a_run: uuid.UUID, body: str
) -> None:
    """A body stands in the chain to the byte, so only its canonical form gets in."""
    with psycopg.connect(shared_place.app, autocommit=True) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(
                "INSERT INTO cuo_memory_audit (tenant_id, run_id, kind, body)"
                " VALUES (%s, %s, 'cuo.routing_decision', %s)",
                [tenant_id, a_run, body],
            )
    assert refused.value.sqlstate == "CU009"


def test_several_rows_in_one_statement_are_linked_in_order(
    shared_place: Any, tenant_id: str, a_run: uuid.UUID, lens: Any
) -> None:
    """An ORM's bulk insert makes as many links as rows."""
    with psycopg.connect(shared_place.app, autocommit=True) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
        conn.execute(
            "INSERT INTO cuo_memory_audit (tenant_id, run_id, kind, body)"
            " SELECT %s, %s, 'cuo.routing_decision', '{\"n\":' || n || '}'"
            " FROM generate_series(1, 5) AS n",
            [tenant_id, a_run],
        )
    assert [r["body"] for r in lens.audit("cuo.routing_decision")] == [
        f'{{"n":{n}}}' for n in range(1, 6)
    ]
    lens.prove()


@pytest.mark.parametrize("harm", ["cut", "swap", "edit", "renumber", "other run"])
def test_verification_names_the_first_row_that_is_wrong(
    tenant_id: str, a_run: uuid.UUID, lens: Any, harm: str
) -> None:
    """Rows taken out, exchanged, changed or moved to another run do not verify."""
    tenant = uuid.UUID(tenant_id)
    chain = [
        ChainLink(r["chain_seq"], bytes(r["row_bytes"]), r["prev_sha256"], r["row_sha256"])
        for r in lens.audit()
    ]
    verify_links(tenant, a_run, chain)
    if harm == "cut":
        del chain[1]
    elif harm == "swap":
        chain[1], chain[2] = chain[2], chain[1]
    elif harm == "edit":
        data = chain[1].row_bytes.replace(b'"v":1', b'"v":2')
        chain[1] = ChainLink(2, data, chain[1].prev_sha256, link(chain[1].prev_sha256, data))
    elif harm == "renumber":
        chain = [
            ChainLink(r.chain_seq + 1, r.row_bytes, r.prev_sha256, r.row_sha256) for r in chain
        ]
    run = uuid.uuid4() if harm == "other run" else a_run
    with pytest.raises(ChainBroken) as broken:
        verify_links(tenant, run, chain)
    assert broken.value.chain_seq == {"edit": 3, "renumber": 1, "other run": 1}.get(harm, 2)


def test_a_chain_begins_at_its_own_genesis(tenant_id: str, a_run: uuid.UUID, lens: Any) -> None:
    """The first row follows a value made of tenant and run, and says that the run was opened."""
    first = lens.audit()[0]
    assert first["kind"] == "open"
    assert first["prev_sha256"] == genesis(uuid.UUID(tenant_id), a_run)


def test_a_finished_run_ends_in_close(
    drive: Callable[..., Any], store: PostgresCheckpointer, lens: Any
) -> None:
    """The last row says how the run ended and how many log rows it has."""
    drive(graph_with([], store), "invoke", {"x": 0}, at())
    last = lens.audit()[-1]
    assert last["kind"] == "close"
    assert json.loads(last["body"]) == {"log_rows": len(lens.rows()), "outcome": "run_completed"}
