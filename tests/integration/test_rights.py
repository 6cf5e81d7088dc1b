"""Who may do what, through psql and psycopg, on parents and on months named directly (D3.7)."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors as pg

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer

LOG = "cuo_langgraph_checkpoints"
WRITES = "cuo_langgraph_writes"
AUDIT = "cuo_memory_audit"
TOMBSTONES = "cuo_thread_tombstones"
APPEND_ONLY = (LOG, WRITES, AUDIT, TOMBSTONES)
PARTITIONED = (LOG, WRITES, AUDIT)
INDEXES = ("cuo_threads", "cuo_runs")


@pytest.fixture
def filled(shared_place: Any, tenant_id: str) -> str:
    """This test's tenant with at least one row in every table; gives the run's id."""
    run = uuid.uuid4()
    with PostgresCheckpointer(shared_place.app, tenant_id=tenant_id) as store:
        CheckpointWriter(store).write(run, "run_started", {"a": 1}, thread_id="t")
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint: Any = {
            "v": 4,
            "id": "1f0c0000-0000-6000-8000-000000000001",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"x": 1},
            "channel_versions": {"x": 1},
            "versions_seen": {},
            "updated_channels": None,
        }
        saved = store.put(config, checkpoint, {"source": "input", "step": -1}, {"x": 1})
        store.put_writes(saved, [("x", 2)], "task-1")
        store.delete_thread("t")
    return str(run)


@pytest.fixture
def as_role() -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Opens connections that act for a tenant, or for none."""
    opened: list[psycopg.Connection[Any]] = []

    def connect(dsn: str, tenant: str | None = None) -> psycopg.Connection[Any]:
        conn = psycopg.connect(dsn, autocommit=True)
        opened.append(conn)
        if tenant is not None:
            conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [tenant])
        return conn

    yield connect
    for conn in opened:
        conn.close()


def month_of(conn: psycopg.Connection[Any], table: str) -> str:
    """The name of a table's current month."""
    row = conn.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = %s::regclass"
        " AND c.relname = %s || to_char(now() AT TIME ZONE 'UTC', '_YYYY_MM')",
        [table, table],
    ).fetchone()
    assert row is not None
    return str(row[0])


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in the real client; the exit code is 3 when a statement failed."""
    program = shutil.which("psql")
    if program is None:
        pytest.skip("psql is not installed")
    return subprocess.run(
        [program, "-XqAt", "-v", "ON_ERROR_STOP=1", dsn],
        input=script,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


# -- tenants -----------------------------------------------------------------------------------


@pytest.mark.clause("102-3")
@pytest.mark.criterion("102-AC8")
@pytest.mark.parametrize("table", [*APPEND_ONLY, *INDEXES])
def test_another_tenants_rows_are_invisible_through_psql(
    shared_place: Any, tenant_id: str, other_tenant_id: str, filled: str, table: str
) -> None:
    """psql as cyberos_app sees its own tenant's rows, and not one of another's, even by id."""

    def count(tenant: str, condition: str = "true") -> str:
        done = psql(
            shared_place.app,
            f"SET auth.tenant_id = '{tenant}'; SELECT count(*) FROM {table} WHERE {condition};",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert int(count(tenant_id)) > 0
    assert count(other_tenant_id) == "0"
    assert count(other_tenant_id, f"tenant_id = '{tenant_id}'") == "0"


def test_an_exact_id_does_not_reach_across_tenants(
    shared_place: Any, tenant_id: str, other_tenant_id: str, filled: str, as_role: Any
) -> None:
    """Knowing every key of a row does not show it to another tenant, in table or view."""
    mine = as_role(shared_place.app, tenant_id)
    theirs = as_role(shared_place.app, other_tenant_id)
    (row_id,) = mine.execute(f"SELECT checkpoint_id FROM {LOG} LIMIT 1").fetchone()
    for relation in (LOG, "cuo_checkpoints_full"):
        query = f"SELECT 1 FROM {relation} WHERE tenant_id = %s AND checkpoint_id = %s"
        assert mine.execute(query, [tenant_id, row_id]).fetchone() == (1,)
        assert theirs.execute(query, [tenant_id, row_id]).fetchone() is None


@pytest.mark.parametrize("tenant", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize("table", [*APPEND_ONLY, *INDEXES])
def test_no_tenant_means_no_rows(
    shared_place: Any, filled: str, as_role: Any, table: str, tenant: str | None
) -> None:
    """Without a tenant, set or empty, there are no rows."""
    conn = as_role(shared_place.app, tenant)
    assert conn.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


INSERT: LiteralString = """
INSERT INTO cuo_langgraph_checkpoints
    (checkpoint_id, tenant_id, run_id, kind, state_json, trace_id, thread_id, state_sha256)
