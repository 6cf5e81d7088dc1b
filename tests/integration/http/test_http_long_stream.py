"""Long runs as one answer: what they cost in memory and in pages read; readers that stall."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from sqlalchemy.dialects import postgresql

from cuo_checkpoint import CheckpointWriter, event_pages, run_queries
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.sessions import reading

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


@pytest.mark.parametrize("shared", [False, True])
def test_reading_a_run_touches_each_row_once(
    database: str, cluster: Any, make_store: Callable[..., Any], tenant_id: str, shared: bool
) -> None:
    """n rows never cost n times n; rows with states of their own not even in a month without
    statistics, which is what a new one is until the server has looked at it."""
    app = cluster.dsn(database, "cyberos_app")
    run_id = grown_run(make_store(app), cluster.dsn(database), 500, shared=shared)
    if shared:
        with psycopg.connect(cluster.dsn(database), autocommit=True) as admin:
            admin.execute("ANALYZE cuo_langgraph_checkpoints")
    reader = RunReader(app, tenant_id=uuid.UUID(tenant_id), connections=1)
    try:
        with reading(reader.engine, reader.tenant_id) as conn:
            index = event_pages._index(conn, reader.tenant_id, run_id)
            since, until = run_queries.span(index)
            given = {"since": since, "until": until, "size": 10_000}
            given |= {"tenant": reader.tenant_id, "run": run_id}
            text = str(
                run_queries.encoded_rows(0, False)
                .params(given)
                .compile(
                    dialect=postgresql.psycopg.dialect(),  # type: ignore[attr-defined]
                    compile_kwargs={"literal_binds": True},
                )
            )
            plan = conn.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {text}"
            ).scalar_one()[0]["Plan"]
    finally:
        reader.close()
    assert plan["Actual Rows"] == 500
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 5 * 500


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
