"""Server restarts, idle time-outs, cancelled calls: the store goes on, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from cuo_checkpoint import PostgresCheckpointer, migrate
from cuo_checkpoint.errors import StoreUnavailable
from cuo_checkpoint.local import LocalServer

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def checkpoint(n: int) -> Any:
    made = empty_checkpoint()
    made["channel_values"], made["channel_versions"] = {"n": n}, {"n": n + 1}
    return made


@pytest.fixture
def own_server() -> Iterator[LocalServer]:
    """A server this test may stop and start."""
    with tempfile.TemporaryDirectory(prefix="cuo-restart-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        bin_dir = DEBIAN_15 if os.environ.get("CUO_TEST_PG") == "15" else None
        with LocalServer(folder / "data", bin_dir=bin_dir) as server:
            migrate.upgrade(server.owner_dsn)
            yield server


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarting_server_loses_nothing_acknowledged(
    own_server: LocalServer, lens_of: Callable[..., Any], mode: str
) -> None:
    """Writers go on through a restart (and a crash, "immediate") on the same stores, in both colours.

    A call may say that the store is unavailable; what returned is there, once, in order.
    """
    tenant = str(uuid.uuid4())
    stop = threading.Event()
    kept: dict[str, list[int]] = {"sync": [], "async": []}
    refused: list[BaseException] = []

    def blocking() -> None:
        with PostgresCheckpointer(own_server.app_dsn, tenant_id=tenant) as store:
            n = 0
            while not stop.is_set() or len(kept["sync"]) < 5:
                n += 1
                try:
                    store.put(config("sync"), checkpoint(n), {"source": "loop", "step": n}, {})
                    kept["sync"].append(n)
                except StoreUnavailable as error:
                    refused.append(error)

    async def awaiting() -> None:
        async with PostgresCheckpointer(own_server.app_dsn, tenant_id=tenant) as store:
            n = 0
            while not stop.is_set() or len(kept["async"]) < 5:
                n += 1
                try:
                    await store.aput(
                        config("async"), checkpoint(n), {"source": "loop", "step": n}, {}
                    )
                    kept["async"].append(n)
                except StoreUnavailable as error:
                    refused.append(error)

    workers = [
        threading.Thread(target=blocking),
        threading.Thread(target=lambda: asyncio.run(awaiting())),
    ]
    for worker in workers:
        worker.start()
    engine, pgdata = own_server._server.engine, own_server._server.pgdata
    for _ in range(2):
        time.sleep(1.0)
        before = {name: len(values) for name, values in kept.items()}
        done = engine.run(
            "pg_ctl", "restart", "-D", str(pgdata), "-m", mode, "-w", "-l", "/dev/null", timeout=60
        )
        assert done.returncode == 0, done.stdout
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(len(kept[k]) == n for k, n in before.items()):
            time.sleep(0.05)
        assert all(len(kept[name]) > n for name, n in before.items()), "the store did not go on"
    stop.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    lens = lens_of(own_server.dsn("postgres"), tenant)
    for name, values in kept.items():
        stored = [row["step"] for row in lens.rows(name)]
        assert len(set(stored)) == len(stored)
        assert set(values) <= set(stored)
        assert stored == sorted(stored)
    lens.prove()


def test_idle_connections_may_be_closed_by_the_server(
    app_dsn: str, admin_dsn: str, database: str, tenant_id: str, drive: Callable[..., Any]
) -> None:
    """idle_session_timeout ends every pooled connection; the next call opens another."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute(
            f"ALTER ROLE cyberos_app IN DATABASE {database} SET idle_session_timeout = 200"
        )
    with PostgresCheckpointer(app_dsn, tenant_id=tenant_id, max_connections=3) as store:
        for n in range(3):
            drive(store, "put", config("t"), checkpoint(n), {"source": "loop", "step": n}, {})
            assert store.get_tuple(config("t")) is not None
            time.sleep(0.5)
        assert len(list(store.list(config("t")))) == 3


async def test_a_cancelled_call_leaves_nothing_behind(
    shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """Cancelled while it waits for the thread's lock: no row, and the connection serves on."""
    async with PostgresCheckpointer(
        shared_place.app, tenant_id=tenant_id, max_connections=1
    ) as store:
        await store.aput(config("t"), checkpoint(0), {"source": "loop", "step": 0}, {})
        before = len(lens.rows())
        with psycopg.connect(shared_place.admin) as holder:
            holder.execute("SELECT FROM cuo_threads WHERE tenant_id = %s FOR UPDATE", (tenant_id,))
            for call in (
                store.aput(config("t"), checkpoint(1), {"source": "loop", "step": 1}, {}),
                store.adelete_thread("t"),
                store.acopy_thread("t", "t"),
            ):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(call, 0.5)
        assert len(lens.rows()) == before
        found = await store.aget_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 0}
        async with (await store._async.pool()).connection() as conn:
            shown = await (
                await conn.execute("SELECT current_setting('auth.tenant_id', true)")
            ).fetchone()
        assert shown in ((None,), ("",))
        await store.aput(config("t"), checkpoint(2), {"source": "loop", "step": 2}, {})
    assert [row["step"] for row in lens.rows()] == [0, 2]
