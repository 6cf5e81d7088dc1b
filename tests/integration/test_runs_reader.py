"""Reading runs back, as cyberos_app."""

from __future__ import annotations

import datetime as dt
import json
import operator
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from sqlalchemy import event

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.errors import (
    InvalidIdentifier,
    RunUnknown,
    SchemaNotReady,
    StoreUnavailable,
    TenantRequired,
)
from cuo_checkpoint.ids import ulid_of
from cuo_checkpoint.runs import RunReader
from cuo_supervisor.core.scrub import scrub

DECISION = {
    "persona_key": "chief-financial-officer",
    "persona_version": "cuo-cfo@0.4.1",
    "path_taken": "auto",
    "skill_chosen": "vietnam-mst-validate@1.0",
}


class State(TypedDict, total=False):
    """One text, so large that the rows of a superstep share it."""

    text: str
    seen: Annotated[list[str], operator.add]


def graph(store: PostgresCheckpointer) -> Any:
    """Two nodes in a row."""
    made = StateGraph(State)
    made.add_node("a", lambda state: {"text": "đ" * 20_000, "seen": ["a"]})
    made.add_node("b", lambda state: {"seen": ["b"]})
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    made.add_edge("b", END)
    return made.compile(store)


def run_graph(store: PostgresCheckpointer, thread: str = "t") -> uuid.UUID:
    """One run of it; returns its id."""
    run_id = uuid.uuid4()
    config: Any = {"configurable": {"thread_id": thread, "run_id": run_id, "trace_id": "ab" * 16}}
    graph(store).invoke({"seen": []}, config, durability="sync")
    return run_id


def decide(dsn: str, tenant: str, run_id: uuid.UUID, **changes: Any) -> None:
    """Appends a routing decision as the application may."""
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [tenant])
        body = json.dumps({**DECISION, **changes}, separators=(",", ":"), sort_keys=True)
        conn.execute(
            "INSERT INTO cuo_memory_audit (tenant_id, run_id, kind, body)"
            " VALUES (%s, %s, 'cuo.routing_decision', %s)",
            [tenant, run_id, body],
        )


@pytest.fixture
def reader(shared_place: Any, tenant_id: str) -> Iterator[RunReader]:
    """A reader of this test's tenant."""
    with RunReader(shared_place.app, tenant_id=tenant_id) as made:
        yield made


def test_a_run_is_summed_up(store: Any, reader: RunReader, shared_place: Any) -> None:
    """A summary holds state, counts, trace and decision, and is found by UUID and by ULID."""
    run_id = run_graph(store)
    decide(shared_place.app, str(reader.tenant_id), run_id)
    found = reader.get_run(run_id)
    assert found is not None
    assert found == reader.get_run(ulid_of(run_id)) == reader.list_runs().runs[0]
    assert (found.state, found.outcome, found.trace_id) == ("closed", "run_completed", "ab" * 16)
    assert found.log_rows == len(reader.events(run_id))
    assert found.chain_rows == len(reader.audit(run_id))
    assert found.decision == DECISION
    assert (found.persona, found.path) == ("chief-financial-officer", "auto")
    plain = found.to_json()
    assert plain["ulid"] == ulid_of(run_id)
    assert dt.datetime.fromisoformat(plain["first_at"]) == found.first_at
    assert plain["first_at"].endswith("Z")
    json.dumps(plain)


