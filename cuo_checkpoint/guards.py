"""What the migrations made to guard the log, and how the database's catalog differs from it.

Whoever owns the tables can add a policy that shows every tenant, put an empty body under a trigger
or a rule before an insert: no right changes, nothing is missing, and every row stays well-formed.
So policies, triggers, rules, views, functions and owners are held here whole, not by name alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from cuo_checkpoint.guard_digests import FUNCTIONS

__all__ = ["OWN_TRIGGERS", "POLICIES", "Difference", "differences", "found"]

_PRINTING: Final[LiteralString] = """
SELECT set_config('search_path', quote_ident(%s) || ', pg_temp', true),
       set_config('quote_all_identifiers', 'off', true), set_config('standard_conforming_strings', 'on', true)
"""
"""What lies in the schema is printed without it, so texts are alike whatever the schema is called."""

_FOUND: Final[LiteralString] = """
WITH home AS (
  SELECT c.relnamespace AS schema, c.relowner AS owner, (
           SELECT p.polroles[1] FROM pg_policy p
           WHERE p.polrelid = c.oid AND p.polname = 'cuo_auditor_reads'
         ) AS auditor, 'search_path=' || quote_ident(n.nspname) || ', pg_temp' AS path,
         'search_path="' || replace(n.nspname, '"', '""') || '", "pg_temp"' AS quoted_path
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relname = 'cuo_runs' AND n.nspname = %s
), ours AS (
  SELECT c.oid, c.relname::text AS name, c.relkind AS kind, c.reloptions, home.owner, home.auditor,
         i.inhparent::regclass::text AS parent,
         CASE WHEN c.relowner = home.owner THEN 'owner' ELSE c.relowner::regrole::text END AS owned_by
  FROM home JOIN pg_class c ON c.relnamespace = home.schema AND c.relname LIKE 'cuo\\_%%'
       AND c.relkind IN ('r', 'p', 'v')
  LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
)
SELECT 'table' AS kind, name AS place, '' AS name, parent, owned_by AS text FROM ours WHERE kind <> 'v'
UNION ALL
SELECT 'policy', o.name, p.polname::text, o.parent, concat_ws(' ',
         CASE WHEN p.polpermissive THEN 'permissive' ELSE 'restrictive' END, p.polcmd, 'to',
         (SELECT string_agg(CASE WHEN r = 0 THEN 'all' WHEN r = o.owner THEN 'owner'
                                 WHEN pg_has_role(current_user, r, 'MEMBER')
                                      AND NOT pg_has_role(current_user, o.owner, 'MEMBER') THEN 'this role'
                                 WHEN r = o.auditor THEN 'auditor' ELSE r::regrole::text END, ', ')
          FROM unnest(p.polroles) AS r),
         'using ' || pg_get_expr(p.polqual, o.oid), 'check ' || pg_get_expr(p.polwithcheck, o.oid))
FROM ours o JOIN pg_policy p ON p.polrelid = o.oid
UNION ALL
SELECT 'trigger', o.name, t.tgname::text, o.parent,
       CASE WHEN t.tgenabled IN ('O', 'A') THEN '' ELSE 'disabled ' END || replace(
         split_part(pg_get_triggerdef(t.oid, true), t.tgname || ' ', 2), ' ON ' || quote_ident(o.name) || ' ', ' ')
FROM ours o JOIN pg_trigger t ON t.tgrelid = o.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'rule', o.name, r.rulename::text, o.parent, ''
FROM ours o JOIN pg_rewrite r ON r.ev_class = o.oid AND r.ev_type <> '1'
UNION ALL
SELECT 'view', '', o.name, NULL, o.owned_by || ' ' || coalesce(o.reloptions::text, '') FROM ours o WHERE o.kind = 'v'
UNION ALL
SELECT 'function', '', p.proname::text || '/' || p.pronargs, NULL, string_agg(
         left(encode(sha256(convert_to(concat_ws(E'\\x1f', oidvectortypes(p.proargtypes), p.pronargdefaults,
           format_type(p.prorettype, NULL), p.proretset, p.proowner = home.owner, l.lanname, p.prosecdef,
           p.proleakproof, p.proisstrict, p.provolatile, p.prokind, p.prosqlbody IS NULL, coalesce(array_replace(
             array_replace(p.proconfig, home.path, 'search_path=its'), home.quoted_path, 'search_path=its')::text, ''),
           coalesce(replace(p.prosrc, ' TO "' || replace(pg_get_userbyid(home.auditor), '"', '""') || '" USING ',
                            ' TO auditor USING '), p.prosrc)
         ), 'UTF8')), 'hex'), 32), ' ' ORDER BY p.oid)
