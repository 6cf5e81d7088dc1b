"""Every way in and out under settings that an administrator may have given a role or a database."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from psycopg import sql
from psycopg_pool import ConnectionPool

from cuo_checkpoint import (
    CheckpointWriter,
    PostgresCheckpointer,
    archive,
    event_pages,
    keys,
    readiness,
    rebuild_index,
    retention,
)
from cuo_checkpoint.bundle_verify import main as verify_bundle
from cuo_checkpoint.errors import SchemaNotReady, SettingInvalid, StoreUnavailable
from cuo_checkpoint.export import export_run
from cuo_checkpoint.gauges import observe
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.seal import Sealer

ROLES = ("cyberos_app", "cyberos_auditor", "cyberos_archiver")

HARMLESS = {
    "DateStyle": ["SQL, DMY", "German", "Postgres, MDY"],
    "IntervalStyle": ["postgres_verbose", "sql_standard"],
    "TimeZone": ["America/St_Johns", "Asia/Kathmandu"],
    "bytea_output": ["escape"],
    "standard_conforming_strings": ["off"],
    "client_encoding": ["LATIN1", "SQL_ASCII"],
    "search_path": ["", "nosuch"],
    "default_transaction_isolation": ["serializable", "repeatable read"],
    "default_transaction_deferrable": ["on"],
    "extra_float_digits": ["-15"],
    "array_nulls": ["off"],
    "transform_null_equals": ["on"],
    "quote_all_identifiers": ["on"],
    "plan_cache_mode": ["force_generic_plan"],
    "enable_partition_pruning": ["off"],
    "lc_messages": ["C.UTF-8"],
    "lc_time": ["C.UTF-8"],
}


def logins(app_dsn: str) -> dict[str, str]:
    return {role: app_dsn.replace("cyberos_app", role) for role in ROLES}


@pytest.fixture
def give(app_dsn: str, admin_dsn: str) -> Iterator[Any]:
    """Gives the three roles a setting in this test's database, as ALTER ROLE does."""

    def act(name: str, value: str, roles: tuple[str, ...] = ROLES) -> None:
        with psycopg.connect(admin_dsn, autocommit=True) as conn:
            for role in roles:
                conn.execute(
                    sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                        sql.Identifier(role),
                        sql.Identifier(conn.info.dbname),
                        sql.Identifier(name),
                        sql.Literal(value),
                    )
                )

    yield act
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        for role in ROLES:
            conn.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} RESET ALL").format(
                    sql.Identifier(role), sql.Identifier(conn.info.dbname)
                )
            )


class State(TypedDict, total=False):
    seen: Annotated[list[Any], lambda old, new: [*(old or []), *new]]


def graph(store: PostgresCheckpointer) -> Any:
    made = StateGraph(State)
    made.add_node("a", lambda state: {"seen": [dt.datetime(2026, 2, 1, tzinfo=dt.UTC), b"\\x00"]})
    made.add_node("b", lambda state: {"seen": ["đ\\ ' \U0001f600", 0.1, 2**70]})
    made.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return made.compile(store)


SEEN = ["0", dt.datetime(2026, 2, 1, tzinfo=dt.UTC), b"\\x00", "đ\\ ' \U0001f600", 0.1, 2**70]


