"""Long runs as one answer: what they cost in memory and in pages read; readers that stall."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, event_pages
from cuo_checkpoint.runs import RunReader
from cuo_supervisor.compose import Place
from cuo_supervisor.http import Options
from cuo_supervisor.http.service import Service
from cuo_supervisor.identity import LOCAL_IDENTITY

NDJSON = {"Accept": "application/x-ndjson"}
SERVER = Path(__file__).parents[2] / "doubles" / "stream_server.py"
COLUMNS = (
    "SELECT attname FROM pg_attribute WHERE attrelid = 'cuo_langgraph_checkpoints'::regclass"
    " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


def grown_run(
    store: Any, admin: str, rows: int, size: int = 2000, *, shared: bool = False
) -> uuid.UUID:
    """A run of one real row, copied by a superuser past all triggers: fast, and only for reading.

    Three rows stand for a superstep; `shared`, the first one holds the state of the other two.
    """
    run_id = uuid.uuid4()
    CheckpointWriter(store).write(run_id, "run_started", {"text": "đ" * (size // 2)})
    with psycopg.connect(admin) as conn:
        conn.execute("SET session_replication_role = replica")
        key = f"md5('{run_id}' || {{}})::uuid"
        other = {
            "checkpoint_id": key.format("n"),
            "seq": "seq + n",
            "kind": "'node_entered'",
            "node_name": "'node'",
            "parent_checkpoint_id": "checkpoint_id",
            "created_at": "created_at + n / 3 * interval '1 microsecond'",
        }
        if shared:
            holder = f"jsonb_build_object('$state_of', {key.format('(n - mod(n, 3))')})"
            other["state_json"] = f"CASE WHEN mod(n, 3) = 0 THEN state_json ELSE {holder} END"
        names = [name for (name,) in conn.execute(COLUMNS)]
        conn.execute(
            f"INSERT INTO cuo_langgraph_checkpoints ({','.join(names)})"  # type: ignore[arg-type]
            f" SELECT {','.join(other.get(name, name) for name in names)}"
            " FROM cuo_langgraph_checkpoints, generate_series(3, %s) n WHERE run_id = %s",
            [rows + 1, run_id],
        )
        conn.execute(
            "UPDATE cuo_runs SET log_rows = %s, newest_at = newest_at + interval '1 second'"
            " WHERE run_id = %s",
            [rows, run_id],
        )
    return run_id


@contextlib.contextmanager
def server_alone(settings: Any) -> Iterator[tuple[str, int]]:
    """The service in a process of its own: its address and process id."""
    given = settings.model_dump(include={"jwks", "jwt_issuer", "jwt_audience", "data_dir"})
    given |= {"database_url": settings.database_url.get_secret_value()}
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(given, default=str), file=process.stdin, flush=True)
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.stdin.close()
            process.wait(30)


def highest(pid: int) -> float:
    """The most MB of memory the process ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def lines_of(client: httpx.Client, run_id: uuid.UUID) -> int:
    """How many rows the stream has, read without keeping them."""
    with client.stream("GET", f"/v1/cuo/runs/{run_id}/checkpoints", headers=NDJSON) as answer:
        assert answer.status_code == 200
        return sum(chunk.count(b"\n") for chunk in answer.iter_bytes(1 << 16))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_streams_memory_does_not_grow_with_the_run(
    store: Any,
    shared_place: Any,
    settings_for: Callable[[str], Any],
    tenant_id: str,
    token: Any,
) -> None:
    """10,000 rows (27 MB) take what 1,000 take, also when the reader stops reading."""
    few = grown_run(store, shared_place.admin, 1_000)
    many = grown_run(store, shared_place.admin, 10_000)
    headers = {"Authorization": f"Bearer {token(tenant_id)}"}
    with server_alone(settings_for(shared_place.app)) as (url, pid):
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            until = time.monotonic() + 30
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/healthz").status_code == 200:
                        break
                assert time.monotonic() < until
            assert [lines_of(client, few) for _ in range(2)] == [1_000, 1_000]
            before = highest(pid)
            assert lines_of(client, many) == 10_000
            assert highest(pid) - before < 8
        where = urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port or 0)) as conn:
            conn.sendall(
                f"GET /v1/cuo/runs/{many}/checkpoints HTTP/1.1\r\nHost: x\r\n"
                f"Accept: {NDJSON['Accept']}\r\nAuthorization: {headers['Authorization']}\r\n\r\n".encode()
            )
            assert conn.recv(100).startswith(b"HTTP/1.1 200")
            time.sleep(2)  # the whole run would have been read by now
            assert highest(pid) - before < 8


PAGES = """
    SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
               + coalesce(toast_blks_read + toast_blks_hit, 0)
               + coalesce(tidx_blks_read + tidx_blks_hit, 0))::bigint
    FROM pg_statio_user_tables WHERE relname LIKE 'cuo_langgraph_checkpoints%'
"""


def streamed(reader: RunReader, run_id: uuid.UUID, **more: Any) -> list[bytes]:
    chunks = event_pages.stream_rows(reader.engine, reader.tenant_id, run_id, after={}, **more)
    return [row for chunk in chunks for row in chunk.rows]