FROM home JOIN pg_proc p ON p.pronamespace = home.schema AND p.proname LIKE 'cuo\\_%%'
JOIN pg_language l ON l.oid = p.prolang
GROUP BY p.proname, p.pronargs
"""
"""By kind: owners, policies, triggers, rules; for functions of a name and number of arguments, digests.

Views are held by owner and options alone: servers of two versions print one view in two ways.
"""

POLICIES: Final[Mapping[str, str]] = {
    "cuo_tenant_rls": "permissive * to all using (tenant_id = cuo_tenant())"
    " check (tenant_id = cuo_tenant())",
    "cuo_owner_reads": "permissive r to owner using true",
    "cuo_auditor_reads": "permissive r to auditor using true",
}
"""Those of every table of the log, of its evidence and index, and of every month."""
_VERSION_POLICIES: Final[Mapping[str, str]] = {
    "cuo_version_reads": "permissive r to all using true",
    "cuo_version_owner": "permissive * to owner using true check true",
}

_FORBID: Final = "EXECUTE FUNCTION cuo_forbid_change()"
_REFUSALS: Final[Mapping[str, str]] = {
    "cuo_no_truncate": f"BEFORE TRUNCATE FOR EACH STATEMENT {_FORBID}",
    "cuo_no_change_stmt": f"BEFORE DELETE OR UPDATE FOR EACH STATEMENT {_FORBID}",
    "cuo_no_change": f"BEFORE DELETE OR UPDATE FOR EACH ROW {_FORBID}",
}
_BY_HAND: Final = "SESSION_USER = CURRENT_USER"
OWN_TRIGGERS: Final[Mapping[str, Mapping[str, str]]] = {
    "cuo_langgraph_checkpoints": {
        "cuo_log_before": "BEFORE INSERT FOR EACH ROW"
        f" WHEN (new.row_sha256 IS NULL OR {_BY_HAND}) EXECUTE FUNCTION cuo_log_before()",
        "cuo_log_after": "AFTER INSERT REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT"
        f" WHEN ({_BY_HAND} OR CURRENT_USER <> cuo_owner()) EXECUTE FUNCTION cuo_log_after()",
    },
    "cuo_langgraph_writes": {
        "cuo_write_before": "BEFORE INSERT FOR EACH ROW"
        f" WHEN (new.row_sha256 IS NULL OR {_BY_HAND}) EXECUTE FUNCTION cuo_write_before()",
    },
    "cuo_memory_audit": {
        "cuo_chain_link": "BEFORE INSERT FOR EACH ROW"
        f" WHEN (new.chain_seq IS NULL OR {_BY_HAND}) EXECUTE FUNCTION cuo_chain_link()",
    },
    "cuo_thread_tombstones": {
        "cuo_tombstone_before": "BEFORE INSERT FOR EACH ROW"
        " EXECUTE FUNCTION cuo_tombstone_before()",
    },
    "cuo_runs": {
        "cuo_run_genesis": "BEFORE INSERT FOR EACH ROW"
        " WHEN (new.chain_head IS NULL) EXECUTE FUNCTION cuo_run_genesis()",
        "cuo_run_opened": "AFTER INSERT FOR EACH ROW"
        " WHEN (CURRENT_USER <> cuo_owner()) EXECUTE FUNCTION cuo_run_opened()",
        "cuo_run_stays_closed": "BEFORE UPDATE OF state FOR EACH ROW"
        " WHEN (old.state = 'closed'::text AND new.state <> 'closed'::text"
        " AND CURRENT_USER <> cuo_owner()) EXECUTE FUNCTION cuo_run_stays_closed()",
    },
}
"""Beside those that refuse changes. Texts as the server prints them with the schema in its path."""

_INDEX: Final = frozenset({"cuo_runs", "cuo_threads"})
_EVIDENCE: Final = frozenset({"cuo_holds", "cuo_seal_heads", "cuo_seal_leaves"})
_VERSION: Final = "cuo_alembic_version"
_TABLES: Final = _INDEX | _EVIDENCE | {*OWN_TRIGGERS, _VERSION}
_VIEWS: Final = ("cuo_checkpoints_full", "cuo_memory_audit_json")


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that is not as the migrations made it. Its text names it and says how."""

    kind: str
    text: str


