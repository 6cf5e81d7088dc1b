"""From a Python value to a tagged JSON tree. One Encoder serves one call.

The loops over dicts and lists handle JSON-native values in place; everything else goes by exact
type to a codec. `isinstance` never chooses a form: a `str` enum is not a `str` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cuo_checkpoint.canonical import MAX_SAFE_INTEGER, JsonValue
from cuo_checkpoint.serde.scalars import big_integer, is_plain_float, odd_float
from cuo_checkpoint.serde.tags import (
    KEYS,
    MAX_ITEMS,
    MAX_ROOM,
    Layout,
    Refused,
    escape_text,
    layout,
    storable,
    type_name,
)

__all__ = ["Encoder", "Plan"]

_STR = frozenset({str})

_FRESH = 64
"""Strings shorter than this are not counted towards MAX_ROOM; MAX_ITEMS bounds them."""


class Plan(Protocol):
    """Knows how objects of one class are written."""

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        """The tagged object for `value`, to stand at `depth`; raises Refused."""
        ...


class Encoder:
    """Walks one value. `codecs` maps exact types to functions, `plan` finds those of classes."""

    __slots__ = ("_codecs", "_items", "_max_depth", "_plan", "_room", "_share", "_trail")

    def __init__(
        self,
        codecs: Mapping[type, Callable[[Encoder, Any, int], JsonValue]],
        plan: Callable[[Any], Plan],
        max_depth: int,
        *,
        share: bool,
    ) -> None:
        self._codecs = codecs
        self._plan = plan
        self._max_depth = max_depth
        # A tree that becomes text at once may share the parts that need no change with the value.
        self._share = share
        self._items = MAX_ITEMS
        self._room = MAX_ROOM
        self._trail: list[object] = [None] * max_depth

    def value(self, value: Any, depth: int) -> JsonValue:
        """The tree of any value, to stand at `depth`; raises Refused."""
        kind = type(value)
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self.items(value, depth)
        if kind is str:
            return self.text(value)
        if kind is int:
            return value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else self._big(value)
        if kind is float:
            return value if is_plain_float(value) else {"$float": odd_float(value)}
        if value is None or kind is bool:
            return value  # type: ignore[no-any-return]
        codec = self._codecs.get(kind)
        if codec is not None:
            self.enter(value, depth)
            return codec(self, value, depth)
        self.enter(value, depth)
        return self._plan(value).encode(self, value, depth)

    def text(self, text: str) -> JsonValue:
        """A string, tagged if jsonb would not take it."""
        if len(text) >= _FRESH:
            self._room -= len(text)
            if self._room < 0:
                self.charge(0, text)
        if text.isascii() and "\0" not in text:
            return text
        return text if storable(text) else {"$str": escape_text(text)}

    def items(self, values: Sequence[Any], depth: int) -> list[JsonValue]:
        """A JSON array of the trees of `values`."""
        # A tuple has been noted under its tag already.
        self.enter(values if type(values) is list else None, depth)
        self._items -= len(values)
        if self._items < 0:
            self.count(0, values)
        share = self._share and type(values) is list
        out: list[Any] = values if share else list(values)  # type: ignore[assignment]
        below = depth + 1
        number = 0
        try:
            for number, value in enumerate(values):
                kind = type(value)
                if kind is str:
                    if len(value) < _FRESH and value.isascii() and "\0" not in value:
                        continue
                    tree = self.text(value)
                elif value is None or kind is bool:
                    continue
                elif kind is dict:
                    tree = self._dict(value, below)
                else:
                    tree = self.value(value, below)
                if tree is not value:
                    if share:
                        out, share = list(values), False
                    out[number] = tree
        except Refused as refused:
            refused.at(number, depth)
            raise
        return out

    def members(
        self,
        head: dict[str, JsonValue],
        values: dict[str, Any],
        depth: int,
        natural: tuple[str, ...] = (),
    ) -> dict[str, JsonValue]:
        """An object of our annotations `head` and the user's members `values`.

        `natural` is the order both sides know without being told; its names need no escape.
        An object of a class counts as two levels, because walking it takes as much stack.
        """
        depth += 1
        self.enter(None, depth)
        names = tuple(values)
        if names == natural:
            trees = self._members(values, depth)
            head.update(zip(natural, trees.values(), strict=True))
            return head
        if not _STR.issuperset(map(type, names)):
            raise Refused("dict", "an attribute's name is not a str")
        shape = layout(names, natural)
        if shape is not None and shape.names is None:
            raise Refused("str", "an attribute's name holds NUL or a lone surrogate")
        trees = self._members(values, depth)
        head.update(trees if shape is None else _respell(trees, shape))
        return head

    def pairs(self, values: Mapping[Any, Any], depth: int) -> JsonValue:
        """An array of [key, value] arrays, in order: any key will do."""
        self.enter(None, depth)
        self.enter(None, depth + 1)
        self.count(2 * len(values), values)
        out: list[JsonValue] = []
        try:
            for key, value in values.items():
                try:
                    first = self.value(key, depth + 2)
                except Refused as refused:
                    refused.at("key", depth + 1)
                    raise
                out.append([first, self.value(value, depth + 2)])
        except Refused as refused:
            refused.at(len(out), depth)
            raise
        return out

    def enter(self, value: object, depth: int) -> None:
        """Note the container `value` at `depth`; refuse what is too deep or holds itself."""
        try:
            self._trail[depth] = value
        except IndexError:
            raise self._too_deep(value) from None

    def count(self, number: int, value: object) -> None:
        """Pay for visiting `number` items."""
        self._items -= number
        if self._items < 0:
            reason = f"more than {MAX_ITEMS} values in all, counting shared parts each time"
            raise Refused(type_name(type(value)), reason)

    def charge(self, characters: int, value: object) -> None:
        """Pay for `characters` of text."""
        self._room -= characters
        if self._room < 0:
            raise Refused(type_name(type(value)), f"more than {MAX_ROOM} characters in all")

    def _too_deep(self, value: object) -> Refused:
        # A cycle must have met one of its own members twice on the way down.
        seen: dict[int, int] = {}
        for level, earlier in enumerate([*self._trail, value]):
            if earlier is not None and seen.setdefault(id(earlier), level) != level:
                return Refused(type_name(type(earlier)), "refers to itself", above=level)
        return Refused(type_name(type(value)), f"nested deeper than {self._max_depth} levels")

    def _dict(self, value: dict[Any, Any], depth: int) -> JsonValue:
        try:
            self._trail[depth] = value
        except IndexError:
            self.enter(value, depth)
        names = tuple(value)
        # The type check comes before the look-up: a str enum equals a str and hashes like it.
        if not _STR.issuperset(map(type, names)):
            return {"$dict": self.pairs(value, depth + 1)}
        shape = layout(names)
        if shape is None:
            return self._members(value, depth)
        if shape.names is None:
            return {"$dict": self.pairs(value, depth + 1)}
        return _respell(self._members(value, depth), shape)

    def _members(self, values: dict[str, Any], depth: int) -> dict[str, Any]:
        """The trees of `values` under the same names, in the same order."""
        self._items -= len(values)
        if self._items < 0:
            self.count(0, values)
        share = self._share
        out = values if share else dict(values)
        below = depth + 1
        name = ""
        try:
            for name, value in values.items():
                kind = type(value)
                if kind is str:
                    if len(value) < _FRESH and value.isascii() and "\0" not in value:
                        continue
                    tree = self.text(value)
                elif (
                    (kind is int and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER)
                    or value is None
                    or kind is bool
                ):
                    continue
                elif kind is dict:
                    tree = self._dict(value, below)
                elif kind is list:
                    tree = self.items(value, below)
                else:
                    tree = self.value(value, below)
                if tree is not value:
                    if share:
                        out, share = dict(values), False
                    out[name] = tree
        except Refused as refused:
            refused.at(name if name.isidentifier() else f"[#{[*values].index(name)}]", depth)
            raise
        return out

    def _big(self, value: int) -> JsonValue:
        self.charge(value.bit_length() // 3, value)
        return {"$int": big_integer(value)}


def _respell(trees: dict[str, JsonValue], shape: Layout) -> dict[str, JsonValue]:
    names = shape.names or ()
    if not shape.escaped:
        return {**trees, KEYS: list(names)}
    out: dict[str, JsonValue] = dict(zip(names, trees.values(), strict=True))
    if shape.keys:
        out[KEYS] = list(names)
    return out