def saver(dsn: str, tenant: str, run: uuid.UUID) -> None:
    """LangGraph's methods in both colours, the writer and a claim."""
    config: Any = {"configurable": {"thread_id": "t\\é'", "run_id": str(run)}}
    with PostgresCheckpointer(dsn, tenant_id=tenant) as store:
        store.setup()
        made = graph(store)
        assert made.invoke({"seen": ["0"]}, config, durability="sync")["seen"] == SEEN
        assert made.get_state(config).values["seen"] == SEEN
        made.update_state({"configurable": {"thread_id": "t\\é'"}}, {"seen": ["x"]})
        assert len(list(made.get_state_history(config))) == 5
        assert store.claim(config, "effect", b"\\x41")
        assert not store.claim(config, "effect", b"\\x41")
        CheckpointWriter(store).write(uuid.uuid4(), "run_started", {"at": dt.datetime.now(dt.UTC)})
        store.copy_thread("t\\é'", "copy")
        store.delete_thread("copy")

    async def awaiting() -> None:
        async with PostgresCheckpointer(dsn, tenant_id=tenant) as store:
            made = graph(store)
            where: Any = {"configurable": {"thread_id": "async"}}
            await made.ainvoke({"seen": ["0"]}, where, durability="sync")
            assert (await made.aget_state(where)).values["seen"] == SEEN
            assert [item async for item in store.alist(where)]

    asyncio.run(awaiting())


def readers(dsn: str, tenant: str, run: uuid.UUID) -> None:
    """What people and the HTTP service read."""
    with RunReader(dsn, tenant_id=tenant) as reader:
        assert len(reader.list_runs(limit=10).runs) == 6
        assert len(reader.events(run, with_state=True)) == 9
        assert reader.audit(run)
        assert reader.writes(run)
        for listed in reader.list_runs(limit=10).runs:
            assert reader.verify(listed.run_id).problems == ()
        page = event_pages.read_page(
            reader.engine, uuid.UUID(tenant), run, after={}, limit=3, max_bytes=10**6
        )
        assert page is not None
        assert json.loads(page.rows[0])["created_at"].endswith("Z")
        chunks = event_pages.stream_rows(reader.engine, uuid.UUID(tenant), run, after={})
        assert sum(len(chunk.rows) for chunk in chunks) == 9


def evidence(to: dict[str, str], tenant: str, run: uuid.UUID, folder: Path) -> None:
    """Readiness, months, signals, seals, bundles, verification and retention."""
    auditor = to["cyberos_auditor"]
    assert [f.name for f in readiness.check(to["cyberos_app"]) if f.blocking and not f.ok] == []
    assert archive.status(auditor)["tables"]
    archive.ensure_partitions(to["cyberos_archiver"])
    assert observe(to["cyberos_app"], everyone_dsn=auditor)
    ring = KeyRing((keys.generate("test"),))
    (folder / "heads").mkdir()
    with Sealer(auditor, ring=ring, folder=HeadFolder(folder / "heads")) as sealer:
        assert sealer.seal(uuid.UUID(tenant)).ok
    export_run(to["cyberos_app"], uuid.UUID(tenant), run, folder / "bundle")
    trusted = folder / "trusted"
    trusted.write_text("".join(f"{key}\n" for key in ring.believed))
    assert verify_bundle([str(folder / "bundle"), "--key", str(trusted)]) == 0
    assert not archive.verify(auditor, tenant_id=uuid.UUID(tenant)).broken
    assert (
        list(rebuild_index.differences(to["cyberos_archiver"], tenant_id=uuid.UUID(tenant))) == []
    )
    retention.report(to["cyberos_archiver"])
    assert retention.expired_approvals(to["cyberos_archiver"]) == []
    hold = retention.place_hold(to["cyberos_archiver"], uuid.UUID(tenant), run, reason="r", by="b")
    assert hold
    assert retention.holds(to["cyberos_archiver"], tenant_id=uuid.UUID(tenant))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in HARMLESS.items() for value in values]
)
def test_a_setting_changes_nothing(
    give: Any,
    app_dsn: str,
    admin_dsn: str,
    tenant_id: str,
    tmp_path: Path,
    lens_of: Any,
    name: str,
    value: str,
) -> None:
    """The same graph, rows, proofs and reports as without it."""
    give(name, value)
    run = uuid.uuid4()
    saver(app_dsn, tenant_id, run)
    readers(app_dsn, tenant_id, run)
    evidence(logins(app_dsn), tenant_id, run, tmp_path)
    lens_of(admin_dsn, tenant_id).prove()


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("default_transaction_read_only", "on", StoreUnavailable, "default_transaction_read_only"),
        ("statement_timeout", "1ms", StoreUnavailable, "statement_timeout"),
        ("row_security", "off", SchemaNotReady, "row_security = off"),
    ],
)
def test_a_setting_that_forbids_is_named_and_nothing_is_stored(
    give: Any,
    app_dsn: str,
    admin_dsn: str,
    tenant_id: str,
    name: str,
    value: str,
    error: type[Exception],
    said: str,
) -> None:
    """Refused before anything is written, in words that say what to reset."""
    give(name, value)
    with (
        PostgresCheckpointer(app_dsn, tenant_id=tenant_id) as store,
        pytest.raises(error, match=said),
    ):
        CheckpointWriter(store).write(uuid.uuid4(), "run_started", {"a": "x" * 1_000_000})
    with psycopg.connect(admin_dsn) as conn:
        conn.execute("SET row_security = on")
        assert conn.execute("SELECT count(*) FROM cuo_runs").fetchone() == (0,)


