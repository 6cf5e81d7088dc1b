"""A run's log rows as JSON, page by page or as one stream: what the HTTP service sends.

Rows come in order of arrival. Within a thread `seq` is given out under the thread's lock, so it
follows the order of commits: a row that becomes visible later stands behind all that were visible.
A run may have rows in several threads, so a cursor holds one `seq` for each of them.

Rows are encoded here, with the states' text as the database gives it: parsing a state only to
write it again would be most of the work.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import uuid
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Engine, Row, bindparam, select

from cuo_checkpoint import run_queries
from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.errors import InvalidIdentifier
from cuo_checkpoint.models import AuditRow, LogRow, RunIndex
from cuo_checkpoint.run_records import AuditRecord
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.sessions import reading
from cuo_checkpoint.shared_states import SharedStates

__all__ = [
    "EventChunk",
    "EventPage",
    "RunHead",
    "encode_cursor",
    "parse_cursor",
    "read_audit",
    "read_head",
    "read_page",
    "read_state",
    "stream_rows",
]

Positions = Mapping[str, int]
"""For each thread, the `seq` of the last row that was read."""

_FETCH: Final = 50
"""Rows per fetch, and fewer of large ones: states go up to 5 MB, so this and not the page bounds
memory."""

_FETCH_FIRST: Final = 8
_FETCH_BYTES: Final = 1024 * 1024
"""What a fetch should not exceed, guessed from the largest row of the one before."""

_CHUNK_BYTES: Final = 256 * 1024

_THREADS_MAX: Final = 32
_CURSOR_MAX: Final = 32 * 1024
_SEQ_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RunHead:
    """What the index says of a run: enough to tell whether it grew."""

    run_id: uuid.UUID
    state: str
    log_rows: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """Encoded rows, where the next page starts (None: no more now), and where these end.

    `log_rows` is how many rows the run had in the same snapshot.
    """

    log_rows: int
    rows: list[bytes]
    next: str | None
    tail: str


@dataclass(frozen=True, slots=True)
class EventChunk:
    """Some encoded rows of a stream, and the last `seq` of each thread among them."""

    rows: list[bytes]
    places: dict[str, int]


def encode_cursor(positions: Positions) -> str:
    """A place in a run, as text that may stand in a URL. Raises InvalidIdentifier beyond 32 threads."""
    if len(positions) > _THREADS_MAX:
        raise InvalidIdentifier(
            "cursor", "cannot hold a run of so many threads; ask for application/x-ndjson"
        )
    raw = orjson.dumps(sorted(positions.items()))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def parse_cursor(cursor: str) -> dict[str, int]:
    """The place behind a cursor. Raises InvalidIdentifier for text that is none."""
    try:
        if len(cursor) > _CURSOR_MAX:
            raise ValueError  # noqa: TRY301 - one message for every malformed cursor
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        pairs = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        found = {thread: seq for thread, seq in pairs}  # noqa: C416 - checks that each is a pair
        if (
            len(found) != len(pairs)
            or len(found) > _THREADS_MAX
            or not all(
                type(thread) is str
                and "\0" not in thread
                and type(seq) is int
                and 0 <= seq <= _SEQ_MAX
                for thread, seq in found.items()
            )
        ):
            raise ValueError  # noqa: TRY301
    except (ValueError, TypeError, binascii.Error):
        raise InvalidIdentifier("cursor", "is not one that this service returned") from None
    return found


def read_head(engine: Engine, tenant_id: uuid.UUID, run_id: uuid.UUID) -> RunHead | None:
    """The run's entry in the index; None when this tenant has no such run."""
    with reading(engine, tenant_id) as conn:
        index = _index(conn, tenant_id, run_id)
    return None if index is None else RunHead(run_id, index.state, index.log_rows)


def read_page(
    engine: Engine,
    tenant_id: uuid.UUID,
    run_id: uuid.UUID,
    *,
    after: Positions,
    limit: int,
    max_bytes: int,
    kinds: Collection[str] | None = None,
) -> EventPage | None:
    """Up to `limit` rows behind `after`; None when this tenant has no such run.

    A page ends early once it holds `max_bytes`, but never before its first row.
    """
    places = dict(after)
    found: list[bytes] = []
    size = 0
    more = False
    with reading(engine, tenant_id) as conn:
        index = _index(conn, tenant_id, run_id)
        if index is None:
            return None
        with closing(_rows(conn, tenant_id, index, places, limit + 1, kinds)) as rows:
            for row, state in rows:
                if len(found) == limit or size >= max_bytes:
                    more = True
                    break
                encoded = _encoded(row, state)
                found.append(encoded)
                size += len(encoded)
                places[row.thread_id] = row.seq
    tail = encode_cursor(places)
    return EventPage(index.log_rows, found, tail if more else None, tail)


