"""What must hold before the program uses a database, checked against the catalog.

`check` looks and changes nothing; the program refuses to start on a blocking finding, the doctor
prints them all. Run it as the role the program connects as: rights are that role's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from cuo_checkpoint import catalog, guards, migrate, partitions
from cuo_checkpoint.catalog import MonthTable, Table
from cuo_checkpoint.errors import CheckpointError, SchemaNotReady

__all__ = ["Finding", "check", "require"]

_SERVER: Final[LiteralString] = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS shown,
       current_setting('server_encoding') AS encoding, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('max_locks_per_transaction')::int AS locks,
       current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int AS slots,
       current_user::text AS role, r.rolsuper AS superuser, r.rolbypassrls AS bypass, now() AS now,
       (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s))
        AND relkind IN ('r', 'p', 'i', 'I')) AS relations
FROM pg_roles r WHERE r.rolname = current_user
"""
_FUNCTIONS: Final[LiteralString] = """
SELECT p.proname AS name FROM pg_proc p
WHERE p.pronamespace = to_regnamespace(quote_ident(%s)) AND p.proname LIKE 'cuo\\_%%'
  AND has_function_privilege(p.oid, 'EXECUTE')
"""
_REVISION: Final[LiteralString] = "SELECT version_num AS revision FROM {}"

_LOG: Final = frozenset(
    {
        "cuo_langgraph_checkpoints",
        "cuo_langgraph_writes",
        "cuo_memory_audit",
        "cuo_thread_tombstones",
    }
)
_INDEX: Final = frozenset({"cuo_runs", "cuo_threads"})
_EVIDENCE: Final = frozenset({"cuo_holds", "cuo_seal_heads", "cuo_seal_leaves"})
"""Read by the program, written by nobody it could become."""
_VERSION: Final = "cuo_alembic_version"
_PARTITIONED: Final = _LOG - {"cuo_thread_tombstones"}
_NO_CHANGE: Final = frozenset({"cuo_no_change", "cuo_no_truncate"})
_NEEDED_FUNCTIONS: Final = frozenset(
    {"cuo_append", "cuo_claim", "cuo_ensure_partitions", "cuo_get", "cuo_list", "cuo_tombstone"}
)
_OWNERS_FUNCTIONS: Final = frozenset({"cuo_chain_append", "cuo_open_run", "cuo_protect"})

_HOT_LOCKS: Final = 40
"""Locks of one append of a row and a pending write: 32 counted, in one month; some room."""
_HOT_SESSIONS: Final = 32

_AS_OWNER: Final = "Run as the owner role: alembic upgrade head."
_ANEW: Final = (
    "As the owner role: DROP what was added, and make anew what is missing or changed with its "
    "statement in alembic/sql, the newest file that has it."
)
_POLICIES_ANEW: Final = (
    "As the owner role: DROP POLICY NAME ON TABLE what was added, then SELECT "
    "cuo_protect('TABLE'::regclass, APPEND_ONLY, MONTH) makes the log's own anew."
)
_GUARDS: Final = (
    ("policies", frozenset({"policy"}), _POLICIES_ANEW),
    ("triggers and rules", frozenset({"trigger", "rule"}), _ANEW),
    ("functions", frozenset({"function", "view", "table"}), _ANEW),
)
"""Findings over what `guards` holds: name, kinds, and how it is mended."""
_THEN: Final = " Find out who did it, and verify the log with: cuo-archive verify --all"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `remedy` says what to do when it is not `ok`; only `blocking` ones stop a start."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    blocking: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "detail": self.detail,
            "remedy": self.remedy,
            "blocking": self.blocking,
        }


def check(dsn: str, *, schema: str = "public") -> list[Finding]:
    """All findings, good ones too, in the order in which to mend them. Never raises our errors.

    When the server cannot be reached or holds no schema, the findings end there.
    """
    try:
        with catalog.catalog(dsn) as conn:
            found = _findings(conn, schema)
    except CheckpointError as error:
        return [Finding("reachable", False, str(error), "Check CUO_DATABASE_URL and the server.")]
    return [replace(finding, remedy="") if finding.ok else finding for finding in found]


