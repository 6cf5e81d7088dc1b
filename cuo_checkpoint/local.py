"""The local mode's database: an embedded PostgreSQL, started on demand and shared by commands.

    data folder/            named, else the user's data folder
      start.lock            held while someone starts, prepares, migrates or stops the server
      users.lock            held shared by each user of the server; the last one out stops it
      pgdata/               PostgreSQL's own files
      socket/               mode 0700; there is no TCP port
      log/                  the server's log, without statements

The server trusts whoever reaches its socket, so the folder's mode is the whole access control:
only the owner of the data (and root) gets in. Roles are there to make the program's own rights
real (row security, REVOKE), not to keep the operator out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import platformdirs
import psycopg

from . import _server, migrate
from ._engine import SHARED_ROOT, Account, find_engine, reachable, server_account
from .errors import SchemaNotReady, StoreUnavailable

__all__ = [
    "DATABASE",
    "OWNER_ROLE",
    "LocalServer",
    "default_data_dir",
    "local_database",
    "provision",
]

DATABASE = "cuo"
OWNER_ROLE = "cyberos_owner"
_SERVICE_ROLES = ("cyberos_app", "cyberos_archiver", "cyberos_auditor")
_SOCKET_PATH_LIMIT = 107 - len("/.s.PGSQL.5432.lock")
"""sun_path holds 108 bytes with its end mark; the server also makes the .lock name beside it."""


def default_data_dir() -> Path:
    """The user's data folder, as the platform has it (XDG_DATA_HOME is honoured)."""
    return platformdirs.user_data_path("cyberos-cuo")


class LocalServer:
    """One user's hold on a local server: `start` joins or starts it, `stop` leaves it.

    The last to leave stops the server; after kill -9 a keeper process does. Failing to start
    raises StoreUnavailable (folder, programs, disk) with what to do about it.
    `bin_dir` names another PostgreSQL's programs (15 or later) than the embedded ones.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        bin_dir: Path | None = None,
        start_timeout: float = 90.0,
        settings: dict[str, str] | None = None,
    ) -> None:
        account = server_account(data_dir / "pgdata")
        self.data_dir = data_dir
        self.socket_dir = _socket_dir(data_dir, account)
        self._server = _server.Server(
            engine=find_engine(bin_dir, account),
            data_dir=data_dir,
            socket_dir=self.socket_dir,
            start_timeout=start_timeout,
            settings=settings or {},
        )
        self._hold: _server.Hold | None = None

    def dsn(self, role: str, database: str = DATABASE) -> str:
        """A URL that libpq, psycopg and (with its driver named) SQLAlchemy accept."""
        return f"postgresql://{role}@/{quote(database, safe='')}?host={quote(str(self.socket_dir))}"

    @property
    def admin_dsn(self) -> str:
        """The superuser, in the maintenance database: for making roles and databases only."""
        return self.dsn(_server.SUPERUSER, "postgres")

    @property
    def owner_dsn(self) -> str:
        """Owns the database and runs migrations; neither superuser nor exempt from policies."""
        return self.dsn(OWNER_ROLE)

    @property
    def app_dsn(self) -> str:
        """What the program itself connects as: may insert and read, under row security."""
        return self.dsn("cyberos_app")

    @property
    def archiver_dsn(self) -> str:
        """May call the guarded retention functions."""
        return self.dsn("cyberos_archiver")

    @property
    def auditor_dsn(self) -> str:
        """May read every tenant's rows, to seal, verify and export."""
        return self.dsn("cyberos_auditor")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other command from starting, preparing or stopping this server."""
        with self._server.start_lock():
            yield

    def start(self) -> None:
        """Join the running server, or start it; make roles and database on first use."""
        if self._hold is None:
            with self.locked():
                self._hold = self._server.join(self.admin_dsn)
                try:
                    with _prepared(self.data_dir):
                        provision(self.admin_dsn)
                except BaseException:
                    self._hold.release()
                    self._hold = None
                    raise

    def stop(self) -> None:
        """Leave; the server stops if nobody else uses it. Leaving twice is leaving once."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._server.leave(hold)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextlib.contextmanager
