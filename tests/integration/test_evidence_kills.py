"""Death of the archive's chores between any two messages to the database, and at any file they touch.

A seal, an export and a drop are struck before each protocol message in turn, as the writers are in
test_crash_statements, and killed at each file they open, link, rename or remove. The next run
completes what was begun; no head is ever signed for two trees; a bundle is whole or not there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from aged_log import NOW, AgedLog, utc
from bundle_command import check
from database_clock import DatabaseClock
from wire import Wire

from cuo_checkpoint import CheckpointWriter, PostgresCheckpointer, archive, keys, retention
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.export import export_month
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.seal import Sealer
from cuo_checkpoint.seal_check import check_tenant

RING = KeyRing((keys.generate("test"),))
MODES = ("kill", "terminate", "cut")
KILLED, REFUSED = -signal.SIGKILL, 3
FILE_EVENTS = frozenset(
    {"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir"}
)
log = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def points(mode: str, swept: Callable[[int], list[int]], count: int) -> list[int]:
    """All of them; where only some are asked for, each way of dying takes another third of those."""
    some = swept(count)
    return some if len(some) == count else some[MODES.index(mode) :: len(MODES)]


def in_child(work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> int:
    """Runs it in a process of its own. Its code: 0 done, 3 an error of ours, or minus a signal."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                before()
                work()
            code = 0
        except CheckpointError:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(folder: Path, point: int | None, seen: Any = None) -> Callable[[], None]:
    """A hook that kills its own process before it touches a file below `folder` for the n-th time."""

    def install() -> None:
        count = 0

        def hook(event: str, given: tuple[Any, ...]) -> None:
            nonlocal count
            if event not in FILE_EVENTS or not str(given[0]).startswith(str(folder)):
                return
            if seen is not None:
                os.write(seen, b"x")
            count += 1
            if point is not None and count > point:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return install


def touches(folder: Path, work: Callable[[], Any]) -> int:
    """How often the work touches files below the folder."""
    ready, told = os.pipe()
    assert in_child(work, dying_at(folder, None, told)) == 0
    os.close(told)
    with open(ready, "rb") as pipe:
        return len(pipe.read())


@pytest.fixture(scope="module")
def wire(shared_place: Any) -> Iterator[Wire]:
    with tempfile.TemporaryDirectory(prefix="cuo-w-") as folder:
        made = Wire(shared_place.auditor, shared_place.admin, Path(folder))
        yield made
        made.close()


class Sealing:
    """A tenant of its own with two runs, one of them sealed before, and what was ever signed."""

    def __init__(self, place: Any, folder: Path) -> None:
        self.place, self.tenant = place, uuid.uuid4()
        self.root = folder / str(self.tenant)
        self.root.mkdir()
        self.heads = HeadFolder(self.root)
        self.signed: dict[int, set[str]] = {}
        first = self.write()
        self.seal(place.auditor)
        self.runs = {first, self.write()}

    def write(self) -> uuid.UUID:
        run = uuid.uuid4()
        with PostgresCheckpointer(
            self.place.app, tenant_id=self.tenant, max_connections=1
        ) as store:
            CheckpointWriter(store).write(run, "node_entered", {"n": 1}, node_name="n")
        return run

    def seal(self, dsn: str) -> None:
        with Sealer(dsn, ring=RING, folder=self.heads) as sealer:
            assert sealer.seal(self.tenant).ok

    def look(self) -> None:
        """Notes every head there is now, in the folder and in the database."""
        for number in self.heads.numbers(self.tenant):
            note = self.heads.note(self.tenant, number).decode()
            self.signed.setdefault(number, set()).add(note)
        with psycopg.connect(self.place.admin) as conn:
            for number, note in conn.execute(
                "SELECT head_no, note FROM cuo_seal_heads WHERE tenant_id = %s", [self.tenant]
            ).fetchall():
                self.signed.setdefault(number, set()).add(note)

    def prove(self, told: str) -> None:
        """The next run completes; every run is sealed once; each head was only ever one."""
        self.look()
        self.seal(self.place.auditor)
        self.look()
        assert [len(notes) for notes in self.signed.values()] == [1, 1], told
        assert self.heads.numbers(self.tenant) == [1, 2], told
        found = check_tenant(self.place.auditor, self.tenant, keys=RING.believed, folder=self.heads)
        assert (found.findings, found.leaves, found.unsealed) == ([], 2, 0), told
        left = {path.name for path in (self.root / str(self.tenant)).iterdir()}
        assert {name for name in left if not name.startswith(".")} == {
            f"0000000{n}.{kind}" for n in (1, 2) for kind in ("leaves", "note")
        }