VALUES (gen_random_uuid(), %s, gen_random_uuid(), 'run_started', '{}', repeat('0', 32), 'hand',
        sha256('{}'))
"""
INSERT_AUDIT: LiteralString = """
INSERT INTO cuo_memory_audit (tenant_id, run_id, kind, body)
VALUES (%s, %s, 'cuo.routing_decision', '{"a":1}')
"""


@pytest.mark.parametrize("whose", ["unset", "empty", "other"])
def test_inserts_for_a_tenant_that_is_not_set_are_refused(
    shared_place: Any, tenant_id: str, other_tenant_id: str, filled: str, as_role: Any, whose: str
) -> None:
    """A row of another tenant, or of any tenant while none is set, cannot be inserted."""
    conn = as_role(shared_place.app, {"unset": None, "empty": "", "other": other_tenant_id}[whose])
    with pytest.raises(pg.InsufficientPrivilege, match="row-level security"):
        conn.execute(INSERT, [tenant_id])
    with pytest.raises(psycopg.Error):
        conn.execute(INSERT_AUDIT, [tenant_id, filled])
    done = psql(
        shared_place.app,
        INSERT.replace("%s", f"'{tenant_id}'") + ";",
    )
    assert done.returncode == 3
    assert "row-level security" in done.stderr


def test_a_row_inserted_by_hand_is_numbered_digested_and_chained(
    shared_place: Any, tenant_id: str, as_role: Any, lens: Any
) -> None:
    """The parent takes a plain INSERT of the app role and does for it all that the store does."""
    conn = as_role(shared_place.app, tenant_id)
    conn.execute(INSERT, [tenant_id])
    conn.execute(INSERT, [tenant_id])
    assert [row["seq"] for row in lens.rows("hand")] == [1, 2]
    lens.prove()


@pytest.mark.parametrize("column", ["seq", "created_at", "row_sha256"])
def test_the_app_cannot_say_what_the_server_says(
    shared_place: Any, tenant_id: str, as_role: Any, column: str
) -> None:
    """Arrival order, time and digest of a log row are not the app's to give."""
    conn = as_role(shared_place.app, tenant_id)
    value = {"seq": "7", "created_at": "now()", "row_sha256": "sha256('')"}[column]
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(
            INSERT.replace("state_sha256)", f"state_sha256, {column})").replace(
                "sha256('{}'))", f"sha256('{{}}'), {value})"
            ),
            [tenant_id],
        )


@pytest.mark.parametrize(
    "column", ["chain_seq", "created_at", "row_sha256", "prev_sha256", "row_bytes", "trace_id"]
)
def test_the_app_cannot_place_an_audit_row(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any, column: str
) -> None:
    """Position, time, bytes and digests of an audit row are not the app's to give."""
    conn = as_role(shared_place.app, tenant_id)
    values = {
        "chain_seq": "9",
        "created_at": "now()",
        "trace_id": "repeat('1', 32)",
    }
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(
            INSERT_AUDIT.replace("body)", f"body, {column})").replace(
                "'{\"a\":1}')", f"'{{}}', {values.get(column, 'sha256($$x$$)')})"
            ),
            [tenant_id, filled],
        )


@pytest.mark.parametrize("table", [WRITES, TOMBSTONES])
def test_writes_and_tombstones_come_only_through_the_store(
    shared_place: Any, tenant_id: str, as_role: Any, table: str
) -> None:
    """Pending writes and tombstones take no plain INSERT of the app role."""
    conn = as_role(shared_place.app, tenant_id)
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(f"INSERT INTO {table} (tenant_id) VALUES (%s)", [tenant_id])


