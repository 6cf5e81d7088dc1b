"""Evidence bundles: a run or a month as files that can be checked without us or our database.

    manifest.json      what is here: tenant, runs, counts, the head it was exported at
    audit.ndjson       the chains; log, writes and tombstones .ndjson: the rows they speak of
    holds.ndjson       legal holds on these runs or on all of the tenant, and their ends
    proofs.json        each run's newest leaf and its path to the head
    leaves.ndjson      of a month: every leaf since it began, so that no run of it can be left out
    head.note          the newest signed head
    verify.py          the verifier: one file, Python's standard library only
    summary.html       the same for people
    SHA256SUMS         of all the others

The same database gives the same bytes: nothing of the export itself (time, host, person) is in it.
States are exported as stored, personal data included; the folder is made for its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Connection, Engine

from cuo_checkpoint import bundle_verify, export_rows, ids, seal_queries
from cuo_checkpoint.errors import ExportRefused, RunUnknown
from cuo_checkpoint.export_draft import ROWS, drafted
from cuo_checkpoint.export_listing import Listing
from cuo_checkpoint.export_page import Page
from cuo_checkpoint.export_places import RunPlace, batches, places_of, runs_of
from cuo_checkpoint.merkle import Tree
from cuo_checkpoint.models import SealHead
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.seal import leaf_of
from cuo_checkpoint.sessions import open_engine, reading

__all__ = ["BundleReport", "export_bundle", "export_month", "export_run"]

_BUFFER: Final = 1 << 18


@dataclass(slots=True)
class BundleReport:
    """What was exported, and where to."""

    folder: Path
    runs: int = 0
    size: int = 0
    tree_size: int = 0
    unsealed_runs: int = 0
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROWS, 0))
    removed: tuple[str, ...] = ()
    """Drafts of exports to the same place that were killed, removed by this one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "runs": self.runs,
            "rows": self.rows,
            "bytes": self.size,
            "tree_size": self.tree_size,
            "unsealed_runs": self.unsealed_runs,
        }


def export_run(
    url: str, tenant_id: uuid.UUID, run_id: uuid.UUID, out: Path, *, schema: str = "public"
) -> BundleReport:
    """One run as a bundle in the new folder `out`. Raises as `export_bundle`, and RunUnknown."""
    engine = open_engine(url, schema=schema, connections=1)
    try:
        return export_bundle(engine, tenant_id, out, run_id=run_id)
    finally:
        engine.dispose()


