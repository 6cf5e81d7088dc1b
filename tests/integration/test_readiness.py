"""The start-up checks find each thing that can be wrong, in a database where it is."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from cuo_checkpoint import readiness
from cuo_checkpoint.errors import SchemaNotReady
from cuo_checkpoint.readiness import Finding


def bad(dsn: str, **options: Any) -> dict[str, Finding]:
    """Blocking findings that are not ok, by name."""
    return {f.name: f for f in readiness.check(dsn, **options) if f.blocking and not f.ok}


def as_admin(dsn: str, *statements: str) -> None:
    """Runs statements as superuser."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def test_a_migrated_database_is_ready(app_dsn: str) -> None:
    """Nothing blocks a start, every check is reported, good ones need no remedy."""
    findings = readiness.require(app_dsn)
    assert [f.name for f in findings if f.blocking and not f.ok] == []
    assert len(findings) >= 12
    assert all(f.remedy == "" for f in findings if f.ok)
    assert all(f.remedy for f in findings if not f.ok)
    assert {f.to_json()["name"] for f in findings} == {f.name for f in findings}


CHANGES: dict[str, tuple[str, str, str]] = {
    "row security off": (
        "ALTER TABLE cuo_runs DISABLE ROW LEVEL SECURITY",
        "row security",
        "cuo_runs",
    ),
    "row security not forced": (
        "ALTER TABLE {month} NO FORCE ROW LEVEL SECURITY",
        "row security",
        "{month}",
    ),
    "a policy dropped": (
        "DROP POLICY cuo_tenant_rls ON {month}",
        "row security",
        "{month} (policies)",
    ),
    "a trigger off": (
        "ALTER TABLE {month} DISABLE TRIGGER cuo_no_truncate",
        "append-only triggers",
        "{month}",
    ),
    "the row trigger off": (
        "ALTER TABLE cuo_memory_audit DISABLE TRIGGER cuo_chain_link",
        "append-only triggers",
        "cuo_memory_audit",
    ),
    "update granted": (
        "GRANT UPDATE ON cuo_langgraph_writes TO cyberos_app",
        "grants",
        "UPDATE on cuo_langgraph_writes",
    ),
    "update of one column granted": (
        "GRANT UPDATE (kind) ON cuo_memory_audit TO cyberos_app",
        "grants",
        "UPDATE on cuo_memory_audit",
    ),
    "delete granted to everybody": (
        "GRANT DELETE ON cuo_runs TO PUBLIC",
        "grants",
        "DELETE on cuo_runs",
    ),
    "a month readable directly": (
        "GRANT SELECT ON {month} TO cyberos_app",
        "grants",
        "SELECT on {month}",
    ),
    "insert revoked": (
        "REVOKE SELECT ON cuo_memory_audit FROM cyberos_app",
        "grants",
        "no SELECT on cuo_memory_audit",
    ),
    "an inner function granted": (
        "GRANT EXECUTE ON FUNCTION cuo_chain_append(uuid, uuid, text[], text[]) TO cyberos_app",
        "grants",
        "EXECUTE on cuo_chain_append",
    ),
    "a month gone": ("DROP TABLE {month}", "months", "{month}"),
    "a table gone": ("DROP TABLE cuo_thread_tombstones", "tables", "cuo_thread_tombstones"),
    "the seals gone": ("DROP TABLE cuo_seal_heads", "tables", "cuo_seal_heads"),
    "the holds gone": ("DROP TABLE cuo_holds", "tables", "cuo_holds"),
    "seals writable": (
        "GRANT INSERT ON cuo_seal_leaves TO cyberos_app",
        "grants",
        "INSERT on cuo_seal_leaves",
    ),
    "seals changeable": (
        "ALTER TABLE cuo_seal_leaves DISABLE TRIGGER cuo_no_change",
        "append-only triggers",
        "cuo_seal_leaves",
    ),
    "an old revision": (
        "UPDATE cuo_alembic_version SET version_num = '0001'",
        "revision",
        "is at 0001",
    ),
    "no revision": ("DELETE FROM cuo_alembic_version", "revision", "holds no log"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_found(app_dsn: str, admin_dsn: str, name: str) -> None:
    """What was changed is named, with a remedy, and stops a start."""
    change, finding, detail = CHANGES[name]
    with psycopg.connect(admin_dsn) as conn:
        row = conn.execute(
            "SELECT 'cuo_langgraph_checkpoints_' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')"
        ).fetchone()
    assert row is not None
    as_admin(admin_dsn, change.format(month=row[0]))
    found = bad(app_dsn)
    assert finding in found
    assert detail.format(month=row[0]) in found[finding].detail
    assert found[finding].remedy
    with pytest.raises(SchemaNotReady):
        readiness.require(app_dsn)


def test_roles_above_the_policies_are_refused(admin_dsn: str, owner_dsn: str) -> None:
    """A superuser is above row security, an owner could undo it; both are named."""
    assert "superuser" in bad(admin_dsn)["role"].remedy
    assert set(bad(owner_dsn)) == {"ownership"}


def test_an_empty_database_and_none(cluster: Any, empty_database: str) -> None:
    """Without schema or server the findings say so and end."""
    dsn = cluster.dsn(empty_database, "cyberos_app")
    assert set(bad(dsn)) == {"revision"}
    assert "alembic upgrade head" in bad(dsn)["revision"].remedy
    assert [f.name for f in readiness.check("host=/nonexistent")] == ["reachable"]
    with pytest.raises(SchemaNotReady, match="reachable"):
        readiness.require("host=/nonexistent")


def test_a_newer_revision_does_not_stop_this_version(app_dsn: str, admin_dsn: str) -> None:
    """Migrations only add, so a start goes on and the doctor says what to install."""
    as_admin(admin_dsn, "UPDATE cuo_alembic_version SET version_num = '9999'")
    (finding,) = [f for f in readiness.require(app_dsn) if f.name == "revision"]
    assert not finding.ok
    assert "newer" in finding.detail


def test_lost_durability_is_told(app_dsn: str, admin_dsn: str) -> None:
    """synchronous_commit off is reported, with what to set, and does not stop a start."""
    as_admin(
        admin_dsn,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',"
        " current_database()); END $$",
    )
    (finding,) = [f for f in readiness.require(app_dsn) if f.name == "durability"]
    assert not finding.ok
    assert "synchronous_commit = on" in finding.remedy
