"""Settings that an administrator gave the role or the database change nothing that is stored."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer
from cuo_checkpoint.errors import StoreUnavailable
from cuo_checkpoint.runs import RunReader

ODD = {
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "serializable",
    "idle_session_timeout": "1s",
}
THREAD = "w\\é🎉' % _ {}"


def setting(admin_dsn: str, name: str, value: str) -> None:
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        database = sql.Identifier(conn.info.dbname)
        conn.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                database, sql.Identifier(name), sql.Literal(value)
            )
        )


def test_odd_settings_of_the_database(
    app_dsn: str, admin_dsn: str, tenant_id: str, lens_of: Any
) -> None:
    """Any text is stored and read, and every digest and chain verifies, in Python and in the lens."""
    for name, value in ODD.items():
        setting(admin_dsn, name, value)
    run = uuid.uuid4()
    state = {"text": "hỏi ☃ \\x41 '", "f": 0.1, "n": 2**70, "b": b"\\x00\x00"}
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store:
        writer = CheckpointWriter(store)
        writer.write(run, "run_started", state, thread_id=THREAD)
        config: Any = {"configurable": {"thread_id": THREAD, "run_id": str(run)}}
        assert store.claim(config, "effect", state)
        assert not store.claim(config, "effect", state)
    with RunReader(app_dsn, tenant_id=tenant_id) as reader:
        assert reader.verify(run).ok
        assert reader.list_runs(limit=5).runs[0].thread_id == THREAD
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute(
            sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(conn.info.dbname))
        )
    lens_of(admin_dsn, tenant_id).prove()


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("default_transaction_read_only", "on", "primary"),
        ("statement_timeout", "1ms", "statement_timeout"),
    ],
)
def test_settings_that_stop_a_write_are_named(
    app_dsn: str, admin_dsn: str, tenant_id: str, name: str, value: str, remedy: str
) -> None:
    """Nothing is stored, and the message says which setting to change."""
    setting(admin_dsn, name, value)
    with (
        PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store,
        pytest.raises(StoreUnavailable, match=remedy),
    ):
        CheckpointWriter(store).write(uuid.uuid4(), "run_started", {"a": "x" * 1_000_000})
    with psycopg.connect(admin_dsn, options="-c statement_timeout=0") as conn:
        found = conn.execute("SELECT count(*) FROM cuo_runs").fetchone()
    assert found == (0,)


def test_why_no_first_connection_came_is_said(app_dsn: str, tenant_id: str) -> None:
    """A role that is not there is not a server that is gone."""
    wrong = app_dsn.replace("cyberos_app", "nobody_of_that_name")
    assert wrong != app_dsn
    with (
        pytest.MonkeyPatch.context() as patch,
        PostgresCheckpointer(wrong, tenant_id=tenant_id) as store,
    ):
        patch.setattr("cuo_checkpoint.db._FIRST_WAIT", 0.5)
        with pytest.raises(StoreUnavailable, match=r"role .*nobody_of_that_name.* does not exist"):
            store.setup()
