"""The keeper, with real locks and a stop command that leaves a trace."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuo_checkpoint._keeper import keep, main

LOCKS = ("keeper.lock", "start.lock", "users.lock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with its locks, nobody holding any."""
    for name in LOCKS:
        (tmp_path / name).touch()
    return tmp_path


def held(path: Path, how: int) -> int:
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, how)
    return fd


def start(folder: Path) -> subprocess.Popen[bytes]:
    program = (
        "from cuo_checkpoint._keeper import keep; import sys; "
        "keep(sys.argv[1], ['/bin/sh', '-c', 'echo x >>\"$0\"', sys.argv[1] + '/stopped'],"
        " -1, -1, 0.02)"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(folder)])


def test_it_stops_the_server_when_nobody_uses_it(folder: Path) -> None:
    """An unused server is stopped at once."""
    keep(str(folder), ["/bin/sh", "-c", f"touch '{folder}/stopped'"], -1, -1, 0.01)
    assert (folder / "stopped").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["users.lock", "start.lock"])
def test_it_waits_while_somebody_uses_or_starts_the_server(folder: Path, lock: str) -> None:
    """A user, or a command at work on the server, holds it off; their end lets it act."""
    fd = held(folder / lock, fcntl.LOCK_SH if lock == "users.lock" else fcntl.LOCK_EX)
    child = start(folder)
    time.sleep(1)
    assert child.poll() is None
    assert not (folder / "stopped").exists()
    os.close(fd)
    assert child.wait(timeout=20) == 0
    assert (folder / "stopped").read_text() == "x\n"


def test_a_second_keeper_ends_at_once(folder: Path) -> None:
    """One keeper a folder, however many times the server is started."""
    fd = held(folder / "keeper.lock", fcntl.LOCK_EX)
    keep(str(folder), ["/bin/sh", "-c", f"touch '{folder}/stopped'"], -1, -1, 0.01)
    os.close(fd)
    assert not (folder / "stopped").exists()


def test_a_removed_folder_is_a_plain_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to stop, nothing to say."""
    monkeypatch.chdir(tmp_path)
    order = f'{{"folder": "{tmp_path}/gone", "stop": ["false"], "uid": -1, "gid": -1}}'
    assert main(["keeper", order]) == 0