def test_a_given_pool_has_to_carry_any_text(app_dsn: str, admin_dsn: str, tenant_id: str) -> None:
    """One whose connections speak LATIN1 is refused before the first write."""
    with ConnectionPool(app_dsn, kwargs={"client_encoding": "LATIN1"}, min_size=1) as pool:
        store = PostgresCheckpointer(pool, tenant_id=tenant_id)
        with pytest.raises(SettingInvalid, match="client_encoding"):
            CheckpointWriter(store).write(uuid.uuid4(), "run_started", {})
    with psycopg.connect(admin_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM cuo_runs").fetchone() == (0,)


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("right", ["SUPERUSER", "BYPASSRLS"])
def test_a_role_that_row_security_does_not_bind_is_refused(
    cluster: Any, database: str, admin_dsn: str, tenant_id: str, right: str, colour: str
) -> None:
    """By setup and by every other first call, before anything is read or written."""
    role = f"above_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN {right} IN ROLE cyberos_app")  # type: ignore[arg-type]
    store = PostgresCheckpointer(cluster.dsn(database, role), tenant_id=tenant_id)
    config: Any = {"configurable": {"thread_id": "t"}}

    async def awaited() -> None:
        for call in (store.asetup(), store.aget_tuple(config)):
            with pytest.raises(SchemaNotReady, match="exempt from row security"):
                await call
        with pytest.raises(SchemaNotReady, match="exempt from row security"):
            await graph(store).ainvoke({"seen": []}, config)
        await store.aclose()

    try:
        if colour == "async":
            asyncio.run(awaited())
        else:
            for call in (store.setup, lambda: store.get_tuple(config)):
                with pytest.raises(SchemaNotReady, match="exempt from row security"):
                    call()
            with pytest.raises(SchemaNotReady, match="exempt from row security"):
                graph(store).invoke({"seen": []}, config)
    finally:
        store.close()
        with psycopg.connect(admin_dsn, autocommit=True) as conn:
            assert conn.execute("SELECT count(*) FROM cuo_threads").fetchone() == (0,)
            conn.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]


def test_the_role_is_asked_for_once(app_dsn: str, admin_dsn: str, tenant_id: str) -> None:
    """A call of a store in use is one statement."""
    with ConnectionPool(app_dsn, min_size=1, max_size=1, kwargs={"autocommit": True}) as pool:
        store = PostgresCheckpointer(pool, tenant_id=tenant_id)
        asked: list[str] = []
        execute = psycopg.Cursor.execute

        def counted(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
            asked.append(str(query))
            return execute(cursor, query, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psycopg.Cursor, "execute", counted)
            for _ in range(3):
                store.get_tuple({"configurable": {"thread_id": "t"}})
    assert sum("rolbypassrls" in query for query in asked) == 1
    assert len(asked) == 4
