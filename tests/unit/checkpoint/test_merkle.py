"""The tree's arithmetic agrees with the vectors published for RFC 6962, and with the RFC's text."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint.merkle import (
    EMPTY_ROOT,
    CompactRange,
    Tree,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)

# Leaves, roots and proofs of the Certificate Transparency project's reference tests.
ENTRIES = [
    bytes.fromhex(h)
    for h in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = [
    (0, 1, []),
    (
        0,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
CONSISTENCY = [
    (1, 1, []),
    (
        1,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        6,
        8,
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        2,
        5,
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def rfc_root(leaves: list[bytes]) -> bytes:
    """MTH as section 2.1 defines it, with no cleverness."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(rfc_root(leaves[:k]), rfc_root(leaves[k:]))


@pytest.mark.parametrize("size", range(9))
def test_roots_are_the_published_ones(size: int) -> None:
    """Both representations give the published root at each size."""
    grown = CompactRange()
    for leaf in LEAVES[:size]:
        grown.append(leaf)
    assert grown.root().hex() == ROOTS[size]
    assert Tree(LEAVES).root(size).hex() == ROOTS[size]


@pytest.mark.parametrize(("index", "size", "path"), INCLUSION)
def test_inclusion_proofs_are_the_published_ones(index: int, size: int, path: list[str]) -> None:
    """The same path is made, and verifies."""
    proof = Tree(LEAVES).inclusion(index, size)
    assert [node.hex() for node in proof] == path
    assert verify_inclusion(index, size, LEAVES[index], proof, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("first", "second", "path"), CONSISTENCY)
def test_consistency_proofs_are_the_published_ones(
    first: int, second: int, path: list[str]
) -> None:
    """The same path is made, from the whole tree and from the old range, and verifies."""
    proof = Tree(LEAVES).consistency(first, second)
    assert [node.hex() for node in proof] == path
    old = CompactRange()
    for leaf in LEAVES[:first]:
        old.append(leaf)
    assert old.consistency_with(LEAVES[first:second]) == proof
    roots = (bytes.fromhex(ROOTS[first]), bytes.fromhex(ROOTS[second]))
    assert verify_consistency(first, second, *roots, proof)


def test_every_size_and_leaf() -> None:
    """To 40 leaves, each proof verifies, and none verifies for another leaf, size or root."""
    leaves = [leaf_hash(bytes([i])) for i in range(40)]
    tree = Tree(leaves)
    for size in range(1, 41):
        root = tree.root(size)
        assert root == rfc_root(leaves[:size])
        for index in range(size):
            proof = tree.inclusion(index, size)
            assert verify_inclusion(index, size, leaves[index], proof, root)
            assert not verify_inclusion(index, size, leaves[(index + 1) % 40], proof, root)
            assert not verify_inclusion(index, size, leaves[index], [*proof, root], root)
            assert not proof or not verify_inclusion(index, size, leaves[index], proof[:-1], root)
            assert not verify_inclusion(index, size, leaves[index], proof, EMPTY_ROOT)
        for first in range(size + 1):
            proof = tree.consistency(first, size)
            assert verify_consistency(first, size, tree.root(first), root, proof)
            if 0 < first < size:
                assert not verify_consistency(first, size, tree.root(first - 1), root, proof)
                assert not verify_consistency(first, size, tree.root(first), EMPTY_ROOT, proof)
                assert not verify_consistency(
                    first, size, tree.root(first), root, [*proof, EMPTY_ROOT]
                )
                assert not verify_consistency(first, size, tree.root(first), root, proof[:-1])


@given(st.lists(st.binary(max_size=4), max_size=70), st.data())
def test_a_range_grows_as_the_tree_does(entries: list[bytes], data: st.DataObject) -> None:
    """A range packed at any size and grown from there has the whole tree's root and proof."""
    leaves = [leaf_hash(entry) for entry in entries]
    first = data.draw(st.integers(0, len(leaves)))
    old = CompactRange()
    for leaf in leaves[:first]:
        old.append(leaf)
    grown = CompactRange.from_bytes(first, old.to_bytes())
    for leaf in leaves[first:]:
        grown.append(leaf)
    assert grown.root() == rfc_root(leaves) == Tree(leaves).root()
    proof = old.consistency_with(leaves[first:])
    assert proof == Tree(leaves).consistency(first)
    assert verify_consistency(first, len(leaves), old.root(), grown.root(), proof)


@pytest.mark.parametrize(
    ("size", "packed"), [(3, b"\0" * 32), (1, b"\0" * 31), (-1, b""), (0, b"x")]
)
def test_a_range_that_does_not_fit_is_refused(size: int, packed: bytes) -> None:
    """What does not have one hash per full subtree is no range."""
    with pytest.raises(ValueError, match=r"tree has as many|hash has 32"):
        CompactRange.from_bytes(size, packed)


def test_what_is_not_there_is_refused() -> None:
    """A proof for a leaf or size beyond the tree is a mistake of the caller."""
    tree = Tree(LEAVES)
    for call in (lambda: tree.inclusion(8), lambda: tree.consistency(9), lambda: tree.root(9)):
        with pytest.raises(ValueError, match="no such"):
            call()
    assert not verify_inclusion(8, 8, LEAVES[0], [], tree.root())
    assert not verify_consistency(9, 8, tree.root(), tree.root(), [])
