"""Comparing the index tables with the log, and making them follow it.

`cuo_runs` and `cuo_threads` are derived: whatever they say, the log says it first. The database
derives them (migration 0003); the application's role cannot, since it may not set what it must
not forge.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from cuo_checkpoint.retention import connected

__all__ = ["Difference", "differences", "rebuild"]

_TENANTS: Final[LiteralString] = "SELECT t AS id FROM cuo_index_tenants() AS t"
_REBUILD: Final[LiteralString] = "SELECT cuo_rebuild_index(%s, %s) AS found"


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of an index table that is not what the log gives.

    `columns` are those that differ, or "missing", or "not in the log". Never their values.
    """

    tenant_id: uuid.UUID
    table: str
    key: str
    columns: tuple[str, ...]

    @classmethod
    def read(cls, tenant_id: uuid.UUID, found: dict[str, Any]) -> Difference:
        """From what the database's function returns."""
        if found["table"] == "cuo_runs":
            key = f"run {found['run_id']}"
        else:
            space = found["checkpoint_ns"]
            key = f"thread {found['thread_id']}" + (f", namespace {space}" if space else "")
        return cls(tenant_id, found["table"], key, tuple(found["columns"]))

    def to_json(self) -> dict[str, Any]:
        return {
            "tenant_id": str(self.tenant_id),
            "table": self.table,
            "key": self.key,
            "columns": list(self.columns),
        }


def differences(
    dsn: str, *, schema: str = "public", tenant_id: uuid.UUID | None = None
) -> list[Difference]:
    """Where index and log disagree, of one tenant or of all. Changes nothing, stops nobody."""
    return list(_each(dsn, schema, tenant_id, apply=False))


def rebuild(
    dsn: str, *, schema: str = "public", tenant_id: uuid.UUID | None = None
) -> list[Difference]:
    """Makes the index follow the log and returns what was different.

    One tenant at a time; nobody writes while a tenant is read. Leases of mended runs count as run
    out.
    """
    return list(_each(dsn, schema, tenant_id, apply=True))


def _each(
    dsn: str, schema: str, tenant_id: uuid.UUID | None, *, apply: bool
) -> Iterator[Difference]:
    with connected(dsn, schema) as conn:
        tenants = (
            [tenant_id]
            if tenant_id is not None
            else [row["id"] for row in conn.execute(_TENANTS).fetchall()]
        )
        for tenant in tenants:
            for row in conn.execute(_REBUILD, [tenant, apply]).fetchall():
                yield Difference.read(tenant, row["found"])
