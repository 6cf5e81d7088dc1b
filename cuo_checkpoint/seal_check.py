"""Holding a live database against the signed heads that were exported from it.

The chains alone cannot show a tail that was cut, a chain that was rewritten whole, a month that is
gone: they agree with themselves. The exported heads can, and their word is taken over the
database's everywhere. Time grows with the number of leaves, memory with the number of findings.

What no head covers yet is invisible here: `unsealed` says how much that is.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, func, select

from cuo_checkpoint import seal_queries
from cuo_checkpoint.catalog import catalog, months
from cuo_checkpoint.cuts import Drop
from cuo_checkpoint.errors import ExportRefused, NoteInvalid
from cuo_checkpoint.head_files import HeadFolder
from cuo_checkpoint.leaves import Leaf, Loss, losses_of, origin_of
from cuo_checkpoint.merkle import CompactRange
from cuo_checkpoint.notes import Checkpoint, PublicKey, SignedNote, verified
from cuo_checkpoint.partitions import FLOOR_MONTHS, Month
from cuo_checkpoint.seal_copies import Copies
from cuo_checkpoint.seal_findings import Finding, FindingKind, SealCheck
from cuo_checkpoint.sessions import open_engine, reading
from cuo_checkpoint.verify import cuts_of

__all__ = ["Finding", "FindingKind", "SealCheck", "check_tenant", "losses", "tenants_with_runs"]

_BATCH: Final = 500
_AUDIT: Final = "cuo_memory_audit"


@dataclass(slots=True)
class _Heads:
    """The exported heads as far as they can be believed, and what their leaves say."""

    by_number: dict[int, Checkpoint] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    vouched: int = 0
    at_month: Counter[Month] = field(default_factory=Counter)
    suspects: dict[uuid.UUID, list[Leaf]] = field(default_factory=dict)
    declared: dict[uuid.UUID, tuple[Loss, str]] = field(default_factory=dict)


def check_tenant(
    url: str,
    tenant_id: uuid.UUID,
    *,
    keys: Collection[PublicKey],
    folder: HeadFolder,
    schema: str = "public",
    heads: Sequence[tuple[str, bytes]] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SealCheck:
    """Compares a tenant's chains and seal tables with its exported heads, believing only `keys`.

    `heads` are further signed heads that somebody kept, each with a name to call it by: they show
    a folder that was itself replaced. `progress` is told (leaves done, leaves in all). Raises
    StoreUnavailable, SchemaNotReady, and ExportRefused when the folder cannot be read.
    """
    check = SealCheck(tenant_id)
    engine = open_engine(url, schema=schema, connections=2)
    try:
        kept = _kept_heads(check, heads, keys)
        before = set(folder.numbers(tenant_id))
        with reading(engine, tenant_id) as conn:
            copies = Copies.read(conn, tenant_id)
            # A head that a sealer signed after our snapshot is neither in it nor gone from it.
            numbers = [n for n in folder.numbers(tenant_id) if n in before or n in copies.heads]
            found = _exported(
                conn, check, folder, numbers, keys, {c.size for _, c in kept}, copies, progress
            )
            gap = conn.execute(seal_queries.unsealed(tenant_id)).one()
            check.unsealed, check.unsealed_runs = gap.rows, gap.runs
            _against_kept(check, found, kept)
            copies.against(
                check,
                found.by_number,
                {n: folder.note(tenant_id, n) for n in found.by_number},
                lambda name, data: _believed(check, name, data, keys),
            )
            if found.suspects or found.declared:
                with catalog(url) as looking:
                    present = {m.month for m in months(looking, schema) if m.parent == _AUDIT}
                _judge(conn, check, found, {m for m in present if m is not None})
    finally:
        engine.dispose()
    return check


def tenants_with_runs(url: str, *, schema: str = "public") -> list[uuid.UUID]:
    """Every tenant that has runs, as far as the connected role sees them."""
    engine = open_engine(url, schema=schema, connections=1)
    try:
        with reading(engine, None) as conn:
            return list(conn.execute(seal_queries.tenants()).scalars())
    finally:
        engine.dispose()


def losses(conn: Connection, tenant_id: uuid.UUID, leaves: Iterator[Leaf]) -> list[Loss]:
    """The runs that are not as the leaves say, and where they end now: for a declaration."""
    found = _Heads()
    dropped = _dropped(conn, tenant_id)
    for batch in _batches(leaf for leaf in leaves if Month.of(leaf.at) not in dropped):
        _compare(conn, tenant_id, batch, found)
    ends = _ends(conn, tenant_id, list(found.suspects))
    return [
        Loss(run, max(leaf.chain_seq for leaf in told), ends[run].chain_seq if run in ends else 0)
        for run, told in sorted(found.suspects.items())
    ]


def _kept_heads(
    check: SealCheck, heads: Sequence[tuple[str, bytes]], keys: Collection[PublicKey]
) -> list[tuple[str, Checkpoint]]:
    kept = []
    for name, data in heads:
        head = _believed(check, name, data, keys)
        if head is not None:
            kept.append((name, head))
    return kept


def _believed(
    check: SealCheck, name: str, data: bytes, keys: Collection[PublicKey]
) -> Checkpoint | None:
    kinds = {
        "forged": FindingKind.FORGED_NOTE,
        "wrong_key": FindingKind.WRONG_KEY,
        "other_log": FindingKind.OTHER_LOG,
    }
    try:
        return verified(data, origin_of(check.tenant_id), keys)
    except NoteInvalid as error:
        check.add(kinds.get(error.kind, FindingKind.MALFORMED), f"{name}: {error}")
        return None


def _exported(
    conn: Connection,
    check: SealCheck,
    folder: HeadFolder,
    numbers: Sequence[int],
    keys: Collection[PublicKey],
    sizes: set[int],
    copies: Copies,
    progress: Callable[[int, int], None],
) -> _Heads:
    """Reads the export from its first head to its last, comparing each leaf with the database."""
    found = _Heads()
    tree = CompactRange()
    expected, total = 1, 0
    strangers: dict[int, Finding] = {}
    for number in numbers:
        data = folder.note(check.tenant_id, number)
        head = _believed(check, f"exported head {number}", data, keys)
        if head is not None:
            found.by_number[number] = head
            total = max(total, head.size)
        elif check.findings[-1].kind is FindingKind.WRONG_KEY:
            # Perhaps an older key, now retired or distrusted: judged when all leaves are read.
            strangers[number] = check.findings.pop()
    for number in numbers:
        if number != expected:
            check.add(
                FindingKind.LEAVES_CHANGED,
                f"exported head {expected} is missing; what follows it cannot be placed",
            )
            break
        expected, low = expected + 1, tree.size
        try:
            batches = _batches(_leaves(folder, check.tenant_id, number))
            for batch in batches:
                copies.compare(conn, check, tree.size, batch)
                for leaf in batch:
                    tree.append(leaf.hash())
                    if tree.size in sizes:
                        found.roots[tree.size] = tree.root()
                    if leaf.statement is not None:
                        _declare(found, leaf)
                    else:
                        found.at_month[Month.of(leaf.at)] += 1
                _compare(conn, check.tenant_id, [x for x in batch if x.statement is None], found)
                check.leaves = tree.size
                check.sealed_at = batch[-1].sealed_at
                progress(tree.size, total)
        except (ExportRefused, ValueError) as error:
            check.add(FindingKind.LEAVES_CHANGED, f"leaves of exported head {number}: {error}")
            break
        found.roots[tree.size] = tree.root()
        head = found.by_number.get(number)
        if head is None:
            continue
        check.heads += 1
        if (head.size, head.root) != (tree.size, tree.root()):
            check.add(
                FindingKind.LEAVES_CHANGED,
                f"exported head {number} signs another tree of {head.size} leaves than the exported "
                f"leaves give at {tree.size}",
            )
        else:
            found.vouched = number
            copies.ends[number] = check.sealed_at if tree.size > low else None
        found.size = tree.size
    _judge_strangers(check, found, folder, strangers)
    if not numbers:
        check.add(FindingKind.NOTHING_SEALED, "no head was exported; everything could be rewritten")
    return found


def _judge_strangers(
    check: SealCheck, found: _Heads, folder: HeadFolder, strangers: dict[int, Finding]
) -> None:
    """Heads that no trusted key signed: sound when a later, trusted head covers the same leaves."""
    covered = []
    for number, finding in strangers.items():
        head = Checkpoint.parse(SignedNote.parse(folder.note(check.tenant_id, number)).text)
        if number < found.vouched and found.roots.get(head.size) == head.root:
            covered.append(number)
        else:
            check.findings.append(finding)
    if covered:
        check.add(
            FindingKind.VOUCHED_LATER,
            f"{len(covered)} exported heads up to {covered[-1]} are signed by keys you do not trust; "
            f"head {found.vouched}, which you do, covers the same leaves",
        )


def _leaves(folder: HeadFolder, tenant_id: uuid.UUID, number: int) -> Iterator[Leaf]:
    for line in folder.leaves(tenant_id, number):
        leaf = Leaf.parse(line)
        if leaf.tenant_id != tenant_id:
            raise ValueError("a leaf of another tenant")
        yield leaf


def _batches(leaves: Iterator[Leaf]) -> Iterator[list[Leaf]]:
    batch: list[Leaf] = []
    for leaf in leaves:
        batch.append(leaf)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _declare(found: _Heads, leaf: Leaf) -> None:
    """From here on the named runs are not what earlier leaves say; later leaves seal them anew."""
    reason, lost = losses_of(leaf.statement or "")
    for loss in lost:
        found.declared[loss.run_id] = (loss, reason)
        found.suspects.pop(loss.run_id, None)


def _compare(conn: Connection, tenant_id: uuid.UUID, batch: Sequence[Leaf], found: _Heads) -> None:
    if not batch:
        return
    told = [(i, x.run_id, x.chain_seq, x.row_sha256, x.at) for i, x in enumerate(batch)]
    there = set(conn.execute(seal_queries.rows_as_sealed(tenant_id, told)).scalars())
    for i, leaf in enumerate(batch):
        if i not in there:
            found.suspects.setdefault(leaf.run_id, []).append(leaf)


def _against_kept(check: SealCheck, found: _Heads, kept: list[tuple[str, Checkpoint]]) -> None:
    signed: dict[int, Checkpoint] = {}
    for number, head in found.by_number.items():
        if signed.setdefault(head.size, head) != head:
            check.add(
                FindingKind.SPLIT_VIEW,
                f"exported head {number} and an earlier one of {head.size} leaves are both signed, "
                "for different trees",
            )
    for name, head in kept:
        root = found.roots.get(head.size)
        if head.size > found.size:
            check.add(
                FindingKind.STALE_EXPORT,
                f"{name} covers {head.size} leaves, the export only {found.size}: the folder was "
                "replaced by an older one, or an export is missing",
            )
        elif root != head.root:
            check.add(
                FindingKind.SPLIT_VIEW,
                f"{name} and the export are both signed, for different trees of {head.size} leaves",
            )


def _judge(conn: Connection, check: SealCheck, found: _Heads, present: set[Month]) -> None:
    """Says of each run that is not as sealed what happened to it."""
    drops = _dropped(conn, check.tenant_id)
    dropped = set(drops)
    bad = Counter(Month.of(x.at) for told in found.suspects.values() for x in told)
    for month, count in sorted(bad.items()):
        if month not in present:
            known = month in dropped
            check.add(
                FindingKind.DROPPED_MONTH if known else FindingKind.MISSING_MONTH,
                f"month {month} is gone with {count} sealed heads"
                + (f": {drops[month]}" if known else " and no month_dropped row says why"),
            )
        elif count == found.at_month[month] and count > 1:
            check.add(
                FindingKind.REBUILT_MONTH,
                f"month {month} is there, but none of its {count} sealed heads is as it was sealed",
            )
    ends = _ends(conn, check.tenant_id, list(found.suspects))
    for run, told in sorted(found.suspects.items()):
        rest = [leaf for leaf in told if Month.of(leaf.at) not in dropped - present]
        if rest:
            _judge_run(conn, check, run, rest, ends.get(run))
    for run, (loss, reason) in sorted(found.declared.items()):
        check.add(
            FindingKind.DECLARED_LOSS,
            f"run {run}: sealed up to chain row {loss.sealed_seq}, declared to end at "
            f"{loss.found_seq} ({reason})",
            run,
        )


def _judge_run(
    conn: Connection, check: SealCheck, run: uuid.UUID, told: Sequence[Leaf], end: Any | None
) -> None:
    name, first = f"run {run}", told[0]
    sealed = max(leaf.chain_seq for leaf in told)
    if end is None:
        text = f"{name} is missing; it was sealed up to chain row {sealed}"
        check.add(FindingKind.MISSING_RUN, text, run)
        return
    if end.chain_seq < first.chain_seq:
        text = f"{name} is shortened: sealed up to chain row {sealed}, it ends at {end.chain_seq}"
        check.add(FindingKind.SHORTENED_RUN, text, run, end.chain_seq + 1)
        return
    query = seal_queries.rows_at(check.tenant_id, [(run, first.chain_seq)])
    digests = {row.row_sha256 for row in conn.execute(query)}
    if not digests:
        text = f"{name}: chain row {first.chain_seq}, which was sealed, is missing"
        check.add(FindingKind.MISSING_ROW, text, run, first.chain_seq)
        return
    what = "has another time than" if first.row_sha256 in digests else "is not"
    text = f"{name} was rewritten: its chain row {first.chain_seq} {what} the one sealed"
    check.add(FindingKind.REWRITTEN_RUN, text, run, first.chain_seq)


def _ends(conn: Connection, tenant_id: uuid.UUID, runs: Sequence[uuid.UUID]) -> dict[Any, Any]:
    ends: dict[Any, Any] = {}
    for start in range(0, len(runs), _BATCH):
        query = seal_queries.run_ends(tenant_id, runs[start : start + _BATCH])
        ends.update((row.run_id, row) for row in conn.execute(query))
    return ends


def _dropped(conn: Connection, tenant_id: uuid.UUID) -> dict[Month, Drop]:
    """Months that retention dropped, as the tenant's own chain of retention says.

    Only those past the floor are believed, by this host's clock too: the row that says so lies in
    the same database.
    """
    now = Month.of(min(conn.execute(select(func.now())).scalar_one(), dt.datetime.now(dt.UTC)))
    return {
        month: drop
        for month, drop in cuts_of(conn, tenant_id).drops.items()
        if month.until(now) >= FLOOR_MONTHS
    }
