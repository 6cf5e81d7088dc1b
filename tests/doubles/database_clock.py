"""A database whose clock can be set, so that rows as old as years come from the code itself."""

from __future__ import annotations

import datetime as dt

import psycopg
from psycopg import sql

__all__ = ["DatabaseClock"]

_PARENTS = (
    "cuo_langgraph_checkpoints",
    "cuo_langgraph_writes",
    "cuo_memory_audit",
    "cuo_thread_tombstones",
    "cuo_holds",
    "cuo_runs",
    "cuo_threads",
)
_DEFAULTS = {
    "cuo_runs": ("first_at", "newest_at"),
    "cuo_threads": ("first_at",),
}


class DatabaseClock:
    """Makes every function and default of the log read a clock of ours that runs from `set`.

    Functions look names up in their own search path; a schema that comes before pg_catalog holds a now() and
    a clock_timestamp() that add an offset. Defaults are bound to the real one, so they are
    replaced. Everything else is as migrated.
    """

    def __init__(self, admin_dsn: str, schema: str = "public") -> None:
        self.dsn = admin_dsn
        with psycopg.connect(admin_dsn, autocommit=True) as conn:
            conn.execute("CREATE SCHEMA cuo_clock")
            conn.execute("GRANT USAGE ON SCHEMA cuo_clock TO PUBLIC")
            conn.execute("CREATE TABLE cuo_clock.shift (by interval NOT NULL)")
            conn.execute("INSERT INTO cuo_clock.shift VALUES ('0')")
            conn.execute("GRANT SELECT ON cuo_clock.shift TO PUBLIC")
            for name in ("now", "clock_timestamp"):
                conn.execute(
                    f"CREATE FUNCTION cuo_clock.{name}() RETURNS timestamptz LANGUAGE sql STABLE"
                    f" AS 'SELECT pg_catalog.{name}() + by FROM cuo_clock.shift'"
                )
            for (name,) in conn.execute(
                "SELECT p.oid::regprocedure::text FROM pg_proc p, unnest(p.proconfig) AS c"
                " WHERE p.pronamespace = %s::regnamespace AND c LIKE 'search_path=%%'",
                [schema],
            ).fetchall():
                conn.execute(
                    sql.SQL(
                        f"ALTER FUNCTION {name} SET search_path TO {{}}, cuo_clock, pg_catalog, pg_temp"
                    ).format(sql.Identifier(schema))
                )
            for table in _PARENTS:
                for column in _DEFAULTS.get(table, ("created_at",)):
                    conn.execute(
                        f"ALTER TABLE {schema}.{table} ALTER {column} SET DEFAULT cuo_clock.now()"
                    )

    @classmethod
    def on(cls, admin_dsn: str) -> DatabaseClock:
        """The clock of a database that has one: a clone of one where it was installed."""
        clock = cls.__new__(cls)
        clock.dsn = admin_dsn
        return clock

    def set(self, at: dt.datetime) -> None:
        """From now on it is `at` for the database, going on at the usual pace."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("UPDATE cuo_clock.shift SET by = %s - pg_catalog.now()", [at])

    def months(self, first: dt.datetime, last: dt.datetime) -> None:
        """Lets time pass from one instant to another; months are made each quarter."""
        at = first
        while at < last:
            self.set(at)
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                conn.execute("SELECT cuo_ensure_partitions()")
            at += dt.timedelta(days=85)
        self.set(last)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute("SELECT cuo_ensure_partitions()")
