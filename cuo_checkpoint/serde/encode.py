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

    __slots__ = ("_codecs", "_items", "_max_depth", "_plan", "_room", "_trail")

    def __init__(
        self,
        codecs: Mapping[type, Callable[[Encoder, Any, int], JsonValue]],
        plan: Callable[[Any], Plan],
        max_depth: int,
    ) -> None:
        self._codecs = codecs
        self._plan = plan
        self._max_depth = max_depth
        self._items = MAX_ITEMS
        self._room = MAX_ROOM
        self._trail: list[object] = [None] * max_depth

    def value(self, value: Any, depth: int) -> JsonValue:
        """The tree of any value, to stand at `depth`; raises Refused."""
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is dict:
            return self._dict(value, depth)
        if kind is list:
            return self.items(value, depth)
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
            self.charge(len(text), text)
        return text if storable(text) else {"$str": escape_text(text)}

    def items(self, values: Sequence[Any], depth: int) -> JsonValue:
        """A JSON array of the trees of `values`."""
        self.enter(values, depth)
        self.count(len(values), values)
        out: list[JsonValue] = []
        append = out.append
        below = depth + 1
        try:
            for value in values:
                kind = type(value)
                if kind is str:
                    if len(value) < _FRESH and value.isascii() and "\0" not in value:
                        append(value)
                    else:
                        append(self.text(value))
                elif value is None or kind is bool:
                    append(value)
                else:
                    append(self.value(value, below))
        except Refused as refused:
            refused.at(len(out), depth)
            raise
        return out

    def fill(self, out: dict[str, JsonValue], values: Mapping[str, Any], depth: int) -> None:
        """Put the trees of `values` into `out` under the same names."""
        self.count(len(values), values)
        below = depth + 1
        name = ""
        try:
            for name, value in values.items():
                kind = type(value)
                if kind is str:
                    if len(value) < _FRESH and value.isascii() and "\0" not in value:
                        out[name] = value
                    else:
                        out[name] = self.text(value)
                elif value is None or kind is bool:
                    out[name] = value
                else:
                    out[name] = self.value(value, below)
        except Refused as refused:
            refused.at(name if name.isidentifier() else f"[#{len(out)}]", depth)
            raise

    def members(
        self,
        head: dict[str, JsonValue],
        values: Mapping[str, Any],
        depth: int,
        natural: Sequence[str] = (),
    ) -> dict[str, JsonValue]:
        """An object of our annotations `head` and the user's members `values`."""
        names = tuple(values)
        if not set(map(type, names)) <= _STR:
            raise Refused("dict", "an attribute's name is not a str")
        shape = layout(names, natural)
        if shape is None:
            self.fill(head, values, depth)
            return head
        if shape.names is None:
            raise Refused("str", "an attribute's name holds NUL or a lone surrogate")
        return self._escaped(head, values, shape.names, shape.keys, depth)

    def pairs(self, values: Mapping[Any, Any], depth: int) -> JsonValue:
        """An array of [key, value] arrays, in order: any key will do."""
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
        trail = self._trail
        if depth < self._max_depth:
            trail[depth] = value
            return
        # A cycle must have met one of its own members twice on the way down.
        seen: dict[int, int] = {}
        for level, earlier in enumerate([*trail, value]):
            if earlier is None:
                continue
            first = seen.setdefault(id(earlier), level)
            if first != level and earlier is trail[first]:
                raise Refused(type_name(type(earlier)), "refers to itself", above=level)
        reason = f"nested deeper than {self._max_depth} levels"
        raise Refused(type_name(type(value)), reason)

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

    def _dict(self, value: dict[Any, Any], depth: int) -> JsonValue:
        self.enter(value, depth)
        out: dict[str, JsonValue] = {}
        names = tuple(value)
        # The type check comes before the look-up: a str enum equals a str and hashes like it.
        if not set(map(type, names)) <= _STR:
            return {"$dict": self.pairs(value, depth + 1)}
        shape = layout(names)
        if shape is None:
            self.fill(out, value, depth)
            return out
        if shape.names is None:
            return {"$dict": self.pairs(value, depth + 1)}
        return self._escaped(out, value, shape.names, shape.keys, depth)

    def _escaped(
        self,
        out: dict[str, JsonValue],
        values: Mapping[str, Any],
        names: tuple[str, ...],
        keys: bool,
        depth: int,
    ) -> dict[str, JsonValue]:
        plain: dict[str, JsonValue] = {}
        self.fill(plain, values, depth)
        out.update(zip(names, plain.values(), strict=True))
        if keys:
            out[KEYS] = list(names)
        return out

    def _big(self, value: int) -> JsonValue:
        self.charge(value.bit_length() // 3, value)
        return {"$int": big_integer(value)}
