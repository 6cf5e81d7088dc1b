"""From a tagged JSON tree back to the Python value. Whoever wrote the tree is not trusted.

Anything but what the encoder would have written is an error: an unknown tag, a tag beside members
it does not take, a payload of another shape, a number jsonb or RFC 8785 would not have kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cuo_checkpoint.canonical import MAX_SAFE_INTEGER, JsonValue
from cuo_checkpoint.serde.scalars import is_plain_float
from cuo_checkpoint.serde.tags import (
    KEYS,
    STORE_TAGS,
    Broken,
    TreeLayout,
    expected_order,
    tree_layout,
    unescape_name,
)

__all__ = ["Decoder", "Tag", "Tree", "expect"]

Tree = dict[str, JsonValue]


class Tag(NamedTuple):
    """How one tag is read. `also` names annotations that may stand beside it."""

    decode: Callable[[Decoder, Tree, int], Any]
    also: frozenset[str] = frozenset()
    members: bool = False


class Decoder:
    """Walks one tree. `tags` maps `$name` to its Tag, `build` rebuilds an object of a class."""

    __slots__ = ("_max_depth", "_tags", "build")

    def __init__(
        self,
        tags: Mapping[str, Tag],
        build: Callable[[Decoder, str, Tree, int], Any],
        max_depth: int,
    ) -> None:
        self._tags = tags
        self._max_depth = max_depth
        self.build = build

    def value(self, tree: JsonValue, depth: int) -> Any:
        """The value of any tree standing at `depth`; raises Broken."""
        kind = type(tree)
        if kind is dict:
            return self._object(tree, depth)  # type: ignore[arg-type]
        if kind is list:
            return self.items(tree, depth)  # type: ignore[arg-type]
        if kind is str or tree is None or kind is bool:
            return tree
        if kind is int:
            if not -MAX_SAFE_INTEGER <= tree <= MAX_SAFE_INTEGER:  # type: ignore[operator]
                raise Broken("int", "beyond +-(2**53 - 1) without a tag")
        elif kind is not float:
            raise Broken(kind.__qualname__, "not a JSON type")
        elif not is_plain_float(tree):  # type: ignore[arg-type]
            raise Broken("float", "a number written otherwise than the encoder does")
        return tree

    def items(self, tree: Sequence[JsonValue], depth: int) -> list[Any]:
        """The values of an array."""
        self._enter(depth)
        out: list[Any] = []
        append = out.append
        below = depth + 1
        try:
            for item in tree:
                kind = type(item)
                if kind is str or item is None or kind is bool:
                    append(item)
                else:
                    append(self.value(item, below))
        except Broken as broken:
            broken.at(len(out), depth)
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

    def members(self, tree: Tree, depth: int, natural: Sequence[str] = ()) -> dict[str, Any]:
        """The members of an object that are not annotations, in their own order."""
        self._enter(depth)
        shape = tree_layout(tuple(tree))
        if shape is None:
            return self._fill(tree, tree, depth)
        order: Sequence[str]
        if KEYS in shape.annotations:
            order = _own_order(tree[KEYS], shape)
        elif natural:
            order = expected_order(shape.members, natural)
        else:
            order = shape.members
        values = self._fill(tree, order, depth)
        return {unescape_name(name): value for name, value in values.items()}

    def _fill(self, tree: Tree, order: Sequence[str] | Tree, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        below = depth + 1
        name = ""
        try:
            for name in order:
                item = tree[name]
                kind = type(item)
                if kind is str or item is None or kind is bool:
                    out[name] = item
                else:
                    out[name] = self.value(item, below)
        except Broken as broken:
            broken.at(name if name.isidentifier() else f"[#{len(out)}]", depth)
            raise
        return out

    def _object(self, tree: Tree, depth: int) -> Any:
        shape = tree_layout(tuple(tree))
        if shape is None:
            self._enter(depth)
            return self._fill(tree, tree, depth)
        annotations = shape.annotations
        if not annotations or annotations == (KEYS,):
            return self.members(tree, depth)
        found = [name for name in annotations if name in self._tags]
        if len(found) != 1:
            foreign = STORE_TAGS.intersection(annotations)
            if foreign:
                raise Broken(min(foreign), "a tag of the store: it must be resolved before")
            raise Broken("$", "more than one tag" if found else "unknown tag")
        name = found[0]
        tag = self._tags[name]
        allowed = {name, KEYS, *tag.also} if tag.members else {name, *tag.also}
        if not allowed.issuperset(annotations) or (shape.members and not tag.members):
            raise Broken(name, "members that do not belong to this tag")
        self._enter(depth)
        try:
            return tag.decode(self, tree, depth)
        except Broken:
            raise
        except Exception as error:
            # A codec's own constructor refused the payload: a forged or foreign form.
            raise Broken(name, f"malformed ({type(error).__name__})") from error

    def _enter(self, depth: int) -> None:
        if depth >= self._max_depth:
            raise Broken("object", f"nested deeper than {self._max_depth} levels")


def expect(tree: JsonValue, kind: type) -> Any:
    """`tree` if it is exactly a `kind`; Broken otherwise."""
    if type(tree) is not kind:
        raise Broken(type(tree).__name__, f"{kind.__name__} expected")
    return tree


def _own_order(keys: JsonValue, shape: TreeLayout) -> list[str]:
    order: list[str] = expect(keys, list)
    if not all(type(name) is str for name in order) or len(order) != len(shape.members):
        raise Broken(KEYS, "does not list the object's members")
    if set(order) != set(shape.members):
        raise Broken(KEYS, "does not list the object's members")
    return order