def test_an_index_row_cannot_start_a_forged_chain(
    shared_place: Any, tenant_id: str, as_role: Any
) -> None:
    """The app cannot say where a run's chain stands before its first row."""
    conn = as_role(shared_place.app, tenant_id)
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(
            "INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id, chain_seq, chain_head)"
            " VALUES (%s, gen_random_uuid(), 't', repeat('0', 32), 41, sha256('x'))",
            [tenant_id],
        )


def test_a_run_opened_by_hand_has_a_sound_chain(
    shared_place: Any, tenant_id: str, as_role: Any, lens: Any
) -> None:
    """An index row the app inserts, also twice, begins one chain, with one first row."""
    conn = as_role(shared_place.app, tenant_id)
    run = uuid.uuid4()
    for _ in range(2):
        conn.execute(
            "INSERT INTO cuo_runs (tenant_id, run_id, thread_id, trace_id)"
            " VALUES (%s, %s, 't', repeat('0', 32)) ON CONFLICT DO NOTHING",
            [tenant_id, run],
        )
    conn.execute(INSERT_AUDIT, [tenant_id, run])
    assert [row["kind"] for row in lens.audit()] == ["open", "cuo.routing_decision"]
    lens.prove()


def test_the_app_cannot_move_a_head(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any
) -> None:
    """Heads of chains and threads are not the app's to change."""
    conn = as_role(shared_place.app, tenant_id)
    for change in (
        "cuo_runs SET chain_head = sha256('x')",
        "cuo_runs SET chain_seq = 0",
        "cuo_runs SET hidden = true",
        "cuo_threads SET head_seq = 0",
        "cuo_threads SET newest_seq = 0",
        "cuo_threads SET deleted = false",
    ):
        with pytest.raises(pg.InsufficientPrivilege):
            conn.execute(f"UPDATE {change}")


def test_a_closed_run_is_not_reopened_by_hand(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any
) -> None:
    """The one thing the app may say of a run, its state, cannot take back that it ended."""
    conn = as_role(shared_place.app, tenant_id)
    closed = conn.execute("SELECT run_id FROM cuo_runs WHERE state = 'closed' LIMIT 1").fetchone()
    assert closed is not None
    with pytest.raises(psycopg.Error):
        conn.execute("UPDATE cuo_runs SET state = 'open' WHERE run_id = %s", closed)


# -- append-only -------------------------------------------------------------------------------

CHANGES = ("UPDATE {} SET tenant_id = tenant_id", "DELETE FROM {}", "TRUNCATE {}")


@pytest.mark.clause("102-8")
@pytest.mark.criterion("102-AC10")
@pytest.mark.parametrize("change", CHANGES, ids=["update", "delete", "truncate"])
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_app_changes_nothing(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any, table: str, change: str
) -> None:
    """UPDATE, DELETE and TRUNCATE fail for the app on the parent, in psql as in psycopg."""
    with pytest.raises(pg.InsufficientPrivilege):
        as_role(shared_place.app, tenant_id).execute(change.format(table))
    done = psql(shared_place.app, f"SET auth.tenant_id = '{tenant_id}'; {change.format(table)};")
    assert done.returncode == 3
    assert "permission denied" in done.stderr


@pytest.mark.parametrize(
    "statement", [*CHANGES, "SELECT * FROM {}"], ids=["update", "delete", "truncate", "select"]
)
@pytest.mark.parametrize("table", PARTITIONED)
def test_the_app_has_nothing_on_a_month(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any, table: str, statement: str
) -> None:
    """A month named directly is closed to the app: no change, not even a look."""
    conn = as_role(shared_place.app, tenant_id)
    month = month_of(as_role(shared_place.admin), table)
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute(statement.format(month))
    done = psql(shared_place.app, f"SET auth.tenant_id = '{tenant_id}'; {statement.format(month)};")
    assert done.returncode == 3


