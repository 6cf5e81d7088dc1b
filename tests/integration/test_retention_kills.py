"""kill -9 of the archiver or of the whole server while months go: each went whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from aged_log import NOW, AgedLog, utc
from database_clock import DatabaseClock

from cuo_checkpoint import CheckpointWriter, archive, rebuild_index, retention
from cuo_checkpoint.cuts import SYSTEM_TENANT
from cuo_checkpoint.local import DATABASE, LocalServer
from cuo_checkpoint.migrate import upgrade

pytestmark = pytest.mark.slow

PARENTS = ("cuo_langgraph_checkpoints", "cuo_langgraph_writes", "cuo_memory_audit")
OLD = [f"2018-{month:02d}" for month in range(3, 13)] + [
    f"2019-{month:02d}" for month in range(1, 7)
]
DELAYS = (0.0, 0.03, 0.1)
"""Seconds after the first month of a call went: somewhere in the next one."""


class Place:
    """What AgedLog wants of a cluster, on a server of this module's own."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server

    def dsn(self, database: str, role: str = "postgres") -> str:
        return self.server.dsn(role, database)


class Years:
    """A log with sixteen months past keeping and a run in each, and a run that crosses them all."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        upgrade(server.owner_dsn)
        admin = server.dsn("postgres", DATABASE)
        clock = DatabaseClock(admin)
        clock.months(utc(2018, 3, 1), utc(2019, 3, 2))
        clock.months(utc(2025, 10, 1), NOW)
        self.aged, self.tenant = AgedLog(Place(server), DATABASE), str(uuid.uuid4())
        crossing = uuid.uuid4()
        with self.aged.store(self.tenant, max_connections=1) as store:
            writer = CheckpointWriter(store)
            for month in OLD:
                self.aged.at(utc(int(month[:4]), int(month[5:]), 5))
                for run in (crossing, uuid.uuid4()):
                    writer.write(run, "node_entered", {"n": 1}, node_name="n", thread_id=str(run))
                    if run != crossing:
                        writer.write(run, "run_completed", {}, thread_id=str(run))
            self.aged.at(NOW)
            writer.write(crossing, "run_completed", {}, thread_id=str(crossing))

    def left(self) -> list[str]:
        """The old months that are there: the same in all tables, and exactly those nobody told of."""
        with psycopg.connect(self.aged.admin) as conn:
            found = [
                {
                    name[-7:].replace("_", "-")
                    for (name,) in conn.execute(
                        "SELECT inhrelid::regclass::text FROM pg_inherits"
                        " WHERE inhparent = %s::regclass",
                        [parent],
                    ).fetchall()
                }
                for parent in PARENTS
            ]
            told = [
                month
                for (month,) in conn.execute(
                    "SELECT body::jsonb ->> 'month' FROM cuo_memory_audit"
                    " WHERE kind = 'month_dropped' AND body::jsonb ? 'whole'"
                ).fetchall()
            ]
        assert found[0] == found[1] == found[2]
        left = [month for month in OLD if month in found[0]]
        assert sorted(told) == [month for month in OLD if month not in left]
        return left

    def drop_and_die(self, delay: float, *, server_too: bool) -> None:
        """Drops in a process of its own and, after a month, kills it, with every server process."""
        ready, begun = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                retention.drop(self.aged.archiver, progress=lambda month: os.write(begun, b"x"))
            finally:
                os._exit(0)
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(delay)
        if server_too:
            for process in self.processes():
                os.kill(process, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def processes(self) -> list[int]:
        """The postmaster, stopped so that it starts nobody, and its children."""
        place = self.server.data_dir / "pgdata" / "postmaster.pid"
        postmaster = int(place.read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [*map(int, children), postmaster]


@pytest.fixture
def years() -> Iterator[Years]:
    """On a server that syncs, so that what it acknowledged survives it."""
    folder = Path(tempfile.mkdtemp(prefix="cuo-kill-"))
    folder.chmod(0o711)
    server = LocalServer(folder / "pg")
    try:
        with server:
            yield Years(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_killed_with_no_warning(years: Years) -> None:
    """At every moment tried a month is there whole or gone whole and told; the next call goes on."""
    before = years.left()
    assert before == OLD
    tried = 0
    for delay in DELAYS:
        for server_too in (False, True):
            if len(before) < 4:
                break  # a machine that stalled here let the other side get far
            tried += 1
            years.drop_and_die(delay, server_too=server_too)
            # Starts a killed server again, which recovers; joins one that runs.
            with (
                LocalServer(years.server.data_dir),
                psycopg.connect(years.aged.admin, autocommit=True) as conn,
            ):
                while conn.execute(
                    "SELECT FROM pg_stat_activity WHERE usename = 'cyberos_archiver'"
                ).rowcount:  # a server process finishes the statement it is at
                    time.sleep(0.02)
                after = years.left()
            assert 0 < len(after) < len(before), "it was not killed among the months"
            assert after == before[len(before) - len(after) :], "oldest first"
            before = after
    assert tried >= 3
    retention.drop(years.aged.archiver)
    assert years.left() == []
    for tenant in (uuid.UUID(years.tenant), SYSTEM_TENANT):
        report = archive.verify(years.aged.auditor, tenant_id=tenant)
        assert (report.broken, report.strays) == ([], [])
        assert len(report.cut) == (tenant != SYSTEM_TENANT)
    assert rebuild_index.differences(years.aged.archiver) == []
