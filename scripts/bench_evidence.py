"""Sealing, verifying and exporting a log of many runs: rows a second, memory, sizes.

    scripts/bench evidence [--runs 2000] [--rows 50]

Fills a database of its own with runs of single rows by the store's own functions in bulk, so that
chains, digests and indexes are the real ones. Everything is measured once, warm, on this machine;
figures of another size are for you to measure, not to extrapolate by more than linearly.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg

from cuo_checkpoint import archive, keys
from cuo_checkpoint.export import export_month
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.local import LocalServer
from cuo_checkpoint.migrate import upgrade
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant

_STATE = json.dumps({"text": "x" * 200})
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
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cuo-evidence-"))
    folder.chmod(0o711)  # as root, the server runs under an account of its own
    server = LocalServer(folder / "pg", settings={"fsync": "off"})
    try:
        with server:
            measure(server, folder, given.runs, given.rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(server: Any, folder: Path, runs: int, rows: int) -> None:
    owner, app, auditor = server.owner_dsn, server.app_dsn, server.auditor_dsn
    upgrade(owner)
    tenant = uuid.uuid4()
    state = json.dumps(json.loads(_STATE), separators=(",", ":"))
    started = time.perf_counter()
    with psycopg.connect(app) as conn:
        for number in range(runs):
            conn.execute("SELECT set_config('auth.tenant_id', %s, true)", [str(tenant)])
            given = {"tenant": tenant, "run": uuid.uuid4(), "state": state, "rows": rows}
            conn.execute(_FILL, given | {"thread": f"t{number}"})
            conn.commit()
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
    timed("verify chains and rows", chain, lambda: archive.verify(auditor, tenant_id=tenant))
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