@pytest.mark.parametrize("size", [1, 20_000])
def test_an_undecided_run_says_what_it_is_about(store: Any, reader: RunReader, size: int) -> None:
    """Persona, path and skill come from the newest state, also where rows share a large one.

    The request does only through a scrub.
    """
    run_id, writer = uuid.uuid4(), CheckpointWriter(store)
    state = {
        "text": "đ" * size,
        "persona_key": "chief-operating-officer",
        "persona_version": "cuo-coo@0.1.0",
        "branch_decision": "auto",
        "rule_scores": [{"skill_name": "vietnam-bank-transfer@1.0"}, {"skill_name": "other"}],
        "llm_pick": None,
        "query": "transfer to an@example.vn",
    }
    writer.write(run_id, "run_started", {"persona_key": 7})
    assert reader.list_runs().runs[0].pending is None
    writer.write(run_id, "node_entered", state, node_name="invoke")
    found = reader.list_runs(skill="vietnam-bank-transfer").runs[0]
    assert (found.persona, found.path) == ("chief-operating-officer", "auto")
    assert found.skill == "vietnam-bank-transfer@1.0"
    assert found.to_json()["decision"] is None
    assert reader.list_runs(path="ask").runs == reader.list_runs(persona="cto").runs == []
    for name in ("coo", "chief-operating-officer"):
        assert [run.run_id for run in reader.list_runs(persona=name).runs] == [run_id]
    picked = {**state, "branch_decision": "cascade_then_auto", "llm_pick": {"skill_name": "m@1"}}
    writer.write(run_id, "node_completed", picked, node_name="invoke")
    assert reader.list_runs().runs[0].skill == "m@1"
    assert "an@" not in str([reader.get_run(run_id), reader.list_runs().runs])
    reader._scrub = scrub
    for shown in (reader, reader.for_tenant(reader.tenant_id)):
        for one in (shown.get_run(run_id), shown.list_runs().runs[0]):
            assert one is not None
            assert one.query == "transfer to [REDACTED-EMAIL]"
            assert "an@" not in str(one)


@pytest.mark.parametrize("own_thread", [True, False])
def test_a_run_refused_before_it_was_decided_says_so(
    store: Any, reader: RunReader, own_thread: bool
) -> None:
    """It completed all the same. Whom it asked for may be anything, and is scrubbed."""
    run_id, writer = uuid.uuid4(), CheckpointWriter(store)
    thread = str(run_id) if own_thread else "a thread of many runs"
    state = {"persona_key": "an@example.vn", "rejection": {"error": "persona_unknown"}}
    writer.write(run_id, "run_started", state, thread_id=thread)
    writer.write(run_id, "run_completed", state, thread_id=thread)
    reader._scrub = scrub
    found = reader.list_runs(state="completed").runs[0]
    assert (found.state, found.outcome) == ("closed", "run_completed")
    assert found.reason == found.rejection == ("persona_unknown" if own_thread else None)
    assert found.persona == ("[REDACTED-EMAIL]" if own_thread else None)


def test_another_graphs_run_is_about_nothing_known(store: Any, reader: RunReader) -> None:
    """Its state has none of the names, or has them as something else."""
    run_id = uuid.uuid4()
    odd = {"persona_key": ["x"], "branch_decision": {"a": 1}, "rule_scores": "s", "llm_pick": 1}
    CheckpointWriter(store).write(run_id, "run_started", odd)
    found = reader.list_runs().runs[0]
    assert (found.pending, found.persona, found.path, found.skill) == (None,) * 4


def test_events_are_in_order_and_paged(store: Any, reader: RunReader) -> None:
    """Pages of any size, put together, are the whole run in order of arrival."""
    run_id = run_graph(store)
    whole = reader.events(run_id)
    assert whole[0].kind == "run_started"
    assert whole[-1].kind == "run_completed"
    paged: list[Any] = []
    while page := reader.events(run_id, after_seq=paged[-1].seq if paged else 0, limit=2):
        paged += page
    assert paged == whole
    entered = reader.events(run_id, kinds=["node_entered"])
    assert [e.node_name for e in entered] == ["a", "b"]
    assert all(e.state is None for e in whole)


def test_a_shared_state_is_read_in_full(store: Any, reader: RunReader, lens: Any) -> None:
    """Rows that hold a reference are given with the state itself, alone or with the others."""
    run_id = run_graph(store)
    sharing = lens.query(
        "SELECT seq FROM cuo_langgraph_checkpoints WHERE tenant_id = $T"
        " AND state_json ? '$state_of'"
    )
    assert sharing
    for row in sharing:
        (alone,) = reader.events(run_id, after_seq=row["seq"] - 1, limit=1, with_state=True)
        assert isinstance(alone.state, dict)
        assert alone.state["text"] == "đ" * 20_000
    json.dumps([e.to_json() for e in reader.events(run_id, with_state=True)])