def differences(conn: psycopg.Connection[dict[str, Any]], schema: str) -> list[Difference]:
    """Every policy, trigger, rule, view, function or owner that is missing, added or changed.

    Two statements. A table that is not there has none to miss; whoever asks finds that out apart.
    Leaves three settings of the transaction changed, search_path among them.
    """
    there = found(conn, schema)
    if not there:
        return []
    tables = {place: parent for (kind, place, _), (_, parent) in there.items() if kind == "table"}
    due = _due(tables)
    ours = {key for key in there if not key[1] or _known(key[1], tables)}
    told = []
    for key in sorted(ours | due.keys()):
        if key not in due:
            how = "added"
        elif key not in there:
            how = "missing"
        elif there[key][0] != due[key]:
            how = "disabled" if there[key][0].startswith("disabled ") else "changed"
        else:
            continue
        told.append(Difference(key[0], _told(*key, how)))
    return told


def found(
    conn: psycopg.Connection[dict[str, Any]], schema: str
) -> dict[tuple[str, str, str], tuple[str, str | None]]:
    """What the catalog says, by kind, table and name: its text, and the table whose month it is in."""
    conn.execute(_PRINTING, [schema])
    rows = conn.execute(_FOUND, [schema])
    return {(r["kind"], r["place"], r["name"]): (r["text"], r["parent"]) for r in rows}


def _known(table: str, tables: Mapping[str, str | None]) -> bool:
    return table in _TABLES or tables.get(table) in _TABLES


def _due(tables: Mapping[str, str | None]) -> dict[tuple[str, str, str], str]:
    due = {("function", "", name): digest for name, digest in FUNCTIONS.items()}
    due |= {("view", "", name): "owner {security_invoker=true}" for name in _VIEWS}
    for table, parent in tables.items():
        if not _known(table, tables):
            continue
        due["table", table, ""] = "owner"
        policies = _VERSION_POLICIES if table == _VERSION else POLICIES
        due |= {("policy", table, name): text for name, text in policies.items()}
        due |= {("trigger", table, name): text for name, text in _triggers(table, parent)}
    return due


def _triggers(table: str, parent: str | None) -> Iterator[tuple[str, str]]:
    """A month inherits the row triggers of its table, and has those that refuse changes by itself."""
    inherits = parent in _TABLES
    kin = parent if parent is not None and inherits else table
    own = dict(OWN_TRIGGERS.get(kin, {}))
    if kin not in _INDEX and kin != _VERSION:
        own |= _REFUSALS
    for name, text in own.items():
        if not inherits or "FOR EACH ROW" in text or name in _REFUSALS:
            yield name, text


def _told(kind: str, table: str, name: str, how: str) -> str:
    """Names come from whoever made the object: shown so that they cannot play with a terminal."""
    parts = [part if part.isprintable() else ascii(part) for part in (name, table) if part]
    if kind == "table":
        return f"owner of {parts[0]} ({how})"
    if kind == "function":
        return f"{parts[0].partition('/')[0]}() ({how})"
    return f"{kind} {' on '.join(parts)} ({how})"
