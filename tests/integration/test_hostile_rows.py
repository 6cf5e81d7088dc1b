"""What a tenant can write by hand, as the application's role, and whom it may not reach."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive
from cuo_checkpoint.errors import StoreUnavailable
from cuo_checkpoint.runs import RunReader

ZERO = "0" * 32


@pytest.fixture
def by_hand(shared_place: Any, tenant_id: str) -> Callable[..., Any]:
    """One statement as cyberos_app, for this test's tenant."""

    def act(statement: str, *params: Any) -> Any:
        with psycopg.connect(shared_place.app, autocommit=True) as conn:
            conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant_id])
            return conn.execute(statement, params or None)  # type: ignore[call-overload]

    return act


@pytest.fixture
def run(store: PostgresCheckpointer) -> uuid.UUID:
    made = uuid.uuid4()
    CheckpointWriter(store).write(made, "run_started", {"n": 1}, thread_id="t")
    return made


@pytest.mark.parametrize("when", ["infinity", "-infinity", "20000-01-01", "4000-01-01 BC"])
@pytest.mark.parametrize("column", ["cuo_runs.lease_until", "cuo_threads.last_write_at"])
def test_no_time_that_no_client_can_load(
    by_hand: Callable[..., Any], run: uuid.UUID, column: str, when: str
) -> None:
    """One such row would end every reading across tenants: verification, for one."""
    table, name = column.split(".")
    with pytest.raises(psycopg.errors.CheckViolation):
        by_hand(f"UPDATE {table} SET {name} = '{when}'")


def test_a_trace_id_is_one_in_the_index_too(by_hand: Callable[..., Any], tenant_id: str) -> None:
    """It stands in the chain's bytes as it is, so it could close its quotes and go on."""
    forged = 'x","kind":"hold","y":"'.ljust(32, "a")
    insert = (
        "INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id) VALUES (%s, %s, 't', %s)"
    )
    with pytest.raises(psycopg.errors.CheckViolation):
        by_hand(insert, tenant_id, uuid.uuid4(), forged)
    for call in (
        "SELECT cuo_record_refused(%s, 't', '', 'x', %s, %s, 'sha')",
        "SELECT cuo_claim(%s, 't', %s, %s, 'n', '1', repeat('0', 64), NULL, '', false)",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            by_hand(call, tenant_id, uuid.uuid4(), forged)


@pytest.mark.parametrize("said", ["not json", '{},"run_id":"zz","x":{}', '{ "a": 1}', "[1]"])
@pytest.mark.parametrize("tail", [", '', false)", ")"])
def test_an_approval_is_said_in_canonical_form(
    by_hand: Callable[..., Any], tenant_id: str, said: str, tail: str
) -> None:
    """It is chained to the byte: any other text would forge the members that follow it."""
    call = "SELECT cuo_claim(%s, 't', %s, %s, 'n', '1', repeat('0', 64), ARRAY[%s]" + tail
    with pytest.raises(psycopg.Error) as refused:
        by_hand(call, tenant_id, uuid.uuid4(), ZERO, said)
    assert refused.value.sqlstate in ("CU009", "22P02")


def test_a_malformed_reference_is_a_state_like_any_other(
    by_hand: Callable[..., Any], run: uuid.UUID, shared_place: Any, tenant_id: str
) -> None:
    """The view, the readers and the auditor's verification of all tenants pass it by."""
    state = {"$state_of": "no uuid"}
    digest = hashlib.sha256(json.dumps(state, separators=(",", ":")).encode()).hexdigest()
    by_hand(
        "INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind, state_json,"
        " trace_id, thread_id, state_sha256) VALUES (gen_random_uuid(), %s, %s, 'node_completed',"
        " %s, %s, 't', decode(%s, 'hex'))",
        tenant_id,
        run,
        json.dumps(state),
        ZERO,
        digest,
    )
    with psycopg.connect(shared_place.auditor) as conn:
        seen = conn.execute("SELECT count(state_json::text) FROM cuo_checkpoints_full").fetchone()
    assert seen
    with RunReader(shared_place.app, tenant_id=tenant_id) as reader:
        assert [event.kind for event in reader.events(run)] == ["run_started", "node_completed"]
        reader.list_runs(limit=5)
    report = archive.verify(shared_place.auditor, tenant_id=uuid.UUID(tenant_id))
    assert not report.broken


def test_whoever_holds_the_lock_of_the_months_stops_nobody_for_good(
    app_dsn: str, admin_dsn: str, tenant_id: str
) -> None:
    """Any role may take an advisory lock. The wait for it ends, and the error names the next step."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute("ALTER FUNCTION cuo_ensure_partitions() SET lock_timeout = '100ms'")
        month = conn.execute(
            "SELECT max(inhrelid::regclass::text) FROM pg_inherits"
            " WHERE inhparent = 'cuo_langgraph_writes'::regclass"
        ).fetchone()
        assert month
        conn.execute(f"DROP TABLE {month[0]}")  # type: ignore[arg-type]
    with (
        psycopg.connect(app_dsn) as hostile,
        PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store,
    ):
        hostile.execute("SELECT pg_advisory_lock(hashtextextended('cuo/months/public', 0))")
        with pytest.raises(StoreUnavailable, match="pg_blocking_pids"):
            store.setup()
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        store.setup()


def test_that_wait_is_bounded_as_migrated(shared_place: Any) -> None:
    """The bound stands on the function, so no caller's setting undoes it."""
    with psycopg.connect(shared_place.admin) as conn:
        found = conn.execute(
            "SELECT 'lock_timeout=20s' = ANY (proconfig) FROM pg_proc"
            " WHERE proname = 'cuo_ensure_partitions'"
        ).fetchone()
    assert found == (True,)
