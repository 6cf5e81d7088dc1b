"""Sealing, verifying and exporting a log of many runs: rows a second, memory, sizes.

    scripts/bench evidence [--runs 2000] [--rows 50] [--only seal,verify] [--window 20]

`--only` leaves out what takes long at a million rows; `--copies` fills a log in minutes (see
bulk_runs.py); `--window` also measures, with writers at work and a sealer called again and again, how
much is not sealed yet at each moment.

Fills a database of its own with runs of single rows by the store's own functions in bulk, so that
chains, digests and indexes are the real ones. Everything is measured once, warm, on this machine;
figures of another size are for you to measure, not to extrapolate by more than linearly.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import multiprocessing
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
from bulk_runs import copy_run
from sqlalchemy import func, select

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive, keys, seal_queries
from cuo_checkpoint.export import export_month
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.local import DATABASE, LocalServer
from cuo_checkpoint.migrate import upgrade
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant
from cuo_checkpoint.sessions import open_engine, reading

_STATE = json.dumps({"text": "x" * 200}, separators=(",", ":"))
_FILL = """
INSERT INTO cuo_langgraph_checkpoints (checkpoint_id, tenant_id, run_id, kind, state_json, trace_id,
                                       thread_id, node_name, state_sha256)
SELECT gen_random_uuid(), %(tenant)s, %(run)s, 'node_entered', (%(state)s::text)::jsonb, repeat('0', 32),
       %(thread)s, 'n', sha256(convert_to(%(state)s::text, 'UTF8'))
