"""Stops the local database when its last user is gone, however that user ended.

Run by path as a program of its own (`python -I -S _keeper.py ...`), with the standard library
alone, so that it costs little and never imports this package. A command that ends in order stops
the server itself; the keeper is what remains after kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

__all__ = ["keep", "main"]


def keep(folder: str, stop: list[str], uid: int, gid: int, poll: float = 0.5) -> None:
    """Wait until nobody holds users.lock in `folder`, then run `stop` as uid:gid (-1: as we are).

    One keeper a folder: a second ends at once. It looks twice a second instead of waiting in the
    kernel: a waiter there takes users.lock the moment the last command lets go, and that command
    could no longer tell a user from the keeper. Locks are taken in the order commands take them
    (start, then users), so one arriving meanwhile is either seen or starts the server anew.
    """
    with _held(f"{folder}/keeper.lock") as alone:
        while alone:
            time.sleep(poll)
            with _held(f"{folder}/start.lock") as quiet:
                if not quiet:
                    continue
                with _held(f"{folder}/users.lock") as unused:
                    if not unused:
                        continue
                    _run(stop, uid, gid)
                    return


def _run(stop: list[str], uid: int, gid: int) -> None:
    identity = {} if uid < 0 else {"user": uid, "group": gid, "extra_groups": []}
    subprocess.run(
        stop,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        check=False,
        **identity,  # type: ignore[call-overload]  # the stub has no TypedDict for these
    )


@contextlib.contextmanager
def _held(path: str) -> Iterator[bool]:
    """Hold the lock for the block's length; yields False where somebody else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def main(argv: list[str]) -> int:
    """Take one JSON argument; a data folder removed meanwhile is a plain end."""
    os.chdir("/")
    with contextlib.suppress(FileNotFoundError):
        keep(**json.loads(argv[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
