"""Sealing: the heads of a tenant's chains become leaves of its tree, whose head is signed and exported.

What an earlier seal has read is not read again. Each chain's new rows are recomputed from the row
sealed last, so a chain that was rewritten behind the triggers is noticed here already; it is
reported and left out, and the others are sealed. Nothing is signed that does not extend the last
signed head, in the database and in the export folder.

Killed at any point, the next call goes on: what is in the database is committed with its signed
head, and heads that were not exported yet are exported first thing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, Row, exc, func, insert, select, text

from cuo_checkpoint import chain, seal_queries
from cuo_checkpoint.cuts import Cuts
from cuo_checkpoint.errors import NoteInvalid, SealRefused
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.keys import KeyRing
from cuo_checkpoint.leaves import NO_RUN, Leaf, origin_of
from cuo_checkpoint.merkle import CompactRange, verify_consistency
from cuo_checkpoint.models import SealHead, SealLeaf
from cuo_checkpoint.notes import Checkpoint, SignedNote, key_id, verified
from cuo_checkpoint.sessions import open_engine, reading, settings
from cuo_checkpoint.translating import translated, without_conninfo
from cuo_checkpoint.verify import cuts_of

__all__ = ["SealReport", "Sealer"]

_LEAVES: Final = 10_000
"""Leaves a signed head adds at most: bounds memory and the work a crash can undo."""

_RUNS: Final = 500
"""Runs whose new rows are read in one query."""

_FETCH: Final = 2000

_CLOCKS_APART: Final = dt.timedelta(hours=1)
"""What is sealed is dated by the database; the sealer's own host vouches for the hour."""


@dataclass(slots=True)
class SealReport:
    """What sealing one tenant did. `problems` name runs that were left out, and why."""

    tenant_id: uuid.UUID
    leaves: int = 0
    rows: int = 0
    size: int = 0
    heads: list[int] = field(default_factory=list)
    exported: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "tenant_id": str(self.tenant_id),
            "ok": self.ok,
            "leaves": self.leaves,
            "chain_rows": self.rows,
            "tree_size": self.size,
            "heads": self.heads,
            "exported": self.exported,
            "problems": self.problems,
        }


@dataclass(slots=True)
class Grown:
    """A tree, the last signed head it stands on, and what is to be added to it."""

    number: int
    range: CompactRange
    last: Checkpoint | None
    signers: frozenset[bytes]
    sealed_at: dt.datetime
    leaves: list[Leaf] = field(default_factory=list)