@pytest.mark.parametrize("mode", MODES)
def test_a_sealer_struck_between_two_messages(
    mode: Any, wire: Wire, shared_place: Any, tmp_path: Path, swept: Callable[[int], list[int]]
) -> None:
    """What it signed it signed once, wherever it died."""

    def struck(at: int | None) -> tuple[Sealing, int]:
        scene = Sealing(shared_place, tmp_path)
        wire.rearm(at, mode)
        code = in_child(lambda: scene.seal(wire.dsn))
        wire.settle()
        return scene, code

    scene, code = struck(None)
    steps = list(wire.steps)
    assert code == 0
    scene.prove("undisturbed")
    assert len(steps) > 40
    tried = points(mode, swept, len(steps))
    for at in tried:
        scene, code = struck(at)
        told = f"{mode} before {steps[at]} (step {at})"
        assert code == KILLED if mode == "kill" else code in (0, REFUSED), told
        scene.prove(told)
    log.info("seal %s: %d of %d messages", mode, len(tried), len(steps))


def test_a_sealer_killed_at_any_file(
    shared_place: Any, tmp_path: Path, swept: Callable[[int], list[int]]
) -> None:
    """Between leaves and note, draft and link, anything: the next run completes the head."""
    scene = Sealing(shared_place, tmp_path)
    count = touches(scene.root, lambda: scene.seal(shared_place.auditor))
    assert count > 8
    for point in swept(count):
        one = Sealing(shared_place, tmp_path)
        code = in_child(
            lambda one=one: one.seal(shared_place.auditor),
            dying_at(one.root, point),  # type: ignore[misc]
        )
        assert code == KILLED
        one.prove(f"at file {point}")


class Exporting:
    """A sealed tenant, the bundle it gives, and the folder that a bundle is to appear in."""

    def __init__(self, place: Any, folder: Path) -> None:
        self.sealing = Sealing(place, folder)
        self.sealing.seal(place.auditor)
        with psycopg.connect(place.admin) as conn:
            (now,) = conn.execute("SELECT now()").fetchone() or (None,)
        self.month, self.folder = Month.of(now), folder / "bundles"
        self.folder.mkdir()
        self.good = folder / "good"
        self.key = folder / "trusted.keys"
        self.key.write_text("".join(f"{key}\n" for key in RING.believed))
        self.to(place.auditor, self.good)

    def to(self, dsn: str, out: Path) -> None:
        export_month(dsn, self.sealing.tenant, self.month, out)

    def prove(self, out: Path, told: str) -> None:
        """Whole or not there; and then the next export gives the same bytes, and leaves no draft."""
        if not out.exists():
            self.to(self.sealing.place.auditor, out)
        assert [p for p in self.folder.iterdir() if p.name.startswith(f".{out.name}.")] == [], told
        assert {p.name: p.read_bytes() for p in out.iterdir()} == {
            p.name: p.read_bytes() for p in self.good.iterdir()
        }, told


@pytest.mark.parametrize("mode", MODES)
def test_an_export_struck_between_two_messages(
    mode: Any, wire: Wire, shared_place: Any, tmp_path: Path, swept: Callable[[int], list[int]]
) -> None:
    """No folder of the name that was asked for holds half a bundle."""
    scene = Exporting(shared_place, tmp_path)
    assert check(scene.good, "--key", scene.key)[0] == 0

    def struck(at: int | None) -> tuple[Path, int]:
        out = scene.folder / f"{mode}-{at}"
        wire.rearm(at, mode)
        code = in_child(lambda: scene.to(wire.dsn, out))
        wire.settle()
        return out, code

    out, code = struck(None)
    steps = list(wire.steps)
    assert (code, out.exists()) == (0, True)
    assert len(steps) > 40
    for at in points(mode, swept, len(steps)):
        out, code = struck(at)
        told = f"{mode} before {steps[at]} (step {at})"
        assert code == KILLED if mode == "kill" else code in (0, REFUSED), told
        assert out.exists() == (code == 0), told
        scene.prove(out, told)
    if mode != "kill":  # what failed took its draft with it
        assert [p.name for p in scene.folder.iterdir() if p.name.startswith(".")] == []


