"""The database's own copies of its heads and leaves, held against those that were exported.

Nobody has to believe the copies; but the sealer goes by them, so a leaf that was changed or added here
can keep a run from being sealed. And whoever reads them in the database should not be told otherwise.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select

from cuo_checkpoint import seal_queries
from cuo_checkpoint.leaves import Leaf
from cuo_checkpoint.merkle import CompactRange
from cuo_checkpoint.models import SealLeaf
from cuo_checkpoint.notes import Checkpoint
from cuo_checkpoint.seal_findings import FindingKind, SealCheck

__all__ = ["Copies"]

_NAMED: Final = 20
"""Leaves and heads named one by one; more are counted."""


@dataclass(slots=True)
class Copies:
    """One tenant's copies, in the caller's snapshot."""

    heads: dict[int, Row[Any]]
    leaves: int
    ends: dict[int, dt.datetime | None] = field(default_factory=dict)
    """By exported head that holds: when its last leaf was sealed, if it added any."""
    _changed: int = 0

    @classmethod
    def read(cls, conn: Connection, tenant_id: uuid.UUID) -> Copies:
        """The heads, and how many leaves there are."""
        rows = conn.execute(seal_queries.head_rows(tenant_id))
        count = select(func.count()).select_from(SealLeaf).where(SealLeaf.tenant_id == tenant_id)
        return cls({row.head_no: row for row in rows}, conn.execute(count).scalar_one())

    @property
    def size(self) -> int:
        """How many leaves the newest copy of a head covers."""
        return max((row.tree_size for row in self.heads.values()), default=0)

    def compare(
        self, conn: Connection, check: SealCheck, low: int, exported: Sequence[Leaf]
    ) -> None:
        """Names the copies that are not as exported, from leaf `low` on. A database that holds fewer
        heads than were exported lacks their leaves too, which is told of the heads."""
        rows = conn.execute(seal_queries.leaf_rows(check.tenant_id, low, low + len(exported))).all()
        mine = {row.leaf_index: row for row in rows}
        for index, leaf in enumerate(exported, start=low):
            row = mine.get(index)
            if row is None and index >= self.size:
                break
            said = None if row is None else (
                row.run_id, row.chain_seq, row.row_sha256, row.head_at, row.sealed_at,
                row.statement, row.leaf_sha256,
            )  # fmt: skip
            told = (
                leaf.run_id, leaf.chain_seq, leaf.row_sha256, leaf.at, leaf.sealed_at,
                leaf.statement, leaf.hash(),
            )  # fmt: skip
            if said != told:
                self._changed += 1
                if self._changed <= _NAMED:
                    what = "is missing from the database" if row is None else "was changed there"
                    check.add(
                        FindingKind.LEAF_COPY_CHANGED,
                        f"leaf {index} (run {leaf.run_id}, chain row {leaf.chain_seq}) {what}; the "
                        "exported one stands",
                        leaf.run_id,
                        leaf.chain_seq,
                    )

    def against(
        self,
        check: SealCheck,
        exported: Mapping[int, Checkpoint],
        notes: Mapping[int, bytes],
        believed: Callable[[str, bytes], Checkpoint | None],
    ) -> None:
        """The copies of the heads: behind, ahead, or another story; and leaves no head covers."""
        newest = max(exported, default=0)
        gone = [n for n in exported if n not in self.heads]
        if gone:
            named = ", ".join(f"head {n}" for n in gone[:_NAMED])
            rest = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
            check.add(
                FindingKind.DATABASE_BEHIND,
                f"{named}{rest} of {newest} exported and not in the database: it was restored from an "
                "older backup, or its seals were cut",
            )
        ahead = [n for n in self.heads if n > newest]
        if ahead:
            check.add(
                FindingKind.STALE_EXPORT,
                f"the database holds signed heads up to {max(ahead)}, the export ends at {newest}: run "
                "cuo-archive seal, or the folder is an older one",
            )
        if self._changed > _NAMED:
            check.add(
                FindingKind.LEAF_COPY_CHANGED,
                f"and {self._changed - _NAMED} more leaves were changed in the database or are missing",
            )
        if self.leaves > self.size:
            check.add(
                FindingKind.LEAF_COPY_CHANGED,
                f"the database holds {self.leaves} leaves and heads over {self.size}: leaves that no "
                "head covers were added, which can keep their runs from being sealed",
            )
        for number, head in exported.items():
            row = self.heads.get(number)
            if row is None:
                continue
            if row.note.encode() != notes[number]:
                mine = believed(f"head {number} in the database", row.note.encode())
                if mine is not None and mine != head:
                    check.add(
                        FindingKind.SPLIT_VIEW,
                        f"head {number} was signed twice: {mine.size} leaves in the database, "
                        f"{head.size} in the export, and different roots",
                    )
            elif not _fits(row, head, self.ends.get(number)):
                check.add(
                    FindingKind.HEAD_COPY_CHANGED,
                    f"head {number} in the database: its size, root, subtrees or time are not what "
                    "its note and its leaves say",
                )


def _fits(row: Row[Any], head: Checkpoint, sealed_at: dt.datetime | None) -> bool:
    """Whether the columns beside a note say the same."""
    try:
        root = CompactRange.from_bytes(row.tree_size, row.full_subtrees).root()
    except ValueError:
        return False
    same = (row.tree_size, row.root_sha256, root) == (head.size, head.root, head.root)
    return same and (sealed_at is None or row.sealed_at == sealed_at)
