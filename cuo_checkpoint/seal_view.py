"""Whether, and under which signed head, a run is sealed: for whoever looks at one run.

As the application sees it, so it shows what the database says: leaf, head and a proof recomputed
from the leaves kept beside them. Whether the head is the one that was exported, and whether its
signature is by the right key, only `cuo-archive verify` can tell, which has both.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, func, select

from cuo_checkpoint import seal_queries
from cuo_checkpoint.leaves import Leaf
from cuo_checkpoint.merkle import Tree, verify_inclusion
from cuo_checkpoint.models import AuditRow, RunIndex, SealHead
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.sessions import reading

__all__ = ["SealView", "read_seal", "sealed_until"]

_LARGEST: Final = 200_000
"""Leaves up to which a proof is computed for one look at a run (0.3 s); the archive has no limit."""

_NO_LIMIT: Final = 2**62


@dataclass(frozen=True, slots=True)
class SealView:
    """The newest seal of a run.

    `fits`: the leaf says what the chain holds at that row. `included`: its hash is in the head's
    tree; None when no head covers it yet or the tree is too large to recompute here.
    """

    leaf_index: int
    chain_seq: int
    row_sha256: str
    leaf_sha256: str
    sealed_at: dt.datetime
    fits: bool
    head_no: int | None
    tree_size: int | None
    root_sha256: str | None
    proof: tuple[str, ...]
    included: bool | None

    def to_json(self) -> dict[str, Any]:
        return {
            "leaf_index": self.leaf_index,
            "chain_seq": self.chain_seq,
            "row_sha256": self.row_sha256,
            "leaf_sha256": self.leaf_sha256,
            "sealed_at": rfc3339(self.sealed_at),
            "fits": self.fits,
            "head_no": self.head_no,
            "tree_size": self.tree_size,
            "root_sha256": self.root_sha256,
            "proof": list(self.proof),
            "included": self.included,
        }


def sealed_until(
    engine: Engine, tenant_id: uuid.UUID, *, late: dt.timedelta = dt.timedelta(hours=1)
) -> tuple[dt.datetime | None, bool]:
    """When the tenant's newest head was signed, and whether a run began since that is `late`."""
    with reading(engine, tenant_id) as conn:
        last = conn.execute(
            select(SealHead.sealed_at)
            .where(SealHead.tenant_id == tenant_id)
            .order_by(SealHead.head_no.desc())
            .limit(1)
        ).scalar_one_or_none()
        if last is None:
            return None, False
        behind = conn.execute(
            select(RunIndex.run_id)
            .where(RunIndex.tenant_id == tenant_id, RunIndex.first_at > last)
            .where(RunIndex.first_at < func.now() - late)
            .limit(1)
        ).first()
    return last, behind is not None


def read_seal(engine: Engine, tenant_id: uuid.UUID, run_id: uuid.UUID) -> SealView | None:
    """The run's newest seal under the first head that covers it; None when it was never sealed."""
    with reading(engine, tenant_id) as conn:
        query = seal_queries.newest_leaf(tenant_id, [run_id], _NO_LIMIT)
        leaf = conn.execute(query).one_or_none()
        if leaf is None:
            return None
        chain = conn.execute(
            select(AuditRow.row_sha256).where(
                AuditRow.tenant_id == tenant_id,
                AuditRow.run_id == run_id,
                AuditRow.chain_seq == leaf.chain_seq,
                AuditRow.created_at == leaf.head_at,
            )
        ).scalar_one_or_none()
        said = Leaf(
            tenant_id,
            run_id,
            leaf.chain_seq,
            leaf.row_sha256,
            leaf.head_at,
            leaf.sealed_at,
            leaf.statement,
        )
        head = conn.execute(
            select(SealHead.head_no, SealHead.tree_size, SealHead.root_sha256)
            .where(SealHead.tenant_id == tenant_id, SealHead.tree_size > leaf.leaf_index)
            .order_by(SealHead.head_no)
            .limit(1)
        ).one_or_none()
        proof: list[bytes] = []
        included: bool | None = None
        if head is not None and head.tree_size <= _LARGEST:
            hashes = conn.execute(seal_queries.leaf_hashes(tenant_id, head.tree_size)).scalars()
            tree = Tree(hashes)
            included = tree.size == head.tree_size
            if included:
                proof = tree.inclusion(leaf.leaf_index)
                included = verify_inclusion(
                    leaf.leaf_index, head.tree_size, said.hash(), proof, head.root_sha256
                )
    return SealView(
        leaf.leaf_index,
        leaf.chain_seq,
        leaf.row_sha256.hex(),
        leaf.leaf_sha256.hex(),
        leaf.sealed_at,
        # A statement's leaf holds the statement's digest, not a chain row's.
        (leaf.statement is not None or chain == leaf.row_sha256)
        and said.hash() == leaf.leaf_sha256,
        None if head is None else head.head_no,
        None if head is None else head.tree_size,
        None if head is None else head.root_sha256.hex(),
        tuple(sibling.hex() for sibling in proof),
        included,
    )