def test_audit_and_writes(store: Any, reader: RunReader) -> None:
    """The chain comes in order with parsed bodies, pending writes with their values."""
    run_id = run_graph(store)
    chain = reader.audit(run_id)
    assert [row.chain_seq for row in chain] == list(range(1, len(chain) + 1))
    assert (chain[0].kind, chain[-1].kind) == ("open", "close")
    assert chain[1].prev_sha256 == chain[0].row_sha256
    assert chain[-1].body["log_rows"] == len(reader.events(run_id))
    written = [(w.channel, w.value) for w in reader.writes(run_id) if w.channel == "seen"]
    assert written == [("seen", []), ("seen", ["a"]), ("seen", ["b"])]


def test_listing_pages_newest_first(store: Any, reader: RunReader) -> None:
    """Pages follow one another without gap or overlap, and the last one says so."""
    writer = CheckpointWriter(store)
    ids = [uuid.uuid4() for _ in range(7)]
    for run_id in ids:
        writer.write(run_id, "run_started", {})
    seen: list[uuid.UUID] = []
    cursor = None
    while True:
        page = reader.list_runs(limit=3, before=cursor)
        seen += [run.run_id for run in page.runs]
        cursor = page.next
        if cursor is None:
            break
    assert seen == ids[::-1]


def test_listing_filters(store: Any, reader: RunReader, shared_place: Any) -> None:
    """State, outcome, time and what the decision says each narrow the list."""
    writer = CheckpointWriter(store)
    ids = [uuid.uuid4() for _ in range(5)]
    for number, run_id in enumerate(ids):
        writer.write(run_id, "run_started", {})
        if number < 3:
            skill = "send-invoice@2.0" if number == 2 else DECISION["skill_chosen"]
            path = "ask" if number == 1 else "auto"
            decide(
                shared_place.app, str(reader.tenant_id), run_id, path_taken=path, skill_chosen=skill
            )
    writer.write(ids[4], "run_failed", {})

    def listed(**filters: Any) -> list[int]:
        return [ids.index(run.run_id) for run in reader.list_runs(**filters).runs]

    assert listed(state="closed") == listed(outcome="run_failed") == listed(state="failed") == [4]
    assert listed(state="completed") == listed(state="failed", outcome="run_completed") == []
    assert listed(state="open") == [3, 2, 1, 0]
    assert listed(persona="cfo") == listed(persona="chief-financial-officer") == [2, 1, 0]
    assert listed(persona="cto") == []
    assert listed(path="ask") == [1]
    assert listed(skill="send-invoice") == listed(skill="send-invoice@2.0") == [2]
    assert listed(skill="vietnam-mst-validate", path="auto") == [0]
    assert listed(skill="vietnam-mst") == []
    middle = reader.get_run(ids[2])
    assert middle is not None
    assert listed(since=middle.first_at) == [4, 3, 2]
    assert listed(until=middle.first_at) == [1, 0]
    page = reader.list_runs(limit=1, persona="cfo")
    assert [run.run_id for run in page.runs] == [ids[2]]
    assert [run.run_id for run in reader.list_runs(before=page.next, persona="cfo").runs] == [
        ids[1],
        ids[0],
    ]


def test_another_tenants_run_is_unknown(
    store: Any, shared_place: Any, other_tenant_id: str, reader: RunReader
) -> None:
    """A run of another tenant looks like no run at all, whichever way it is asked for."""
    run_id = run_graph(store)
    with RunReader(shared_place.app, tenant_id=other_tenant_id) as other:
        assert other.list_runs().runs == []
        assert other.get_run(run_id) is None
        assert other.events(run_id) == other.audit(run_id) == other.writes(run_id) == []
        with pytest.raises(RunUnknown):
            other.verify(run_id)
        assert other.for_tenant(reader.tenant_id).get_run(run_id) is not None


def test_an_auditor_reads_the_tenant_named(
    store: Any, shared_place: Any, other_tenant_id: str, tenant_id: str
) -> None:
    """Whoever may read all tenants still gets one tenant's runs."""
    run_id = run_graph(store)
    with RunReader(shared_place.auditor, tenant_id=other_tenant_id) as other:
        assert other.get_run(run_id) is None
        assert other.for_tenant(tenant_id).get_run(run_id) is not None


