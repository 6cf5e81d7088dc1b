"""The HTTP service in figures: requests a second, a long stream's memory, start-up, page weight.

    scripts/bench http [--rows N] [--seconds S]

Runs `cyberos-cuo serve` in local mode, in a data folder of its own that is removed at the end, so
that database, service and client share this machine. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg

CUO = [sys.executable, "-c", "from cuo_supervisor.cli.main import main; main()"]
LOCAL_TENANT = "6c6f6361-6c00-8000-8000-000000000001"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the streamed run")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder:
        Path(folder).chmod(0o711)
        data = Path(folder) / "data"
        env = {**os.environ, "CUO_DATA_DIR": str(data)}
        from cuo_checkpoint.local import local_database

        with local_database(data_dir=data) as database:
            short = fill(database.app_dsn, 50, 2000)
            filled = time.monotonic()
            long = fill(database.app_dsn, options.rows, 200)
            filled = time.monotonic() - filled
            with serving(env) as (url, pid, started):
                print(
                    json.dumps(
                        measure(url, pid, short, long, options)
                        | {"start_s": round(started, 2), "fill_s": round(filled, 1)},
                        indent=2,
                    )
                )


def measure(url: str, pid: int, short: uuid.UUID, long: uuid.UUID, options: Any) -> dict[str, Any]:
    """All figures of a service that runs."""
    time.sleep(8)  # the model client has loaded by then; it is not what is measured
    path = f"{url}/v1/cuo/runs/{short}/checkpoints"
    tag = httpx.get(path).headers["etag"]
    route = httpx.post(
        f"{url}/v1/cuo/supervisor/route", json={"query": "send invoice"}, timeout=60
    ).json()["request_id"]
    found: dict[str, Any] = {
        "checkpoints_50_rows_2kB": {
            f"{clients}_clients": load(path, clients, options.seconds) for clients in (1, 16)
        },
        "checkpoints_304": load(path, 1, options.seconds / 2, {"If-None-Match": tag}),
        "bytes": len(httpx.get(path).content),
        "stream": stream(f"{url}/v1/cuo/runs/{long}/checkpoints", pid),
        "pages": {},
    }
    for name, page in (
        ("style", re.search(r"/assets/\w+\.css", httpx.get(f"{url}/runs").text)[0]),  # type: ignore[index]
        ("runs", "/runs"),
        ("run", f"/runs/{route}"),
        ("run_50_rows", f"/runs/{short}"),
    ):
        best = min(timed(url + page) for _ in range(5))
        found["pages"][name] = {
            "bytes": len(httpx.get(url + page, timeout=60).content),
            "ms": round(best * 1000, 1),
        }
    return found


def load(url: str, clients: int, seconds: float, headers: Any = None) -> dict[str, float]:
    """As many requests as `clients` connections get done."""
    times: list[float] = []
    until = time.monotonic() + seconds

    def work() -> None:
        with httpx.Client(headers=headers, timeout=60) as client:
            while time.monotonic() < until:
                began = time.monotonic()
                answer = client.get(url)
                assert answer.status_code in (200, 304), answer.text
                times.append(time.monotonic() - began)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    return {
        "per_s": round(len(times) / seconds, 1),
        "p50_ms": round(times[len(times) // 2] * 1000, 1),
        "p95_ms": round(times[int(len(times) * 0.95)] * 1000, 1),
    }


def stream(url: str, pid: int) -> dict[str, Any]:
    """One whole run as NDJSON: the service's resident memory before and at its highest during."""
    before = resident(pid)
    highest, rows, size = before, 0, 0
    began = time.monotonic()
    with httpx.stream(
        "GET", url, headers={"Accept": "application/x-ndjson"}, timeout=120
    ) as answer:
        for chunk in answer.iter_bytes(1 << 18):
            rows += chunk.count(b"\n")
            size += len(chunk)
            highest = max(highest, resident(pid))
    took = time.monotonic() - began
    return {
        "rows": rows,
        "bytes": size,
        "seconds": round(took, 1),
        "rows_per_s": round(rows / took),
        "rss_before_MB": round(before / 1e6, 1),
        "rss_highest_MB": round(highest / 1e6, 1),
    }


def timed(url: str) -> float:
    """Seconds of one request."""
    began = time.monotonic()
    httpx.get(url, timeout=60).raise_for_status()
    return time.monotonic() - began


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(dsn: str, rows: int, size: int) -> uuid.UUID:
    """A run of that many rows with states of about `size` bytes, inserted 250 at a time.

    As the application role and past the writer, but not past the database, which numbers, digests
    and chains each row.
    """
    from cuo_checkpoint.canonical import canonical_bytes
    from cuo_checkpoint.ids import new_id

    run_id, parent = uuid.uuid4(), None
    with psycopg.connect(dsn) as conn:
        for start in range(0, rows, 250):
            batch: list[Any] = []
            for number in range(start, min(start + 250, rows)):
                state = {"n": number, "text": "đ" * (size // 2)}
                kind, node = (
                    ("node_entered", f"node {number % 5}") if number else ("run_started", None)
                )
                text = canonical_bytes(state)
                digest = hashlib.sha256(text).digest()
                row = new_id()
                batch.append(
                    (
                        LOCAL_TENANT,
                        row,
                        run_id,
                        parent,
                        kind,
                        node,
                        text.decode(),
                        digest,
                        str(run_id),
                    )
                )
                parent = parent or row
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [LOCAL_TENANT])
            values = ",".join(["(%s,%s,%s,%s,%s,%s,%s,%s,%s,repeat('0',32))"] * len(batch))
            conn.execute(
                "INSERT INTO cuo_langgraph_checkpoints (tenant_id, checkpoint_id, run_id,"
                " parent_checkpoint_id, kind, node_name, state_json, state_sha256, thread_id, trace_id)"
                f" VALUES {values}",
                [value for row in batch for value in row],
            )
            conn.commit()
    return run_id


@contextlib.contextmanager
def serving(env: dict[str, str]) -> Iterator[tuple[str, int, float]]:
    """A running service: address, process id, seconds until it listened."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*CUO, "serve", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        said = json.loads(line)
        if said["event"] == "service.listening":
            url = said["address"]
            break
    started = time.monotonic() - began
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield url, process.pid, started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
