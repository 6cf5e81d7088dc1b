"""Stops the local database when its last user is gone, however that user ended.

Run by path as a program of its own (`python -I -S _keeper.py ...`), with the standard library
alone, so that it costs little and never imports this package. A command that ends in order stops
the server itself; the keeper is what remains after kill -9.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

__all__ = ["keep", "main"]


def keep(users_lock: str, start_lock: str, stop_command: list[str], uid: int, gid: int) -> None:
    """Wait until nobody holds `users_lock`, then run `stop_command` as uid:gid (-1: as we are).

    The order is the same as a command's: first `start_lock`, then a try for `users_lock`; so a
    command arriving meanwhile either is seen here, or starts the server anew afterwards.
    """
    while True:
        with open(users_lock, "rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
        with open(start_lock, "rb") as start, open(users_lock, "rb") as users:
            fcntl.flock(start, fcntl.LOCK_EX)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            identity = {} if uid < 0 else {"user": uid, "group": gid, "extra_groups": []}
            subprocess.run(
                stop_command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                check=False,
                **identity,  # type: ignore[call-overload]  # the stub has no TypedDict for these
            )
            return


def main(argv: list[str]) -> int:
    """Take one JSON argument; a data folder removed meanwhile is a plain end."""
    os.chdir("/")
    try:
        keep(**json.loads(argv[1]))
    except FileNotFoundError:
        return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
