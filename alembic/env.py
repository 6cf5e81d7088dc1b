"""Where migrations run: one transaction, one advisory lock, one schema.

Settings come from `-x key=value`, then from attributes a caller put on the config, then from
the environment. Everything is created inside the schema named by `schema` (default "public"),
which becomes the whole search_path of the session, so revisions name nothing but their own objects.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

import psycopg
from alembic import context
from psycopg import sql
from sqlalchemy import Connection, create_engine, make_url, pool, text

from cuo_checkpoint import models
from cuo_checkpoint.translating import checked_conninfo

log = logging.getLogger("alembic.cuo")
config = context.config
_x = context.get_x_argument(as_dictionary=True)


def _setting(name: str, default: str) -> str:
    value = _x.get(name) or config.attributes.get(name) or os.environ.get(f"CUO_{name.upper()}")
    return str(value or default)


SCHEMA = _setting("schema", "public")
SETTINGS = {
    "app_role": _setting("app_role", "cyberos_app"),
    "archiver_role": _setting("archiver_role", "cyberos_archiver"),
    "auditor_role": _setting("auditor_role", "cyberos_auditor"),
    "drop_rows": _setting("drop_rows", "no"),
}
for _key, _value in SETTINGS.items():
    config.attributes[_key] = _value

# Concurrent migrators queue here; the revision is read after the lock is held.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('cuo/migrate', 0))"


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _prelude() -> Iterable[str]:
    yield _LOCK
    if SCHEMA != "public":
        yield f"CREATE SCHEMA IF NOT EXISTS {_quoted(SCHEMA)}"
    # pg_temp is searched first unless it is named: last, no caller's temporary table can stand in for
    # a table that a function running as the owner means. Functions keep this path.
    yield f"SET LOCAL search_path TO {_quoted(SCHEMA)}, pg_temp"
    yield "SET LOCAL check_function_bodies TO off"


def _include(obj: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
    """Months are made by the database; only parents belong to the model."""
    table = getattr(obj, "table", obj)
    parents = tuple(models.PARTITIONED_TABLES)
    own = getattr(table, "name", "") or ""
    is_month = own.startswith(tuple(f"{p}_{n}" for p in parents for n in "12"))
    return not (reflected and (is_month or (type_ == "table" and not own.startswith("cuo_"))))


_OPTIONS: dict[str, Any] = {
    "target_metadata": models.Base.metadata,
    "version_table": "cuo_alembic_version",
    "include_object": _include,
    "compare_type": True,
    "compare_server_default": False,
    "transaction_per_migration": False,
}


def _run_on(connection: Connection) -> None:
    context.configure(connection=connection, **_OPTIONS)
    with context.begin_transaction():
        for statement in _prelude():
            connection.execute(text(statement))
        context.run_migrations()


def run_online() -> None:
    existing = config.attributes.get("connection")
    if existing is not None:
        _run_on(existing)
        return
    url = config.attributes.get("url") or os.environ.get("CUO_DATABASE_URL")
    if not url:
        raise SystemExit(
            "CUO_DATABASE_URL is not set: name the database to migrate, as its owner role."
        )
    checked_conninfo(str(url).replace("postgresql+psycopg://", "postgresql://", 1))
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        poolclass=pool.NullPool,
        # At connection time too: reflection asks for the current schema once, before any SET.
        # libpq ends an option at a space unless a backslash is before it.
        connect_args={
            "options": "-c search_path=" + _quoted(SCHEMA).replace("\\", "\\\\").replace(" ", "\\ ")
        },
    )
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        if isinstance(driver, psycopg.Connection):
            driver.add_notice_handler(_warn)
        _run_on(connection)


def _warn(said: psycopg.errors.Diagnostic) -> None:
    """What a migration warns of; the driver alone would drop it."""
    if said.severity_nonlocalized == "WARNING":
        log.warning("%s", said.message_primary)


def run_offline() -> None:
    context.configure(
        dialect_name="postgresql",
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        **_OPTIONS,
    )
    with context.begin_transaction():
        for statement in _prelude():
            context.execute(statement)
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