class Sealer:
    """Seals tenants of one database to one folder with one ring of keys. Needs the auditor's role.

    `progress` is told now and then (runs followed, runs in all as far as known).
    """

    def __init__(
        self,
        url: str,
        *,
        ring: KeyRing,
        folder: HeadFolder,
        schema: str = "public",
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.ring = ring
        self.folder = folder
        self.schema = schema
        self.progress = progress
        self.engine: Engine = open_engine(url, schema=schema, connections=2)

    def __enter__(self) -> Sealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def tenants(self) -> list[uuid.UUID]:
        """Every tenant that has runs, as far as the connected role sees them."""
        with reading(self.engine, None) as conn:
            return [tenant for (tenant,) in conn.execute(seal_queries.tenants())]

    def seal(self, tenant_id: uuid.UUID) -> SealReport:
        """Seals what has advanced. Again, or at once from several processes, adds nothing twice.

        Raises SealRefused when database and export folder contradict each other, ExportRefused,
        StoreUnavailable and SchemaNotReady.
        """
        report = SealReport(tenant_id)
        self.export(tenant_id, report)
        after: uuid.UUID | None = NO_RUN
        while after is not None:
            with self.writing(tenant_id) as conn:
                tree = self.grown(conn, tenant_id)
                after = self._add(conn, tenant_id, tree, after, report)
                if tree.leaves or self._needs_new_signature(tree):
                    self.sign(conn, tenant_id, tree, report)
                report.size = tree.range.size
            self.export(tenant_id, report)
        return report

    @contextlib.contextmanager
    def writing(self, tenant_id: uuid.UUID) -> Iterator[Connection]:
        """One transaction of this tenant's only sealer. READ COMMITTED: what came before the lock
        was ours must be seen."""
        try:
            engine = self.engine.execution_options(isolation_level="READ COMMITTED")
            with engine.connect() as conn, conn.begin():
                conn.execute(settings(tenant_id))
                place = {"schema": self.schema, "tenant": str(tenant_id)}
                conn.execute(text(seal_queries.LOCK), place)
                yield conn
        except exc.DBAPIError as error:
            if isinstance(error.orig, psycopg.Error):
                raise translated(error.orig) from without_conninfo(error.orig)
            raise

    def grown(self, conn: Connection, tenant_id: uuid.UUID) -> Grown:
        """The tree as it was signed last, held against signature and export. Raises SealRefused."""
        row = conn.execute(
            seal_queries.head_rows(tenant_id)
            .order_by(None)
            .order_by(SealHead.head_no.desc())
            .limit(1)
        ).one_or_none()
        now: dt.datetime = conn.execute(select(func.now())).scalar_one()
        if abs(now - dt.datetime.now(dt.UTC)) > _CLOCKS_APART:
            raise SealRefused(
                "clock",
                f"tenant {tenant_id}: the database's clock says {now:%Y-%m-%dT%H:%MZ}, which is more "
                "than an hour from this host's. A head signs the time it was sealed: mend the "
                "clocks first.",
            )
        tree = Grown(0, CompactRange(), None, frozenset(), now)
        if row is not None:
            try:
                note = row.note.encode()
                tree.last = verified(note, origin_of(tenant_id), self.ring.believed)
                tree.range = CompactRange.from_bytes(row.tree_size, row.full_subtrees)
                tree.signers = frozenset(line.id for line in SignedNote.parse(note).signatures)
            except (NoteInvalid, ValueError) as error:
                raise SealRefused(
                    "inconsistent",
                    f"tenant {tenant_id}: head {row.head_no} in the database cannot be trusted: "
                    f"{error}. Run: cuo-archive verify",
                ) from error
            tree.number = row.head_no
            if (tree.range.size, tree.range.root()) != (tree.last.size, tree.last.root):
                raise SealRefused(
                    "inconsistent",
                    f"tenant {tenant_id}: the tree in the database is not the one that head "
                    f"{row.head_no} signs. Run: cuo-archive verify",
                )
        self._held_against_export(tenant_id, tree, row)
        return tree

    def _held_against_export(self, tenant_id: uuid.UUID, tree: Grown, row: Row[Any] | None) -> None:
        numbers = self.folder.numbers(tenant_id)
        if not numbers:
            return
        if numbers[-1] > tree.number:
            raise SealRefused(
                "behind",
                f"tenant {tenant_id}: the database holds signed heads up to {tree.number}, but "
                f"{numbers[-1]} were exported. It was restored from a backup, or its seals were "
                "cut. Run cuo-archive verify, then see docs/evidence.md, section Restore.",
            )
        stands = row if row is not None and row.head_no == numbers[-1] else None
        if stands and self.folder.note(tenant_id, tree.number) != stands.note.encode():
            raise SealRefused(
                "inconsistent",
                f"tenant {tenant_id}: head {tree.number} in the database is not the one that "
                "was exported. Run: cuo-archive verify",
            )

    def _needs_new_signature(self, tree: Grown) -> bool:
        if tree.last is None:
            return False
        ours = {key_id(tree.last.origin, key.public.public) for key in self.ring.signing}
        return not ours <= tree.signers

    def _add(
        self,
        conn: Connection,
        tenant_id: uuid.UUID,
        tree: Grown,
        after: uuid.UUID,
        report: SealReport,
    ) -> uuid.UUID | None:
        """Adds the leaves of the next runs that advanced; returns after which run to go on."""
        runs = conn.execute(seal_queries.advanced(tenant_id, after, _LEAVES)).all()
        for start in range(0, len(runs), _RUNS):
            self._extend(conn, tenant_id, runs[start : start + _RUNS], tree, report)
            done = report.leaves + start + _RUNS
            self.progress(done, max(done, report.leaves + len(runs)))
        return runs[-1].run_id if len(runs) == _LEAVES else None

    def _extend(
        self,
        conn: Connection,
        tenant_id: uuid.UUID,
        runs: Sequence[Row[Any]],
        tree: Grown,
        report: SealReport,
    ) -> None:
        """Follows each chain from where it was sealed to its head, reading only what is new."""
        wanted: dict[uuid.UUID, Row[Any]] = {}
        for run in runs:
            if run.sealed_seq is not None and run.chain_seq <= run.sealed_seq:
                what = "went back" if run.chain_seq < run.sealed_seq else "was rewritten"
                report.problems.append(
                    f"run {run.run_id} {what}: chain row {run.sealed_seq} was sealed, the index now "
                    f"ends at row {run.chain_seq}"
                )
            else:
                wanted[run.run_id] = run
        if not wanted:
            return
        query = seal_queries.chain_rows(
            tenant_id,
            [(run.run_id, run.sealed_seq or 0, run.chain_seq) for run in wanted.values()],
            (
                min(run.sealed_at or run.first_at for run in wanted.values()),
                max(run.newest_at for run in wanted.values()),
            ),
        )
        # A run's first seal may come after its first months were dropped.
        cuts = Cuts()
        if any(run.sealed_seq is None for run in wanted.values()):
            cuts = cuts_of(conn, tenant_id)
        heads: dict[uuid.UUID, tuple[int, bytes, dt.datetime]] = {}
        broken: set[uuid.UUID] = set()
        for row in conn.execute(query, execution_options={"yield_per": _FETCH}):
            report.rows += 1
            run = wanted[row.run_id]
            seq, head, _ = heads.get(row.run_id) or (
                run.sealed_seq or 0,
                run.sealed_sha256 or chain.genesis(tenant_id, row.run_id),
                run.first_at,
            )
            gaps = cuts.of(row.run_id)
            while row.chain_seq != seq + 1 and (gap := gaps.get(seq + 1)):
                seq, head = gap.last, gap.head
            fits = row.prev_sha256 == head and chain.link(head, row.row_bytes) == row.row_sha256
            if row.chain_seq != seq + 1 or not fits:
                broken.add(row.run_id)
            heads[row.run_id] = (row.chain_seq, row.row_sha256, row.created_at)
        for run_id, run in wanted.items():
            seq, head, at = heads.get(run_id, (run.sealed_seq or 0, b"", run.first_at))
            if run_id in broken or seq != run.chain_seq:
                report.problems.append(
                    f"run {run_id}: rows {(run.sealed_seq or 0) + 1} to {run.chain_seq} of its "
                    "chain do not extend what was sealed"
                )
                continue
            tree.leaves.append(Leaf(tenant_id, run_id, seq, head, at, tree.sealed_at))

    def sign(self, conn: Connection, tenant_id: uuid.UUID, tree: Grown, report: SealReport) -> None:
        """Appends the leaves and a head over them, once it is shown to extend the last one."""
        low, old = tree.range.size, tree.range.copy()
        hashes = [leaf.hash() for leaf in tree.leaves]
        for digest in hashes:
            tree.range.append(digest)
        if tree.range.size == 0:
            return
        head = Checkpoint(origin_of(tenant_id), tree.range.size, tree.range.root())
        if tree.last is not None and not verify_consistency(
            tree.last.size, head.size, tree.last.root, head.root, old.consistency_with(hashes)
        ):
            raise SealRefused(
                "inconsistent", f"tenant {tenant_id}: the tree does not extend its head."
            )
        if hashes:
            conn.execute(
                insert(SealLeaf),
                [
                    {
                        "tenant_id": tenant_id,
                        "leaf_index": low + i,
                        "run_id": leaf.run_id,
                        "chain_seq": leaf.chain_seq,
                        "row_sha256": leaf.row_sha256,
                        "head_at": leaf.at,
                        "sealed_at": leaf.sealed_at,
                        "statement": leaf.statement,
                        "leaf_sha256": digest,
                    }
                    for i, (leaf, digest) in enumerate(zip(tree.leaves, hashes, strict=True))
                ],
            )
        conn.execute(
            insert(SealHead),
            {
                "tenant_id": tenant_id,
                "head_no": tree.number + 1,
                "tree_size": head.size,
                "root_sha256": head.root,
                "full_subtrees": tree.range.to_bytes(),
                "note": head.signed(self.ring.signing).to_bytes().decode(),
                "sealed_at": tree.sealed_at,
            },
        )
        report.heads.append(tree.number + 1)
        report.leaves += len(hashes)

    def export(self, tenant_id: uuid.UUID, report: SealReport) -> None:
        """Writes the heads that are not in the folder yet, each once its leaves are shown to give it."""
        there = set(self.folder.numbers(tenant_id))
        with reading(self.engine, tenant_id) as conn:
            before = CompactRange()
            for row in conn.execute(seal_queries.head_rows(tenant_id)).all():
                if row.head_no not in there:
                    self._export(conn, tenant_id, row, before)
                    report.exported.append(row.head_no)
                before = CompactRange.from_bytes(row.tree_size, row.full_subtrees)

    def _export(
        self, conn: Connection, tenant_id: uuid.UUID, row: Row[Any], tree: CompactRange
    ) -> None:
        lines = [
            leaf_of(leaf).to_bytes()
            for leaf in conn.execute(seal_queries.leaf_rows(tenant_id, tree.size, row.tree_size))
        ]
        grown = tree.copy()
        for line in lines:
            grown.append(Leaf.parse(line).hash())
        note = row.note.encode()
        try:
            head = verified(note, origin_of(tenant_id), self.ring.believed)
        except NoteInvalid as error:
            raise SealRefused(
                "inconsistent", f"tenant {tenant_id}: head {row.head_no} is not exported: {error}."
            ) from error
        if (head.size, head.root) != (grown.size, grown.root()):
            raise SealRefused(
                "inconsistent",
                f"tenant {tenant_id}: head {row.head_no} is not exported: its leaves in the "
                "database are not those it signs. Run: cuo-archive verify",
            )
        self.folder.write(tenant_id, row.head_no, b"".join(line + b"\n" for line in lines), note)


def leaf_of(row: Row[Any]) -> Leaf:
    """A leaf from its row."""
    return Leaf(
        row.tenant_id,
        row.run_id,
        row.chain_seq,
        row.row_sha256,
        row.head_at,
        row.sealed_at,
        row.statement,
    )
