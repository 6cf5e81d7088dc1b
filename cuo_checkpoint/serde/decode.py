"""From a tagged JSON tree back to the Python value. Whoever wrote the tree is not trusted.

Anything but what the encoder would have written is an error: an unknown tag, a tag beside members
it does not take, a payload of another shape, a number jsonb or RFC 8785 would not have kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cuo_checkpoint.canonical import MAX_SAFE_INTEGER, JsonValue
from cuo_checkpoint.serde.scalars import is_plain_float
from cuo_checkpoint.serde.tags import (
    KEYS,
    STORE_TAGS,
    Broken,
    TreeLayout,
    natural_order,
    own_order,
    tree_layout,
    unescape_name,
)

__all__ = ["Decoder", "Tag", "TagTable", "Tree", "expect"]

Tree = dict[str, JsonValue]

_ONLY_KEYS = (KEYS,)


class Tag(NamedTuple):
    """How one tag is read. `also` names annotations that may stand beside it.

    A tag with `members` is that of an object of a class, which `Decoder.build` rebuilds.
    """

    decode: Callable[[Decoder, Tree, int], Any]
    also: frozenset[str] = frozenset()
    members: bool = False


class TagTable:
    """All tags, and what has been found out about sets of annotations that occur together."""

    __slots__ = ("_seen", "known")

    def __init__(self, known: dict[str, Tag]) -> None:
        self.known = known
        self._seen: dict[tuple[tuple[str, ...], bool], tuple[str, Tag]] = {}

    def find(self, shape: TreeLayout) -> tuple[str, Tag]:
        """The one tag among an object's annotations; Broken unless all of them belong to it."""
        key = (shape.annotations, bool(shape.members))
        hit = self._seen.get(key)
        if hit is None:
            hit = self._find(*key)
            if len(self._seen) < 256:
                self._seen[key] = hit
        return hit

    def _find(self, annotations: tuple[str, ...], members: bool) -> tuple[str, Tag]:
        found = [name for name in annotations if name in self.known]
        if len(found) != 1:
            foreign = STORE_TAGS.intersection(annotations)
            if foreign:
                raise Broken(min(foreign), "a tag of the store: it must be resolved before")
            raise Broken("$", "more than one tag" if found else "unknown tag")
        (name,) = found
        tag = self.known[name]
        allowed = {name, KEYS, *tag.also} if tag.members else {name, *tag.also}
        if not allowed.issuperset(annotations) or (members and not tag.members):
            raise Broken(name, "members that do not belong to this tag")
        return name, tag


