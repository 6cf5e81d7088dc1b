"""What a chain says of dropped months, and what a verifier may step over because of it."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import ChainLink, genesis, link, verify_links
from cuo_checkpoint.cuts import RETENTION_RUN, SYSTEM_TENANT, Cuts, Drop, Gap, month_root
from cuo_checkpoint.errors import ChainBroken
from cuo_checkpoint.partitions import Month

TENANT, RUN = uuid.UUID(int=1), uuid.UUID(int=2)


def chain(length: int) -> list[ChainLink]:
    """A sound chain."""
    head, rows = genesis(TENANT, RUN), []
    for seq in range(1, length + 1):
        body = {"chain_seq": seq, "run_id": str(RUN), "tenant_id": str(TENANT)}
        data = canonical_bytes(body)
        after = link(head, data)
        rows.append(ChainLink(seq, data, head, after))
        head = after
    return rows


def gap(rows: list[ChainLink], first: int, last: int) -> dict[int, Gap]:
    """Rows `first` to `last`, dropped lawfully."""
    return {first: Gap(first, last, rows[last - 1].row_sha256, 0)}


def row(**change: Any) -> dict[str, Any]:
    """What a chain row says that dropped March 2018, with changes to it or to its body."""
    said: dict[str, Any] = {
        "cuts": [
            {
                "first_at": "2018-03-10T12:00:00.000000Z",
                "gaps": [{"from": 1, "head": "aa" * 32, "log_rows": 3, "to": 9}],
                "run_id": str(RUN),
                "thread_id": "t",
            }
        ],
        "month": "2018-03",
        "newest_row": "2018-03-30T12:00:00.000000Z",
        "older_than_months": 84,
        "tables": {"cuo_memory_audit": {"rows": 9, "sha256": "bb" * 32}},
    }
    at = change.pop("at", "2025-04-01T00:00:00.000000Z")
    if change.get("whole"):
        said = {"older_than_months": 84}
    return {"at": at, "body": said | change, "chain_seq": 2}


@given(st.data())
def test_only_the_told_rows_may_be_missing(data: st.DataObject) -> None:
    """Whatever gaps are told, dropping exactly those rows verifies, and one more does not."""
    length = data.draw(st.integers(3, 12))
    rows = chain(length)
    gone = data.draw(st.sets(st.integers(1, length - 1), min_size=1, max_size=length - 2))
    told: dict[int, Gap] = {}
    for seq in sorted(gone):
        before = next((g for g in told.values() if g.last == seq - 1), None)
        told |= gap(rows, before.first if before else seq, seq)
    left = [row for row in rows if row.chain_seq not in gone]
    assert verify_links(TENANT, RUN, left, told) == rows[-1].row_sha256
    with pytest.raises(ChainBroken):
        verify_links(TENANT, RUN, left)
    if len(left) > 1:
        victim = data.draw(st.sampled_from(left[:-1]))
        with pytest.raises(ChainBroken):
            verify_links(TENANT, RUN, [row for row in left if row is not victim], told)


def test_a_gap_with_another_head_excuses_nothing() -> None:
    """The row after a gap must follow the digest that the gap ends with."""
    rows = chain(4)
    forged = {1: Gap(1, 2, hashlib.sha256(b"x").digest(), 0)}
    with pytest.raises(ChainBroken, match="does not follow"):
        verify_links(TENANT, RUN, rows[2:], forged)


def test_rows_of_a_gap_that_are_there_are_verified() -> None:
    """A told gap does not hide rows that are not gone."""
    rows = chain(4)
    bent = [ChainLink(1, rows[0].row_bytes + b" ", rows[0].prev_sha256, rows[0].row_sha256)]
    assert verify_links(TENANT, RUN, rows, gap(rows, 1, 2)) == rows[-1].row_sha256
    with pytest.raises(ChainBroken):
        verify_links(TENANT, RUN, bent + rows[1:], gap(rows, 1, 2))


def test_reading_what_a_chain_says() -> None:
    """Months with their tables, cuts by run, whole months apart."""
    cuts = Cuts()
    cuts.add(row(), "2026-11-01T00:00:00.000000Z")
    cuts.add(row(month="2018-04", whole=True, at="2025-05-01T00:00:00.000000Z"))
    assert cuts.months == {Month(2018, 3): {"cuo_memory_audit": {"rows": 9, "sha256": "bb" * 32}}}
    assert cuts.whole == {Month(2018, 4)}
    drop = Drop(Month(2018, 3), 2, "2025-04-01T00:00:00.000000Z", "2026-11-01T00:00:00.000000Z")
    assert cuts.of(RUN) == {1: Gap(1, 9, b"\xaa" * 32, 3, drop)}
    assert cuts.of(TENANT) == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"at": "2025-03-30T11:59:59.000000Z"}, "it drops 2018-03 before its 84 months are over"),
        ({"month": "2018-02"}, "speaks of a newest row of 2018-03"),
        ({"older_than_months": 83}, "after 83 months"),
        ({"newest_row": None, "at": "2025-03-31T00:00:00.000000Z"}, "before its 84 months"),
    ],
)
def test_a_drop_before_its_time_excuses_nothing(change: dict[str, Any], why: str) -> None:
    """Whoever wrote it: the floor is checked again where the row is read."""
    cuts = Cuts()
    with pytest.raises(ValueError, match=why):
        cuts.add(row(**change))
    assert (cuts.months, cuts.gaps) == ({}, {})


def test_a_gap_after_its_month_is_misplaced() -> None:
    """Rows that stood behind a younger row cannot have gone with the month; a day is let pass."""
    drop = Drop(Month(2018, 3), 2, "2025-04-01T00:00:00.000000Z")
    lost = Gap(3, 4, bytes(32), 0, drop)
    assert lost.misplaced(dt.datetime(2018, 4, 3, tzinfo=dt.UTC))
    assert not lost.misplaced(dt.datetime(2018, 4, 1, 12, tzinfo=dt.UTC))
    assert not lost.misplaced(None)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=20), st.randoms())
def test_a_months_root_speaks_for_a_set(digests: list[bytes], chance: object) -> None:
    """Order does not matter; a row more, less or other does."""
    root = month_root(digests)
    chance.shuffle(shuffled := list(digests))  # type: ignore[attr-defined]
    assert month_root(shuffled) == root
    assert month_root([*digests, b"\x00" * 32]) != root
    if digests:
        assert month_root(digests[1:]) != root


def test_the_root_of_nothing() -> None:
    """A month without rows has the digest of no bytes."""
    assert month_root([]) == hashlib.sha256(b"").digest()


def test_the_reserved_ids_are_version_8() -> None:
    """RFC 9562 leaves version 8 to us; no generator makes one by chance."""
    assert (SYSTEM_TENANT.version, RETENTION_RUN.version) == (8, 8)
    assert (SYSTEM_TENANT.bytes[10:], RETENTION_RUN.bytes[10:]) == (b"system", b"retent")
