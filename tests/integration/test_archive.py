"""cuo-archive on a real database, as the roles that run it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import (
    CheckpointWriter,
    PostgresCheckpointer,
    archive,
    archive_cli,
    evidence_cli,
)
from cuo_checkpoint.ids import ulid_of
from cuo_checkpoint.partitions import Month


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Names the database in the environment."""
    return lambda dsn: monkeypatch.setenv("CUO_DATABASE_URL", dsn)


def called(capsys: Any, *argv: str) -> tuple[int, Any]:
    """The exit code and the JSON that was printed."""
    code = archive_cli.main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def fill(app_dsn: str, tenant: str, runs: int = 3) -> list[uuid.UUID]:
    """Finished runs of two rows each."""
    ids = [uuid.uuid4() for _ in range(runs)]
    with PostgresCheckpointer(app_dsn, tenant_id=tenant) as store:
        writer = CheckpointWriter(store)
        for run_id in ids:
            writer.write(run_id, "run_started", {"n": 1})
            writer.write(run_id, "run_completed", {"n": 2})
    return ids


def tamper(admin_dsn: str, statement: str, *params: Any) -> None:
    """A change by a superuser with triggers off."""
    with psycopg.connect(admin_dsn) as conn:
        conn.execute("SET session_replication_role = replica")
        assert conn.execute(statement, params).rowcount > 0


@pytest.mark.criterion("102-AC11")
@pytest.mark.parametrize("role", ["app_dsn", "archiver_dsn", "auditor_dsn"])
def test_missing_months_are_made_once(
    capsys: Any, use: Any, owner_dsn: str, role: str, request: pytest.FixtureRequest
) -> None:
    """Any of the log's roles makes exactly what is missing; again, nothing is made."""
    month = archive.status(owner_dsn)["tables"][0]["months"][-1]["partition"]
    with psycopg.connect(owner_dsn) as conn:
        conn.execute(f"DROP TABLE {month}")
    use(request.getfixturevalue(role))
    code, first = called(capsys, "ensure-partitions")
    assert (code, first["made"]) == (0, [month])
    assert len(first["present"]) == 12
    assert called(capsys, "ensure-partitions")[1]["made"] == []
    assert archive_cli.main(["ensure-partitions"]) == 0
    assert f"present  {month}" in capsys.readouterr().out


def test_status(
    capsys: Any, use: Any, admin_dsn: str, app_dsn: str, owner_dsn: str, tenant_id: str
) -> None:
    """Months, estimates and sizes of each table; a missing coming month is remarked on."""
    fill(app_dsn, tenant_id)
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute("ANALYZE")
    use(app_dsn)
    code, found = called(capsys, "status")
    assert code == 0
    assert [t["table"] for t in found["tables"]] == [
        "cuo_langgraph_checkpoints",
        "cuo_langgraph_writes",
        "cuo_memory_audit",
    ]
    assert found["tables"][0]["rows_estimate"] == 6
    assert found["missing"] == []
    months = [m["month"] for m in found["tables"][0]["months"]]
    assert months == sorted(months)
    assert len(months) == 4
    current = Month(*map(int, months[0].split("-")))
    with psycopg.connect(owner_dsn) as conn:
        conn.execute(f"DROP TABLE {current.plus(1).partition_of('cuo_memory_audit')}")
    assert archive_cli.main(["status"]) == 0
    out, err = capsys.readouterr()
    assert "about 6 rows" in out
    assert "ensure-partitions" in err


def test_an_unmigrated_database_is_69(
    capsys: Any, use: Any, cluster: Any, empty_database: str
) -> None:
    """A database without the log is named as such by each command."""
    use(cluster.dsn(empty_database, "cyberos_app"))
    for argv in (["status"], ["ensure-partitions"], ["verify", "--tenant", str(uuid.uuid4())]):
        assert archive_cli.main(argv) == 69
        assert "alembic upgrade head" in capsys.readouterr().err


def test_a_refused_role_is_77(
    capsys: Any, use: Any, admin_dsn: str, app_dsn: str, tenant_id: str
) -> None:
    """A role without the right is a matter of permission, not of reachability."""
    with psycopg.connect(admin_dsn) as conn:
        conn.execute("REVOKE EXECUTE ON FUNCTION cuo_ensure_partitions() FROM cyberos_app")
    use(app_dsn)
    assert archive_cli.main(["ensure-partitions"]) == 77
    assert archive_cli.main(["verify", "--all"]) == 77
    assert "--tenant" in capsys.readouterr().err


