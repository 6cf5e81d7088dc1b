"""What a bundle holds of a run: its rows as stored, each as one line of canonical JSON.

Documents stand in their line as JSON, byte for byte what was digested; only where a stored document
is none the serialiser can have written does its text stand instead, for the verifier to name.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Text, func, literal, select, union
from sqlalchemy import cast as sql_cast

from cuo_checkpoint import bundle_verify, digests
from cuo_checkpoint.canonical import canonical_bytes, encoded_bytes, odd_numbers
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.models import AuditRow, Hold, LogRow, PendingWriteRow, RunIndex, Tombstone
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.run_queries import EARLIER, AnySelect, finite
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.serde import text_to_tree

__all__ = [
    "RunPlace",
    "audit_lines",
    "hold_lines",
    "log_lines",
    "places_of",
    "tombstone_lines",
    "write_lines",
]

_FETCH: Final = 50
_FEW: Final = 20
_RETENTION: Final = uuid.UUID(bundle_verify.RETENTION)
_RUNS: Final = 1000


class RunPlace(NamedTuple):
    """Where a run lies and what the index says of it; `state` is "" for one the index lost."""

    run_id: uuid.UUID
    thread_id: str
    state: str
    outcome: str | None
    first_at: dt.datetime
    newest_at: dt.datetime
    log_rows: int

    @property
    def fetch(self) -> dict[str, int]:
        """How its rows are fetched: few at once, since a cursor costs round trips; many in turn."""
        return {} if 0 < self.log_rows <= _FEW else {"yield_per": _FETCH}


def places_of(
    conn: Connection, tenant_id: uuid.UUID, *, run_id: uuid.UUID | None, month: Month | None
) -> list[RunPlace]:
    """The run named, or every run with a row in the month, by id.

    A run is exported whole, whatever months it crosses, so its chain can be followed from its
    first row. Before all others stands the chain of retention, where there is one: it says which
    rows of which runs were dropped lawfully.
    """
    if month is None:
        runs = [run_id] if run_id is not None else []
    else:
        tables = (AuditRow, LogRow, PendingWriteRow, Tombstone)
        queries = [
            select(table.run_id)
            .where(table.tenant_id == tenant_id)
            .where(table.created_at >= month.start, table.created_at < month.end)
            .distinct()
            for table in tables
        ]
        runs = sorted(conn.execute(union(*queries)).scalars())
    found: dict[uuid.UUID, RunPlace] = {}
    indexed = [_RETENTION, *runs]
    for start in range(0, len(indexed), _RUNS):
        query = select(
            *(column for column in finite(RunIndex) if column.name in RunPlace._fields)
        ).where(
            RunIndex.tenant_id == tenant_id, RunIndex.run_id.in_(indexed[start : start + _RUNS])
        )
        for row in conn.execute(query):
            found[row.run_id] = RunPlace(**row._asdict())
    for run in runs:
        if run not in found:
            lost = _lost(conn, tenant_id, run)
            if lost is not None:
                found[run] = lost
    return [found[run] for run in sorted(found, key=lambda run: (run != _RETENTION, run))]


def audit_lines(
    conn: Connection, tenant_id: uuid.UUID, place: RunPlace
) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """The run's chain in order, each line with the row it was made of."""
    query = _of_run(
        select(
            AuditRow.chain_seq,
            AuditRow.kind,
            AuditRow.trace_id,
            AuditRow.body,
            AuditRow.row_bytes,
            AuditRow.prev_sha256,
            AuditRow.row_sha256,
            AuditRow.created_at,
        ),
        AuditRow,
        tenant_id,
        place,
    ).order_by(AuditRow.chain_seq)
    for row in conn.execute(query, execution_options=place.fetch):
        tree: dict[str, Any] = {
            "chain_seq": row.chain_seq,
            "created_at": rfc3339(row.created_at),
            "kind": row.kind,
            "prev_sha256": row.prev_sha256.hex(),
            "row_sha256": row.row_sha256.hex(),
            "run_id": str(place.run_id),
            "trace_id": row.trace_id,
        }
        try:
            tree["row"] = row.row_bytes.decode()
        except ValueError:
            tree["row_base64"] = base64.b64encode(row.row_bytes).decode()
        columns = row._asdict()
        if _body(str(tenant_id), str(place.run_id), columns) != row.body:
            tree["body"] = row.body  # the column says something else than the bytes
        yield encoded_bytes(tree), columns


def log_lines(
    conn: Connection, tenant_id: uuid.UUID, place: RunPlace
) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """The run's log rows by seq."""
    query = _of_run(
        select(
            *(getattr(LogRow, name) for name in digests.LOG_COLUMNS),
            LogRow.row_sha256,
            sql_cast(LogRow.state_json, Text).label("state"),
            sql_cast(LogRow.langgraph, Text).label("langgraph"),
        ),
        LogRow,
        tenant_id,
        place,
    ).order_by(LogRow.seq, LogRow.checkpoint_id)
    for row in conn.execute(query, execution_options=place.fetch):
        yield _line(row._asdict(), digests.LOG_COLUMNS, "state", "langgraph"), row._asdict()