def local_database(
    *, data_dir: Path | None = None, bin_dir: Path | None = None, migrated: bool = True
) -> Iterator[LocalServer]:
    """The local server, up and migrated to this version, for the length of a `with` block.

    Raises StoreUnavailable when it cannot be started and SchemaNotReady when it was migrated by a
    newer version. Concurrent first calls wait for the one that prepares the database.
    """
    server = LocalServer(_placed(data_dir), bin_dir=bin_dir)
    with server:
        if migrated and not _is_current(server.owner_dsn):
            with server.locked():
                if not _is_current(server.owner_dsn):
                    with _prepared(server.data_dir):
                        migrate.upgrade(server.owner_dsn)
        yield server


def provision(admin_dsn: str, database: str | None = DATABASE) -> None:
    """Make the owner, the three service roles and the owner's database, where they are missing.

    Needs a role that may create roles and databases. The owner gets no CREATEROLE: migrations must
    also run on managed servers that do not give it.
    """
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        for role in (OWNER_ROLE, *_SERVICE_ROLES):
            with contextlib.suppress(
                psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation
            ):
                if not conn.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
                    conn.execute(
                        psycopg.sql.SQL("CREATE ROLE {} LOGIN").format(psycopg.sql.Identifier(role))
                    )
        if database is None:
            return
        known = conn.execute("SELECT FROM pg_database WHERE datname = %s", [database]).rowcount
        if not known:
            with contextlib.suppress(psycopg.errors.DuplicateDatabase):
                conn.execute(
                    psycopg.sql.SQL("CREATE DATABASE {} OWNER {}").format(
                        psycopg.sql.Identifier(database), psycopg.sql.Identifier(OWNER_ROLE)
                    )
                )


@contextlib.contextmanager
def _prepared(data_dir: Path) -> Iterator[None]:
    """What the server refuses for want of means, such as room on the disk, is no fault of ours."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy keeps the driver's error there
        if not isinstance(cause, psycopg.OperationalError):
            raise
        reason = cause.diag.message_primary or "the server went away"
        raise StoreUnavailable(
            f"the local database in {data_dir} cannot be prepared: {reason}. "
            "Free some space or set CUO_DATA_DIR to another folder."
        ) from error


def _is_current(dsn: str) -> bool:
    present = migrate.current(dsn)
    if present is not None and present not in migrate.revisions():
        raise SchemaNotReady(
            f"the local database is at revision {present}, which this version does not know.",
            remedy="Install the newer version that made it, or choose another CUO_DATA_DIR.",
        )
    return present == migrate.head()


def _placed(named: Path | None) -> Path:
    """The folder `named`, or the default; for root, one that an unprivileged server can reach.

    A folder somebody named is never replaced by another: that raises StoreUnavailable.
    """
    data_dir = (named or default_data_dir()).absolute()
    account = server_account(data_dir / "pgdata")
    closed = reachable(data_dir.parent, account) if account.drop else None
    if closed is None:
        return data_dir
    if named is not None:
        raise StoreUnavailable(
            f"PostgreSQL runs as {account.name} and {closed} is closed to that account. "
            f"Set CUO_DATA_DIR to a folder such as {SHARED_ROOT}/NAME, or open {closed} "
            f"with chmod o+x."
        )
    mark = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return SHARED_ROOT / f"data-{mark}"


def _socket_dir(data_dir: Path, account: Account) -> Path:
    """`data_dir`/socket, or a short private folder where that name cannot be a socket's."""
    natural = data_dir / "socket"
    name = os.fsencode(natural)
    # A comma parts hosts for clients and folders for the server; quoting differs between the two.
    if len(name) <= _SOCKET_PATH_LIMIT and re.fullmatch(rb"[^,\"'\\\x00-\x1f]+", name):
        return natural
    mark = hashlib.sha256(name).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if (
        not account.drop
        and runtime
        and len(os.fsencode(runtime)) < 60
        and os.access(runtime, os.W_OK)
    ):
        return Path(runtime) / f"cuo-{mark}"
    base = tempfile.gettempdir()
    short = base if len(os.fsencode(base)) < 60 else "/tmp"  # noqa: S108  # owner and mode checked
    return Path(short) / f"cuo-{account.uid}-{mark}"
