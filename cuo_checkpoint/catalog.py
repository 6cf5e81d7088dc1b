"""What the database's own catalog says of the log's tables. Read-only, for checks and reports.

The catalog, not the models: policies, rights, triggers and months are nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from cuo_checkpoint.partitions import Month, month_of_bounds
from cuo_checkpoint.translating import checked_conninfo, translated, without_conninfo

__all__ = ["MonthTable", "Table", "catalog", "months", "tables"]

_TABLES: Final[LiteralString] = """
SELECT c.relname AS name, c.relispartition AS is_month, c.relrowsecurity AND c.relforcerowsecurity AS forced,
       pg_has_role(current_user, c.relowner, 'USAGE') AS owned,
       ARRAY(SELECT p FROM unnest(%s::text[]) AS p WHERE has_table_privilege(c.oid, p)) AS rights,
       ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) AS p
             WHERE has_any_column_privilege(c.oid, p)) AS column_rights,
       ARRAY(SELECT polname::text FROM pg_policy WHERE polrelid = c.oid) AS policies,
       ARRAY(SELECT tgname::text FROM pg_trigger WHERE tgrelid = c.oid AND tgenabled IN ('O', 'A')) AS triggers
FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) AND c.relkind IN ('r', 'p')
  AND c.relname LIKE 'cuo\\_%%' ORDER BY c.relname
"""
"""Each table with its row security, the connected role's rights, policies and live triggers."""

_MONTHS: Final[LiteralString] = """
SELECT p.relname AS parent, c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds,
       c.reltuples::bigint AS rows, pg_total_relation_size(c.oid) AS bytes
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
WHERE p.relnamespace = to_regnamespace(quote_ident(%s)) AND p.relkind = 'p' AND p.relname LIKE 'cuo\\_%%'
ORDER BY p.relname, c.relname
"""
"""Each partition with its bounds, the planner's row estimate and its size with indexes."""

_RIGHTS: Final = ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]


@dataclass(frozen=True, slots=True)
class Table:
    """One table as the connected role finds it; `forced` means row security enabled and forced."""

    name: str
    is_month: bool
    forced: bool
    owned: bool
    rights: frozenset[str]
    column_rights: frozenset[str]
    policies: frozenset[str]
    triggers: frozenset[str]


@dataclass(frozen=True, slots=True)
class MonthTable:
    """One partition. `month` is None when its bounds are not one calendar month in UTC.

    `rows` is the planner's estimate, None before the first ANALYZE; `size` is in bytes.
    """

    parent: str
    name: str
    month: Month | None
    rows: int | None
    size: int


@contextlib.contextmanager
def catalog(dsn: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """One read-only transaction for looking. Errors of the driver come out as ours.

    Raises StoreUnavailable when the server cannot be reached within ten seconds.
    """
    conninfo = checked_conninfo(dsn.replace("postgresql+psycopg://", "postgresql://", 1))
    try:
        with psycopg.connect(
            conninfo,
            row_factory=psycopg.rows.dict_row,
            prepare_threshold=None,
            client_encoding="utf8",
            **_timeout(conninfo),
        ) as conn:
            conn.read_only = True
            # Times, and the bounds of months, are read as text.
            conn.execute("SELECT set_config('datestyle', 'ISO, YMD', true)")
            yield conn
    except psycopg.Error as error:
        raise translated(error) from without_conninfo(error)


def tables(conn: psycopg.Connection[dict[str, Any]], schema: str) -> list[Table]:
    """Every table of the log in the schema, months included."""
    return [
        Table(
            row["name"],
            row["is_month"],
            row["forced"],
            row["owned"],
            *(frozenset(row[k]) for k in ("rights", "column_rights", "policies", "triggers")),
        )
        for row in conn.execute(_TABLES, [_RIGHTS, schema])
    ]


def months(conn: psycopg.Connection[dict[str, Any]], schema: str) -> list[MonthTable]:
    """Every month of every partitioned table, by table and name."""
    return [
        MonthTable(
            row["parent"],
            row["name"],
            month_of_bounds(row["bounds"] or ""),
            row["rows"] if row["rows"] >= 0 else None,
            row["bytes"],
        )
        for row in conn.execute(_MONTHS, [schema])
    ]


def _timeout(conninfo: str) -> dict[str, Any]:
    known = psycopg.conninfo.conninfo_to_dict(conninfo)
    return {} if "connect_timeout" in known else {"connect_timeout": 10}
