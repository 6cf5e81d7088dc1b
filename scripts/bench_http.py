"""The HTTP service in figures: requests a second, a long stream's memory, start-up, page weight.

    scripts/bench http [--rows N] [--seconds S] [--only requests,stream,pages]

Runs `cyberos-cuo serve` in local mode, in a data folder of its own that is removed at the end, so
that database, service and client share this machine. Prints one JSON document; every figure of it
stands beside the load the machine had. About 2 minutes for filling in 100,000 rows (--rows), 15 s
until the model client has loaded, and 3 times --seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
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
from urllib.parse import urlsplit

import httpx
import psycopg

CUO = [sys.executable, "-c", "from cuo_supervisor.cli.entry import main; main()"]
LOCAL_TENANT = "6c6f6361-6c00-8000-8000-000000000001"
UNCLEAR = "what should we do about the unpaid Q4 contract from ACME"
PARTS = ("requests", "stream", "pages")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the streamed run")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each load")
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    options = parser.parse_args()
    options.parts = options.only.split(",")
    if not set(options.parts) <= set(PARTS):
        parser.error(f"--only takes some of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="cuo-bench-") as folder:
        Path(folder).chmod(0o711)
        data = Path(folder) / "data"
        # No gateway: an unclear request tells whether the model client has loaded, and no more.
        env = {**os.environ, "CUO_DATA_DIR": str(data)}
        env["CYBEROS_AI_GATEWAY_URL"] = "http://127.0.0.1:9"
        from cuo_checkpoint.local import local_database

        with local_database(data_dir=data) as database:
            short = fill(database.app_dsn, 50, 2000)
            began = time.monotonic()
            rows = options.rows if "stream" in options.parts else 0
            long = fill(database.app_dsn, rows, 200)
            filled = time.monotonic() - began
            with psycopg.connect(database.owner_dsn, autocommit=True) as conn:
                conn.execute("ANALYZE")
            with serving(env) as (url, pid, start):
                print(
                    json.dumps(
                        {"cpus": os.cpu_count(), "load_before": os.getloadavg(), "start": start}
                        | measure(url, pid, short, long, options)
                        | {"load_after": os.getloadavg(), "fill_s": round(filled, 1)},
                        indent=2,
                    )
                )


def measure(url: str, pid: int, short: uuid.UUID, long: uuid.UUID, options: Any) -> dict[str, Any]:
    """All figures of a service that runs, once its model client has loaded."""
    found: dict[str, Any] = {"model_client_loaded_s": round(until_loaded(url), 1)}
    path = f"/v1/cuo/runs/{short}/checkpoints"
    if "requests" in options.parts:
        tag = httpx.get(url + path, timeout=60).headers["etag"]
        found["checkpoints_50_rows_2kB"] = {
            "bytes": len(httpx.get(url + path, timeout=60).content),
            **{f"{n}_clients": load(url, path, pid, n, options.seconds) for n in (1, 16)},
        }
        unchanged = {"If-None-Match": tag}
        found["checkpoints_304"] = load(url, path, pid, 1, options.seconds / 2, unchanged)
    if "stream" in options.parts:
        stream(f"{url}{path}", pid)  # what the first stream loads is not what a long one holds
        found["stream"] = stream(f"{url}/v1/cuo/runs/{long}/checkpoints", pid)
    if "pages" in options.parts:
        found["pages"] = pages(url, short)
    return found


def until_loaded(url: str) -> float:
    """Seconds until the service can ask a model. What loads meanwhile would be measured too."""
    began = time.monotonic()
    asked = {"query": UNCLEAR, "record": False}
    while True:
        said = httpx.post(f"{url}/v1/cuo/supervisor/route", json=asked, timeout=60).json()
        if said["cascade_outcome"] != "not_ready":
            time.sleep(1)  # what was left over while loading is given back
            return time.monotonic() - began
        time.sleep(0.5)


def pages(url: str, short: uuid.UUID) -> dict[str, Any]:
    """Weight and time of the pages, and of the style sheet, which a browser fetches once."""
    route = httpx.post(
        f"{url}/v1/cuo/supervisor/route", json={"query": "send invoice"}, timeout=60
    ).json()["request_id"]
    style = re.search(r"/assets/\w+\.css", httpx.get(f"{url}/runs", timeout=60).text)
    assert style is not None
    named = {
        "style": style[0],
        "runs": "/runs",
        "run": f"/runs/{route}",
        "50_rows": f"/runs/{short}",
    }
    found = {}
    for name, page in named.items():
        took = min(timed(url + page) for _ in range(5))
        size = len(httpx.get(url + page, timeout=60).content)
        found[name] = {"bytes": size, "ms": round(took * 1000, 1)}
    return found


def load(
    url: str, path: str, pid: int, clients: int, seconds: float, headers: Any = None
) -> dict[str, float]:
    """As many requests as `clients` connections get done, and what one costs the service.

    By the standard library's client: httpx computes as long for a request as the service does.
    """
    times: list[float] = []
    where = urlsplit(url)

    def work() -> None:
        conn = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        while time.monotonic() < until:
            began = time.monotonic()
            conn.request("GET", path, headers=headers or {})
            answer = conn.getresponse()
            body = answer.read()
            assert answer.status in (200, 304), body
            times.append(time.monotonic() - began)
        conn.close()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    computed, began = spent(pid), time.monotonic()
    until = began + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    times.sort()
    return {
        "requests": len(times),
        "per_s": round(len(times) / took, 1),
        "p50_ms": round(times[len(times) // 2] * 1000, 1),
        "p95_ms": round(times[int(len(times) * 0.95)] * 1000, 1),
        "service_cpu_ms": round((spent(pid) - computed) / len(times) * 1000, 2),
    }


def stream(url: str, pid: int) -> dict[str, Any]:
    """One whole run as NDJSON: the service's resident memory before, and its peak meanwhile."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts again from now
    before = memory(pid, "VmRSS")
    rows, size = 0, 0
    computed, began = spent(pid), time.monotonic()
    with httpx.stream(
        "GET", url, headers={"Accept": "application/x-ndjson"}, timeout=120
    ) as answer:
        for chunk in answer.iter_bytes(1 << 18):
            rows += chunk.count(b"\n")
            size += len(chunk)
    took = time.monotonic() - began
    return {
        "rows": rows,
        "bytes": size,
        "seconds": round(took, 1),
        "rows_per_s": round(rows / took),
        "service_cpu_s": round(spent(pid) - computed, 1),
        "resident_before_MB": before,
        "resident_peak_MB": memory(pid, "VmHWM"),
    }


def timed(url: str) -> float:
    """Seconds of one request."""
    began = time.monotonic()
    httpx.get(url, timeout=60).raise_for_status()
    return time.monotonic() - began


def spent(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int, name: str) -> float:
    """A line of the process's status, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1000, 1) for line in lines if line.startswith(name))


def fill(dsn: str, rows: int, size: int) -> uuid.UUID:
    """A run of that many rows with states of about `size` bytes, inserted 250 at a time.

    As the application role and past the writer, but not past the database, which numbers, digests
    and chains each row.
    """
    from cuo_checkpoint.canonical import canonical_bytes
    from cuo_checkpoint.ids import new_id

    run_id, parent = uuid.uuid4(), None
    if not rows:
        return run_id
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
def serving(env: dict[str, str]) -> Iterator[tuple[str, int, dict[str, float]]]:
    """A running service: address, process id, and what it took until it listened."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*CUO, "serve", "--port", "0", "--json"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said:
        raise SystemExit(f"the service did not start: {process.wait(30)}")
    took = time.monotonic() - began
    start = {"wall_s": round(took, 2), "cpu_s": round(spent(process.pid), 2)}
    try:
        yield json.loads(said)["address"], process.pid, start
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


if __name__ == "__main__":
    main()
