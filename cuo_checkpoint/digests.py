"""The digests of stored rows, recomputed from their columns. Pure.

The database computes `row_sha256` as it inserts (migration 0002); this is the other side, written
from the definition and not from that code:

    row_sha256 = SHA-256 of the RFC 8785 form of an object with every column of the row but
                 row_sha256 itself; UUIDs and times as text, and each jsonb document standing in
                 it by its own digest (state_sha256, langgraph_sha256, value_sha256)

A document's digest is taken over the RFC 8785 form of its stored tree, so it does not depend on
how jsonb orders keys or spells numbers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cuo_checkpoint.canonical import JsonValue, encoded_bytes, parsed_bytes
from cuo_checkpoint.errors import CheckpointError
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.serde import text_to_tree

__all__ = [
    "CHAIN_COLUMNS",
    "HOLD_COLUMNS",
    "LINK_COLUMNS",
    "LOG_COLUMNS",
    "TOMBSTONE_COLUMNS",
    "WRITE_COLUMNS",
    "chain_row",
    "document_sha256",
    "hold_row_sha256",
    "log_row_sha256",
    "shared_with",
    "spelled",
    "tombstone_row_sha256",
    "write_row_sha256",
    "write_set_sha256",
]

LINK_COLUMNS: Final = (
    "run_id",
    "chain_seq",
    "row_bytes",
    "prev_sha256",
    "row_sha256",
    "created_at",
)
"""What of a chain row is needed to follow its chain."""

CHAIN_COLUMNS: Final = (*LINK_COLUMNS, "kind", "trace_id", "body")
"""A chain row whole, but for the tenant."""

LOG_COLUMNS: Final = (
    "checkpoint_id",
    "checkpoint_ns",
    "created_at",
    "edge_from",
    "edge_to",
    "kind",
    "langgraph_sha256",
    "lg_checkpoint_id",
    "lg_parent_id",
    "node_name",
    "ordinal",
    "parent_checkpoint_id",
    "phase",
    "run_id",
    "seq",
    "state_sha256",
    "step",
    "tenant_id",
    "thread_id",
    "trace_id",
)
WRITE_COLUMNS: Final = (
    "channel",
    "checkpoint_ns",
    "created_at",
    "idx",
    "lg_checkpoint_id",
    "run_id",
    "seq",
    "task_id",
    "task_path",
    "tenant_id",
    "thread_id",
    "value_sha256",
)
TOMBSTONE_COLUMNS: Final = (
    "created_at",
    "hidden_run_id",
    "kind",
    "run_id",
    "tenant_id",
    "thread_id",
    "tombstone_id",
    "up_to_seq",
)

HOLD_COLUMNS: Final = (
    "created_at",
    "held_run_id",
    "hold_id",
    "kind",
    "placed_by",
    "reason",
    "releases",
    "tenant_id",
)


def log_row_sha256(row: Mapping[str, Any]) -> bytes:
    """The digest of a row of `cuo_langgraph_checkpoints`, by its LOG_COLUMNS."""
    return _row(row, LOG_COLUMNS)


def write_row_sha256(row: Mapping[str, Any]) -> bytes:
    """The digest of a row of `cuo_langgraph_writes`, by its WRITE_COLUMNS."""
    return _row(row, WRITE_COLUMNS)


def tombstone_row_sha256(row: Mapping[str, Any]) -> bytes:
    """The digest of a row of `cuo_thread_tombstones`, by its TOMBSTONE_COLUMNS."""
    return _row(row, TOMBSTONE_COLUMNS)


def hold_row_sha256(row: Mapping[str, Any]) -> bytes:
    """The digest of a row of `cuo_holds`, by its HOLD_COLUMNS."""
    return _row(row, HOLD_COLUMNS)


def write_set_sha256(row_digests: Iterable[bytes]) -> bytes:
    """The digest a chain keeps of one put_writes: over its rows' digests, in order of idx."""
    return hashlib.sha256(b"".join(row_digests)).digest()


_AS_THEY_ARE: Final = frozenset({str, int, type(None)})
_PLAIN: Final = re.compile("[a-z0-9_.]+")
"""Kinds and trace ids: nothing in them is escaped in JSON."""


def chain_row(
    tenant_id: str, run_id: str, row: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes] | None:
    """What a row of `cuo_memory_audit` says by its columns, and the canonical bytes of that.

    Whoever finds these bytes in the row need not parse them again, which is what takes time. None
    when that is not certain: kind or trace hold what JSON escapes, or the body is no canonical text
    of an object. It says nothing against the row.
    """
    kind, trace, body, number = row["kind"], row["trace_id"], row["body"], row["chain_seq"]
    if not _PLAIN.fullmatch(kind) or not _PLAIN.fullmatch(trace):
        return None
    try:
        data = body.encode()
        tree = text_to_tree(data)
        if type(tree) is not dict or parsed_bytes(data, tree) != data:
            return None
    except (CheckpointError, UnicodeEncodeError):
        return None
    at = rfc3339(row["created_at"])
    content = {
        "at": at,
        "body": tree,
        "chain_seq": number,
        "kind": kind,
        "run_id": run_id,
        "tenant_id": tenant_id,
        "trace_id": trace,
        "v": 1,
    }
    text = (
        f'{{"at":"{at}","body":{body},"chain_seq":{number},"kind":"{kind}",'
        f'"run_id":"{run_id}","tenant_id":"{tenant_id}","trace_id":"{trace}","v":1}}'
    )
    return content, text.encode()


def spelled(row: Mapping[str, Any], columns: Iterable[str]) -> dict[str, JsonValue]:
    """These columns as JSON spells them: UUIDs, times and bytes as text."""
    return {
        name: value if type(value := row[name]) in _AS_THEY_ARE else _plain(value)
        for name in columns
    }


def document_sha256(text: str) -> bytes:
    """The digest of a stored document, from the text jsonb gives.

    Raises DeserialiseError or SerialiseError for a tree the serialiser cannot have written.
    """
    data = text.encode()
    return hashlib.sha256(parsed_bytes(data, text_to_tree(data))).digest()


def shared_with(text: str) -> uuid.UUID | None:
    """Which row holds this row's state, when it holds only a reference to it."""
    if not text.startswith('{"$state_of"'):
        return None
    tree = text_to_tree(text)
    if not isinstance(tree, dict) or set(tree) != {"$state_of"}:
        return None
    try:
        return uuid.UUID(str(tree["$state_of"]))
    except ValueError:
        return None


def _row(row: Mapping[str, Any], columns: tuple[str, ...]) -> bytes:
    """Raises SerialiseError for an integer that RFC 8785 has no form for."""
    # Of columns: no fractions among them.
    return hashlib.sha256(encoded_bytes(spelled(row, columns))).digest()


def _plain(value: Any) -> JsonValue:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dt.datetime):
        return rfc3339(value)
    if isinstance(value, bytes):
        return value.hex()
    return value  # type: ignore[no-any-return]