def test_a_sound_log_verifies(
    capsys: Any, use: Any, app_dsn: str, auditor_dsn: str, tenant_id: str, other_tenant_id: str
) -> None:
    """Everything as auditor, one tenant as either role, one run by UUID and ULID."""
    ids = fill(app_dsn, tenant_id)
    fill(app_dsn, other_tenant_id, 2)
    use(auditor_dsn)
    code, found = called(capsys, "verify", "--all")
    assert (code, found["ok"], found["runs"], found["rows"]) == (0, True, 5, 10)
    assert (found["broken"], found["strays"]) == ([], [])
    assert called(capsys, "verify", "--tenant", tenant_id)[1]["runs"] == 3
    for run in (str(ids[0]), ulid_of(ids[0])):
        assert called(capsys, "verify", "--run", run)[1]["rows"] == 2
    use(app_dsn)
    assert called(capsys, "verify", "--tenant", other_tenant_id)[1]["runs"] == 2
    assert called(capsys, "verify", "--tenant", tenant_id, "--run", str(ids[1]))[0] == 0
    assert archive_cli.main(["verify", "--tenant", tenant_id]) == 0
    assert "Everything agrees." in capsys.readouterr().out


def test_a_broken_log_is_65_and_names_the_row(
    capsys: Any, use: Any, app_dsn: str, auditor_dsn: str, admin_dsn: str, tenant_id: str
) -> None:
    """The run and its first bad row are named; the sound runs are not."""
    ids = fill(app_dsn, tenant_id)
    tamper(
        admin_dsn, "UPDATE cuo_langgraph_checkpoints SET node_name = 'x' WHERE run_id = %s", ids[1]
    )
    use(auditor_dsn)
    code, found = called(capsys, "verify", "--all")
    assert code == 65
    assert [broken["run_id"] for broken in found["broken"]] == [str(ids[1])]
    assert archive_cli.main(["verify", "--all"]) == 65
    out, err = capsys.readouterr()
    assert f"run {ids[1]}" in out
    assert "a column was changed" in out
    assert "1 of 3 runs do not verify" in err
    assert called(capsys, "verify", "--run", str(ids[0]))[0] == 0


def test_an_unknown_run_is_65(
    capsys: Any, use: Any, app_dsn: str, auditor_dsn: str, tenant_id: str
) -> None:
    """A run nobody has, and one this tenant has not."""
    (run_id,) = fill(app_dsn, tenant_id, 1)
    use(auditor_dsn)
    for argv in (
        ["--run", str(uuid.uuid4())],
        ["--run", str(run_id), "--tenant", str(uuid.uuid4())],
    ):
        assert archive_cli.main(["verify", *argv]) == 65
        assert "run" in capsys.readouterr().err


HOUR_AGO = "now() - interval '2 hours'"
STRAYS = {
    "cuo_langgraph_writes": (
        "INSERT INTO cuo_langgraph_writes SELECT %s, 't', '', 'nowhere', 'task', '', 0, 'x', '1',"
        f" %s, 1, {HOUR_AGO}, sha256(''), sha256('')"
    ),
    "cuo_thread_tombstones": (
        "INSERT INTO cuo_thread_tombstones SELECT %s, gen_random_uuid(), 'other', 'prune', NULL, 1,"
        f" %s, {HOUR_AGO}, sha256('')"
    ),
}


@pytest.mark.parametrize("table", STRAYS)
def test_rows_that_no_run_accounts_for_are_strays(
    capsys: Any,
    use: Any,
    app_dsn: str,
    auditor_dsn: str,
    admin_dsn: str,
    tenant_id: str,
    table: str,
) -> None:
    """A row slipped in where no chain leads is found by counting."""
    (run_id,) = fill(app_dsn, tenant_id, 1)
    with psycopg.connect(admin_dsn) as conn:
        row = conn.execute(
            f"SELECT date_trunc('month', {HOUR_AGO}) < date_trunc('month', now())"
        ).fetchone()
    if row == (True,):  # the first hours of a month: the month before may not be there
        pytest.skip("no partition for two hours ago")
    tamper(admin_dsn, STRAYS[table], tenant_id, run_id)
    use(auditor_dsn)
    code, found = called(capsys, "verify", "--all")
    assert code == 65
    assert found["broken"] == []
    assert found["strays"] == [f"tenant {tenant_id}: 1 rows of {table} lie outside every run"]


def test_a_run_the_index_lost_is_verified_all_the_same(
    capsys: Any, use: Any, app_dsn: str, auditor_dsn: str, admin_dsn: str, tenant_id: str
) -> None:
    """Deleting a run's index row hides it from nobody."""
    ids = fill(app_dsn, tenant_id)
    tamper(admin_dsn, "DELETE FROM cuo_runs WHERE run_id = %s", ids[0])
    use(auditor_dsn)
    code, found = called(capsys, "verify", "--all")
    assert (code, found["runs"]) == (65, 3)
    assert found["broken"][0]["problems"] == [
        "index: the run is missing from cuo_runs; rebuild the index"
    ]


def test_progress_is_told(
    capsys: Any, use: Any, app_dsn: str, tenant_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long verification speaks on stderr, and stdout stays JSON."""
    fill(app_dsn, tenant_id)
    monkeypatch.setattr(evidence_cli, "_PROGRESS_AFTER", 0.0)
    use(app_dsn)
    assert archive_cli.main(["verify", "--tenant", tenant_id, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "3 of about 3 runs verified" in err
    assert json.loads(out)["ok"] is True
