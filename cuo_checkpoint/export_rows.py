"""What a bundle holds of its runs: their rows as stored, each as one line of canonical JSON.

Documents stand in their line as JSON, byte for byte what was digested; only where a stored document
is none the serialiser can have written does its text stand instead, for the verifier to name.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from cuo_checkpoint import digests, row_queries
from cuo_checkpoint.canonical import canonical_bytes, encoded_bytes, odd_numbers
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.export_places import RunPlace
from cuo_checkpoint.models import Hold
from cuo_checkpoint.run_queries import finite
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.sessions import streamed

__all__ = ["audit_lines", "held_runs", "hold_lines", "log_lines", "tombstone_lines", "write_lines"]

Line = tuple[bytes, Mapping[str, Any]]
"""A line, and the row it was made of, UUIDs as text."""

_FETCH: Final = 50
"""Rows with documents held at once: as many states, whatever their size."""

_FETCH_CHAIN: Final = 500
_FEW: Final = 20


def audit_lines(
    conn: Connection, tenant_id: uuid.UUID, places: Sequence[RunPlace]
) -> Iterator[Line]:
    """The runs' chains, run by run and in order."""
    tenant = str(tenant_id)
    query = row_queries.chains(tenant_id, [(place.run_id, place.span) for place in places])
    for row in streamed(conn, query, _fetch(places, _FETCH_CHAIN)):
        tree: dict[str, Any] = {
            "chain_seq": row["chain_seq"],
            "created_at": rfc3339(row["created_at"]),
            "kind": row["kind"],
            "prev_sha256": row["prev_sha256"].hex(),
            "row_sha256": row["row_sha256"].hex(),
            "run_id": row["run_id"],
            "trace_id": row["trace_id"],
        }
        try:
            tree["row"] = row["row_bytes"].decode()
        except ValueError:
            tree["row_base64"] = base64.b64encode(row["row_bytes"]).decode()
        if _body(tenant, row) != row["body"]:
            tree["body"] = row["body"]  # the column says something else than the bytes
        yield encoded_bytes(tree), row


def log_lines(conn: Connection, tenant_id: uuid.UUID, places: Sequence[RunPlace]) -> Iterator[Line]:
    """The runs' log rows, run by run and by seq."""
    query = row_queries.log_in_order(tenant_id, [(place.run_id, place.span) for place in places])
    for row in streamed(conn, query, _fetch(places, _FETCH)):
        yield _line(row, _LOG, "state", "langgraph"), row


def write_lines(
    conn: Connection,
    tenant_id: uuid.UUID,
    places: Sequence[RunPlace],
    threads: Mapping[str, Collection[str]],
) -> Iterator[bytes]:
    """Every version of every pending write of the runs in their threads, run by run and by seq."""
    wanted = [
        (place.run_id, thread, place.span)
        for place in places
        for thread in sorted(threads[str(place.run_id)])
    ]
    query = row_queries.writes_in_order(tenant_id, wanted)
    for row in streamed(conn, query, _fetch(places, _FETCH)):
        yield _line(row, _WRITE, "value")


def tombstone_lines(
    conn: Connection,
    tenant_id: uuid.UUID,
    places: Sequence[RunPlace],
    threads: Mapping[str, Collection[str]],
) -> Iterator[bytes]:
    """The tombstones that these runs appended to their threads."""
    together = {thread for found in threads.values() for thread in found}
    query = row_queries.tombstones(tenant_id, [place.run_id for place in places], together)
    for row in streamed(conn, query, None):
        if row["thread_id"] in threads[str(row["run_id"])]:
            yield _line(row, _TOMBSTONE)


def held_runs(conn: Connection, tenant_id: uuid.UUID) -> set[uuid.UUID]:
    """The runs that there is or was a hold on."""
    query = select(Hold.held_run_id).where(Hold.tenant_id == tenant_id).distinct()
    return {run for run in conn.execute(query).scalars() if run is not None}


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
    for row in streamed(conn, query, None):
        if row["held_run_id"] is None or row["held_run_id"] in runs:
            yield _line(row, _HOLD)


def _told(columns: Sequence[str]) -> tuple[str, ...]:
    """The tenant is the bundle's, and stands in its manifest."""
    return tuple(name for name in columns if name != "tenant_id")


_LOG: Final = _told(digests.LOG_COLUMNS)
_WRITE: Final = _told(digests.WRITE_COLUMNS)
_TOMBSTONE: Final = _told(digests.TOMBSTONE_COLUMNS)
_HOLD: Final = _told(digests.HOLD_COLUMNS)


def _body(tenant: str, row: Mapping[str, Any]) -> str | None:
    """The canonical text of the body that a chain row's bytes hold; None when they hold none."""
    told = digests.chain_row(tenant, row["run_id"], row)
    if told is not None and told[1] == row["row_bytes"]:
        return str(row["body"])
    try:
        return canonical_bytes(json.loads(row["row_bytes"])["body"]).decode()
    except (ValueError, KeyError, TypeError, CheckpointError):
        return None


def _line(row: Mapping[str, Any], columns: tuple[str, ...], *documents: str) -> bytes:
    tree = digests.spelled(row, columns)
    tree["row_sha256"] = row["row_sha256"].hex()
    try:
        odd = False
        for name in documents:
            if row[name] is None:
                tree[name] = None
                continue
            text = row[name].encode()
            tree[name] = text_to_tree(text)
            odd = odd or odd_numbers(text)
        return canonical_bytes(tree) if odd else encoded_bytes(tree)
    except CheckpointError:
        for name in documents:
            tree[f"{name}_text"] = row[name]
            tree.pop(name, None)
        return canonical_bytes(tree)


def _fetch(places: Sequence[RunPlace], rows: int) -> int | None:
    """How rows are fetched: few at once, since a cursor costs round trips; many in turn."""
    known = all(place.log_rows > 0 for place in places)
    return None if known and sum(place.log_rows for place in places) <= _FEW else rows