FROM generate_series(1, %(rows)s)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=50, help="log rows a run")
    parser.add_argument("--copies", action="store_true", help="fill fast, with copies of one run")
    parser.add_argument("--only", default="seal,verify,export", help="what to measure")
    parser.add_argument("--seconds", type=float, default=1e9, help="verify for so long at most")
    parser.add_argument("--window", type=float, default=0, help="seconds to watch the window")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cuo-evidence-"))
    folder.chmod(0o711)  # as root, the server runs under an account of its own
    server = LocalServer(folder / "pg", settings={"fsync": "off"})
    try:
        with server:
            measure(server, folder, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(server: Any, folder: Path, asked: argparse.Namespace) -> None:
    runs, rows = asked.runs, asked.rows
    owner, app, auditor = server.owner_dsn, server.app_dsn, server.auditor_dsn
    upgrade(owner)
    tenant = uuid.uuid4()
    state = json.dumps(json.loads(_STATE), separators=(",", ":"))
    started = time.perf_counter()
    first = uuid.uuid4()
    with psycopg.connect(app) as conn:
        for number in range(1 if asked.copies else runs):
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [str(tenant)])
            given = {"tenant": tenant, "run": uuid.uuid4() if number else first, "state": state}
            conn.execute(_FILL, given | {"rows": rows, "thread": f"thread-{number}"})
            conn.commit()
    if asked.copies:
        # In a process of its own, or its memory would count as ours.
        given = (server.dsn("postgres", DATABASE), tenant, first, runs - 1)
        loader = multiprocessing.get_context("spawn").Process(target=copy_run, args=given)
        loader.start()
        loader.join()
    chain = runs * (rows + 1)
    told("filled", chain, time.perf_counter() - started)
    with psycopg.connect(owner, autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE")
    (folder / "heads").mkdir()
    ring, heads = KeyRing((keys.generate("bench"),)), HeadFolder(folder / "heads")
    with Sealer(auditor, ring=ring, folder=heads) as sealer:
        timed("seal, first", chain, lambda: sealer.seal(tenant))
        timed("seal, nothing new", chain, lambda: sealer.seal(tenant))
    with psycopg.connect(app) as conn:
        conn.execute("SELECT set_config('auth.tenant_id', %s, false)", [str(tenant)])
        given = {"tenant": tenant, "run": uuid.uuid4(), "state": state, "rows": rows}
        conn.execute(_FILL, given | {"thread": "late"})
    with Sealer(auditor, ring=ring, folder=heads) as sealer:
        timed("seal, one run more", rows + 1, lambda: sealer.seal(tenant))
    timed(
        "check heads (leaves)",
        runs + 1,
        lambda: check_tenant(auditor, tenant, keys=ring.believed, folder=heads),
    )
    if asked.window:
        window(server, tenant, ring, heads, asked.window)
    if "verify" in asked.only:
        verified(auditor, tenant, rows + 1, asked.seconds)
    if "export" not in asked.only:
        return
    out = folder / "bundle"
    with psycopg.connect(auditor) as conn:
        (now,) = conn.execute("SELECT now()").fetchone() or (None,)
    report = timed(
        "export a month", chain, lambda: export_month(auditor, tenant, Month.of(now), out)
    )
    for path in sorted(out.iterdir()):
        print(f"    {path.name:16} {path.stat().st_size:>12,} bytes")
    print(f"    {'together':16} {report.size:>12,} bytes, {report.size / chain:,.0f} a chain row")
    key = folder / "trusted.keys"
    key.write_text("".join(f"{one}\n" for one in ring.believed))
    command = [sys.executable, "-I", "-S", str(out / "verify.py"), str(out), "--key", str(key)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    told("verify.py, all of it", chain, time.perf_counter() - started, used)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"    peak memory of child processes {peak:,.0f} MB, of this one {_peak():,.0f} MB")


class _Enough(Exception):
    """Time is up."""


def verified(auditor: str, tenant: uuid.UUID, rows: int, seconds: float) -> None:
    """Verifies for so long at most; how fast in each fifth of it shows whether time grows linearly."""
    laps: list[tuple[float, int]] = []
    started, used = time.perf_counter(), time.process_time()

    def tell(done: int, total: int) -> None:
        laps.append((time.perf_counter() - started, done))
        if laps[-1][0] > seconds:
            raise _Enough

    try:
        found = archive.verify(auditor, tenant_id=tenant, progress=tell)
        if not found.ok:
            raise SystemExit(f"the log does not verify: {found.broken[:1]} {found.strays}")
    except _Enough:
        print(f"    (stopped after {seconds:.0f} s)")
    spent, done = laps[-1]
    told("verify chains and rows", done * rows, spent, time.process_time() - used)
    first = laps[0][0]
    marks = [first + (spent - first) * n / 5 for n in range(6)]
    counts = [max(count for at, count in laps if at <= mark) for mark in marks]
    speeds = [f"{(b - a) * rows * 5 / (spent - first):,.0f}" for a, b in itertools.pairwise(counts)]
    print(f"    first run after {first:.1f} s; then rows/s by fifths: {', '.join(speeds)}")


def window(
    server: Any, tenant: uuid.UUID, ring: KeyRing, heads: HeadFolder, seconds: float
) -> None:
    """Four writers, a sealer called every two seconds: what no head covered, looked at all the time."""
    stop, written = threading.Event(), [0] * 4

    def write(number: int) -> None:
        with PostgresCheckpointer(
            server.app_dsn, tenant_id=str(tenant), max_connections=1
        ) as store:
            writer = CheckpointWriter(store)
            while not stop.is_set():
                run = uuid.uuid4()
                for _ in range(5):
                    writer.write(run, "node_entered", {"n": 1}, node_name="n")
                    written[number] += 1

    def seal() -> None:
        with Sealer(server.auditor_dsn, ring=ring, folder=heads) as sealer:
            while not stop.wait(2):
                sealer.seal(tenant)

    workers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    workers.append(threading.Thread(target=seal))
    for worker in workers:
        worker.start()
    started, most, oldest = time.perf_counter(), 0, 0.0
    engine = open_engine(server.auditor_dsn, schema="public", connections=1)
    while time.perf_counter() - started < seconds:
        with reading(engine, tenant) as conn:
            gap = conn.execute(seal_queries.unsealed(tenant)).one()
            now = conn.execute(select(func.now())).scalar_one()
        if gap.since is not None:
            since = dt.datetime.fromisoformat(gap.since + ":00")
            most, oldest = max(most, gap.rows), max(oldest, (now - since).total_seconds())
        time.sleep(0.2)
    stop.set()
    for worker in workers:
        worker.join()
    engine.dispose()
    rate = sum(written) / (time.perf_counter() - started)
    print(
        f"window: {rate:,.0f} rows/s written, sealed every 2 s; at most {most:,} rows unsealed, the "
        f"oldest for {oldest:.1f} s"
    )


def timed(name: str, rows: int, call: Any) -> Any:
    started, used = time.perf_counter(), time.process_time()
    result = call()
    told(name, rows, time.perf_counter() - started, time.process_time() - used)
    return result


def told(name: str, rows: int, seconds: float, used: float | None = None) -> None:
    """One line; `used` is this process's share of a processor, without the server's."""
    own = "" if used is None else f" (own {used:.2f} s)"
    rate = f"{rows / seconds:>10,.0f} rows/s"
    print(f"{name:24} {rows:>9,} rows {seconds:8.2f} s {rate} {_peak():6,.0f} MB{own}")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
