"""What the migrations made to guard the log is held whole: whatever its owner changes is named."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from cuo_checkpoint import guards, migrate, readiness

LOG = "cuo_langgraph_checkpoints"
THIS_MONTH = "to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')"
SWALLOW = (
    "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    " CREATE TRIGGER aaa BEFORE INSERT ON cuo_holds FOR EACH ROW EXECUTE FUNCTION swallow()"
)
UNARMED = (
    "CREATE OR REPLACE TRIGGER cuo_no_change BEFORE UPDATE OR DELETE ON cuo_seal_heads"
    " FOR EACH ROW WHEN (false) EXECUTE FUNCTION cuo_forbid_change()"
)

CHANGES: dict[str, tuple[str, str, str]] = {
    "a policy for everybody": (
        f"CREATE POLICY peek ON {LOG} FOR SELECT USING (true)",
        "policies",
        f"policy peek on {LOG} (added)",
    ),
    "a policy that hides a run": (
        "CREATE POLICY blind ON cuo_runs AS RESTRICTIVE USING (run_id <> gen_random_uuid())",
        "policies",
        "policy blind on cuo_runs (added)",
    ),
    "a policy opened": (
        f"ALTER POLICY cuo_tenant_rls ON {LOG} USING (true)",
        "policies",
        f"policy cuo_tenant_rls on {LOG} (changed)",
    ),
    "the auditor's policy for the application": (
        "ALTER POLICY cuo_auditor_reads ON cuo_memory_audit TO cyberos_app",
        "policies",
        "policy cuo_auditor_reads on cuo_memory_audit (changed)",
    ),
    "every row of a month for everybody": (
        "CREATE POLICY peek ON {month} USING (true)",
        "policies",
        "policy peek on {month} (added)",
    ),
    "an empty guard": (
        "CREATE OR REPLACE FUNCTION cuo_forbid_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "functions",
        "cuo_forbid_change() (changed)",
    ),
    "another path for names": (
        "ALTER FUNCTION cuo_tombstone_before() SET search_path = pg_temp, public",
        "functions",
        "cuo_tombstone_before() (changed)",
    ),
    "no longer the owner's rights": (
        "ALTER FUNCTION cuo_write_before() SECURITY INVOKER",
        "functions",
        "cuo_write_before() (changed)",
    ),
    "a function beside one of ours": (
        "CREATE FUNCTION cuo_tenant(integer) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'",
        "functions",
        "cuo_tenant() (added)",
    ),
    "a view with its owner's rights": (
        "ALTER VIEW cuo_checkpoints_full SET (security_invoker = false)",
        "functions",
        "view cuo_checkpoints_full (changed)",
    ),
    "a table handed over": (
        "ALTER TABLE cuo_holds OWNER TO cyberos_archiver",
        "functions",
        "owner of cuo_holds (changed)",
    ),
    "a trigger that swallows rows": (
        SWALLOW,
        "triggers and rules",
        "trigger aaa on cuo_holds (added)",
    ),
    "a trigger for no row": (
        UNARMED,
        "triggers and rules",
        "trigger cuo_no_change on cuo_seal_heads (changed)",
    ),
    "an index trigger off": (
        "ALTER TABLE cuo_runs DISABLE TRIGGER cuo_run_genesis",
        "triggers and rules",
        "trigger cuo_run_genesis on cuo_runs (disabled)",
    ),
    "a rule": (
        "CREATE RULE nothing AS ON INSERT TO cuo_holds DO INSTEAD NOTHING",
        "triggers and rules",
        "rule nothing on cuo_holds (added)",
    ),
    "a name that plays with the terminal": (
        'CREATE POLICY "x\033[2J" ON cuo_threads USING (true)',
        "policies",
        "policy 'x\\x1b[2J' on cuo_threads (added)",
    ),
}


def test_each_change_is_found(app_dsn: str, admin_dsn: str) -> None:
    """Each is named by the finding it belongs to, which stops a start, and by no other guard's."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        row = conn.execute(f"SELECT '{LOG}_' || {THIS_MONTH}").fetchone()
    assert row is not None
    month = row[0]
    for name, (change, finding, said) in CHANGES.items():
        with psycopg.connect(admin_dsn, row_factory=psycopg.rows.dict_row) as conn:
            conn.execute(change.format(month=month))
            conn.execute("SET LOCAL ROLE cyberos_app")
            told = list(readiness._guards(conn, "public", migrate.head()))
            conn.rollback()
        wrong = {f.name: f for f in told if not f.ok}
        assert set(wrong) == {finding}, name
        assert said.format(month=month) in wrong[finding].detail, name
        assert wrong[finding].blocking
        assert "cuo-archive verify --all" in wrong[finding].remedy
    assert [f for f in readiness.require(app_dsn) if f.blocking and not f.ok] == []


def test_a_start_is_refused(app_dsn: str, admin_dsn: str) -> None:
    """The start-up check itself refuses, as the application's role, and says what to drop."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute(CHANGES["a policy for everybody"][0])
    with pytest.raises(readiness.SchemaNotReady, match=f"policy peek on {LOG}") as refused:
        readiness.require(app_dsn)
    assert "DROP POLICY" in str(refused.value.remedy)


def test_a_newer_schema_may_differ(app_dsn: str, admin_dsn: str) -> None:
    """A later migration may have replaced a function: told, and the start goes on."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute(CHANGES["an empty guard"][0])
        conn.execute("UPDATE cuo_alembic_version SET version_num = '9999'")
    (finding,) = [f for f in readiness.require(app_dsn) if f.name == "functions"]
    assert not finding.ok


def test_a_fresh_schema_is_what_is_expected(
    cluster: Any, app_dsn: str, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts and digests are those of the migrations, whatever schema, roles and quotes are."""
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {empty_database} SET quote_all_identifiers = on")
    monkeypatch.setenv("CUO_AUDITOR_ROLE", "cyberos_archiver")
    monkeypatch.setenv("CUO_ARCHIVER_ROLE", "cyberos_auditor")
    migrate.upgrade(cluster.dsn(empty_database, "cyberos_owner"), schema='My "own" schema')
    places = {"public": app_dsn, 'My "own" schema': cluster.dsn(empty_database, "cyberos_app")}
    for schema, dsn in places.items():
        with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as conn:
            there = guards.found(conn, schema)
            assert guards.differences(conn, schema) == []
        digests = {name: text for (kind, _, name), (text, _) in there.items() if kind == "function"}
        assert digests == guards.FUNCTIONS
        assert len(there) > 200