@pytest.mark.clause("102-8")
@pytest.mark.parametrize("tenant_set", [True, False], ids=["tenant", "no-tenant"])
@pytest.mark.parametrize("change", CHANGES, ids=["update", "delete", "truncate"])
@pytest.mark.parametrize(
    ("table", "where"),
    [*((t, "parent") for t in APPEND_ONLY), *((t, "month") for t in PARTITIONED)],
)
def test_the_owner_changes_nothing_either(
    shared_place: Any,
    tenant_id: str,
    filled: str,
    as_role: Any,
    table: str,
    where: str,
    change: str,
    tenant_set: bool,
) -> None:
    """The owner holds every privilege and is still refused, by trigger, with our own error code."""
    conn = as_role(shared_place.owner, tenant_id if tenant_set else None)
    name = month_of(as_role(shared_place.admin), table) if where == "month" else table
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(change.format(name))
    assert refused.value.sqlstate == "CU008"


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_nothing_changed_after_all_attempts(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any, table: str, lens: Any
) -> None:
    """A refused change leaves the rows and their chain as they were."""
    before = lens.query(f"SELECT * FROM {table} WHERE tenant_id = $T ORDER BY row_sha256")
    conn = as_role(shared_place.owner, tenant_id)
    for change in CHANGES:
        with pytest.raises(psycopg.Error):
            conn.execute(change.format(table))
    assert lens.query(f"SELECT * FROM {table} WHERE tenant_id = $T ORDER BY row_sha256") == before


# -- functions ---------------------------------------------------------------------------------

FOR_THE_APP = {
    "cuo_append",
    "cuo_claim",
    "cuo_ensure_partitions",
    "cuo_find",
    "cuo_genesis",
    "cuo_get",
    "cuo_id_time",
    "cuo_jcs",
    "cuo_jcs_time",
    "cuo_list",
    "cuo_owner",
    "cuo_pending",
    "cuo_record_refused",
    "cuo_tenant",
    "cuo_tombstone",
}


def functions_of(conn: psycopg.Connection[Any], role: str) -> set[str]:
    """Names of our functions a role may execute."""
    return {
        name
        for (name,) in conn.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            " AND proname LIKE 'cuo\\_%%' AND has_function_privilege(%s, oid, 'EXECUTE')",
            [role],
        )
    }


def test_the_app_may_call_no_more_than_it_needs(shared_place: Any, as_role: Any) -> None:
    """Of the functions, the app may call those of the store's statements, and no internal one."""
    assert functions_of(as_role(shared_place.admin), "cyberos_app") <= FOR_THE_APP


@pytest.mark.parametrize(
    "call",
    [
        "cuo_chain_append(gen_random_uuid(), gen_random_uuid(), ARRAY['open'], ARRAY['{}'])",
        "cuo_open_run(gen_random_uuid(), gen_random_uuid(), 't', repeat('0', 32))",
        "cuo_protect('cuo_runs'::regclass, false, false)",
        "cuo_require_parent(gen_random_uuid(), gen_random_uuid(), 't', ARRAY[]::uuid[])",
        "cuo_chain_write(gen_random_uuid(), gen_random_uuid(), repeat('0', 32), 1, '', '{}', '{}')",
        "cuo_canonical('{}')",
    ],
)
def test_internal_functions_are_closed_to_the_app(
    shared_place: Any, as_role: Any, call: str
) -> None:
    """The building blocks that run as the owner cannot be called by the app."""
    with pytest.raises(pg.InsufficientPrivilege):
        as_role(shared_place.app).execute(f"SELECT {call}")


def test_functions_that_run_as_the_owner_search_temporary_tables_last(
    shared_place: Any, as_role: Any
) -> None:
    """Unless pg_temp is named, it is searched first, and a caller's own table would be found."""
    rows = (
        as_role(shared_place.admin)
        .execute(
            "SELECT proname, proconfig FROM pg_proc"
            " WHERE pronamespace = 'public'::regnamespace AND prosecdef"
        )
        .fetchall()
    )
    assert rows
    for name, settings in rows:
        paths = [s for s in settings or [] if s.startswith("search_path=")]
        assert len(paths) == 1, name
        assert paths[0].endswith("pg_temp"), name


