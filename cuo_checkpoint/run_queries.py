"""The queries behind `RunReader`, as SQLAlchemy expressions, and its cursors. Pure.

Every one is bounded by the months of its run: a parent table without a bound on `created_at`
opens, and locks, each month of each index.
"""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    tuple_,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql

from cuo_checkpoint.errors import InvalidIdentifier
from cuo_checkpoint.models import AuditRow, LogRow, PendingWriteRow, RunIndex

__all__ = [
    "EARLIER",
    "AnySelect",
    "audit_rows",
    "decisions",
    "encoded_rows",
    "event_rows",
    "finite",
    "held_states",
    "index_rows",
    "last_states",
    "older_than",
    "place_of",
    "span",
    "states_at",
    "to_cursor",
    "write_rows",
]

AnySelect: TypeAlias = "Select[*tuple[Any, ...]]"

EARLIER: Final = dt.timedelta(hours=1)
"""A row may be this much older than its run's first: a transaction that began before the one that
opened the run, but waited for it. Calls are single statements, so minutes would do."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST: Final = dt.datetime(2, 1, 1, tzinfo=dt.UTC)
_LAST: Final = dt.datetime(9998, 12, 31, tzinfo=dt.UTC)
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_DECISION: Final = "cuo.routing_decision"
_QUERY_MAX: Final = 1 << 16
_RFC3339: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
"""As `rfc3339` spells it; every session here is in UTC."""

_LANGGRAPH_KEYS: Final = (
    "v",
    "id",
    "ts",
    "channel_versions",
    "versions_seen",
    "updated_channels",
    "hidden",
    "metadata",
)


def span(index: Row[Any]) -> tuple[dt.datetime, dt.datetime]:
    """Between which instants a run's rows lie."""
    return index.first_at - EARLIER, index.newest_at


def finite(table: Any) -> list[Any]:
    """A table's columns, times brought within what Python's calendar holds.

    A time of infinity, which only a forger writes, would otherwise end every look at the table with the
    driver's error instead of the row's name.
    """
    return [
        func.least(func.greatest(one, _FIRST), _LAST).label(one.name)
        if isinstance(one.type, DateTime)
        else one
        for one in table.__table__.columns
    ]


def index_rows(tenant_id: uuid.UUID) -> AnySelect:
    """The tenant's rows of the index."""
    return select(*finite(RunIndex)).where(RunIndex.tenant_id == tenant_id)


def event_rows(
    tenant_id: uuid.UUID,
    index: Row[Any],
    *,
    after_seq: int,
    limit: int,
    kinds: Collection[str] | None,
    with_state: bool,
) -> AnySelect:
    """Log rows by seq; with the state as stored (see `shared_states`) and LangGraph's document, or
    without both."""
    row = LogRow
    between = span(index)
    query: AnySelect = select(
        row.checkpoint_id,
        row.run_id,
        row.parent_checkpoint_id,
        row.kind,
        row.node_name,
        row.edge_from,
        row.edge_to,
        row.thread_id,
        row.checkpoint_ns,
        row.seq,
        row.step,
        row.phase,
        row.ordinal,
        row.trace_id,
        row.created_at,
        row.lg_checkpoint_id,
        row.state_sha256,
        row.row_sha256,
    )
    if with_state:
        query = query.add_columns(
            sql_cast(row.langgraph, Text).label("langgraph"),
            sql_cast(row.state_json, Text).label("state"),
        )
    else:
        base = sql_cast(postgresql.array(_LANGGRAPH_KEYS), ARRAY(Text))
        query = query.add_columns(
            sql_cast(row.langgraph.op("-")(base), Text).label("langgraph"), null().label("state")
        )
    query = query.where(
        row.tenant_id == tenant_id,
        row.run_id == index.run_id,
        row.created_at.between(*between),
        row.seq > after_seq,
    )
    if kinds is not None:
        query = query.where(row.kind.in_(list(kinds)))
    return query.order_by(row.seq, row.created_at).limit(limit)


