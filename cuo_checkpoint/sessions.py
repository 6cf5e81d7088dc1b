"""SQLAlchemy's way to the database, for everybody but the hot path.

One engine, connections on demand, and `reading`: a read-only transaction with the tenant set in
it, whose driver errors come out as ours. Nothing is set on a session and nothing is prepared, so
a transaction pooler may sit between.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, Select, bindparam, create_engine, exc, func, select

from cuo_checkpoint.errors import StoreUnavailable
from cuo_checkpoint.translating import checked_conninfo, translated, without_conninfo

__all__ = ["open_engine", "reading", "settings", "streamed"]


def open_engine(
    url: str, *, schema: str = "public", connections: int = 4, ping: bool = True
) -> Engine:
    """An engine for `url` (a URL or libpq conninfo) whose models stand in `schema`.

    Opens nothing yet. A server or pooler drops idle connections, so each is checked when it is taken
    from the pool; without `ping` only `reading` finds that out, and spares the round trip.
    Raises SettingInvalid for a string that names no database.
    """
    conninfo = checked_conninfo(url.replace("postgresql+psycopg://", "postgresql://", 1))
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo, prepare_threshold=None, client_encoding="utf8"),
        pool_size=1,
        max_overflow=max(connections - 1, 0),
        pool_pre_ping=ping,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,  # tracebacks of chained errors may be shown; values may not
        use_native_hstore=False,  # asking for its type would cost a query per connection
    )
    return engine.execution_options(schema_translate_map={None: schema})


_OWN: Final = select(
    func.set_config("timezone", "UTC", True), func.set_config("datestyle", "ISO, YMD", True)
)
_AS_TENANT: Final = _OWN.add_columns(func.set_config("auth.tenant_id", bindparam("tenant"), True))


def settings(tenant_id: uuid.UUID | None) -> Select[*tuple[Any, ...]]:
    """What a transaction sets for itself first: whose rows it sees, and times as the driver reads them.

    The driver reads no time in any DateStyle but ISO, and a role may have another as its default.
    """
    return _OWN if tenant_id is None else _AS_TENANT.params(tenant=str(tenant_id))


@contextlib.contextmanager
def reading(engine: Engine, tenant_id: uuid.UUID | None) -> Iterator[Connection]:
    """One read-only snapshot, as the tenant; None sets no tenant (only an auditor sees rows then).

    Times come back in UTC. Raises StoreUnavailable, SchemaNotReady or WriteRefused for what the
    driver raises.
    """
    try:
        with _begun(engine, tenant_id) as conn:
            yield conn
    except exc.TimeoutError as error:
        raise StoreUnavailable("no database connection became free in time") from error
    except exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise translated(error.orig) from without_conninfo(error.orig)
        raise


@contextlib.contextmanager
def _begun(engine: Engine, tenant_id: uuid.UUID | None) -> Iterator[Connection]:
    """A connection in a transaction with its settings made.

    One that was dropped while it lay idle shows it here, when nothing was asked of it yet, and is
    replaced once. Asking before each use whether it lives would be a round trip more.
    """
    query = _OWN if tenant_id is None else _AS_TENANT
    given = {} if tenant_id is None else {"tenant": str(tenant_id)}
    for last in (False, True):
        conn = engine.connect().execution_options(postgresql_readonly=True)
        transaction = conn.begin()
        try:
            conn.execute(query, given)
        except BaseException as error:
            conn.close()
            dropped = isinstance(error, exc.DBAPIError) and error.connection_invalidated
            if last or not dropped:
                raise
        else:
            break
    with conn, transaction:
        yield conn


def streamed(
    conn: Connection, query: Select[*tuple[Any, ...]], fetch: int | None
) -> Iterator[dict[str, Any]]:
    """The rows by column, so many fetched at a time; None: all at once, which spares round trips."""
    options = {} if fetch is None else {"yield_per": fetch}
    result = conn.execute(query, execution_options=options)
    names = tuple(result.keys())
    for row in result:
        yield dict(zip(names, row, strict=True))