def test_an_export_killed_at_any_file(
    shared_place: Any, tmp_path: Path, swept: Callable[[int], list[int]]
) -> None:
    """While files are written, named in the sums, or the folder takes its name."""
    scene = Exporting(shared_place, tmp_path)
    auditor = shared_place.auditor
    count = touches(scene.folder, lambda: scene.to(auditor, scene.folder / "whole"))
    assert count > 20
    for point in swept(count):
        out = scene.folder / f"at-{point}"
        code = in_child(lambda out=out: scene.to(auditor, out), dying_at(scene.folder, point))  # type: ignore[misc]
        assert code == KILLED
        assert not out.exists(), "the rename is the last thing it does"
        scene.prove(out, f"at file {point}")


@pytest.mark.parametrize("mode", MODES)
def test_a_drop_struck_between_two_messages(
    mode: Any, cluster: Any, swept: Callable[[int], list[int]]
) -> None:
    """The month is whole in all tables, or gone from all and told once; the next call does the rest."""
    name = f"cuo_struck_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(cluster.admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {cluster.template} OWNER cyberos_owner")
    try:
        clock = DatabaseClock(cluster.dsn(name))
        aged, tenant = AgedLog(cluster, name), str(uuid.uuid4())
        clock.months(utc(2025, 10, 1), NOW)
        with tempfile.TemporaryDirectory(prefix="cuo-w-") as folder:
            wire = Wire(aged.archiver, aged.admin, Path(folder))
            months = iter(
                Month(year, month) for year in range(2008, 2018) for month in range(1, 13)
            )

            def struck(at: int | None) -> tuple[Month, int]:
                month = next(months)
                clock.months(month.start, month.start)
                with aged.store(tenant, max_connections=1) as store:
                    writer, run = CheckpointWriter(store), uuid.uuid4()
                    writer.write(run, "node_entered", {"n": 1}, node_name="n")
                    writer.write(run, "run_completed", {})
                clock.set(NOW)
                wire.rearm(at, mode)
                code = in_child(lambda: retention._dropped(wire.dsn, "public", month, 84, 3, 100))
                wire.settle()
                return month, code

            month, code = struck(None)
            steps = list(wire.steps)
            assert (code, state(aged.admin, month)) == (0, (0, 1))
            assert len(steps) > 15
            seen = set()
            for at in swept(len(steps)):
                month, code = struck(at)
                told = f"{mode} before {steps[at]} (step {at})"
                assert code == KILLED if mode == "kill" else code in (0, REFUSED), told
                seen.add(state(aged.admin, month))
                assert seen <= {(3, 0), (0, 1)}, told
                again = retention._dropped(aged.archiver, "public", month, 84, 3, 100)
                assert again.status in ("dropped", "absent"), told
                assert state(aged.admin, month) == (0, 1), told
            assert seen == {(3, 0), (0, 1)}
            wire.close()
        report = archive.verify(aged.auditor, tenant_id=uuid.UUID(tenant))
        assert (report.broken, report.strays) == ([], [])
    finally:
        with psycopg.connect(cluster.admin, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def state(admin: str, month: Month) -> tuple[int, int]:
    """How many of the three tables have the month, and how often its drop was told of the whole log."""
    with psycopg.connect(admin) as conn:
        row = conn.execute(
            "SELECT (SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE %s),"
            " (SELECT count(*) FROM cuo_memory_audit WHERE kind = 'month_dropped'"
            "  AND body::jsonb ->> 'month' = %s AND body::jsonb ? 'whole')",
            [f"cuo%{str(month).replace('-', '_')}", str(month)],
        ).fetchone()
    assert row is not None
    return row[0], row[1]
