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
import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Connection, Engine

from cuo_checkpoint import bundle_verify, export_rows, ids, seal_queries
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.errors import ExportRefused, RunUnknown
from cuo_checkpoint.export_page import Page
from cuo_checkpoint.export_rows import RunPlace
from cuo_checkpoint.merkle import Tree
from cuo_checkpoint.models import SealHead
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.run_records import rfc3339
from cuo_checkpoint.seal import leaf_of
from cuo_checkpoint.sessions import open_engine, reading

__all__ = ["BundleReport", "export_bundle", "export_month", "export_run"]

_FILES: Final = ("audit", "log", "writes", "tombstones", "holds")
_PROOFS: Final = 500


@dataclass(slots=True)
class BundleReport:
    """What was exported, and where to."""

    folder: Path
    runs: int = 0
    size: int = 0
    tree_size: int = 0
    unsealed_runs: int = 0
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FILES, 0))

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
    with _draft(out) as draft, reading(engine, tenant_id) as conn:
        places = export_rows.places_of(conn, tenant_id, run_id=run_id, month=month)
        if run_id is not None and run_id not in {place.run_id for place in places}:
            raise RunUnknown(f"there is no run {run_id} in this tenant")
        scope = {"run": str(run_id)} if month is None else {"month": str(month)}
        page = Page(tenant_id, scope)
        runs = _write_rows(conn, tenant_id, places, draft, report, page, progress)
        head, tree = _write_proofs(conn, tenant_id, runs, draft, report)
        page.head(head)
        leaves = None
        if month is not None and tree is not None:
            leaves = _write_leaves(conn, tenant_id, month, tree, draft)
        manifest: dict[str, Any] = {
            "format": bundle_verify.FORMAT,
            "head": head,
            "leaves": leaves,
            "rows": report.rows,
            "runs": runs,
            "scope": scope,
            "tenant_id": str(tenant_id),
        }
        (draft / "manifest.json").write_bytes(canonical_bytes(manifest) + b"\n")
        (draft / "summary.html").write_text(page.html(runs), encoding="utf-8")
        verifier = Path(bundle_verify.__file__).read_bytes()
        (draft / "verify.py").write_bytes(verifier)
        _write_sums(draft)
        report.size = sum(path.stat().st_size for path in draft.iterdir())
    return report


def _write_rows(
    conn: Connection,
    tenant_id: uuid.UUID,
    places: list[RunPlace],
    draft: Path,
    report: BundleReport,
    page: Page,
    progress: Callable[[int, int], None],
) -> list[Any]:
    runs: list[Any] = []
    with _files(draft) as files:

        def put(name: str, line: bytes) -> None:
            files[name].write(line + b"\n")
            report.rows[name] += 1

        for place in places:
            page.run(place)
            before = dict(report.rows)
            threads = {place.thread_id}
            for line, row in export_rows.audit_lines(conn, tenant_id, place):
                put("audit", line)
                page.said(row)
            for line, row in export_rows.log_lines(conn, tenant_id, place):
                put("log", line)
                threads.add(row["thread_id"])
                page.event(row)
            for line in export_rows.write_lines(conn, tenant_id, place, threads):
                put("writes", line)
            for line in export_rows.tombstone_lines(conn, tenant_id, place, threads):
                put("tombstones", line)
            report.runs += 1
            runs.append(
                {
                    "chain_rows": report.rows["audit"] - before["audit"],
                    "first_at": rfc3339(place.first_at),
                    "log_rows": report.rows["log"] - before["log"],
                    "newest_at": rfc3339(place.newest_at),
                    "outcome": place.outcome,
                    "run_id": str(place.run_id),
                    "sealed": None,
                    "state": place.state,
                    "ulid": ids.ulid_of(place.run_id),
                }
            )
            progress(report.runs, len(places))
        for line in export_rows.hold_lines(conn, tenant_id, {place.run_id for place in places}):
            put("holds", line)
            page.hold(json.loads(line))
    return runs


def _write_proofs(
    conn: Connection, tenant_id: uuid.UUID, runs: list[Any], draft: Path, report: BundleReport
) -> tuple[dict[str, Any] | None, Tree | None]:
    """Each run's newest leaf with its path to the newest head; head and tree, if there are any."""
    head = conn.execute(
        seal_queries.head_rows(tenant_id).order_by(None).order_by(SealHead.head_no.desc()).limit(1)
    ).one_or_none()
    proofs: dict[str, Any] = {}
    told: dict[str, Any] | None = None
    tree: Tree | None = None
    if head is not None:
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
        told = {"root": head.root_sha256.hex(), "tree_size": head.tree_size}
        report.tree_size = head.tree_size
        by_run = {run["run_id"]: run for run in runs}
        for start in range(0, len(runs), _PROOFS):
            wanted = [uuid.UUID(run["run_id"]) for run in runs[start : start + _PROOFS]]
            query = seal_queries.newest_leaf(tenant_id, wanted, head.tree_size)
            for row in conn.execute(query):
                index, name = row.leaf_index, str(row.run_id)
                proofs[name] = {
                    "index": index,
                    "leaf": leaf_of(row).to_bytes().decode(),
                    "path": [node.hex() for node in tree.inclusion(index)],
                }
                by_run[name]["sealed"] = {"chain_seq": row.chain_seq, "leaf_index": index}
    report.unsealed_runs = sum(run["sealed"] is None for run in runs)
    (draft / "proofs.json").write_bytes(canonical_bytes(proofs) + b"\n")
    return told, tree


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
    files = {name: (draft / f"{name}.ndjson").open("wb") for name in _FILES}
    try:
        yield dict(files)
    finally:
        for file in files.values():
            file.close()


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when all is written, and is gone when it fails."""
    if out.exists():
        raise ExportRefused(f"{out} exists; name a new folder.")
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        draft.mkdir(mode=0o700)
        try:
            yield draft
            for path in draft.iterdir():
                path.chmod(0o600)
            os.rename(draft, out)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise ExportRefused(f"cannot write {out}: {error.strerror}.") from error
