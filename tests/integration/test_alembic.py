"""Migrating: twice, at once, half-done, elsewhere, offline, and back (D3.9)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg import sql

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, migrate

ROOT = Path(__file__).resolve().parents[2]
OWNER = "cyberos_owner"
MONTH = re.compile(r"_20\d\d_\d\d$")


def config_for(dsn: str, *, schema: str = "public", **settings: str) -> Config:
    """Alembic's config as the programs build it."""
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_dir()))
    config.attributes.update(url=dsn, schema=schema, **settings)
    return config


@pytest.fixture
def owner_empty(cluster: Any, empty_database: str) -> str:
    """An empty database as its owner."""
    return str(cluster.dsn(empty_database, OWNER))


def catalog(dsn: str, schema: str = "public") -> list[tuple[Any, ...]]:
    """Everything a migration made, by name and definition."""
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "WITH here AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = %s)"
            " SELECT 'relation', c.relname::text, c.relkind::text"
            " FROM pg_class c JOIN here ON here.oid = c.relnamespace"
            " UNION ALL SELECT 'function', p.proname || pg_get_function_identity_arguments(p.oid),"
            " md5(p.prosrc) FROM pg_proc p JOIN here ON here.oid = p.pronamespace"
            " UNION ALL SELECT 'trigger', c.relname, t.tgname FROM pg_trigger t"
            " JOIN pg_class c ON c.oid = t.tgrelid JOIN here ON here.oid = c.relnamespace"
            " WHERE NOT t.tgisinternal"
            " UNION ALL SELECT 'policy', tablename, policyname"
            " FROM pg_policies JOIN here ON here.nspname = schemaname"
            " ORDER BY 1, 2, 3",
            [schema],
        ).fetchall()


def works(app_dsn: str, schema: str = "public") -> None:
    """A store on this schema takes a row and reads it back."""
    tenant = str(uuid.uuid4())
    with PostgresCheckpointer(app_dsn, tenant_id=tenant, schema=schema) as store:
        store.setup()
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
        store.put(config, checkpoint, {"source": "input", "step": -1}, {"x": 1})
        found = store.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}


def test_upgrade_twice_changes_nothing(cluster: Any, empty_database: str, owner_empty: str) -> None:
    """A second upgrade head is a no-op."""
    migrate.upgrade(owner_empty)
    first = catalog(owner_empty)
    migrate.upgrade(owner_empty)
    assert catalog(owner_empty) == first
    assert migrate.current(owner_empty) == migrate.head()
    works(cluster.dsn(empty_database, "cyberos_app"))


@pytest.mark.slow
def test_eight_processes_migrate_at_once(
    cluster: Any, empty_database: str, owner_empty: str
) -> None:
    """All of eight processes that meet on an empty database succeed, and it works."""
    program = (
        "import sys; from cuo_checkpoint import migrate; sys.stdin.read(1);"
        " migrate.upgrade(sys.argv[1])"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, owner_empty],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(8)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("x")
        child.stdin.flush()
    ends = [(child.communicate(timeout=110)[1], child.returncode) for child in children]
    assert [code for _, code in ends] == [0] * 8, ends
    works(cluster.dsn(empty_database, "cyberos_app"))


@pytest.mark.parametrize("lost", ["version row", "version table", "one function", "one policy"])
def test_a_half_migrated_database_is_brought_forward(
    cluster: Any, empty_database: str, owner_empty: str, lost: str
) -> None:
    """Objects are there and their record, or some of them, are not: upgrade mends it."""
    migrate.upgrade(owner_empty)
    whole = catalog(owner_empty)
    with psycopg.connect(cluster.dsn(empty_database), autocommit=True) as admin:
        if lost == "version table":
            admin.execute("DROP TABLE cuo_alembic_version")
        else:
            admin.execute("DELETE FROM cuo_alembic_version")
        if lost == "one function":
            admin.execute("DROP FUNCTION cuo_tombstone")
        if lost == "one policy":
            admin.execute("DROP POLICY cuo_tenant_rls ON cuo_runs")
    migrate.upgrade(owner_empty)
    assert catalog(owner_empty) == whole
    works(cluster.dsn(empty_database, "cyberos_app"))


def test_rows_survive_a_repeated_migration(
    cluster: Any, empty_database: str, owner_empty: str
) -> None:
    """Bringing a half-recorded database forward keeps every row."""
    migrate.upgrade(owner_empty)
    app = cluster.dsn(empty_database, "cyberos_app")
    works(app)
    with psycopg.connect(cluster.dsn(empty_database), autocommit=True) as admin:
        admin.execute("DELETE FROM cuo_alembic_version")
        migrate.upgrade(owner_empty)
        assert admin.execute("SELECT count(*) FROM cuo_langgraph_checkpoints").fetchone() == (1,)


