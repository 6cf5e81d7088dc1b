"""Adding a row to the audit chain of a run that exists, outside any step of it.

The row is inserted through the ORM's table as the application role; the database numbers, times
and links it under the run's row lock, so it extends the head or does not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import exc, insert

from cuo_checkpoint import ids
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.models import AuditRow
from cuo_checkpoint.records import AuditKind
from cuo_checkpoint.sessions import open_engine, settings
from cuo_checkpoint.translating import translated, without_conninfo

__all__ = ["append_replayed"]

_KIND: Final = AuditKind.CHECKPOINT_REPLAYED


def append_replayed(
    url: str,
    *,
    tenant_id: uuid.UUID | str,
    run_id: uuid.UUID | str,
    body: Mapping[str, Any],
    schema: str = "public",
) -> None:
    """Chains one `cuo.checkpoint_replayed` row to a run, ended or not. Blocking.

    `body` must hold nothing personal. The current month must exist (`PostgresCheckpointer.setup`
    makes it). Raises AuditFailed when the tenant has no such run, StoreUnavailable and
    SchemaNotReady.
    """
    tenant = ids.tenant_of(tenant_id)
    row = {
        "tenant_id": tenant,
        "run_id": run_id if isinstance(run_id, uuid.UUID) else ids.run_id_from_ulid(run_id),
        "kind": _KIND.value,
        "body": canonical_bytes(dict(body)).decode(),
    }
    engine = open_engine(url, schema=schema, connections=1)
    try:
        # Under READ COMMITTED a row that another writer is chaining just now is waited for.
        with (
            engine.connect().execution_options(isolation_level="READ COMMITTED") as conn,
            conn.begin(),
        ):
            conn.execute(settings(tenant))
            conn.execute(insert(AuditRow).values(row).inline())
    except exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise translated(error.orig) from without_conninfo(error.orig)
        raise
    finally:
        engine.dispose()