def stream_rows(
    engine: Engine,
    tenant_id: uuid.UUID,
    run_id: uuid.UUID,
    *,
    after: Positions,
    kinds: Collection[str] | None = None,
) -> Generator[EventChunk]:
    """All rows behind `after`, some at a time, in one snapshot that is held until the end.

    Holds a connection and a transaction: the caller bounds how long, and closes the iterator.
    Empty for a run unknown here.
    """
    with reading(engine, tenant_id) as conn:
        index = _index(conn, tenant_id, run_id)
        if index is None:
            return
        chunk, size = EventChunk([], {}), 0
        with closing(_rows(conn, tenant_id, index, after, None, kinds)) as rows:
            for row, state in rows:
                chunk.rows.append(_encoded(row, state))
                chunk.places[row.thread_id] = row.seq
                size += len(chunk.rows[-1])
                if len(chunk.rows) == _FETCH or size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = EventChunk([], {}), 0
        if chunk.rows:
            yield chunk


def read_audit(
    engine: Engine,
    tenant_id: uuid.UUID,
    run_id: uuid.UUID,
    *,
    after: int,
    limit: int,
    kinds: Collection[str] | None = None,
) -> list[AuditRecord]:
    """Links of the run's chain above `after`, in order, unchecked; empty for a run unknown here."""
    with reading(engine, tenant_id) as conn:
        index = _index(conn, tenant_id, run_id)
        if index is None:
            return []
        query = run_queries.audit_rows(tenant_id, index).where(AuditRow.chain_seq > after)
        if kinds is not None:
            query = query.where(AuditRow.kind.in_(list(kinds)))
        return [
            AuditRecord(
                run_id=row.run_id,
                chain_seq=row.chain_seq,
                kind=row.kind,
                trace_id=row.trace_id,
                created_at=row.created_at,
                body=orjson.loads(row.body),
                prev_sha256=row.prev_sha256.hex(),
                row_sha256=row.row_sha256.hex(),
            )
            for row in conn.execute(query.limit(limit))
        ]


def read_state(
    engine: Engine, tenant_id: uuid.UUID, run_id: uuid.UUID, *, thread_id: str, seq: int
) -> JsonValue:
    """The state of one row, in the stored form; None when there is no such row."""
    with reading(engine, tenant_id) as conn:
        index = _index(conn, tenant_id, run_id)
        if index is None:
            return None
        query = run_queries.event_rows(
            tenant_id, index, after_seq=seq - 1, limit=1, kinds=None, with_state=True
        ).where(LogRow.seq == seq, LogRow.thread_id == thread_id)
        rows = conn.execute(query).all()
        shared = SharedStates(conn, tenant_id)
        states = shared.of([(str(r.checkpoint_id), r.created_at, r.state) for r in rows])
        return text_to_tree(states[0]) if states else None


_INDEX: Final = select(
    RunIndex.run_id, RunIndex.state, RunIndex.log_rows, RunIndex.first_at, RunIndex.newest_at
).where(RunIndex.tenant_id == bindparam("tenant"), RunIndex.run_id == bindparam("run"))


def _index(conn: Connection, tenant_id: uuid.UUID, run_id: uuid.UUID) -> Any:
    return conn.execute(_INDEX, {"tenant": tenant_id, "run": run_id}).one_or_none()


def _rows(
    conn: Connection,
    tenant_id: uuid.UUID,
    index: Row[Any],
    after: Positions,
    limit: int | None,
    kinds: Collection[str] | None,
) -> Generator[tuple[Row[Any], str]]:
    """Rows with their states in full."""
    shared = SharedStates(conn, tenant_id)
    since, until = run_queries.span(index)
    given: dict[str, Any] = {
        "tenant": tenant_id,
        "run": index.run_id,
        "since": since,
        "until": until,
        "size": limit or _SEQ_MAX,
    }
    if kinds is not None:
        given["kinds"] = list(kinds)
    for number, (thread, seq) in enumerate(after.items()):
        given |= {f"in_{number}": thread, f"behind_{number}": seq}
    query = run_queries.encoded_rows(len(after), kinds is not None)
    # A server-side cursor for many rows: the driver would otherwise hold them all at once. For few
    # it would only cost round trips. Rows that came since the index was read are none here: both
    # are of one snapshot.
    many = min(limit or _SEQ_MAX, index.log_rows) > _FETCH
    with conn.execute(query, given, execution_options={"stream_results": many}) as result:
        count = _FETCH_FIRST
        while rows := list(result.fetchmany(count)):
            states = shared.of(
                [
                    (r.checkpoint_id, dt.datetime.fromisoformat(r.created_at), r.state_json)
                    for r in rows
                ]
            )
            largest = max(map(len, states))
            count = max(1, min(_FETCH, 4 * count, _FETCH_BYTES // max(1, largest)))
            while rows:
                yield rows.pop(0), states.pop(0)  # one that was sent is not kept


def _encoded(row: Row[Any], state: str) -> bytes:
    """One row as JSON, its names as in the table and, for the state, as the log's readers know it."""
    said = row._asdict()
    said["state_json"] = orjson.Fragment(state)
    if said["langgraph"] is not None:
        said["langgraph"] = orjson.Fragment(said["langgraph"])
    return orjson.dumps(said)
