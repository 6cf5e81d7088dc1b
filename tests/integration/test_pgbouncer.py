"""The store through a real PgBouncer in transaction mode, both tenants on one server connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cuo_checkpoint import PostgresCheckpointer
from cuo_checkpoint.runs import RunReader

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer here: apt-get install pgbouncer"),
]


class State(TypedDict, total=False):
    text: str


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running PgBouncer that has one server connection to give."""

    dsn: str
    admin: str

    def servers(self) -> list[int]:
        """Process ids of its server connections."""
        with psycopg.connect(self.admin, autocommit=True) as conn:
            cursor = psycopg.ClientCursor(conn).execute("SHOW SERVERS")
            names = [column.name for column in cursor.description or []]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [int(row["remote_pid"]) for row in rows if row["database"] == "cuo"]


@pytest.fixture
def pooler(shared_place: Any) -> Iterator[Pooler]:
    """In transaction mode with a pool of one, so that every call follows another's."""
    target = {k: str(v) for k, v in conninfo_to_dict(shared_place.app).items() if v is not None}
    with tempfile.TemporaryDirectory(prefix="cuo-pgb-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        account = _account(target.get("host", ""))
        sockets = folder / "s"
        sockets.mkdir()
        if os.getuid() == 0:
            shutil.chown(sockets, account)
            shutil.chown(folder, account)
        spelled = " ".join(
            f"{key}={value}"
            for key, value in target.items()
            if key in ("host", "port", "dbname", "user", "password")
        )
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\ncuo = {spelled}\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_port = 6432\nunix_socket_dir = {sockets}\nauth_type = any\n"
            f"default_pool_size = 1\nmax_client_conn = 200\nadmin_users = cyberos_app\n"
            f"logfile = {folder}/log\npidfile = {folder}/pid\nserver_reset_query =\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        command = [str(PROGRAM), str(config)]
        if os.getuid() == 0:
            command[1:1] = ["-u", account]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base = {"host": str(sockets), "port": 6432, "user": "cyberos_app"}
            made = Pooler(
                make_conninfo("", **base, dbname="cuo"),
                make_conninfo("", **base, dbname="pgbouncer"),
            )
            _until_it_answers(made.admin, process, folder / "log")
            yield made
        finally:
            process.terminate()
            process.wait(10)


def _account(host: str) -> str:
    """Who may reach the server's socket; PgBouncer refuses to run as root."""
    if host.startswith("/"):
        owner = os.stat(host).st_uid
        if owner:
            return pwd.getpwuid(owner).pw_name
    return "nobody"


def _until_it_answers(admin: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(admin, autocommit=True).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"pgbouncer did not start: {log.read_text() if log.exists() else 'no log'}")


def graph(store: PostgresCheckpointer) -> Any:
    made = StateGraph(State)
    made.add_node("a", lambda s: {"text": s["text"] + "a"})
    made.add_node("b", lambda s: {"text": s["text"] + "b"})
    made.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return made.compile(checkpointer=store)


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


# psycopg prepares from the first call on (0), from the fifth (5, its default), or never (None).
@pytest.mark.parametrize("prepare_threshold", [None, 0, 5])
def test_two_tenants_in_turn_on_one_server_connection(
    pooler: Pooler, shared_place: Any, lens_of: Any, prepare_threshold: int | None
) -> None:
    """Each sees its own thread "t" and nothing of the other's, with prepared statements on or off."""
    tenants = [str(uuid.uuid4()), str(uuid.uuid4())]
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(
                PostgresCheckpointer(
                    pooler.dsn,
                    tenant_id=tenant,
                    connect_args={"prepare_threshold": prepare_threshold},
                )
            )
            for tenant in tenants
        ]
        for turn in range(6):
            for store, mark in zip(stores, "xy", strict=True):
                found = graph(store).invoke(
                    {"text": f"{mark}{turn}"}, config("t"), durability="sync"
                )
                assert found == {"text": f"{mark}{turn}ab"}
        for store, mark in zip(stores, "xy", strict=True):
            assert graph(store).get_state(config("t")).values == {"text": f"{mark}5ab"}
            texts = [t.checkpoint["channel_values"].get("text") for t in store.list(None)]
            assert {text[0] for text in texts if text} == {mark}
    assert len(pooler.servers()) == 1
    for tenant in tenants:
        lens_of(shared_place.admin, tenant).prove()


def test_no_tenant_stays_on_the_server_connection(pooler: Pooler) -> None:
    """Whoever comes next on the same connection without a tenant sees no rows and may add none."""
    with PostgresCheckpointer(pooler.dsn, tenant_id=uuid.uuid4()) as store:
        graph(store).invoke({"text": ""}, config("t"), durability="sync")
        with psycopg.connect(pooler.dsn, autocommit=True, prepare_threshold=None) as conn:
            shown = conn.execute("SELECT current_setting('auth.tenant_id', true)").fetchone()
            assert shown is not None
            assert not shown[0]
            for table in ("cuo_langgraph_checkpoints", "cuo_threads", "cuo_runs"):
                counted = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
                assert counted == (0,)
    assert len(pooler.servers()) == 1


def test_many_awaiting_callers_share_it(pooler: Pooler, shared_place: Any, lens_of: Any) -> None:
    """32 runs of two tenants at once on one event loop, through a pool of one."""
    tenants = [str(uuid.uuid4()), str(uuid.uuid4())]

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            stores = [
                await stack.enter_async_context(
                    PostgresCheckpointer(pooler.dsn, tenant_id=tenant, max_connections=16)
                )
                for tenant in tenants
            ]
            results = await asyncio.gather(
                *(
                    graph(stores[i % 2]).ainvoke(
                        {"text": f"{i} "}, config(f"t{i}"), durability="sync"
                    )
                    for i in range(32)
                )
            )
            assert [r["text"] for r in results] == [f"{i} ab" for i in range(32)]
            for n, store in enumerate(stores):
                seen = {t.config["configurable"]["thread_id"] async for t in store.alist(None)}
                assert seen == {f"t{i}" for i in range(n, 32, 2)}

    asyncio.run(run())
    assert len(pooler.servers()) == 1
    for tenant in tenants:
        lens_of(shared_place.admin, tenant).prove()


def test_the_reader_works_through_it(pooler: Pooler) -> None:
    """What people read through SQLAlchemy sets its tenant per transaction, too."""
    ours, other = uuid.uuid4(), uuid.uuid4()
    with PostgresCheckpointer(pooler.dsn, tenant_id=ours) as store:
        graph(store).invoke({"text": ""}, config("t"), durability="sync")
    with (
        RunReader(pooler.dsn, tenant_id=ours) as mine,
        RunReader(pooler.dsn, tenant_id=other) as theirs,
    ):
        for _ in range(3):
            assert len(mine.list_runs().runs) == 1
            assert theirs.list_runs().runs == []


def test_a_server_connection_lost_behind_it_is_replaced(
    pooler: Pooler, shared_place: Any, lens_of: Any
) -> None:
    """The backend behind the pooler is terminated between calls; the next calls go on."""
    tenant = str(uuid.uuid4())
    with PostgresCheckpointer(pooler.dsn, tenant_id=tenant) as store:
        for turn in range(4):
            graph(store).invoke({"text": str(turn)}, config("t"), durability="sync")
            with psycopg.connect(shared_place.admin, autocommit=True) as conn:
                for pid in pooler.servers():
                    conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
        assert graph(store).get_state(config("t")).values == {"text": "3ab"}
    lens_of(shared_place.admin, tenant).prove()
