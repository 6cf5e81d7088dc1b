"""Merkle tree arithmetic of RFC 6962, section 2.1: roots, proofs, and growing a tree. Pure.

Leaves are hashed as SHA-256(0x00 || leaf), inner nodes as SHA-256(0x01 || left || right), so a leaf
can never be passed off as a node. A tree of n leaves splits at the largest power of two below n.

Two ways to hold a tree: `Tree` keeps every node (64 bytes a leaf and Python's overhead) and gives
any proof in logarithmic time; `CompactRange` keeps only the roots of the full subtrees a tree ends
in (at most one hash per bit of its size) and is what a tree grows from without its old leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "CompactRange",
    "Tree",
    "leaf_hash",
    "node_hash",
    "verify_consistency",
    "verify_inclusion",
]

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()

_Node: TypeAlias = Callable[[int, int], bytes]
"""The root of the leaves from the first number up to, not including, the second."""


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of one leaf."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class CompactRange:
    """A tree by its size and the roots of its full subtrees, largest first."""

    __slots__ = ("nodes", "size")

    def __init__(self, size: int = 0, nodes: Iterable[bytes] = ()) -> None:
        self.size = size
        self.nodes = list(nodes)
        if size < 0 or len(self.nodes) != size.bit_count():
            raise ValueError("a tree has as many full subtrees as its size has bits set")
        if any(len(node) != HASH_BYTES for node in self.nodes):
            raise ValueError("a hash has 32 bytes")

    @classmethod
    def from_bytes(cls, size: int, packed: bytes) -> CompactRange:
        """The range behind `to_bytes`. Raises ValueError when it does not fit the size."""
        return cls(size, (packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)))

    def to_bytes(self) -> bytes:
        return b"".join(self.nodes)

    def copy(self) -> CompactRange:
        return CompactRange(self.size, self.nodes)

    def append(self, leaf: bytes) -> None:
        """Adds the hash of one leaf."""
        carry, size = leaf, self.size
        while size & 1:
            carry = node_hash(self.nodes.pop(), carry)
            size >>= 1
        self.nodes.append(carry)
        self.size += 1

    def root(self) -> bytes:
        """The root at this size."""
        if not self.nodes:
            return EMPTY_ROOT
        right = self.nodes[-1]
        for left in reversed(self.nodes[:-1]):
            right = node_hash(left, right)
        return right

    def consistency_with(self, new: Sequence[bytes]) -> list[bytes]:
        """Proves that this tree is the beginning of itself with the leaf hashes `new` appended.

        Needs nothing of the old leaves: the proof's old parts are this range's own nodes.
        """
        places: dict[tuple[int, int], bytes] = {}
        start = 0
        for node, bit in zip(self.nodes, _bits(self.size), strict=True):
            places[start, start + bit] = node
            start += bit

        def resolve(low: int, high: int) -> bytes:
            if high <= self.size:
                return places[low, high]
            part = CompactRange()
            for leaf in new[low - self.size : high - self.size]:
                part.append(leaf)
            return part.root()

        return _consistency(resolve, self.size, self.size + len(new))


class Tree:
    """Every node of a tree; proofs for any of its sizes."""

    __slots__ = ("_levels",)

    def __init__(self, leaves: Iterable[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(below := self._levels[-1]) > 1:
            pairs = zip(below[::2], below[1::2], strict=False)
            self._levels.append([node_hash(left, right) for left, right in pairs])

    @property
    def size(self) -> int:
        return len(self._levels[0])

    def root(self, size: int | None = None) -> bytes:
        """The root at a size, by default the tree's own."""
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise ValueError("no such size")
        return self._node(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """What proves that leaf `index` is in the tree of `size` leaves, nearest sibling first."""
        size = self.size if size is None else size
        if not 0 <= index < size <= self.size:
            raise ValueError("no such leaf")
        path: list[bytes] = []
        low, high = 0, size
        while high - low > 1:
            middle = low + _split(high - low)
            if index < middle:
                path.append(self._node(middle, high))
                high = middle
            else:
                path.append(self._node(low, middle))
                low = middle
        return path[::-1]

    def beginning(self, size: int) -> CompactRange:
        """The tree of the first `size` leaves."""
        if not 0 <= size <= self.size:
            raise ValueError("no such size")
        nodes, low = [], 0
        for bit in _bits(size):
            nodes.append(self._node(low, low + bit))
            low += bit
        return CompactRange(size, nodes)

    def consistency(self, first: int, second: int | None = None) -> list[bytes]:
        """What proves that the tree of `first` leaves is the beginning of that of `second`."""
        second = self.size if second is None else second
        if not 0 <= first <= second <= self.size:
            raise ValueError("no such sizes")
        return _consistency(self._node, first, second)

    def _node(self, low: int, high: int) -> bytes:
        width = high - low
        if width & (width - 1) == 0:  # proofs ask for full subtrees only where they are aligned
            level = width.bit_length() - 1
            return self._levels[level][low >> level]
        middle = low + _split(width)
        return node_hash(self._node(low, middle), self._node(middle, high))


def verify_inclusion(
    index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether `proof` shows the leaf hash at `index` in the tree of `size` leaves and this root."""
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(sibling, found)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            found = node_hash(found, sibling)
        at >>= 1
        last >>= 1
    return last == 0 and found == root


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether `proof` shows the tree of `first` leaves to be the beginning of that of `second`."""
    if not 0 <= first <= second:
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY_ROOT
    path = list(proof)
    if first & (first - 1) == 0:
        path.insert(0, first_root)
    if not path:
        return False
    at, last = first - 1, second - 1
    while at & 1:
        at >>= 1
        last >>= 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not at & 1 and at:
                at >>= 1
                last >>= 1
        else:
            new = node_hash(new, sibling)
        at >>= 1
        last >>= 1
    return last == 0 and old == first_root and new == second_root


def _consistency(node: _Node, first: int, second: int) -> list[bytes]:
    if first in (0, second):
        return []
    path: list[bytes] = []
    low, high, whole = 0, second, True
    while first != high:
        middle = low + _split(high - low)
        if first <= middle:
            path.append(node(middle, high))
            high = middle
        else:
            path.append(node(low, middle))
            low, whole = middle, False
    if not whole:
        path.append(node(low, high))
    return path[::-1]


def _split(width: int) -> int:
    """The largest power of two below `width`."""
    return 1 << (width - 1).bit_length() - 1


def _bits(size: int) -> list[int]:
    return [1 << i for i in reversed(range(size.bit_length())) if size >> i & 1]