def export_month(
    url: str,
    tenant_id: uuid.UUID,
    month: Month,
    out: Path,
    *,
    schema: str = "public",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BundleReport:
    """Every run with a row in the month, whole, as a bundle in the new folder `out`."""
    engine = open_engine(url, schema=schema, connections=1)
    try:
        return export_bundle(engine, tenant_id, out, month=month, progress=progress)
    finally:
        engine.dispose()


def export_bundle(
    engine: Engine,
    tenant_id: uuid.UUID,
    out: Path,
    *,
    run_id: uuid.UUID | None = None,
    month: Month | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BundleReport:
    """Writes a bundle from one snapshot; `out` appears whole or not at all.

    Raises ExportRefused when `out` exists or cannot be written, or when the database's seals do not
    fit its own head; RunUnknown; StoreUnavailable; SchemaNotReady.
    """
    report = BundleReport(out)
    with drafted(out) as (draft, report.removed), reading(engine, tenant_id) as conn:
        runs = runs_of(conn, tenant_id, month) if month is not None else [run_id] if run_id else []
        places: Iterable[RunPlace] = places_of(conn, tenant_id, runs)
        if run_id is not None:
            places = list(places)
            if run_id not in {place.run_id for place in places}:
                raise RunUnknown(f"there is no run {run_id} in this tenant")
        scope = {"run": str(run_id)} if month is None else {"month": str(month)}
        seals = _Seals.read(conn, tenant_id, draft)
        report.tree_size = 0 if seals is None else seals.tree.size
        page = Page(tenant_id, scope, None if seals is None else seals.told)
        with Listing.opened(draft) as listing:
            bundle = _Bundle(conn, tenant_id, seals, report, page, listing)
            bundle.write(draft, places, lambda done: progress(done, len(runs)))
            leaves = None
            if month is not None and seals is not None:
                leaves = _write_leaves(conn, tenant_id, month, seals.tree, draft)
            listing.close(
                {
                    "format": bundle_verify.FORMAT,
                    "head": None if seals is None else seals.told,
                    "leaves": leaves,
                    "rows": report.rows,
                    "scope": scope,
                    "tenant_id": str(tenant_id),
                }
            )
        (draft / "summary.html").write_text(page.html(), encoding="utf-8")
        verifier = Path(bundle_verify.__file__).read_bytes()
        (draft / "verify.py").write_bytes(verifier)
        _write_sums(draft)
        report.size = sum(path.stat().st_size for path in draft.iterdir())
    return report


@dataclass(frozen=True, slots=True)
class _Seals:
    """The newest head, and the tree below it."""

    tenant_id: uuid.UUID
    tree: Tree
    root: bytes

    @classmethod
    def read(cls, conn: Connection, tenant_id: uuid.UUID, draft: Path) -> _Seals | None:
        """What the newest head says, its note written; None when there is no head."""
        newest = seal_queries.head_rows(tenant_id).order_by(None).order_by(SealHead.head_no.desc())
        head = conn.execute(newest.limit(1)).one_or_none()
        if head is None:
            return None
        stream = conn.execute(
            seal_queries.leaf_hashes(tenant_id, head.tree_size),
            execution_options={"yield_per": 10_000},
        )
        tree = Tree(digest for (digest,) in stream)
        if (tree.size, tree.root()) != (head.tree_size, head.root_sha256):
            raise ExportRefused(
                "The seals in the database do not fit their own head; nothing was exported. Run: "
                "cuo-archive verify"
            )
        (draft / "head.note").write_bytes(head.note.encode())
        return cls(tenant_id, tree, head.root_sha256)

    @property
    def told(self) -> dict[str, Any]:
        return {"root": self.root.hex(), "tree_size": self.tree.size}

    def proofs(
        self, conn: Connection, places: Sequence[RunPlace]
    ) -> dict[uuid.UUID, tuple[int, dict[str, Any]]]:
        """By run: the chain row its newest leaf speaks of, and that leaf with its path to the head."""
        wanted = [place.run_id for place in places]
        query = seal_queries.newest_leaf(self.tenant_id, wanted, self.tree.size)
        return {
            row.run_id: (
                row.chain_seq,
                {
                    "index": row.leaf_index,
                    "leaf": leaf_of(row).to_bytes().decode(),
                    "path": [node.hex() for node in self.tree.inclusion(row.leaf_index)],
                },
            )
            for row in conn.execute(query)
        }


@dataclass(slots=True)
class _Bundle:
    """Everything that takes up the rows as they come."""

    conn: Connection
    tenant_id: uuid.UUID
    seals: _Seals | None
    report: BundleReport
    page: Page
    listing: Listing

    def write(
        self, draft: Path, places: Iterable[RunPlace], progress: Callable[[int], None]
    ) -> None:
        """Every row of these runs, and the holds on them."""
        held = export_rows.held_runs(self.conn, self.tenant_id)
        written: set[uuid.UUID] = set()
        with _files(draft) as files:
            for batch in batches(places):
                self._rows(files, batch)
                written.update(held.intersection(place.run_id for place in batch))
                progress(self.report.runs)
            for line in export_rows.hold_lines(self.conn, self.tenant_id, written):
                self._put(files, "holds", line)
                self.page.hold(json.loads(line))

    def _rows(self, files: dict[str, IO[bytes]], batch: list[RunPlace]) -> None:
        given = self.conn, self.tenant_id, batch
        names = [str(place.run_id) for place in batch]
        chain_rows, log_rows = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        threads = {str(place.run_id): {place.thread_id} for place in batch}
        for place in batch:
            self.page.run(place)
        for line, row in export_rows.audit_lines(*given):
            self._put(files, "audit", line)
            chain_rows[row["run_id"]] += 1
            self.page.said(row)
        for line, row in export_rows.log_lines(*given):
            self._put(files, "log", line)
            log_rows[row["run_id"]] += 1
            threads[row["run_id"]].add(row["thread_id"])
            self.page.event(row)
        for line in export_rows.write_lines(*given, threads):
            self._put(files, "writes", line)
        for line in export_rows.tombstone_lines(*given, threads):
            self._put(files, "tombstones", line)
        proofs = {} if self.seals is None else self.seals.proofs(self.conn, batch)
        for name, place in zip(names, batch, strict=True):
            seq, proof = proofs.get(place.run_id, (0, None))
            told = {
                "chain_rows": chain_rows[name],
                "first_at": rfc3339(place.first_at),
                "log_rows": log_rows[name],
                "newest_at": rfc3339(place.newest_at),
                "outcome": place.outcome,
                "run_id": name,
                "sealed": None
                if proof is None
                else {"chain_seq": seq, "leaf_index": proof["index"]},
                "state": place.state,
                "ulid": ids.ulid_of(place.run_id),
            }
            self.listing.add(told, proof)
            self.page.ended(told)
            self.report.runs += 1
            self.report.unsealed_runs += proof is None

    def _put(self, files: dict[str, IO[bytes]], name: str, line: bytes) -> None:
        files[name].write(line + b"\n")
        self.report.rows[name] += 1


def _write_leaves(
    conn: Connection, tenant_id: uuid.UUID, month: Month, tree: Tree, draft: Path
) -> dict[str, Any]:
    """Every leaf that can speak of the month, after one that was sealed before it began.

    A row is sealed after it was written, so no older leaf can; those stand as their subtrees.
    """
    query = seal_queries.first_leaf_since(tenant_id, month.start)
    first = conn.execute(query).scalar_one_or_none()
    low = max((tree.size if first is None else min(first, tree.size)) - 1, 0)
    rows = seal_queries.leaf_rows(tenant_id, low, tree.size)
    with (draft / "leaves.ndjson").open("wb") as file:
        for row in conn.execute(rows, execution_options={"yield_per": 2000}):
            file.write(leaf_of(row).to_bytes() + b"\n")
    return {"from": low, "subtrees": [node.hex() for node in tree.beginning(low).nodes]}


def _write_sums(draft: Path) -> None:
    lines = []
    for path in sorted(draft.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (draft / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


@contextmanager
def _files(draft: Path) -> Iterator[dict[str, IO[bytes]]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context((draft / f"{name}.ndjson").open("wb", buffering=_BUFFER))
            for name in ROWS
        }
