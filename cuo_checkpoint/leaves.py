"""What a seal's tree is made of: one leaf per head of a chain, and its one spelling. Pure.

A leaf is the RFC 8785 form of

    {"at", "chain_seq", "row_sha256", "run_id", "sealed_at", "tenant_id", "v"}

`at` is the time of the chain row it quotes, so that a missing month has a name; `sealed_at` is when
it was sealed, and signed with it. A leaf with a `statement` quotes no row: in it the holder of the
seal key says what is no longer as it was sealed, and why.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.merkle import leaf_hash
from cuo_checkpoint.run_records import rfc3339

__all__ = ["NO_RUN", "Leaf", "Loss", "losses_of", "origin_of", "restore_statement"]

NO_RUN: Final = uuid.UUID(int=0)
"""The run of a leaf that is a statement."""

_RESTORED: Final = "restored"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf. `row_sha256` is that of chain row `chain_seq`, or of the statement."""

    tenant_id: uuid.UUID
    run_id: uuid.UUID
    chain_seq: int
    row_sha256: bytes
    at: dt.datetime
    sealed_at: dt.datetime
    statement: str | None = None

    def to_bytes(self) -> bytes:
        tree: dict[str, Any] = {
            "at": rfc3339(self.at),
            "chain_seq": self.chain_seq,
            "row_sha256": self.row_sha256.hex(),
            "run_id": str(self.run_id),
            "sealed_at": rfc3339(self.sealed_at),
            "tenant_id": str(self.tenant_id),
            "v": 1,
        }
        if self.statement is not None:
            tree["statement"] = self.statement
        return canonical_bytes(tree)

    def hash(self) -> bytes:
        return leaf_hash(self.to_bytes())

    @classmethod
    def parse(cls, data: bytes) -> Leaf:
        """The leaf behind `to_bytes`. Raises ValueError for anything not spelled exactly so."""
        try:
            tree = json.loads(data)
            leaf = cls(
                uuid.UUID(tree["tenant_id"]),
                uuid.UUID(tree["run_id"]),
                tree["chain_seq"],
                bytes.fromhex(tree["row_sha256"]),
                dt.datetime.fromisoformat(tree["at"]),
                dt.datetime.fromisoformat(tree["sealed_at"]),
                tree.get("statement"),
            )
            same = leaf.to_bytes() == data
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a leaf") from error
        if not same:
            raise ValueError("not a leaf in its canonical form")
        return leaf


@dataclass(frozen=True, slots=True)
class Loss:
    """A run that is not as it was sealed: sealed up to `sealed_seq`, now ending at `found_seq` (0: gone)."""

    run_id: uuid.UUID
    sealed_seq: int
    found_seq: int


def origin_of(tenant_id: uuid.UUID) -> str:
    """The name of a tenant's tree in its signed heads."""
    return f"cuo/{tenant_id}"


def restore_statement(reason: str, losses: Sequence[Loss]) -> str:
    """What the holder of the seal key declares after a restore: canonical, so that it has a digest."""
    tree: Mapping[str, Any] = {
        "kind": _RESTORED,
        "lost": [[str(loss.run_id), loss.sealed_seq, loss.found_seq] for loss in losses],
        "reason": reason,
        "v": 1,
    }
    return canonical_bytes(dict(tree)).decode()


def losses_of(statement: str) -> tuple[str, list[Loss]]:
    """Reason and losses of a statement. Raises ValueError for one not made here."""
    try:
        tree = json.loads(statement)
        losses = [
            Loss(uuid.UUID(run), int(sealed), int(found)) for run, sealed, found in tree["lost"]
        ]
        reason = str(tree["reason"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("not a statement") from error
    if restore_statement(reason, losses) != statement:
        raise ValueError("not a statement in its canonical form")
    return reason, losses