def write_lines(
    conn: Connection, tenant_id: uuid.UUID, place: RunPlace, threads: Collection[str]
) -> Iterator[bytes]:
    """Every version of every pending write of the run."""
    w = PendingWriteRow
    query = (
        _of_run(
            select(
                *(getattr(w, name) for name in digests.WRITE_COLUMNS),
                w.row_sha256,
                sql_cast(w.value, Text).label("value"),
            ),
            w,
            tenant_id,
            place,
        )
        .where(w.thread_id.in_(sorted({*threads, place.thread_id})))
        .order_by(w.seq, w.checkpoint_ns, w.lg_checkpoint_id, w.task_id, w.idx, w.created_at)
    )
    for row in conn.execute(query, execution_options=place.fetch):
        yield _line(row._asdict(), digests.WRITE_COLUMNS, "value")


def tombstone_lines(
    conn: Connection, tenant_id: uuid.UUID, place: RunPlace, threads: Collection[str]
) -> Iterator[bytes]:
    """The tombstones that this run appended."""
    t = Tombstone
    query = (
        select(*finite(t))
        .where(t.tenant_id == tenant_id, t.run_id == place.run_id)
        .where(t.thread_id.in_(sorted({*threads, place.thread_id})))
        .order_by(t.created_at, t.tombstone_id)
    )
    for row in conn.execute(query):
        yield _line(row._asdict(), digests.TOMBSTONE_COLUMNS)


def _body(tenant: str, run: str, row: Mapping[str, Any]) -> str | None:
    """The canonical text of the body that a chain row's bytes hold; None when they hold none."""
    told = digests.chain_row(tenant, run, row)
    if told is not None and told[1] == row["row_bytes"]:
        return str(row["body"])
    try:
        return canonical_bytes(json.loads(row["row_bytes"])["body"]).decode()
    except (ValueError, KeyError, TypeError, CheckpointError):
        return None


def hold_lines(
    conn: Connection, tenant_id: uuid.UUID, runs: Collection[uuid.UUID]
) -> Iterator[bytes]:
    """The legal holds, and their ends, of the whole tenant and of these runs: who, when and why.

    Those of other runs stay out: their words are nobody's business who asked for these.
    """
    query = (
        select(*finite(Hold))
        .where(Hold.tenant_id == tenant_id)
        .order_by(Hold.created_at, Hold.hold_id)
    )
    for row in conn.execute(query):
        if row.held_run_id is None or row.held_run_id in runs:
            yield _line(row._asdict(), digests.HOLD_COLUMNS)


def _of_run(query: AnySelect, table: Any, tenant_id: uuid.UUID, place: RunPlace) -> AnySelect:
    return query.where(table.tenant_id == tenant_id, table.run_id == place.run_id).where(
        table.created_at.between(place.first_at - EARLIER, place.newest_at)
    )


def _line(row: Mapping[str, Any], columns: tuple[str, ...], *documents: str) -> bytes:
    tree = {name: _plain(row[name]) for name in columns if name != "tenant_id"}
    tree["row_sha256"] = row["row_sha256"].hex()
    try:
        for name in documents:
            tree[name] = None if row[name] is None else text_to_tree(row[name])
        odd = any(odd_numbers(row[name].encode()) for name in documents if row[name] is not None)
        return canonical_bytes(tree) if odd else encoded_bytes(tree)
    except CheckpointError:
        for name in documents:
            tree[f"{name}_text"] = row[name]
            tree.pop(name, None)
        return canonical_bytes(tree)


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime):
        return rfc3339(value)
    return value.hex() if isinstance(value, bytes) else value


def _lost(conn: Connection, tenant_id: uuid.UUID, run_id: uuid.UUID) -> RunPlace | None:
    """Where a run without an index row lies: looked for in every month."""
    spans = [
        select(
            literal("" if table is AuditRow else None, Text).label("thread"),
            func.min(table.created_at).label("low"),
            func.max(table.created_at).label("high"),
        ).where(table.tenant_id == tenant_id, table.run_id == run_id)
        for table in (AuditRow, LogRow)
    ]
    found = [row for query in spans for row in conn.execute(query) if row.low is not None]
    if not found:
        return None
    threads = (
        select(LogRow.thread_id)
        .where(LogRow.tenant_id == tenant_id, LogRow.run_id == run_id)
        .limit(1)
    )
    thread = conn.execute(threads).scalar_one_or_none() or "lost"
    low, high = min(row.low for row in found), max(row.high for row in found)
    return RunPlace(run_id, thread, "", None, low, high, 0)
