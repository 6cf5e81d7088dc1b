"""The audit chain's arithmetic. Pure: the database links rows, this recomputes them.

    row_sha256 = SHA-256("cuo/row/v1" || 0x00 || prev_sha256 || row_bytes)
    genesis    = SHA-256("cuo/genesis/v1" || 0x00 || tenant_id || "/" || run_id)

`row_bytes` is the RFC 8785 form of an object with the keys at, body, chain_seq, kind, run_id,
tenant_id, trace_id and v, so a row speaks for its tenant, run, position, time and content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.cuts import Gap
from cuo_checkpoint.errors import ChainBroken, SerialiseError

__all__ = ["ChainLink", "content_of", "genesis", "link", "verify_links"]

_ROW: Final = b"cuo/row/v1\x00"
_GENESIS: Final = b"cuo/genesis/v1\x00"


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One stored row of a chain, as bytes."""

    chain_seq: int
    row_bytes: bytes
    prev_sha256: bytes
    row_sha256: bytes
    content: Mapping[str, Any] | None = None
    """What `row_bytes` say, from whoever has read them already with `content_of`."""


def genesis(tenant_id: uuid.UUID, run_id: uuid.UUID) -> bytes:
    """What the first row of a run's chain follows."""
    return hashlib.sha256(_GENESIS + f"{tenant_id}/{run_id}".encode()).digest()


def link(prev: bytes, row_bytes: bytes) -> bytes:
    """The digest of a row that follows `prev`."""
    return hashlib.sha256(_ROW + prev + row_bytes).digest()


def verify_links(
    tenant_id: uuid.UUID,
    run_id: uuid.UUID,
    links: Iterable[ChainLink],
    gaps: Mapping[int, Gap] | None = None,
) -> bytes:
    """Recomputes a chain in order and returns its head.

    Raises ChainBroken naming the first row that is out of place, not canonical, not about this
    run and tenant, or whose digest does not follow from its bytes and the row before. What a chain
    alone cannot show is a tail that was cut off: compare the head with a sealed one. `gaps` are the
    rows that retention dropped, by the first of them: they alone may be missing.
    """
    head = genesis(tenant_id, run_id)
    expected, names = 1, (str(tenant_id), str(run_id))
    for row in links:
        while row.chain_seq != expected and gaps and expected in gaps:
            head, expected = gaps[expected].head, gaps[expected].last + 1
        if row.chain_seq < expected:
            raise ChainBroken(str(run_id), row.chain_seq, "stands there a second time")
        if row.chain_seq != expected:
            raise ChainBroken(str(run_id), expected, "row is missing")
        if row.prev_sha256 != head:
            raise ChainBroken(str(run_id), expected, "does not follow the row before")
        if link(head, row.row_bytes) != row.row_sha256:
            raise ChainBroken(str(run_id), expected, "bytes and digest disagree")
        content = content_of(row.row_bytes) if row.content is None else row.content
        if content is None:
            raise ChainBroken(str(run_id), expected, "bytes are not in canonical form")
        said = (content.get("tenant_id"), content.get("run_id"), content.get("chain_seq"))
        if said != (*names, expected):
            raise ChainBroken(str(run_id), expected, "speaks of another tenant, run or position")
        head = row.row_sha256
        expected += 1
    while gaps and expected in gaps:  # a clock put back let the chain's end lie in an older month
        head, expected = gaps[expected].head, gaps[expected].last + 1
    return head


def content_of(row_bytes: bytes) -> dict[str, Any] | None:
    """What canonical bytes say; None for anything else: whoever forged a row chose its bytes."""
    try:
        content = json.loads(row_bytes)
        sound = isinstance(content, dict) and canonical_bytes(content) == row_bytes
    except (ValueError, RecursionError, SerialiseError):
        return None
    return content if sound else None