def test_a_temporary_table_of_the_same_name_catches_nothing(
    shared_place: Any, tenant_id: str, as_role: Any, lens: Any
) -> None:
    """A caller's temporary tables neither take the store's rows nor run code as the owner."""
    conn = as_role(shared_place.app, tenant_id)
    conn.execute(
        "CREATE FUNCTION pg_temp.spy() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'ran as %', current_user; END$$"
    )
    for table in (LOG, AUDIT, "cuo_threads", "cuo_runs", WRITES, TOMBSTONES):
        conn.execute(f"CREATE TEMP TABLE {table} (LIKE public.{table} INCLUDING DEFAULTS)")
        conn.execute(
            f"CREATE TRIGGER spy BEFORE INSERT ON pg_temp.{table}"
            " FOR EACH ROW EXECUTE FUNCTION pg_temp.spy()"
        )
        conn.execute(f"GRANT ALL ON pg_temp.{table} TO PUBLIC")
    conn.execute(INSERT.replace("cuo_langgraph", "public.cuo_langgraph"), [tenant_id])
    conn.execute("SELECT public.cuo_tombstone(%s, 'prune', 'hand', NULL, gen_random_uuid(), "
                 "repeat('0', 32))", [tenant_id])  # fmt: skip
    assert len(lens.rows("hand")) == 1
    assert len(lens.audit("tombstone")) == 1


# -- what the catalog says ---------------------------------------------------------------------


