"""One PostgreSQL server in one folder: made, started, joined, left and stopped.

Every change happens under `start.lock`; every user holds `users.lock` shared. Locks are flock
locks, so the kernel drops them with the process, whatever ended it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from ._engine import Engine, reachable
from .errors import StoreUnavailable

__all__ = ["SUPERUSER", "Hold", "Server"]

SUPERUSER = "postgres"
_POLL = 0.05
_LOG_CAP = 5 * 1024 * 1024

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    # 88 months of partitions are locked by one unbounded read; the default of 64 is too few.
    "max_locks_per_transaction": "256",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "datestyle": "ISO, YMD",
    "lc_messages": "C",
    "jit": "off",
    "max_wal_size": "256MB",
    # The log must hold neither statements nor the values in an error's DETAIL.
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


@dataclass(slots=True)
class Hold:
    """An open file that holds `users.lock` shared. A forked child keeps it held too."""

    fd: int

    def release(self) -> None:
        """Let go; never asks whether anybody else remains."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class Server:
    """What is needed to run one server. Methods raise StoreUnavailable with the way out."""

    engine: Engine
    data_dir: Path
    socket_dir: Path
    start_timeout: float
    settings: dict[str, str]

    @property
    def pgdata(self) -> Path:
        """PostgreSQL's own folder."""
        return self.data_dir / "pgdata"

    @contextlib.contextmanager
    def start_lock(self, *, make: bool = True) -> Iterator[None]:
        """Hold `start.lock`, waiting at most `start_timeout` for whoever has it.

        `make=False` is for leaving: a folder removed meanwhile must not come back.
        """
        if make:
            self._make_data_dir()
        fd = self._open_lock("start.lock", make=make)
        try:
            _take(fd, self.start_timeout, self.data_dir)
            yield
        finally:
            os.close(fd)

    def join(self, admin_dsn: str) -> Hold:
        """Take a hold on the server, starting it if need be. Call under `start_lock`."""
        hold = Hold(self._open_lock("users.lock"))
        try:
            fcntl.flock(hold.fd, fcntl.LOCK_SH)
            if not _answers(admin_dsn):
                self._start(admin_dsn)
        except OSError as error:
            hold.release()
            raise self._unwritable(error) from error
        except BaseException:
            hold.release()
            raise
        return hold

    def leave(self, hold: Hold) -> None:
        """Give up `hold`; stop the server if that was the last one.

        If the start lock stays busy, or the folder has gone, leaving is left to the keeper.
        """
        try:
            with self.start_lock(make=False):
                hold.release()
                # A file opened anew: a forked child still shares the old one, and must count.
                fd = self._open_lock("users.lock", make=False)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.engine.run(*self._stop_command(), timeout=60)
                    if self.socket_dir.parent != self.data_dir:
                        with contextlib.suppress(OSError):
                            self.socket_dir.rmdir()
                except BlockingIOError:
                    pass
                finally:
                    os.close(fd)
        except StoreUnavailable:
            hold.release()  # nothing left to stop, or the keeper will

    def _stop_command(self) -> tuple[str, ...]:
        # fast: sessions that a killed command left behind must not hold up the stop.
        return ("pg_ctl", "stop", "-D", str(self.pgdata), "-m", "fast", "-w", "-t", "30")

    def _start(self, admin_dsn: str) -> None:
        if self._postmaster_lives():
            self._wait_until_it_answers(admin_dsn)  # starting up or recovering
            return
        if not (self.pgdata / "PG_VERSION").exists():
            self._initialise()
        self._check_version()
        self._make_private(self.socket_dir)
        for stale in (self.pgdata / "postmaster.pid", *self.socket_dir.glob(".s.PGSQL.*")):
            # PostgreSQL clears these itself, except when their process id now is another
            # program's: common in containers, where ids start again from one.
            stale.unlink(missing_ok=True)
        self._write_configuration()
        self._spawn_keeper()
        log = self._prepare_log()
        before = log.stat().st_size
        done = self.engine.run(
            "pg_ctl", "start", "-D", str(self.pgdata), "-l", str(log), "-w",
            "-t", str(int(self.start_timeout)), "-s", timeout=self.start_timeout + 10,
        )  # fmt: skip
        if done.returncode != 0 or not _answers(admin_dsn):
            raise StoreUnavailable(
                f"the local database in {self.data_dir} does not start: {_reason(log, before)}. "
                f"Mend that, or set CUO_DATA_DIR to another folder. The whole log: {log}"
            )

    def _initialise(self) -> None:
        """Make the cluster beside its final name and rename it, so half a cluster is never used."""
        making = self.data_dir / "pgdata.making"
        shutil.rmtree(making, ignore_errors=True)
        self._make_private(making)
        major = self.engine.major()
        # PostgreSQL's own C.UTF-8 (17+) needs no locale of the operating system.
        locale = (
            ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
            if major >= 17
            else ("--locale=C.UTF-8",)
        )
        done = self.engine.run(
            "initdb", "-D", str(making), "-U", SUPERUSER, "--encoding=UTF8", *locale,
            "--auth-local=trust", "--auth-host=reject", timeout=120,
        )  # fmt: skip
        if done.returncode != 0:
            raise StoreUnavailable(
                f"the local database cannot be made in {self.data_dir}: {_grave(done.stdout)}. "
                "Free some space or set CUO_DATA_DIR to another folder."
            )
        making.rename(self.pgdata)

    def _check_version(self) -> None:
        made_by = (self.pgdata / "PG_VERSION").read_text().strip()
        ours = str(self.engine.major())
        if made_by != ours:
            raise StoreUnavailable(
                f"the local database in {self.data_dir} was made by PostgreSQL {made_by}, the "
                f"installed one is {ours}. Install the earlier one, or move the data over with "
                "pg_dump into another CUO_DATA_DIR."
            )

    def _write_configuration(self) -> None:
        """Written at every start, since the folder may have moved. Includes nothing else."""
        folder = '"' + str(self.socket_dir) + '"'
        settings = {**_SETTINGS, "unix_socket_directories": folder, **self.settings}
        lines = ["# Written at every start; changes here are lost."]
        for name, value in settings.items():
            doubled = value.replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{doubled}'")
        # The server's account owns pgdata and could have planted a link there for root to follow;
        # a new file of our own, renamed over whatever stands there, follows nothing.
        fresh = self.data_dir / "postgresql.conf.new"
        fresh.write_text("\n".join(lines) + "\n")
        self._give(fresh, 0o600)
        fresh.rename(self.pgdata / "postgresql.conf")

    def _prepare_log(self) -> Path:
        folder = self.data_dir / "log"
        self._make_private(folder)
        log = folder / "postgresql.log"
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _LOG_CAP:
                log.replace(log.with_suffix(".log.1"))
        fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if self.engine.account.drop:
                os.fchown(fd, self.engine.account.uid, self.engine.account.gid)
        finally:
            os.close(fd)
        return log

    def _spawn_keeper(self) -> None:
        os.close(self._open_lock("keeper.lock"))
        program, *rest = self._stop_command()
        account = self.engine.account
        order = json.dumps(
            {
                "folder": str(self.data_dir),
                "stop": [str(self.engine.bin_dir / program), *rest],
                "uid": account.uid if account.drop else -1,
                "gid": account.gid if account.drop else -1,
            }
        )
        script = Path(__file__).with_name("_keeper.py")
        # Through a shell that ends at once, so the keeper is nobody's child to wait for.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-I", "-S", str(script), order],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            check=True,
        )

    def _postmaster_lives(self) -> bool:
        """Whether the process named in postmaster.pid is a server on our folder."""
        try:
            pid = int((self.pgdata / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return False
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            if Path("/proc/self").exists():
                return False
            asked = ["ps", "-o", "command=", "-p", str(pid)]
            command = subprocess.run(asked, capture_output=True, check=False).stdout
        except OSError:
            return False
        return b"postgres" in command and os.fsencode(self.pgdata) in command

    def _wait_until_it_answers(self, admin_dsn: str) -> None:
        end = time.monotonic() + self.start_timeout
        while not _answers(admin_dsn):
            if time.monotonic() > end or not self._postmaster_lives():
                raise StoreUnavailable(
                    f"the local database in {self.data_dir} runs but does not answer. Repeat the "
                    f"command; if it stays so, see {self.data_dir / 'log'}."
                )
            time.sleep(_POLL)

    def _make_data_dir(self) -> None:
        """Make the folder; for root, let the server's account through it (never into the locks)."""
        if any(c in str(self.data_dir) for c in '"$`\\\n\r'):
            # initdb and pg_ctl put the name into a shell line without escaping these.
            raise StoreUnavailable(
                "PostgreSQL cannot keep data in a folder whose name holds a quote, a dollar sign, "
                "a backtick, a backslash or a line break. Set CUO_DATA_DIR to another folder."
            )
        try:
            str(self.data_dir).encode()
        except UnicodeEncodeError:
            raise StoreUnavailable(
                "PostgreSQL cannot keep data in a folder whose name is not UTF-8. "
                "Set CUO_DATA_DIR to another folder."
            ) from None
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.engine.account.drop and reachable(self.data_dir, self.engine.account):
                found = self.data_dir.stat()
                if found.st_uid != os.geteuid():
                    raise PermissionError(errno.EACCES, "it is another account's, and closed")
                self.data_dir.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)
        except OSError as error:
            raise self._unwritable(error) from error

    def _make_private(self, folder: Path) -> None:
        """A 0700 folder owned by the server's account; one of somebody else's is refused."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (
                os.geteuid(),
                self.engine.account.uid,
            ):
                raise StoreUnavailable(
                    f"{folder} belongs to somebody else. Remove it, or set CUO_DATA_DIR to "
                    "another folder."
                )
            self._give(folder, 0o700)
        except OSError as error:
            raise self._unwritable(error) from error

    def _give(self, path: Path, mode: int) -> None:
        if self.engine.account.drop:
            os.chown(path, self.engine.account.uid, self.engine.account.gid, follow_symlinks=False)
        path.chmod(mode)

    def _open_lock(self, name: str, *, make: bool = True) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        try:
            return os.open(self.data_dir / name, flags, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the local database's folder {self.data_dir} cannot be used: {error.strerror}. "
            "Set CUO_DATA_DIR to a folder you can write, or CUO_DATABASE_URL to a server."
        )


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _take(fd: int, timeout: float, data_dir: Path) -> None:
    """Poll for the lock: a plain wait could not end with a sentence."""
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise StoreUnavailable(
                    f"files in {data_dir} cannot be locked: {error.strerror}. "
                    "Set CUO_DATA_DIR to a folder on a local disk."
                ) from error
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"another command has been preparing the local database in {data_dir} for "
                f"{timeout:.0f} s. Wait for it to end, or end it, and repeat the command."
            )
        time.sleep(_POLL)


def _reason(log: Path, start: int) -> str:
    """What the server itself gave as its reason since `start` bytes into its log."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read(64 * 1024).decode("utf-8", "replace").splitlines()
    grave = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    # What ends a start before the log is set up is written plainly: "postgres: could not ...".
    grave = grave or [line for line in lines if line.startswith(("postgres:", "pg_ctl:"))]
    return _last_line("\n".join(grave or lines))


def _grave(text: str) -> str:
    """The line in which a program says why it ended; tidying up afterwards is told too."""
    lines = [line for line in text.splitlines() if "FATAL:" in line or "error:" in line]
    return _last_line("\n".join(lines) or text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it gave no reason"