@lru_cache(64)
def encoded_rows(threads: int, by_kind: bool) -> AnySelect:
    """Log rows by seq with the state as stored, text wherever their JSON has text.

    Built once for each shape, since building it takes longer than the rest of reading a page; so
    its values are parameters: tenant, run, since, until, size, then `kinds` and, for each thread of
    a cursor, `in_0` and `behind_0` and so on. None is prepared: the server plans for the values,
    and opens their months only. Names and order are those of the documented row.
    """
    row = LogRow
    since = bindparam("since", type_=DateTime(timezone=True))
    until = bindparam("until", type_=DateTime(timezone=True))
    query: AnySelect = select(
        sql_cast(row.checkpoint_id, Text).label("checkpoint_id"),
        sql_cast(row.run_id, Text).label("run_id"),
        sql_cast(row.parent_checkpoint_id, Text).label("parent_checkpoint_id"),
        row.kind,
        row.node_name,
        row.edge_from,
        row.edge_to,
        sql_cast(row.state_json, Text).label("state_json"),
        row.trace_id,
        func.to_char(row.created_at, _RFC3339).label("created_at"),
        row.thread_id,
        row.checkpoint_ns,
        row.seq,
        row.step,
        row.phase,
        row.ordinal,
        row.lg_checkpoint_id,
        sql_cast(row.langgraph, Text).label("langgraph"),
        func.encode(row.state_sha256, "hex").label("state_sha256"),
        func.encode(row.row_sha256, "hex").label("row_sha256"),
    ).where(
        row.tenant_id == bindparam("tenant"),
        row.run_id == bindparam("run"),
        row.created_at.between(since, until),
        row.seq > 0,
    )
    if by_kind:
        query = query.where(row.kind.in_(bindparam("kinds", expanding=True)))
    if threads:
        known: list[tuple[Any, Any]] = [
            (bindparam(f"in_{n}"), bindparam(f"behind_{n}")) for n in range(threads)
        ]
        query = query.where(
            or_(
                *(and_(row.thread_id == thread, row.seq > seq) for thread, seq in known),
                and_(*(row.thread_id != thread for thread, _ in known)),
            )
        )
    return query.order_by(row.seq, row.created_at).limit(bindparam("size", type_=BigInteger))


def audit_rows(tenant_id: uuid.UUID, index: Row[Any]) -> AnySelect:
    """The run's chain, in order."""
    return (
        select(
            AuditRow.run_id,
            AuditRow.chain_seq,
            AuditRow.kind,
            AuditRow.trace_id,
            AuditRow.created_at,
            AuditRow.body,
            AuditRow.prev_sha256,
            AuditRow.row_sha256,
        )
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == index.run_id)
        .where(AuditRow.created_at.between(*span(index)))
        .order_by(AuditRow.chain_seq)
    )


def write_rows(tenant_id: uuid.UUID, index: Row[Any]) -> AnySelect:
    """Every version of every pending write of the run.

    By its threads: the table's key begins with them, and it has no index on runs.
    """
    w = PendingWriteRow
    threads = select(LogRow.thread_id).where(
        LogRow.tenant_id == tenant_id,
        LogRow.run_id == index.run_id,
        LogRow.created_at.between(*span(index)),
    )
    return (
        select(
            w.run_id,
            w.thread_id,
            w.checkpoint_ns,
            w.lg_checkpoint_id,
            w.task_id,
            w.task_path,
            w.idx,
            w.seq,
            w.channel,
            sql_cast(w.value, Text).label("value"),
            w.created_at,
            w.value_sha256,
            w.row_sha256,
        )
        .where(w.tenant_id == tenant_id, w.run_id == index.run_id)
        .where(w.thread_id.in_(threads.union(select(literal(index.thread_id)))))
        .where(w.created_at.between(*span(index)))
        .order_by(w.seq, w.task_id, w.idx)
    )