def test_every_table_and_month_enables_and_forces_row_security(
    shared_place: Any, as_role: Any
) -> None:
    """Without exception, the version table included."""
    rows = (
        as_role(shared_place.admin)
        .execute(
            "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        )
        .fetchall()
    )
    assert len(rows) >= 7 + 3 * 4
    assert [r for r in rows if not (r[1] and r[2])] == []


def test_every_table_and_month_has_the_three_policies(shared_place: Any, as_role: Any) -> None:
    """The tenant's, the owner's and the auditor's policy stand on every table that has tenants."""
    rows = (
        as_role(shared_place.admin)
        .execute(
            "SELECT c.relname, array_agg(p.policyname ORDER BY p.policyname) FROM pg_class c"
            " LEFT JOIN pg_policies p ON p.tablename = c.relname AND p.schemaname = 'public'"
            " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND c.relname <> 'cuo_alembic_version' GROUP BY 1"
        )
        .fetchall()
    )
    for name, policies in rows:
        assert policies == ["cuo_auditor_reads", "cuo_owner_reads", "cuo_tenant_rls"], name


@pytest.mark.clause("102-3")
@pytest.mark.criterion("102-AC11")
def test_a_month_made_later_is_protected_like_the_first(
    admin_dsn: str, app_dsn: str, owner_dsn: str, tenant_id: str, as_role: Any
) -> None:
    """A month that the app's own call creates has row security, policies, triggers, no grants."""
    month = "cuo_langgraph_checkpoints_" + "2026_01"
    admin = as_role(admin_dsn)
    (month,) = admin.execute(
        "SELECT max(c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'cuo_langgraph_checkpoints'::regclass"
    ).fetchone()
    admin.execute(f"DROP TABLE {month}")
    made = as_role(app_dsn).execute("SELECT * FROM cuo_ensure_partitions()").fetchall()
    assert made == [(month,)]
    state = admin.execute(
        "SELECT relrowsecurity, relforcerowsecurity,"
        " pg_get_userbyid(relowner), coalesce(array_length(relacl, 1), 0) <= 1,"
        " (SELECT count(*) FROM pg_policies WHERE tablename = relname),"
        " (SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid AND tgname = 'cuo_no_truncate')"
        " FROM pg_class c WHERE relname = %s",
        [month],
    ).fetchone()
    assert state == (True, True, "cyberos_owner", True, 3, 1)
    with pytest.raises(pg.InsufficientPrivilege):
        as_role(app_dsn, tenant_id).execute(f"SELECT * FROM {month}")
    with pytest.raises(psycopg.Error, match="append-only"):
        as_role(owner_dsn, tenant_id).execute(f"TRUNCATE {month}")


def test_the_app_creates_no_other_month(shared_place: Any, as_role: Any) -> None:
    """Called again the function makes nothing, and it takes no argument that names a month."""
    conn = as_role(shared_place.app)
    conn.execute("SELECT * FROM cuo_ensure_partitions()")
    assert conn.execute("SELECT * FROM cuo_ensure_partitions()").fetchall() == []
    with pytest.raises(pg.InsufficientPrivilege):
        conn.execute("CREATE TABLE cuo_langgraph_checkpoints_1999_01 (a int)")


def test_public_has_nothing(shared_place: Any, as_role: Any) -> None:
    """No table, month, view or function of ours grants anything to PUBLIC."""
    conn = as_role(shared_place.admin)
    tables = conn.execute(
        "SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'public'::regnamespace AND a.grantee = 0"
    ).fetchall()
    functions = conn.execute(
        "SELECT p.proname FROM pg_proc p,"
        " aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE p.pronamespace = 'public'::regnamespace AND a.grantee = 0"
    ).fetchall()
    assert (tables, functions) == ([], [])


def test_the_version_table_is_read_only_to_the_app(shared_place: Any, as_role: Any) -> None:
    """The app reads the schema's revision and cannot change it."""
    conn = as_role(shared_place.app)
    assert len(conn.execute("SELECT version_num FROM cuo_alembic_version").fetchall()) == 1
    for change in CHANGES[1:]:
        with pytest.raises(pg.InsufficientPrivilege):
            conn.execute(change.format("cuo_alembic_version"))


@pytest.mark.parametrize("table", [*APPEND_ONLY, *INDEXES])
def test_owner_and_auditor_count_across_tenants(
    shared_place: Any, tenant_id: str, filled: str, as_role: Any, table: str
) -> None:
    """Forced row security would blind them; an explicit policy lets both count every row."""
    query = f"SELECT count(*) FROM {table}"
    everything = as_role(shared_place.admin).execute(query).fetchone()
    assert everything[0] > 0
    assert as_role(shared_place.owner).execute(query).fetchone() == everything
    assert as_role(shared_place.auditor).execute(query).fetchone() == everything


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_auditor_only_reads(shared_place: Any, filled: str, as_role: Any, table: str) -> None:
    """The auditor's reach across tenants is for looking alone."""
    conn = as_role(shared_place.auditor)
    for change in (*CHANGES, "INSERT INTO {} DEFAULT VALUES"):
        with pytest.raises(pg.InsufficientPrivilege):
            conn.execute(change.format(table))


def test_the_roles_are_ordinary(shared_place: Any, as_role: Any) -> None:
    """Neither the app nor the owner nor the others can step around row security."""
    rows = (
        as_role(shared_place.admin)
        .execute(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE 'cyberos\\_%'"
            " AND (rolsuper OR rolbypassrls)"
        )
        .fetchall()
    )
    assert rows == []


# -- the database itself decides on what hangs under what ------------------------------------------

CHILD: LiteralString = """
INSERT INTO cuo_langgraph_checkpoints
    (checkpoint_id, tenant_id, run_id, parent_checkpoint_id, kind, state_json, trace_id, thread_id,
     state_sha256)
SELECT c.id, %(tenant)s, %(run)s, c.parent, 'node_entered', '{}', repeat('0', 32), c.thread,
       sha256('{}')
FROM jsonb_to_recordset(%(rows)s) AS c(id uuid, parent uuid, thread text)
"""


@pytest.mark.criterion("102-AC17")
@pytest.mark.parametrize(
    "shape", ["self", "cycle", "missing", "cross-thread cycle", "other tenant"]
)
def test_only_older_rows_of_the_tenant_are_parents(
    shared_place: Any, tenant_id: str, other_tenant_id: str, as_role: Any, shape: str
) -> None:
    """A row under itself, under a later one, under nothing, or under another tenant's is refused."""
    conn = as_role(shared_place.app, tenant_id)
    a, b, run = (str(uuid.uuid4()) for _ in range(3))
    rows: dict[str, list[tuple[str, str | None, str]]] = {
        "self": [(a, a, "t")],
        "cycle": [(a, b, "t"), (b, a, "t")],
        "missing": [(a, b, "t")],
        "cross-thread cycle": [(a, b, "t"), (b, a, "u")],
        "other tenant": [(a, b, "t")],
    }
    if shape == "other tenant":
        other = as_role(shared_place.app, other_tenant_id)
        other.execute(
            CHILD,
            {
                "tenant": other_tenant_id,
                "run": run,
                "rows": psycopg.types.json.Jsonb([{"id": b, "parent": None, "thread": "t"}]),
            },
        )
    given = [{"id": i, "parent": p, "thread": t} for i, p, t in rows[shape]]
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(
            CHILD, {"tenant": tenant_id, "run": run, "rows": psycopg.types.json.Jsonb(given)}
        )
    assert refused.value.sqlstate == "CU004"
    assert conn.execute(f"SELECT count(*) FROM {LOG}").fetchone() == (0,)
