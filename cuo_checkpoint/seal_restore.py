"""Going on sealing after a restore from a backup that is older than the last signed head.

The tree may not fork, so it goes on from the exported heads: their leaves return to the database,
and one further leaf, signed like all others, states which runs are no longer as they were sealed
and why. Verification names those runs as declared from then on; it never forgets them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, func, insert, select

from cuo_checkpoint import chain
from cuo_checkpoint.errors import NoteInvalid, SealRefused
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.leaves import NO_RUN, Leaf, Loss, losses_of, origin_of, restore_statement
from cuo_checkpoint.merkle import CompactRange
from cuo_checkpoint.models import AuditRow, SealHead, SealLeaf
from cuo_checkpoint.notes import verified
from cuo_checkpoint.seal import Grown, Sealer, SealReport
from cuo_checkpoint.seal_check import losses
from cuo_checkpoint.verify import cuts_of

__all__ = ["declare_restore"]

_MAX_REASON: Final = 500


def declare_restore(
    sealer: Sealer, tenant_id: uuid.UUID, reason: str
) -> tuple[SealReport, list[Loss]]:
    """Takes the exported heads back into the database and declares what the restore lost.

    `reason` is signed and kept for good: it must name nobody. Again, it finds nothing new to
    declare. Raises SealRefused when an exported head does not verify or a remaining chain is broken
    in itself, which no restore explains.
    """
    if not reason.strip() or len(reason) > _MAX_REASON:
        raise SealRefused("inconsistent", f"a reason of 1 to {_MAX_REASON} characters is needed.")
    report = SealReport(tenant_id)
    with sealer.writing(tenant_id) as conn:
        _take_back(conn, sealer, tenant_id)
        tree = sealer.grown(conn, tenant_id)
        lost = losses(conn, tenant_id, _undeclared(sealer.folder, tenant_id))
        if lost:
            _declare(conn, tenant_id, tree, reason, lost)
            sealer.sign(conn, tenant_id, tree, report)
        report.size = tree.range.size
    sealer.export(tenant_id, report)
    return report, lost


def _take_back(conn: Connection, sealer: Sealer, tenant_id: uuid.UUID) -> None:
    newest = select(func.max(SealHead.head_no)).where(SealHead.tenant_id == tenant_id)
    have = conn.execute(newest).scalar_one() or 0
    tree = CompactRange()
    for number in sealer.folder.numbers(tenant_id):
        low = tree.size
        leaves = [Leaf.parse(line) for line in sealer.folder.leaves(tenant_id, number)]
        for leaf in leaves:
            tree.append(leaf.hash())
        note = sealer.folder.note(tenant_id, number)
        try:
            head = verified(note, origin_of(tenant_id), sealer.ring.believed)
        except NoteInvalid as error:
            raise SealRefused("inconsistent", f"exported head {number}: {error}.") from error
        if (head.size, head.root) != (tree.size, tree.root()):
            raise SealRefused("inconsistent", f"exported head {number} does not sign its leaves.")
        if number <= have:
            continue
        for i, leaf in enumerate(leaves):
            row = {
                "tenant_id": tenant_id,
                "leaf_index": low + i,
                "run_id": leaf.run_id,
                "chain_seq": leaf.chain_seq,
                "row_sha256": leaf.row_sha256,
                "head_at": leaf.at,
                "sealed_at": leaf.sealed_at,
                "statement": leaf.statement,
                "leaf_sha256": leaf.hash(),
            }
            conn.execute(insert(SealLeaf), row)
        conn.execute(
            insert(SealHead),
            {
                "tenant_id": tenant_id,
                "head_no": number,
                "tree_size": tree.size,
                "root_sha256": tree.root(),
                "full_subtrees": tree.to_bytes(),
                "note": note.decode(),
                "sealed_at": leaves[-1].sealed_at if leaves else func.now(),
            },
        )


def _undeclared(folder: HeadFolder, tenant_id: uuid.UUID) -> Iterator[Leaf]:
    """The exported leaves that still bind: not those of runs a later statement speaks of."""
    told: list[Leaf] = []
    for number in folder.numbers(tenant_id):
        for line in folder.leaves(tenant_id, number):
            leaf = Leaf.parse(line)
            if leaf.statement is None:
                told.append(leaf)
                continue
            freed = {loss.run_id for loss in losses_of(leaf.statement)[1]}
            told = [earlier for earlier in told if earlier.run_id not in freed]
    yield from told


def _declare(
    conn: Connection, tenant_id: uuid.UUID, tree: Grown, reason: str, lost: list[Loss]
) -> None:
    statement = restore_statement(reason, lost)
    digest = chain.link(b"", statement.encode())
    now = tree.sealed_at
    tree.leaves.append(Leaf(tenant_id, NO_RUN, 0, digest, now, now, statement))
    for loss in lost:
        if loss.found_seq:
            tree.leaves.append(_sealed_anew(conn, tenant_id, loss, tree))


def _sealed_anew(conn: Connection, tenant_id: uuid.UUID, loss: Loss, tree: Grown) -> Leaf:
    """The head that is left of a run, once its chain is shown to hold from the first row."""
    query = (
        select(AuditRow.__table__)
        .where(AuditRow.tenant_id == tenant_id, AuditRow.run_id == loss.run_id)
        .order_by(AuditRow.chain_seq)
    )
    gaps = cuts_of(conn, tenant_id).of(loss.run_id)
    head, seq, at = chain.genesis(tenant_id, loss.run_id), 0, tree.sealed_at
    for row in conn.execute(query, execution_options={"yield_per": 2000}):
        while row.chain_seq != seq + 1 and (gap := gaps.get(seq + 1)):
            seq, head = gap.last, gap.head
        fits = row.prev_sha256 == head and chain.link(head, row.row_bytes) == row.row_sha256
        if row.chain_seq != seq + 1 or not fits:
            raise SealRefused(
                "inconsistent",
                f"run {loss.run_id}: its chain is broken at row {seq + 1}, which no restore does.",
            )
        head, seq, at = row.row_sha256, row.chain_seq, row.created_at
    return Leaf(tenant_id, loss.run_id, seq, head, at, tree.sealed_at)
