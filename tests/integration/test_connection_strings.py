"""No part of a password is said, whatever is wrong with the connection string it stands in."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import logging
import os
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuo_checkpoint import PostgresCheckpointer, archive, gauges, migrate, readiness, retention
from cuo_checkpoint.audit_append import append_replayed
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.importing import _opened
from cuo_checkpoint.runs import RunReader

LEFT, RIGHT = "Hush1left", "Hush2right"
"""The password's two halves, with something between them that is not percent-encoded."""

HOST = "127.0.0.1:1"
BROKEN = [
    f"postgresql://u:{LEFT}{between}{RIGHT}@{HOST}/db"
    for between in ("@", "/", ":", "?", "#", "%", "%zz", " ", "[", "@@", "/@", "\\", "'", "é")
] + [
    f"postgres://u:{LEFT}/{RIGHT}@{HOST}/db?sslmode=never",
    f"postgresql+psycopg://u:{LEFT}@{RIGHT}@{HOST}/db",
    f"postgresql://u:{LEFT}{RIGHT}@{HOST}:nought/db",
    f"postgresql://u:{LEFT}{RIGHT}@{HOST}/db?unheard=of",
    f"postgresql://{LEFT}{RIGHT}@",
    f"host=127.0.0.1 port=1 user=u password={LEFT} {RIGHT} dbname=db",
    f"host=127.0.0.1 port=1 user=u password='{LEFT} {RIGHT} dbname=db",
    f"host=127.0.0.1 port=1 password={LEFT}{RIGHT} nonsense=1",
    f"host=127.0.0.1 port={LEFT}{RIGHT} dbname=db",
    f"mysql://u:{LEFT}{RIGHT}@{HOST}/db",
    f"u:{LEFT}{RIGHT}@{HOST}/db",
]


def use_saver(dsn: str) -> None:
    with PostgresCheckpointer(dsn, tenant_id=uuid.uuid4()) as store:
        store.setup()


def use_saver_awaiting(dsn: str) -> None:
    async def call() -> None:
        async with PostgresCheckpointer(dsn, tenant_id=uuid.uuid4()) as store:
            await store.asetup()

    asyncio.run(call())


def use_reader(dsn: str) -> None:
    with RunReader(dsn, tenant_id=uuid.uuid4()) as reader:
        reader.list_runs(limit=1)


def use_import(dsn: str) -> None:
    with _opened(dsn, ()):
        pass


def use_readiness(dsn: str) -> None:
    found = readiness.check(dsn)
    raise CheckpointError(str([f.to_json() for f in found]))


WAYS: list[Callable[[str], Any]] = [
    use_saver,
    use_saver_awaiting,
    use_reader,
    use_import,
    use_readiness,
    archive.status,
    archive.ensure_partitions,
    archive.verify,
    retention.report,
    gauges.observe,
    migrate.current,
    migrate.upgrade,
    lambda dsn: retention.expired_approvals(dsn, older_than=dt.timedelta(hours=1)),
    lambda dsn: append_replayed(dsn, tenant_id=uuid.uuid4(), run_id=uuid.uuid4(), body={}),
]


@pytest.mark.parametrize("dsn", BROKEN, ids=range(len(BROKEN)))
def test_no_way_in_says_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the errors with all their causes, nor what is logged meanwhile; and but for Alembic's they are ours."""
    monkeypatch.setattr("cuo_checkpoint.db._FIRST_WAIT", 0.2)
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    try:
        for way in WAYS:
            # Alembic is run by an operator: what it says of a server that is not there is its own.
            ours = Exception if way is migrate.upgrade else CheckpointError
            with pytest.raises(ours) as failed:
                way(dsn)
            told.write("".join(traceback.format_exception(failed.value, chain=True)))
    finally:
        logging.getLogger().removeHandler(handler)
    # A traceback quotes this file's lines, which hold names only.
    for half in (LEFT, RIGHT):
        assert half not in told.getvalue()


@pytest.mark.parametrize(
    "dsn", [BROKEN[0], BROKEN[1], BROKEN[6], BROKEN[16], BROKEN[19], BROKEN[22]]
)
def test_no_command_prints_it(dsn: str, tmp_path: Path) -> None:
    """Alembic's own command too, which is how a server is migrated."""
    root = Path(__file__).parents[2]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CUO_DATABASE_URL": dsn,
        "PYTHONPATH": str(root),
    }
    for command in (
        ["-m", "alembic", "upgrade", "head"],
        ["-c", "from cuo_checkpoint.archive_cli import main; raise SystemExit(main(['status']))"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode != 0
        for half in (LEFT, RIGHT):
            assert half not in done.stdout + done.stderr
