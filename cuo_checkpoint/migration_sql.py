"""Runs the SQL scripts that the migrations consist of.

They lie beside the revisions in `alembic/sql`, one idea to a file, and name no schema: the
migration's search_path does. `<app>`, `<archiver>` and `<auditor>` stand for the configured roles
as identifiers, `<app_lit>` and so on for the same inside a string literal.
"""

from __future__ import annotations

from alembic import context, op

from .migrate import migrations_dir

__all__ = ["dropping_rows", "run_script", "run_sql"]

_ROLES = ("app", "archiver", "auditor")


def run_script(name: str, **words: str) -> None:
    """Runs `alembic/sql/<name>.sql`; `words` are further stand-ins, put in as they are."""
    run_sql((migrations_dir() / "sql" / f"{name}.sql").read_text(encoding="utf-8"), **words)


def run_sql(script: str, **words: str) -> None:
    """Sends a script of any number of statements, or prints it when migrating offline."""
    migration = op.get_context()
    quote = migration.dialect.identifier_preparer.quote_identifier
    for role in _ROLES:
        name = str(context.config.attributes[f"{role}_role"])
        words |= {role: quote(name), f"{role}_lit": name.replace("'", "''")}
    for word, meaning in words.items():
        script = script.replace(f"<{word}>", meaning)
    if context.is_offline_mode():
        migration.impl.static_output(script.rstrip())
    else:
        # Without parameters the driver sends it as it stands: several statements, no bind names.
        op.get_bind().exec_driver_sql(script, execution_options={"no_parameters": True})


def dropping_rows() -> bool:
    """Whether whoever downgrades said that the rows may go (`-x drop_rows=yes`)."""
    return str(context.config.attributes["drop_rows"]) == "yes"
