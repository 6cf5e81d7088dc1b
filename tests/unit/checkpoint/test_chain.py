"""The chain's arithmetic, without a database."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.chain import ChainLink, genesis, link, verify_links
from cuo_checkpoint.errors import ChainBroken

TENANT, RUN = uuid.UUID(int=1), uuid.UUID(int=2)


def chain(*bodies: object, tenant: uuid.UUID = TENANT, run: uuid.UUID = RUN) -> list[ChainLink]:
    """A sound chain."""
    head, made = genesis(tenant, run), []
    for n, body in enumerate(bodies, start=1):
        data = canonical_bytes(
            {"body": body, "chain_seq": n, "run_id": str(run), "tenant_id": str(tenant), "v": 1}
        )
        made.append(ChainLink(n, data, head, link(head, data)))
        head = made[-1].row_sha256
    return made


def test_the_formula() -> None:
    """Domain tag, previous digest, bytes: pinned, because rows live for years."""
    start = hashlib.sha256(f"cuo/genesis/v1\0{TENANT}/{RUN}".encode()).digest()
    assert genesis(TENANT, RUN) == start
    assert link(start, b"{}") == hashlib.sha256(b"cuo/row/v1\0" + start + b"{}").digest()


def test_a_sound_chain_verifies() -> None:
    """It gives its head; an empty one gives the genesis."""
    made = chain(1, 2, 3)
    assert verify_links(TENANT, RUN, made) == made[-1].row_sha256
    assert verify_links(TENANT, RUN, []) == genesis(TENANT, RUN)


@given(st.integers(0, 4), st.integers(0, 2**31), st.integers(0, 7))
def test_one_flipped_bit_is_found(row: int, place: int, bit: int) -> None:
    """Any single bit of any row's bytes, changed, breaks the chain at that row."""
    made = chain(*range(5))
    data = bytearray(made[row].row_bytes)
    data[place % len(data)] ^= 1 << bit
    made[row] = ChainLink(row + 1, bytes(data), made[row].prev_sha256, made[row].row_sha256)
    with pytest.raises(ChainBroken) as broken:
        verify_links(TENANT, RUN, made)
    assert broken.value.chain_seq == row + 1


@given(st.permutations(range(5)))
def test_only_the_order_they_were_written_in_verifies(order: list[int]) -> None:
    """Every other order is found."""
    made = chain(*range(5))
    shuffled = [made[i] for i in order]
    if order == sorted(order):
        verify_links(TENANT, RUN, shuffled)
    else:
        with pytest.raises(ChainBroken):
            verify_links(TENANT, RUN, shuffled)


@pytest.mark.parametrize("gone", range(4))
def test_a_row_that_is_missing_inside_is_found(gone: int) -> None:
    """All but the last: a cut tail is not seen by a chain alone, which is what seals are for."""
    made = chain(*range(5))
    del made[gone]
    with pytest.raises(ChainBroken):
        verify_links(TENANT, RUN, made)


def test_another_tenants_or_runs_chain_does_not_fit() -> None:
    """A chain is bound to its tenant and its run."""
    other = uuid.UUID(int=9)
    for made in (chain(1, tenant=other), chain(1, run=other)):
        with pytest.raises(ChainBroken):
            verify_links(TENANT, RUN, made)


@pytest.mark.parametrize(
    "data",
    [
        b'{"chain_seq": 1}',
        b'{"b":1,"a":2}',
        b"not json",
        b"[]",
        b"",
        b"\xff",
        b"null",
        b"[" * 9000,
        b'{"a":NaN}',
    ],
)
def test_bytes_in_another_form_are_found(data: bytes) -> None:
    """A row whose digest fits but whose bytes are no canonical object is broken, not a crash."""
    head = genesis(TENANT, RUN)
    with pytest.raises(ChainBroken):
        verify_links(TENANT, RUN, [ChainLink(1, data, head, link(head, data))])