class Decoder:
    """Walks one tree. `tags` says how tags are read, `build` rebuilds an object of a class."""

    __slots__ = ("_consume", "_max_depth", "_tags", "build")

    def __init__(
        self,
        tags: TagTable,
        build: Callable[[Decoder, str, Tree, int], Any],
        max_depth: int,
        *,
        consume: bool,
    ) -> None:
        self._tags = tags
        self._max_depth = max_depth
        # A tree nobody else holds may become the value in place.
        self._consume = consume
        self.build = build

    def value(self, tree: JsonValue, depth: int) -> Any:
        """The value of any tree standing at `depth`; raises Broken."""
        kind = type(tree)
        if kind is dict:
            return self._object(tree, depth)  # type: ignore[arg-type]
        if kind is list:
            return self.items(tree, depth)  # type: ignore[arg-type]
        if kind is not str and tree is not None and kind is not bool:
            self._number(tree)
        return tree

    def items(self, tree: list[JsonValue], depth: int) -> list[Any]:
        """The values of an array."""
        self._enter(depth)
        out: list[Any] = tree if self._consume else tree.copy()
        below = depth + 1
        number = 0
        try:
            for number, item in enumerate(tree):
                kind = type(item)
                if kind is str or item is None or kind is bool:
                    continue
                if kind is dict:
                    out[number] = self._object(item, below)  # type: ignore[arg-type]
                elif kind is list:
                    out[number] = self.items(item, below)  # type: ignore[arg-type]
                else:
                    self._number(item)
        except Broken as broken:
            broken.at(number, depth)
            raise
        return out

    def pairs(self, tree: JsonValue, depth: int) -> list[tuple[Any, Any]]:
        """The keys and values of an array of [key, value] arrays."""
        out: list[tuple[Any, Any]] = []
        try:
            for pair in expect(tree, list):
                key, value = self.items(expect(pair, list), depth + 1)
                out.append((key, value))
        except Broken as broken:
            broken.at(len(out), depth)
            raise
        return out

    def members(self, tree: Tree, depth: int, natural: tuple[str, ...] = ()) -> dict[str, Any]:
        """The members of an object of a class, without annotations, in their own order.

        Such an object counts as two levels, as it does for the encoder.
        """
        depth += 1
        self._enter(depth)
        shape = tree_layout(tuple(tree))
        if shape is None:
            return self._plain(tree, tree if self._consume else tree.copy(), depth)
        members = _arranged(tree, shape, natural)
        return _unescaped(self._plain(members, members, depth), shape)

    def _plain(self, tree: Tree, out: dict[str, Any], depth: int) -> dict[str, Any]:
        """The values of `tree` put over their trees in `out`, which is `tree` or a copy of it."""
        below = depth + 1
        name = ""
        try:
            for name, item in tree.items():
                kind = type(item)
                if kind is str or item is None or kind is bool:
                    continue
                if kind is dict:
                    out[name] = self._object(item, below)  # type: ignore[arg-type]
                elif kind is list:
                    out[name] = self.items(item, below)  # type: ignore[arg-type]
                else:
                    self._number(item)
        except Broken as broken:
            broken.at(name if name.isidentifier() else f"[#{[*tree].index(name)}]", depth)
            raise
        return out

    def _object(self, tree: Tree, depth: int) -> Any:
        shape = tree_layout(tuple(tree))
        if depth >= self._max_depth:
            self._enter(depth)
        if shape is None:
            return self._plain(tree, tree if self._consume else tree.copy(), depth)
        if not shape.annotations or shape.annotations == _ONLY_KEYS:
            members = _arranged(tree, shape, ())
            if shape.annotations and tuple(members) == shape.members:
                raise Broken(KEYS, "says what is so without it")
            return _unescaped(self._plain(members, members, depth), shape)
        name, tag = self._tags.find(shape)
        try:
            if tag.members:
                return self.build(self, name, tree, depth)
            return tag.decode(self, tree, depth)
        except Broken:
            raise
        except Exception as error:
            # A codec's own constructor refused the payload: a forged or foreign form.
            raise Broken(name, f"malformed ({type(error).__name__})") from error

    def _number(self, tree: Any) -> None:
        """Let a number pass that stands for itself."""
        kind = type(tree)
        if kind is int:
            if not -MAX_SAFE_INTEGER <= tree <= MAX_SAFE_INTEGER:
                raise Broken("int", "beyond +-(2**53 - 1) without a tag")
        elif kind is not float:
            raise Broken(kind.__qualname__, "not a JSON type")
        elif not is_plain_float(tree):
            raise Broken("float", "a number written otherwise than the encoder does")

    def _enter(self, depth: int) -> None:
        if depth >= self._max_depth:
            raise Broken("object", f"nested deeper than {self._max_depth} levels")


def _arranged(tree: Tree, shape: TreeLayout, natural: tuple[str, ...]) -> Tree:
    order = shape.members
    if KEYS in shape.annotations:
        order = own_order(expect(tree[KEYS], list), order)
    elif natural:
        order = natural_order(order, natural)
    return {name: tree[name] for name in order}


def _unescaped(values: dict[str, Any], shape: TreeLayout) -> dict[str, Any]:
    if shape.escaped:
        return {unescape_name(name): value for name, value in values.items()}
    return values


def expect(tree: JsonValue, kind: type) -> Any:
    """`tree` if it is exactly a `kind`; Broken otherwise."""
    if type(tree) is not kind:
        raise Broken(type(tree).__name__, f"{kind.__name__} expected")
    return tree