@pytest.mark.parametrize("cursor", ["", "x", "é", "AAAA", "A" * 40])
def test_a_foreign_cursor_is_refused(reader: RunReader, cursor: str) -> None:
    """Text that no listing returned is an error that names the cursor."""
    with pytest.raises(InvalidIdentifier, match="cursor"):
        reader.list_runs(before=cursor)


def test_errors_are_ours(shared_place: Any, cluster: Any, tenant_id: str) -> None:
    """No tenant, no server, no schema and a bad id are errors of this package."""
    with pytest.raises(TenantRequired):
        RunReader(shared_place.app, tenant_id="")
    with RunReader("host=/nonexistent dbname=x", tenant_id=tenant_id) as reader:
        with pytest.raises(StoreUnavailable):
            reader.list_runs()
        with pytest.raises(InvalidIdentifier):
            reader.get_run("no run")
    with (
        RunReader(shared_place.app, tenant_id=tenant_id, schema="no such") as reader,
        pytest.raises(SchemaNotReady),
    ):
        reader.list_runs()


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_both_spellings_of_a_url(shared_place: Any, tenant_id: str, scheme: str) -> None:
    """The driver in the scheme is SQLAlchemy's; libpq does not know it."""
    url = shared_place.app.replace("postgresql:", f"{scheme}:", 1)
    with RunReader(url, tenant_id=tenant_id) as reader:
        assert reader.list_runs().runs == []


def test_no_read_opens_a_month_it_does_not_need(
    app_dsn: str, owner_dsn: str, tenant_id: str
) -> None:
    """With 60 months in the database, each read locks the months of its run only."""
    add_months(owner_dsn, 60)
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        run_id = run_graph(store)
    decide(app_dsn, tenant_id, run_id)
    with RunReader(app_dsn, tenant_id=tenant_id) as reader:
        opened: dict[str, set[str]] = {}
        name = ""

        def look(conn: Any, cursor: Any, *_: Any) -> None:
            with conn.connection.cursor() as other:
                other.execute(
                    "SELECT DISTINCT right(c.relname, 7) FROM pg_locks l JOIN pg_class c"
                    " ON c.oid = l.relation WHERE l.pid = pg_backend_pid()"
                    " AND c.relkind = 'r' AND c.relname ~ '^cuo_.*_[0-9]{4}_[0-9]{2}$'"
                )
                opened.setdefault(name, set()).update(month for (month,) in other)

        event.listen(reader.engine, "after_cursor_execute", look)
        reads = {
            "list": reader.list_runs,
            "filter": lambda: reader.list_runs(persona="cfo"),
            "get": lambda: reader.get_run(run_id),
            "events": lambda: reader.events(run_id, with_state=True),
            "audit": lambda: reader.audit(run_id),
            "writes": lambda: reader.writes(run_id),
            "verify": lambda: reader.verify(run_id),
        }
        for name, read in reads.items():  # noqa: B007  # `look` reads it
            assert read()
        found = reader.get_run(run_id)
        assert found is not None
        months = {
            at.strftime("%Y_%m") for at in (found.first_at - dt.timedelta(hours=1), found.newest_at)
        }
    assert set(opened) == set(reads)
    assert all(seen and seen <= months for seen in opened.values()), opened


def add_months(owner_dsn: str, count: int) -> None:
    """Months before the current one, made as the database makes its own."""
    first = dt.datetime.now(dt.UTC).date().replace(day=1)
    with psycopg.connect(owner_dsn) as conn:
        for parent in ("cuo_memory_audit", "cuo_langgraph_checkpoints", "cuo_langgraph_writes"):
            end = first
            for _ in range(count):
                start = (end - dt.timedelta(days=1)).replace(day=1)
                name = f"{parent}_{start:%Y_%m}"
                conn.execute(f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)")
                conn.execute("SELECT cuo_protect(%s::regclass, true, true)", [name])
                conn.execute(
                    f"ALTER TABLE {parent} ATTACH PARTITION {name}"
                    f" FOR VALUES FROM ('{start} 00:00+00') TO ('{end} 00:00+00')"
                )
                end = start