def require(dsn: str, *, schema: str = "public") -> list[Finding]:
    """As `check`, but raises SchemaNotReady for the first blocking finding that is not ok."""
    findings = check(dsn, schema=schema)
    for finding in findings:
        if finding.blocking and not finding.ok:
            raise SchemaNotReady(f"{finding.name}: {finding.detail}.", remedy=finding.remedy)
    return findings


def _findings(conn: psycopg.Connection[dict[str, Any]], schema: str) -> list[Finding]:
    server = conn.execute(_SERVER, [schema]).fetchone()
    if server is None:  # pragma: no cover - pg_roles always lists the current role
        raise SchemaNotReady("the connected role is not in pg_roles.")
    found = [*_server(server)]
    tables = catalog.tables(conn, schema)
    revision = _revision(conn, schema) if any(t.name == _VERSION for t in tables) else None
    found.append(_revision_finding(revision, schema))
    if revision is None:
        return found
    functions = {row["name"] for row in conn.execute(_FUNCTIONS, [schema])}
    found += _rights(tables, functions)
    found += _guards(conn, schema, revision)
    found.append(_months(catalog.months(conn, schema), server["now"]))
    return found


def _server(server: dict[str, Any]) -> Iterator[Finding]:
    yield Finding("reachable", True, f"PostgreSQL {server['shown']} as {server['role']}")
    yield Finding(
        "server version",
        server["version"] >= 150000,
        f"PostgreSQL {server['shown']}",
        "Use PostgreSQL 15 or later.",
    )
    yield Finding(
        "encoding",
        server["encoding"] == "UTF8",
        f"the database's encoding is {server['encoding']}",
        "Create the database with ENCODING 'UTF8'.",
    )
    above = server["superuser"] or server["bypass"]
    yield Finding(
        "role",
        not above,
        f"{server['role']} is {'exempt from row security' if above else 'bound by row security'}",
        "Connect as cyberos_app: a role that is neither superuser nor BYPASSRLS.",
    )
    capacity = server["locks"] * server["slots"]
    needed = 2 * server["relations"] + _HOT_SESSIONS * _HOT_LOCKS
    fitting = -(-needed // max(server["slots"], 1))
    yield Finding(
        "max_locks_per_transaction",
        capacity >= needed,
        f"room for {capacity} locks; a dump and a whole read of {server['relations']} tables and "
        f"indexes beside {_HOT_SESSIONS} writers take {needed}",
        f"Set max_locks_per_transaction to at least {fitting} and restart the server.",
    )
    off = [s for s in ("fsync", "synchronous_commit", "full_page_writes") if server[s] == "off"]
    yield Finding(
        "durability",
        not off,
        f"{', '.join(off)} off: a crash may lose or damage committed rows"
        if off
        else "commits survive a crash",
        f"Set {' = on, '.join(off)} = on." if off else "",
        blocking=False,
    )


def _revision(conn: psycopg.Connection[dict[str, Any]], schema: str) -> str | None:
    where = sql.Identifier(schema, _VERSION)
    row = conn.execute(sql.SQL(_REVISION).format(where)).fetchone()
    return None if row is None else str(row["revision"])


def _revision_finding(revision: str | None, schema: str) -> Finding:
    head = migrate.head()
    if revision is None:
        return Finding("revision", False, f"schema {schema!r} holds no log", _AS_OWNER)
    if revision not in migrate.revisions():
        # Migrations only add, so this version runs on a newer schema for one release.
        detail = f"the database is at {revision}, newer than this version's {head}"
        return Finding("revision", False, detail, "Install the newer version.", blocking=False)
    detail = f"the database is at {revision}, this version needs {head}"
    return Finding("revision", revision == head, detail, _AS_OWNER)


def _rights(tables: list[Table], functions: set[str]) -> Iterator[Finding]:
    names = {table.name for table in tables}
    log = [t for t in tables if t.name != _VERSION]
    missing = sorted((_LOG | _INDEX | _EVIDENCE | {_VERSION}) - names)
    yield _listed("tables", missing, "all tables are there", "missing", _AS_OWNER)
    open_ones = [t.name for t in tables if not t.forced]
    open_ones += [f"{t.name} (policies)" for t in log if not t.policies >= guards.POLICIES.keys()]
    yield _listed(
        "row security",
        open_ones,
        f"enabled and forced on {len(tables)} tables and months",
        "not enabled, not forced or without its policies",
        "As the owner role: SELECT cuo_protect('NAME'::regclass, true, MONTH) for each, and find "
        "out who changed it.",
    )
    lax = [t.name for t in log if t.name not in _INDEX and not t.triggers >= _wanted_triggers(t)]
    yield _listed(
        "append-only triggers",
        lax,
        "no row can be changed or removed",
        "without a live trigger",
        "As the owner role: ALTER TABLE NAME ENABLE TRIGGER ALL, and verify the log with: "
        "cuo-archive verify --all",
    )
    owned = [table.name for table in tables if table.owned]
    yield _listed(
        "ownership",
        owned,
        "the role owns no table",
        "owned by the role or one it is a member of, which could then undo its protection",
        "Connect as cyberos_app; the owner role is for migrations.",
    )
    wrong = [problem for table in log for problem in _wrong_rights(table)]
    if owned:
        wrong = []  # an owner holds every right; the finding above says so once
    wrong += [f"no EXECUTE on {name}" for name in sorted(_NEEDED_FUNCTIONS - functions)]
    wrong += [f"EXECUTE on {name}" for name in sorted(_OWNERS_FUNCTIONS & functions) if not owned]
    yield _listed(
        "grants",
        wrong,
        "the role may insert and read, nothing else",
        "not as designed",
        "As the owner role, GRANT what is missing and REVOKE what is too much; migration 0002 ends "
        "with the statements.",
    )


def _guards(
    conn: psycopg.Connection[dict[str, Any]], schema: str, revision: str
) -> Iterator[Finding]:
    """What the owner could have changed without any right changing.

    An older schema is to be upgraded first; a newer one may differ by its own migrations, so there
    a difference is told and stops nothing.
    """
    newer = revision not in migrate.revisions()
    if revision != migrate.head() and not newer:
        return
    differing = guards.differences(conn, schema)
    for name, kinds, remedy in _GUARDS:
        wrong = [d.text for d in differing if d.kind in kinds]
        good, bad = "as the migrations made them", "not as the migrations made them"
        found = _listed(name, wrong, good, bad, remedy + _THEN)
        yield replace(found, blocking=not newer)


def _wanted_triggers(table: Table) -> frozenset[str]:
    if table.is_month:
        return _NO_CHANGE
    return _NO_CHANGE | {"cuo_no_change_stmt"} | guards.OWN_TRIGGERS.get(table.name, {}).keys()


def _wrong_rights(table: Table) -> Iterator[str]:
    """What the application's role may do beyond or short of its part, on one table."""
    needed: set[str] = set()
    allowed: set[str] = set()
    if table.name in _INDEX:
        needed = allowed = {"SELECT", "INSERT", "UPDATE"}
    elif table.name in _EVIDENCE:
        needed = allowed = {"SELECT"}
    elif not table.is_month:
        needed, allowed = {"SELECT"}, {"SELECT", "INSERT"}
    held = table.rights | table.column_rights
    for right in sorted(held - allowed):
        yield f"{right} on {table.name}"
    for right in sorted(needed - held):
        yield f"no {right} on {table.name}"


def _months(found: list[MonthTable], now: dt.datetime) -> Finding:
    missing: list[str] = []
    for parent in sorted(_PARTITIONED):
        present = [m.month for m in found if m.parent == parent and m.month is not None]
        missing += [
            m.partition_of(parent) for m in partitions.missing_months(present, now, ahead=1)
        ]
    return _listed(
        "months",
        missing,
        f"{partitions.Month.of(now)} and {partitions.Month.of(now).plus(1)} are there",
        "missing",
        "Run: cuo-archive ensure-partitions",
    )


def _listed(name: str, wrong: Iterable[str], good: str, bad: str, remedy: str) -> Finding:
    """A finding over many things; names the first few that are wrong."""
    listed = list(wrong)
    if not listed:
        return Finding(name, True, good)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return Finding(name, False, f"{bad}: {', '.join(listed[:3])}{more}", remedy)