def test_a_schema_whose_name_needs_quoting(
    cluster: Any, empty_database: str, owner_empty: str
) -> None:
    """Everything lives in the named schema, the store works there, and public stays empty."""
    name = "Cuo Tenant-1"
    migrate.upgrade(owner_empty, schema=name)
    works(cluster.dsn(empty_database, "cyberos_app"), name)
    with psycopg.connect(owner_empty) as conn:
        assert conn.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone() == (0,)
    command.check(config_for(owner_empty, schema=name))


def test_two_schemas_in_one_database(cluster: Any, empty_database: str, owner_empty: str) -> None:
    """Two schemas live beside each other, each with its own rows."""
    for schema in ("public", "Cuo Tenant-1"):
        migrate.upgrade(owner_empty, schema=schema)
        works(cluster.dsn(empty_database, "cyberos_app"), schema)


def test_two_databases_in_one_cluster(cluster: Any, owner_dsn: str, owner_empty: str) -> None:
    """Roles are the cluster's and exist already; the second database migrates all the same."""
    migrate.upgrade(owner_empty)
    here, there = catalog(owner_empty), catalog(owner_dsn)
    # The first was migrated when the tests began. Should a month have turned since, each has one that
    # the other has not: those are left out on both sides, and only those.
    here_months, there_months = (
        {name[-7:] for _, name, _ in rows if MONTH.search(name)} for rows in (here, there)
    )
    both = here_months & there_months
    assert len(both) >= 3

    def shared(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        mine = {name[-7:] for _, name, _ in rows if MONTH.search(name)} - both
        turned = here_months != there_months
        return [
            row
            for row in rows
            if not any(f"_{month}" in row[1] for month in mine)
            # A month's indexes are numbered where their names are cut, so one month shifts the next's.
            and not (turned and row[2] in "iI" and "_20" in row[1])
        ]

    assert shared(here) == shared(there)


def test_other_role_names(cluster: Any, empty_database: str, owner_empty: str) -> None:
    """Where role names are given, rights go to those roles and to nobody else."""
    roles = {n: f"cuo test {n} {uuid.uuid4().hex[:8]}" for n in ("app", "archiver", "auditor")}
    admin_dsn = cluster.dsn(empty_database)
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        for role in roles.values():
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    try:
        config = config_for(owner_empty, **{f"{n}_role": role for n, role in roles.items()})
        command.upgrade(config, "head")
        with psycopg.connect(admin_dsn) as admin:
            assert admin.execute(
                "SELECT has_table_privilege(%s, 'cuo_langgraph_checkpoints', 'SELECT'),"
                " has_table_privilege('cyberos_app', 'cuo_langgraph_checkpoints', 'SELECT')",
                [roles["app"]],
            ).fetchone() == (True, False)
    finally:
        with psycopg.connect(admin_dsn, autocommit=True) as admin:
            for role in roles.values():
                admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def offline(*arguments: str, schema: str = "public") -> str:
    """What `alembic ... --sql` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-x", f"schema={schema}", *arguments, "--sql"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    )
    return done.stdout


@pytest.mark.parametrize("schema", ["public", "Cuo Tenant-1"])
def test_offline_sql_runs_through_psql(
    cluster: Any, empty_database: str, owner_empty: str, schema: str
) -> None:
    """The script that --sql prints makes, through psql, what an online upgrade makes."""
    program = shutil.which("psql")
    if program is None:
        pytest.skip("psql is not installed")
    script = offline("upgrade", "head", schema=schema)
    done = subprocess.run(
        [program, "-Xq", "-v", "ON_ERROR_STOP=1", owner_empty],
        input=script,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = catalog(owner_empty, schema)
    works(cluster.dsn(empty_database, "cyberos_app"), schema)
    command.check(config_for(owner_empty, schema=schema))
    with psycopg.connect(cluster.dsn(empty_database), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        admin.execute(
            sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(
                sql.Identifier(schema), sql.Identifier(OWNER)
            )
        )
    migrate.upgrade(owner_empty, schema=schema)
    assert catalog(owner_empty, schema) == made


def test_check_shows_no_drift(owner_dsn: str) -> None:
    """The models and the migrated schema agree."""
    command.check(config_for(owner_dsn))


def test_there_is_one_head() -> None:
    """Revisions form one line, and the first two are those the design names."""
    script = ScriptDirectory.from_config(config_for("postgresql://"))
    assert len(script.get_heads()) == 1
    revisions = [r.revision for r in script.walk_revisions()][::-1]
    assert revisions[:2] == ["0001", "0002"]


@pytest.fixture
def one_row(app_dsn: str, tenant_id: str) -> Iterator[None]:
    """A row somewhere in the log."""
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        CheckpointWriter(store).write(uuid.uuid4(), "run_started", {})
        yield


def test_downgrade_refuses_while_rows_exist(owner_dsn: str, one_row: None) -> None:
    """Rows of any tenant stop a downgrade, although no tenant is set when it counts."""
    whole = catalog(owner_dsn)
    with pytest.raises(Exception, match="downgrade refused: the log holds rows"):
        command.downgrade(config_for(owner_dsn), "base")
    assert catalog(owner_dsn) == whole


def test_downgrade_goes_when_told_so(owner_dsn: str, one_row: None) -> None:
    """With drop_rows=yes nothing of ours is left, and upgrading again works."""
    command.downgrade(config_for(owner_dsn, drop_rows="yes"), "base")
    assert [r for r in catalog(owner_dsn) if "cuo_" in r[1] and "alembic" not in r[1]] == []
    migrate.upgrade(owner_dsn)


def test_downgrade_goes_when_empty(owner_empty: str) -> None:
    """Without rows a downgrade needs no permission."""
    migrate.upgrade(owner_empty)
    command.downgrade(config_for(owner_empty), "base")
    assert [r for r in catalog(owner_empty) if "cuo_" in r[1] and "alembic" not in r[1]] == []


def test_drop_rows_on_the_command_line(owner_dsn: str, one_row: None) -> None:
    """alembic -x drop_rows=yes downgrade base is how an operator says so."""
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-x", "drop_rows=yes", "downgrade", "base"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PATH": os.environ["PATH"], "CUO_DATABASE_URL": owner_dsn},
    )
    assert done.returncode == 0, done.stderr
    assert migrate.current(owner_dsn) is None


def test_a_superuser_may_not_migrate(cluster: Any, empty_database: str) -> None:
    """Tables of a superuser would not be bound by row security, so it is refused with a remedy."""
    with pytest.raises(Exception, match="must run as an owner that row security binds"):
        migrate.upgrade(cluster.dsn(empty_database))
    assert migrate.current(cluster.dsn(empty_database)) is None


def test_default_privileges_of_the_database_open_nothing(
    cluster: Any, empty_database: str, owner_empty: str
) -> None:
    """Where hosting grants everything on new objects to its own role, that role still has nothing."""
    role = f"anon_{uuid.uuid4().hex[:8]}"
    admin_dsn = cluster.dsn(empty_database)
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        for kind in ("TABLES", "FUNCTIONS"):
            admin.execute(
                sql.SQL(
                    "ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA public GRANT ALL ON {} TO {}"
                ).format(sql.Identifier(OWNER), sql.SQL(kind), sql.Identifier(role))
            )
    try:
        migrate.upgrade(owner_empty)
        with psycopg.connect(admin_dsn) as admin:
            relations = admin.execute(
                "SELECT relname FROM pg_class WHERE relname LIKE 'cuo\\_%%'"
                " AND relkind IN ('r', 'p', 'v') AND has_table_privilege(%s, oid,"
                " 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')",
                [role],
            ).fetchall()
            functions = admin.execute(
                "SELECT proname FROM pg_proc WHERE proname LIKE 'cuo\\_%%'"
                " AND has_function_privilege(%s, oid, 'EXECUTE')",
                [role],
            ).fetchall()
        assert (relations, functions) == ([], [])
    finally:
        with psycopg.connect(admin_dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_missing_role_that_may_not_be_made_is_named(
    cluster: Any, empty_database: str, owner_empty: str
) -> None:
    """An owner without CREATEROLE gets the statement an administrator has to run."""
    owner = f"plain_{uuid.uuid4().hex[:8]}"
    admin_dsn = cluster.dsn(empty_database)
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(owner)))
        admin.execute(
            sql.SQL("GRANT ALL ON DATABASE {} TO {}").format(
                sql.Identifier(empty_database), sql.Identifier(owner)
            )
        )
        admin.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(owner)))
    try:
        config = config_for(cluster.dsn(empty_database, owner), app_role="cuo_nobody_yet")
        with pytest.raises(Exception, match='role "cuo_nobody_yet" does not exist'):
            command.upgrade(config, "head")
        command.upgrade(config_for(cluster.dsn(empty_database, owner)), "head")
    finally:
        with psycopg.connect(admin_dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(owner)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(owner)))
