"""Backups brought back behind a signed head: told as what they are, declared, and gone on from.

A PostgreSQL 15 server of this module's own archives its log; what is restored is restored by
PostgreSQL's own programs, as an operator would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive, keys, readiness
from cuo_checkpoint import rebuild_index as index
from cuo_checkpoint._engine import server_account
from cuo_checkpoint.errors import SealRefused
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.local import LocalServer
from cuo_checkpoint.migrate import upgrade
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant
from cuo_checkpoint.seal_findings import FindingKind
from cuo_checkpoint.seal_restore import declare_restore

BIN = Path("/usr/lib/postgresql/15/bin")
RING = KeyRing((keys.generate("test"),))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BIN / "pg_basebackup").exists(), reason="needs PostgreSQL 15's own programs"
    ),
]


class Site:
    """A log with a base backup, an archive of its later WAL, two dumps, and the heads signed."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self.server, self.folder, self.tenant = server, folder, uuid.uuid4()
        (folder / "heads").mkdir()
        self.heads = HeadFolder(folder / "heads")
        upgrade(server.owner_dsn)
        self.kept, self.grown = self.write(server), self.write(server)
        self.seal(server)
        self.program("pg_basebackup", "-D", str(folder / "base"), "-c", "fast", "-X", "none")
        self.dump("old.dump")
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            self.between = str(conn.execute("SELECT clock_timestamp()").fetchall()[0][0])
        self.late = self.write(server)
        self.write(server, self.grown)
        self.seal(server)
        self.dump("new.dump")
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            (walfile,) = conn.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()[0]
            while not (folder / "wal" / walfile).exists():
                conn.execute("SELECT pg_sleep(0.05)")

    def write(self, server: LocalServer, run: uuid.UUID | None = None) -> uuid.UUID:
        run = run or uuid.uuid4()
        with PostgresCheckpointer(
            server.app_dsn, tenant_id=str(self.tenant), max_connections=1
        ) as store:
            for number in range(2):
                CheckpointWriter(store).write(run, "node_entered", {"n": number}, node_name="n")
        return run

    def seal(self, server: LocalServer) -> None:
        with Sealer(server.auditor_dsn, ring=RING, folder=self.heads) as sealer:
            assert sealer.seal(self.tenant).ok

    def dump(self, name: str) -> None:
        file = str(self.folder / name)
        self.program("pg_dump", "-Fc", "-f", file, "-d", self.server.dsn("postgres"))

    def program(self, name: str, *arguments: str) -> None:
        where = ["-h", str(self.server.socket_dir), "-U", "postgres"]
        done = subprocess.run(
            [BIN / name, *where, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def found(self, auditor: str) -> list[tuple[FindingKind, uuid.UUID | None]]:
        """What the heads show; the chains themselves always hold after a restore."""
        report = archive.verify(auditor, tenant_id=self.tenant)
        assert (report.broken, report.strays) == ([], [])
        check = check_tenant(auditor, self.tenant, keys=RING.believed, folder=self.heads)
        return [(finding.kind, finding.run_id) for finding in check.findings]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The server that archives, left running: what is restored stands beside it."""
    folder = Path(tempfile.mkdtemp(prefix="cuo-pitr-"))
    folder.chmod(0o711)
    owned(folder / "wal", make=True)
    server = LocalServer(
        folder / "pg",
        bin_dir=BIN,
        settings={
            "fsync": "off",
            "archive_mode": "on",
            "archive_command": f"cp %p {folder}/wal/%f",
        },
    )
    try:
        with server:
            yield Site(server, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def owned(path: Path, *, make: bool = False) -> Path:
    """Gives a tree to the account that runs servers."""
    if make:
        path.mkdir()
    account = server_account(path)
    for one in (path, *path.rglob("*")):
        os.chown(one, account.uid, account.gid)
    return path


def recovered(site: Site, name: str, **settings: str) -> LocalServer:
    """A second server from the base backup and the archived WAL."""
    place = site.folder / name
    place.mkdir(mode=0o711)
    shutil.copytree(site.folder / "base", place / "pgdata")
    (place / "pgdata" / "recovery.signal").touch()
    (place / "pgdata").chmod(0o700)
    owned(place)
    return LocalServer(
        place,
        bin_dir=BIN,
        settings={
            "fsync": "off",
            "restore_command": f"cp {site.folder}/wal/%f %p",
            "recovery_target_action": "promote",
            **settings,
        },
    )


def promoted(server: LocalServer) -> None:
    """Waits until the server has read what it was to read and takes writes."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
        while conn.execute("SELECT pg_is_in_recovery()").fetchall()[0][0]:
            conn.execute("SELECT pg_sleep(0.05)")


def test_a_recovery_to_a_point_in_time(site: Site) -> None:
    """Behind the head: each run is named, nothing is signed; declared, it goes on and stays on record."""
    keep = shutil.copytree(site.heads.folder, site.folder / "heads as they were")
    with recovered(site, "then", recovery_target_time=site.between) as then:
        promoted(then)
        assert sorted(site.found(then.auditor_dsn)) == [
            (FindingKind.DATABASE_BEHIND, None),
            (FindingKind.MISSING_RUN, site.late),
            (FindingKind.SHORTENED_RUN, site.grown),
        ]
        readiness.require(then.app_dsn)
        with Sealer(then.auditor_dsn, ring=RING, folder=site.heads) as sealer:
            with pytest.raises(SealRefused) as refused:
                sealer.seal(site.tenant)
            assert refused.value.kind == "behind"
            _, lost = declare_restore(sealer, site.tenant, "disk of the 3rd, restored to noon")
        assert {loss.run_id for loss in lost} == {site.late, site.grown}
        site.write(then, site.grown)
        site.seal(then)
        assert sorted(site.found(then.auditor_dsn)) == sorted(
            (FindingKind.DECLARED_LOSS, run) for run in (site.late, site.grown)
        )
        with psycopg.connect(then.archiver_dsn):
            assert index.differences(then.archiver_dsn) == []
    shutil.rmtree(site.heads.folder)
    shutil.copytree(keep, site.heads.folder)


def test_a_recovery_to_the_end(site: Site) -> None:
    """With all WAL applied nothing is behind, and sealing goes on as if nothing had been."""
    with recovered(site, "now") as now:
        promoted(now)
        assert site.found(now.auditor_dsn) == []
        with Sealer(now.auditor_dsn, ring=RING, folder=site.heads) as sealer:
            assert sealer.seal(site.tenant).leaves == 0


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_dump_brought_back(site: Site, name: str) -> None:
    """A dump of now agrees with the heads; one of earlier is behind by just what came after it."""
    admin = site.server.admin_dsn
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} OWNER cyberos_owner")
    site.program("pg_restore", "--exit-on-error", "-d", name, str(site.folder / f"{name}.dump"))
    found = sorted(site.found(site.server.dsn("cyberos_auditor", name)))
    readiness.require(site.server.dsn("cyberos_app", name))
    behind: list[Any] = [
        (FindingKind.DATABASE_BEHIND, None),
        (FindingKind.MISSING_RUN, site.late),
        (FindingKind.SHORTENED_RUN, site.grown),
    ]
    assert found == (behind if name == "old" else [])
