"""Runs the migrations from the one copy that this installation carries.

In a checkout that copy is `alembic/` at the root; in a wheel it lies inside this package. What
they say is theirs alone: this module only finds them and asks Alembic to run them.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import psycopg

from .errors import SchemaNotReady, StoreUnavailable
from .translating import checked_conninfo, without_conninfo

__all__ = ["current", "head", "migrations_dir", "revisions", "upgrade"]


@functools.cache
def migrations_dir() -> Path:
    """The folder with `env.py` and `versions/`. Raises SchemaNotReady if the install lacks it."""
    here = Path(__file__).resolve().parent
    for place in (here.parent / "alembic", here / "_alembic"):
        if (place / "env.py").is_file():
            return place
    raise SchemaNotReady(
        "this installation carries no migrations.", remedy="Reinstall the package."
    )


@functools.cache
def revisions() -> frozenset[str]:
    """Every revision this version knows."""
    return frozenset(_graph())


@functools.cache
def head() -> str:
    """The newest revision: the one that no other names as its parent.

    Read from the files' assignments without importing Alembic (0.3 s), since every local command
    asks. Raises SchemaNotReady when there is not exactly one.
    """
    graph = _graph()
    heads = set(graph) - {parent for parents in graph.values() for parent in parents}
    if len(heads) != 1:
        raise SchemaNotReady(
            f"the migrations have {len(heads)} newest revisions, not one.",
            remedy="Reinstall the package.",
        )
    return heads.pop()


def current(dsn: str, *, schema: str = "public") -> str | None:
    """The revision a database is at; None before the first. Reads only.

    Raises StoreUnavailable when it cannot be reached.
    """
    where = psycopg.sql.Identifier(schema, "cuo_alembic_version")
    try:
        with psycopg.connect(checked_conninfo(_libpq(dsn)), client_encoding="utf8") as conn:
            row = conn.execute(
                psycopg.sql.SQL("SELECT version_num FROM {}").format(where)
            ).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    except psycopg.OperationalError as error:
        raise StoreUnavailable(
            "the database cannot be reached. Check CUO_DATABASE_URL and that the server is up."
        ) from without_conninfo(error)
    return None if row is None else str(row[0])


def upgrade(dsn: str, *, schema: str = "public", revision: str = "head") -> None:
    """Bring a database to `revision`, as the owner that `dsn` names. Again: nothing happens.

    Prints nothing and leaves logging as it is. The migrations take their own lock, so callers in
    several processes may run this at once.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    # Attributes, not the ini text: a URL's percent signs would need escaping there, and a
    # password would show in Alembic's own messages.
    config.attributes["url"] = dsn
    config.attributes["schema"] = schema
    command.upgrade(config, revision)


def _graph() -> dict[str, tuple[str, ...]]:
    """Each revision and its parents, read from the assignments in the files."""
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted((migrations_dir() / "versions").glob("*.py")):
        values: dict[str, Any] = {}
        for node in ast.parse(file.read_bytes(), str(file)).body:
            target: ast.expr
            value: ast.expr | None
            if isinstance(node, ast.AnnAssign):
                target, value = node.target, node.value
            elif isinstance(node, ast.Assign):
                target, value = node.targets[0], node.value
            else:
                continue
            named = target.id if isinstance(target, ast.Name) else ""
            if named in ("revision", "down_revision") and value is not None:
                values[named] = ast.literal_eval(value)
        if "revision" in values:
            parent = values.get("down_revision")
            parents = (parent,) if isinstance(parent, str) else tuple(parent or ())
            found[values["revision"]] = parents
    return found


def _libpq(dsn: str) -> str:
    """libpq knows no driver in the scheme; SQLAlchemy's URLs carry one."""
    return dsn.replace("postgresql+psycopg://", "postgresql://", 1)