def paged(reader: RunReader, run_id: uuid.UUID) -> list[bytes]:
    """In pages that begin between a state's holder and those that share it."""
    after: dict[str, int] = {}
    found: list[bytes] = []
    while True:
        page = event_pages.read_page(
            reader.engine, reader.tenant_id, run_id, after=after, limit=50, max_bytes=10**7
        )
        assert page is not None
        found += page.rows
        if page.next is None:
            return found
        after = event_pages.parse_cursor(page.next)


def filtered(reader: RunReader, run_id: uuid.UUID) -> list[bytes]:
    """Without the first row, whose state others would be shown with."""
    return streamed(reader, run_id, kinds=["node_entered"])


def recorded(reader: RunReader, run_id: uuid.UUID) -> list[Any]:
    return reader.events(run_id, with_state=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", [streamed, paged, filtered, recorded])
def test_reading_a_run_touches_each_row_once(
    database: str,
    cluster: Any,
    make_store: Callable[..., Any],
    tenant_id: str,
    shared: bool,
    way: Callable[[RunReader, uuid.UUID], list[Any]],
) -> None:
    """n rows never cost n times n, not even in a month without statistics, which is what a new one
    is until the server has looked at it; and every row has its state."""
    app, admin = cluster.dsn(database, "cyberos_app"), cluster.dsn(database)
    store = make_store(app)
    run_id = grown_run(store, admin, 500, shared=shared)
    store.close()
    before = pages(admin)
    with RunReader(app, tenant_id=uuid.UUID(tenant_id), connections=1) as reader:
        found = way(reader, run_id)
    after = pages(admin)
    assert len(found) == (499 if way is filtered else 500)
    states = [row.state if way is recorded else json.loads(row)["state_json"] for row in found]
    assert all(set(state) == {"text"} for state in states)
    assert 0 < after - before < 5 * 500


def pages(admin: str) -> int:
    """Pages of the log that sessions have touched, once all have ended: then they have told.

    The superuser's too, whose session wrote the rows and ends after its connection.
    """
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    until = time.monotonic() + 20
    with psycopg.connect(admin, autocommit=True) as conn:
        while conn.execute(others).fetchone() != (0,):
            assert time.monotonic() < until, "a session of this test goes on"
            time.sleep(0.02)
        found = conn.execute(PAGES).fetchone()
    assert found is not None
    return int(found[0])


def test_a_reader_that_stalls_is_cut_off(
    serve_on: Callable[..., Any], shared_place: Any, store: Any, tenant_id: str, token: Any
) -> None:
    """It gets a broken answer, not one that looks whole, and its place is free for the next."""
    run_id = grown_run(store, shared_place.admin, 4_000, size=4000)
    api = serve_on(shared_place.app, write_seconds=0.3, streams=1)
    where = urlsplit(api.url)
    with socket.socket() as conn:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        conn.connect((where.hostname, where.port))
        conn.settimeout(20)
        conn.sendall(
            f"GET /v1/cuo/runs/{run_id}/checkpoints HTTP/1.1\r\nHost: x\r\n"
            f"Accept: {NDJSON['Accept']}\r\nAuthorization: Bearer {token(tenant_id)}\r\n\r\n".encode()
        )
        assert conn.recv(100).startswith(b"HTTP/1.1 200")
        with api.client(token(tenant_id)) as client:
            until = time.monotonic() + 20
            while (
                found := client.get(f"/v1/cuo/runs/{run_id}/checkpoints", headers=NDJSON)
            ).status_code != 200:
                assert found.json()["error"] == "overloaded"
                assert time.monotonic() < until
                time.sleep(0.05)
        said = b""
        with contextlib.suppress(ConnectionError):
            while chunk := conn.recv(1 << 16):
                said += chunk
    assert not said.endswith(b"0\r\n\r\n")


def test_a_stream_that_is_cut_at_the_end_gives_back_its_connection(
    settings_for: Any, shared_place: Any, store: Any, tenant_id: str
) -> None:
    """Before its threads go: it is no fault of the service that somebody still reads."""
    run_id = grown_run(store, shared_place.admin, 400, size=200)
    place = Place(shared_place.app, "public")
    service = Service(settings_for(shared_place.app), place, Options(shutdown_seconds=0.1))
    who = replace(LOCAL_IDENTITY, tenant_id=tenant_id)

    async def work() -> bool:
        begun = asyncio.Event()

        async def read() -> None:
            async with contextlib.aclosing(service.stream(who, run_id, {}, None)) as rows:
                async for _ in rows:
                    begun.set()
                    await asyncio.Event().wait()

        reading = asyncio.create_task(read())
        await begun.wait()
        await service.aclose()
        return reading.cancelled()

    assert asyncio.run(work())


def test_a_database_that_is_slow_is_not_waited_for(
    serve_on: Callable[..., Any], cluster: Any, database: str, tenant_id: str, token: Any
) -> None:
    """A read that takes too long is 504, and the service answers again afterwards."""
    api = serve_on(cluster.dsn(database, "cyberos_app"), request_seconds=0.5)
    with api.client(token(tenant_id)) as client:
        assert client.get("/v1/cuo/runs").status_code == 200
        with psycopg.connect(cluster.dsn(database)) as conn:
            conn.execute("LOCK TABLE cuo_runs IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            answer = client.get("/v1/cuo/runs")
            assert time.monotonic() - began < 5
        assert (answer.status_code, answer.json()["error"]) == (504, "timeout")
        assert answer.headers["content-type"] == "application/problem+json"
        assert client.get("/v1/cuo/runs").status_code == 200
