"""The folder a bundle is written in until it is whole, and what exports that were killed left of theirs.

A draft lies beside the folder it will be, so that taking the name is one step. Whoever writes it holds a
lock on it, which the system takes back when the writer dies: a draft that can be locked is nobody's, and
the next export to the same place removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cuo_checkpoint.errors import ExportRefused

__all__ = ["NAMES", "ROWS", "RUNS", "Draft", "drafted"]

ROWS: Final = ("audit", "log", "writes", "tombstones", "holds")
"""The kinds of rows, each with a file of its own."""

RUNS: Final = "manifest.runs"
"""The manifest's runs until it is written; in no bundle."""

NAMES: Final = frozenset(
    {
        *(f"{name}.ndjson" for name in ROWS),
        "SHA256SUMS",
        "head.note",
        "leaves.ndjson",
        "manifest.json",
        "proofs.json",
        "summary.html",
        "verify.py",
        RUNS,
    }
)
"""What may lie in a draft; a folder with anything else in it is none, whatever its name."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Draft(NamedTuple):
    """Where to write, and the names of dead exports' drafts that were removed."""

    folder: Path
    removed: tuple[str, ...]


@contextlib.contextmanager
def drafted(out: Path) -> Iterator[Draft]:
    """A folder beside `out` that takes its name when all is written, and is gone when it fails.

    Raises ExportRefused when `out` exists or cannot be written.
    """
    try:
        if out.exists():
            raise ExportRefused(f"{out} exists; name a new folder.")
        removed = _without_dead(out)
        folder, lock = _made(out)
        try:
            yield Draft(folder, removed)
            for path in folder.iterdir():
                path.chmod(0o600)
            os.rename(folder, out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise ExportRefused(f"cannot write {out}: {error.strerror}.") from error


def _host() -> str:
    """Locks may bind on one machine only (a bucket mounted on two): drafts say on which they hold."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _made(out: Path) -> tuple[Path, int]:
    """A new draft and the lock on it."""
    while True:
        folder = out.with_name(f".{out.name}.{_host()}{secrets.token_hex(4)}")
        folder.mkdir(mode=0o700)
        # Until the lock is had, another export may take it for a dead one and remove it.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, _FOLDER)
            if _locked(lock) is not False and folder.exists():
                return folder, lock
            os.close(lock)


def _without_dead(out: Path) -> tuple[str, ...]:
    """Removes the drafts for `out` that nobody writes any more."""
    draft = re.compile(re.escape(f".{out.name}.{_host()}") + "[0-9a-f]{8}")
    removed: list[str] = []
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(out.parent) as entries:
        names = sorted(entry.name for entry in entries if draft.fullmatch(entry.name))
    for name in names:
        with contextlib.suppress(OSError):  # somebody else's, or being removed at this moment
            lock = os.open(out.with_name(name), _FOLDER)
            try:
                if _locked(lock) and _is_draft(lock):
                    shutil.rmtree(out.with_name(name))
                    removed.append(name)
            finally:
                os.close(lock)
    return tuple(removed)


def _locked(folder: int) -> bool | None:
    """Whether the lock on it is ours now; None where folders cannot be locked."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_draft(folder: int) -> bool:
    """Whether it is one of ours, with nothing in it but a bundle's files."""
    if os.fstat(folder).st_uid != os.geteuid():
        return False
    with os.scandir(folder) as entries:
        return all(
            entry.name in NAMES and stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
        )
