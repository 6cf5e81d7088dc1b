"""Dropping a month of many rows while others write: how long anybody waits.

    scripts/bench retention [--runs 800] [--rows 50] [--writers 8]

The month is of 2018 and filled with copies of one run (see bulk_runs.py); writers append rows of 2 kB
to runs of their own all the time. What matters is their slowest write, before and during the drop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
from bulk_runs import copy_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "doubles"))

from aged_log import MARCH, NOW, utc
from database_clock import DatabaseClock

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, retention
from cuo_checkpoint.local import DATABASE, LocalServer
from cuo_checkpoint.migrate import upgrade

_STATE = {"text": "x" * 2000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=800)
    parser.add_argument("--rows", type=int, default=50, help="log rows a run")
    parser.add_argument("--writers", type=int, default=8)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cuo-retention-"))
    folder.chmod(0o711)  # as root, the server runs under an account of its own
    server = LocalServer(folder / "pg")
    try:
        with server:
            measure(server, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(server: LocalServer, asked: argparse.Namespace) -> None:
    upgrade(server.owner_dsn)
    admin = server.dsn("postgres", DATABASE)
    clock = DatabaseClock(admin)
    clock.months(utc(2018, 3, 1), utc(2018, 3, 2))
    clock.months(utc(2025, 10, 1), NOW)
    clock.set(MARCH)
    tenant, run = uuid.uuid4(), uuid.uuid4()
    with store(server, tenant) as opened:
        for _ in range(asked.rows):
            CheckpointWriter(opened).write(
                run, "node_entered", {"n": 1}, node_name="n", thread_id="thread-of-the-pattern"
            )
    given = (admin, tenant, run, asked.runs - 1)
    loader = multiprocessing.get_context("spawn").Process(target=copy_run, args=given)
    loader.start()
    loader.join()
    clock.set(NOW)
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE")
    stop, laps = threading.Event(), [[] for _ in range(asked.writers)]  # type: ignore[var-annotated]
    writers = [
        threading.Thread(target=write, args=(server, stop, lap), daemon=True) for lap in laps
    ]
    for writer in writers:
        writer.start()
    time.sleep(5)
    began = time.perf_counter()
    done = retention.drop(server.archiver_dsn)
    ended = time.perf_counter()
    time.sleep(1)
    stop.set()
    for writer in writers:
        writer.join()
    every = [one for lap in laps for one in lap]
    before = max(took for at, took in every if at < began)
    during = max(took for at, took in every if began - 1 < at < ended + 0.5)
    month = done.months[0]
    rows = sum(month.rows.values())
    print(f"{month.month}: {rows:,} rows, {month.size / 1e6:,.0f} MB, {month.status}")
    print(f"whole call {ended - began:.1f} s; log locked {month.locked_ms} ms at try {month.tries}")
    print(f"slowest write before {before * 1000:.0f} ms, meanwhile {during * 1000:.0f} ms")
    print(f"{len(every):,} writes by {asked.writers} writers, none failed")


def store(server: LocalServer, tenant: uuid.UUID) -> PostgresCheckpointer:
    return PostgresCheckpointer(server.app_dsn, tenant_id=str(tenant), max_connections=1)


def write(server: LocalServer, stop: threading.Event, laps: list[Any]) -> None:
    """Appends until told to stop; notes when each write began and how long it took."""
    with store(server, uuid.uuid4()) as opened:
        writer, run = CheckpointWriter(opened), uuid.uuid4()
        while not stop.is_set():
            began = time.perf_counter()
            writer.write(run, "node_entered", _STATE, node_name="n")
            laps.append((began, time.perf_counter() - began))


if __name__ == "__main__":
    sys.exit(main())