def decisions(tenant_id: uuid.UUID, group: Sequence[Row[Any]]) -> AnySelect:
    """The routing decisions of runs that lie in the same months."""
    spans = [span(row) for row in group]
    return (
        select(AuditRow.run_id, AuditRow.body)
        .where(AuditRow.tenant_id == tenant_id, AuditRow.kind == _DECISION)
        .where(AuditRow.run_id.in_([row.run_id for row in group]))
        .where(AuditRow.created_at.between(min(s[0] for s in spans), max(s[1] for s in spans)))
        .order_by(AuditRow.chain_seq)
    )


def states_at(tenant_id: uuid.UUID, places: Collection[tuple[uuid.UUID, dt.datetime]]) -> AnySelect:
    """The states of rows by id and time: values, so that the key is searched whatever the planner knows."""
    row = LogRow
    times = [at for _, at in places]
    return select(
        row.checkpoint_id, row.created_at, sql_cast(row.state_json, Text).label("state")
    ).where(
        row.tenant_id == tenant_id,
        row.checkpoint_id.in_(sorted({id_ for id_, _ in places})),
        row.created_at.between(min(times), max(times)),
    )


def last_states(tenant_id: uuid.UUID, group: Sequence[Row[Any]]) -> AnySelect:
    """What the newest state says of runs that have not decided, which lie in the same months.

    One row a run, found by its key. The state itself stays in the database: it may be megabytes.
    `held_by` names the row that holds it, if another one does.
    """
    spans = [span(index) for index in group]
    places = [index.last_rows[-1] for index in group if index.last_rows]
    return _said_at(tenant_id, places, (min(s[0] for s in spans), max(s[1] for s in spans)))


def held_states(tenant_id: uuid.UUID, rows: Sequence[Row[Any]]) -> AnySelect:
    """The same of the rows that hold the states of `rows`."""
    times = [row.created_at for row in rows]
    places = [uuid.UUID(row.held_by) for row in rows]
    return _said_at(tenant_id, places, (min(times), max(times)))


def _said_at(
    tenant_id: uuid.UUID, ids: Sequence[uuid.UUID], between: tuple[dt.datetime, dt.datetime]
) -> AnySelect:
    row = LogRow
    state = row.state_json
    said = func.jsonb_build_object(
        *("persona_key", state["persona_key"]),
        *("persona_version", state["persona_version"]),
        *("path_taken", state["branch_decision"]),
        *("model", state[("llm_pick", "skill_name")]),
        *("rules", state[("rule_scores", "0", "skill_name")]),
        *("rejection", state[("rejection", "error")]),
        # Another graph's may be megabytes.
        *("query", case((func.length(state["query"].astext) <= _QUERY_MAX, state["query"]))),
    )
    named = state["$state_of"].astext
    return (
        select(
            row.run_id,
            row.checkpoint_id,
            row.created_at,
            sql_cast(said, Text).label("said"),
            # One that is malformed, written by hand, must not fail the reading of the others.
            case((named.regexp_match(_UUID), named)).label("held_by"),
        )
        .where(row.tenant_id == tenant_id)
        .where(row.checkpoint_id.in_(ids))
        .where(row.created_at.between(*between))
    )


def older_than(place: tuple[dt.datetime, uuid.UUID]) -> ColumnElement[bool]:
    """Runs that come after `place` in a listing."""
    return tuple_(RunIndex.first_at, RunIndex.run_id) < tuple_(*place)


def to_cursor(first_at: dt.datetime, run_id: uuid.UUID) -> str:
    """A place in a listing, as text that may stand in a URL."""
    micros = (first_at - _EPOCH) // dt.timedelta(microseconds=1)
    return base64.urlsafe_b64encode(micros.to_bytes(8, "big", signed=True) + run_id.bytes).decode()


def place_of(cursor: str) -> tuple[dt.datetime, uuid.UUID]:
    """The place behind a cursor. Raises InvalidIdentifier for text that is none."""
    try:
        packed = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        micros = int.from_bytes(packed[:8], "big", signed=True)
        return _EPOCH + dt.timedelta(microseconds=micros), uuid.UUID(bytes=packed[8:])
    except (ValueError, OverflowError):
        raise InvalidIdentifier("cursor", "is not one that a listing returned") from None
