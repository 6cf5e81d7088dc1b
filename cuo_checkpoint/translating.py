"""The driver's errors in our words: what failed, why, and what an operator does next.

The server's first line is kept: it names ids, roles and settings, never values. What libpq says of
a connection string is not: it quotes the string, and with it the password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import PoolTimeout

from cuo_checkpoint import errors

__all__ = [
    "admitted",
    "checked_conninfo",
    "is_connection_loss",
    "is_missing_month",
    "translated",
    "unreachable",
    "without_conninfo",
]

_BY_STATE: Final[dict[str, type[errors.CheckpointError]]] = {
    "CU001": errors.CheckpointConflict,
    "CU002": errors.StaleParent,
    "CU003": errors.ThreadDeleted,
    "CU004": errors.ParentMissing,
    "CU005": errors.RunClosed,
    "CU006": errors.RunElsewhere,
    "CU009": errors.AuditFailed,
}

_REMEDIES: Final[dict[str, str]] = {
    "25006": "This server or role only reads. Connect to the primary, or reset"
    " default_transaction_read_only for the role and the database.",
    "25P03": "Raise or reset idle_in_transaction_session_timeout for the role, then repeat.",
    "25P04": "Raise or reset transaction_timeout for the role, then repeat.",
    "40001": "Other calls on the same rows were in the way at every try. Repeat it; and reset"
    " default_transaction_isolation for the role and the database, if it is not read committed.",
    "40P01": "Other calls on the same rows were in the way at every try. Repeat it.",
    "53100": "The server's disk is full. Free space there, then repeat; what was acknowledged is kept.",
    "53200": "The server is out of memory or locks. See max_locks_per_transaction, then repeat.",
    "53300": "Raise max_connections or the role's connection limit, or lower max_connections= of"
    " the stores.",
    "53400": "A limit set for the server was reached: see its log.",
    "55P03": "Another session holds the lock. Find it with pg_blocking_pids(), or raise"
    " lock_timeout for the role, then repeat.",
    "57014": "If nobody cancelled it, raise or reset statement_timeout for the role, then repeat.",
}
"""Of errors that say nothing about the row: nothing was stored, and the same call may be repeated."""

_NO_CONNINFO: Final = (
    "the connection string is neither a postgresql:// URL nor libpq's key=value form; check"
    " CUO_DATABASE_URL (special characters in a password are percent-encoded)"
)

_SCHEMES: Final = ("postgresql", "postgres")
_HOST: Final = re.compile(r"/.*|@[^@]+|[^\s@/?#]+", re.DOTALL)
"""A socket's folder or abstract name, a host's name or address."""

_PROBE_SECONDS: Final = 3


def translated(error: psycopg.Error) -> errors.CheckpointError:
    """Ours for theirs. The message keeps the server's first line, which names ids but no values."""
    state = error.sqlstate or ""
    first_line = (error.diag.message_primary or next(iter(str(error).splitlines()), "")).strip()
    known = _BY_STATE.get(state)
    if known is not None:
        return known(first_line)
    if isinstance(error, PoolTimeout):
        return errors.StoreUnavailable(
            "no database connection became free in time: all of max_connections= are in use, or"
            " the server takes no more"
        )
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedFunction, pg.InvalidSchemaName)):
        return errors.SchemaNotReady(
            f"the database has no CUO schema of this version under the name used: {first_line}.",
            remedy="Check the schema's name (CUO_SCHEMA), and run as the owner role:"
            " alembic upgrade head.",
        )
    if isinstance(error, pg.InsufficientPrivilege):
        remedy = "Check the grants with: cyberos-cuo doctor"
        if error.diag.source_function == "check_enable_rls":  # the message may be in any language
            remedy = "The role has row_security = off: ALTER ROLE ... RESET row_security."
        return errors.SchemaNotReady(
            f"the database refused this role: {first_line}.",
            remedy=remedy,
        )
    if state in _REMEDIES:
        return errors.StoreUnavailable(
            f"the database stopped the call ({state}): {first_line}. {_REMEDIES[state]}"
        )
    if not state and isinstance(error, psycopg.ProgrammingError):
        return errors.SettingInvalid(f"{_NO_CONNINFO}, or the driver was called wrongly")
    if is_connection_loss(error):
        return errors.StoreUnavailable(
            "the database cannot be reached or was lost mid-call; check CUO_DATABASE_URL and the server"
        )
    return errors.WriteRefused(f"the database refused the call ({error.sqlstate}): {first_line}")


def is_connection_loss(error: BaseException) -> bool:
    """Whether the connection broke, so that the call may be repeated on another."""
    if isinstance(error, (PoolTimeout, psycopg.InterfaceError)):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state == "25P03":  # filed under another class than its like
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    # 08: connection; 57P01-03: shutdown, crash, starting up; 57P05: idle too long; no state:
    # the socket itself broke.
    return state is None or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05")


def is_missing_month(error: BaseException) -> bool:
    """Whether no partition takes a row. By what the error names, since lc_messages words it."""
    return isinstance(error, pg.CheckViolation) and not error.diag.constraint_name


def without_conninfo(error: psycopg.Error) -> psycopg.Error | None:
    """The error as a cause to chain: a server's own. What libpq says may quote a connection string."""
    return error if error.sqlstate else None


def checked_conninfo(conninfo: str) -> str:
    """The string itself, if libpq can read it. Raises SettingInvalid, which never quotes it.

    A password with @, / or : in it that is not percent-encoded makes another host, port or
    database, which libpq's and the server's messages would name: no such place is tried.
    """
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise errors.SettingInvalid(_NO_CONNINFO) from None
    hosts = str(parts.get("host") or "").split(",")
    ports = str(parts.get("port") or "").split(",")
    scheme, _, rest = conninfo.partition("://")
    split = scheme in _SCHEMES and "@" in rest.split("?")[0].partition("/")[2]
    if (
        split
        or any(host and not _HOST.fullmatch(host) for host in hosts)
        or not all(port == "" or (port.isascii() and port.isdecimal()) for port in ports)
    ):
        raise errors.SettingInvalid(_NO_CONNINFO) from None
    return conninfo


def admitted(role: tuple[Any, ...] | None, encoding: str) -> bool:
    """True for a connection a store may use: row security binds its role, and it carries any text.

    Raises SchemaNotReady and SettingInvalid. Row security does not bind a superuser: what a
    statement forgot to ask for, it would be given of every tenant.
    """
    if role is not None and role[1]:
        raise errors.SchemaNotReady(
            f"role: {role[0]} is exempt from row security.",
            remedy="Connect as cyberos_app: a role that is neither superuser nor BYPASSRLS.",
        )
    if encoding != "utf-8":
        raise errors.SettingInvalid(
            f"the pool's connections carry {encoding} and not UTF-8: make them with"
            " client_encoding='utf8'"
        )
    return True


def unreachable(conninfo: str, connect_args: Mapping[str, Any]) -> errors.StoreUnavailable:
    """Why no first connection came: a pool tells only its log, so one more try asks."""
    said = "no answer in time"
    try:
        args = {**connect_args, "connect_timeout": _PROBE_SECONDS}
        psycopg.connect(conninfo, **args).close()
    except psycopg.Error as error:
        lines = str(error).strip().splitlines() or [said]
        said = lines[0].rpartition("failed: ")[2].strip()
    return errors.StoreUnavailable(
        f"the database cannot be reached: {said}. Check CUO_DATABASE_URL and the server."
    )
