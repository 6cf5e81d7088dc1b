"""Every statement of the hot path, by name. Values are parameters; only the schema is spelled in.

All else (reading for people, reports, tests) goes through SQLAlchemy in `cuo_checkpoint.runs`.
"""

from __future__ import annotations

from typing import Final, LiteralString

from psycopg import sql

__all__ = [
    "APPEND",
    "CLAIM",
    "ENSURE_PARTITIONS",
    "GET",
    "GET_ANY",
    "LIST",
    "READY",
    "RECORD_REFUSED",
    "ROLE",
    "TOMBSTONE",
    "Statements",
]

APPEND: Final[LiteralString] = (
    "SELECT status, seq, at, run FROM {schema}.cuo_append("
    "%s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s::jsonb,"
    " %s::text[], %s::text[], %s, %s, %s, %s, %s)"
)
"""Append everything that belongs to one put or put_writes, in one transaction."""

RECORD_REFUSED: Final[LiteralString] = (
    "SELECT {schema}.cuo_record_refused(%s, %s, %s, %s, %s, %s, %s)"
)
"""Record a refused overwrite, in a transaction of its own."""

CLAIM: Final[LiteralString] = (
    "SELECT {schema}.cuo_claim(%s, %s, %s, %s, %s, %s::jsonb, %s, %s::text[], %s, %s)"
)
"""Claim the one right to run an effect of a run; a person's answer is told in its chain."""

GET: Final[LiteralString] = (
    "SELECT lg_id, lg_parent, run_id, state::text, langgraph::text, writes::text, events, open_run, deleted, at"
    " FROM {schema}.cuo_get(%s, %s, %s, %s, %s, false, %s)"
)
"""One checkpoint with its pending writes; for a resume also the rows about it."""

GET_ANY: Final[LiteralString] = (
    "SELECT lg_id, lg_parent, run_id, state::text, langgraph::text, writes::text, events, open_run, deleted, at"
    " FROM {schema}.cuo_get(%s, %s, %s, %s, %s, true)"
)
"""As GET, pruned checkpoints included: what delta channels are rebuilt from."""

LIST: Final[LiteralString] = (
    "SELECT thread_id, checkpoint_ns, lg_id, lg_parent, state::text, langgraph::text, writes::text, seq, at"
    " FROM {schema}.cuo_list(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s)"
)
"""Checkpoints newest first, filtered by bound keys and values."""

TOMBSTONE: Final[LiteralString] = "SELECT {schema}.cuo_tombstone(%s, %s, %s, %s, %s, %s)"
"""Append the fact that hides a thread, a run or older checkpoints."""

ENSURE_PARTITIONS: Final[LiteralString] = "SELECT * FROM {schema}.cuo_ensure_partitions()"
"""Create the months in use; returns the names of those it made."""

READY: Final[LiteralString] = "SELECT version_num FROM {schema}.cuo_alembic_version"
"""The schema's revision."""

ROLE: Final[LiteralString] = (
    "SELECT r.rolname::text, r.rolsuper OR r.rolbypassrls FROM pg_catalog.pg_roles r"
    " WHERE r.rolname = current_user"
)
"""Whether row security binds the connected role. Asked once of a pool."""


class Statements:
    """The statements with the schema's name in place."""

    def __init__(self, schema: str) -> None:
        name = sql.Identifier(schema)

        def ready(text: LiteralString) -> bytes:
            return sql.SQL(text).format(schema=name).as_bytes(None)

        self.append = ready(APPEND)
        self.record_refused = ready(RECORD_REFUSED)
        self.claim = ready(CLAIM)
        self.get = ready(GET)
        self.get_any = ready(GET_ANY)
        self.list = ready(LIST)
        self.tombstone = ready(TOMBSTONE)
        self.ensure_partitions = ready(ENSURE_PARTITIONS)
        self.ready = ready(READY)
