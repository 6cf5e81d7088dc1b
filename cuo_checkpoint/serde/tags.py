"""The grammar of tagged JSON: names, escapes and key order. Nothing here knows a Python class.

A member whose name starts with one `$` is ours; a name of the user's that starts with `$` gets a
second one in front. So no user data can look like a tag, and an escaped object stays readable.

jsonb keeps members sorted by length in bytes, then by bytes, and forgets how they were written.
An object whose own order differs says so in `$keys`; all others, nearly all, carry nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from cuo_checkpoint.canonical import JsonValue

__all__ = [
    "KEYS",
    "MAX_ITEMS",
    "MAX_ROOM",
    "STORE_TAGS",
    "Broken",
    "Layout",
    "Refused",
    "TreeLayout",
    "escape_name",
    "escape_text",
    "jsonb_sorted",
    "layout",
    "natural_names",
    "natural_order",
    "own_order",
    "storable",
    "tree_layout",
    "type_name",
    "unescape_name",
    "unescape_text",
]

KEYS = "$keys"
STORE_TAGS = frozenset({"$enc", "$ref", "$state_of"})
"""Written and resolved by the store, never by the serialiser."""

MAX_ITEMS = 5 * 1024 * 1024 // 2
"""Most values one encoding may visit: each takes two bytes, so no state under 5 MB has more.

It bounds the work on a value whose parts are shared (a list of twice the same list of ...).
"""

MAX_ROOM = 64 * 1024 * 1024
"""Most characters one encoding may gather; far above the store's cap, far below the memory."""


class _Located(Exception):
    """A fault on its way up; every container it passes adds its own step of the path."""

    def __init__(self, type_name: str, reason: str, *, above: int | None = None) -> None:
        super().__init__(reason)
        self.type_name = type_name
        self.reason = reason
        self._above = above
        self._steps: list[str] = []

    def at(self, step: str | int, depth: int) -> None:
        """Add the step taken inside the container at `depth` (`str`: member, `int`: position)."""
        if self._above is None or depth < self._above:
            self._steps.append(f".{step}" if isinstance(step, str) else f"[{step}]")

    def blur(self) -> None:
        """Replace the last step by `{}`: positions in a set mean nothing."""
        if self._steps:
            self._steps[-1] = "{}"

    def path(self, prefix: str = "") -> str:
        """The path, such as `a[0].b`; at most its first 32 steps."""
        steps = self._steps[::-1]
        cut = "..." if len(steps) > 32 else ""
        return (prefix + "".join(steps[:32]) + cut).removeprefix(".")


class Refused(_Located):
    """A value that cannot be stored exactly."""


class Broken(_Located):
    """A stored form that cannot be rebuilt exactly."""


def type_name(kind: type) -> str:
    """`module.qualname`, without the module for builtins."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# --- text -------------------------------------------------------------------------------------

_UNSTORABLE = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(\\|u0000|ud[89a-f][0-9a-f]{2})")


def storable(text: str) -> bool:
    """Whether jsonb takes `text` as it is: no NUL, no lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_text(text: str) -> str:
    r"""Spell NUL and surrogates as `\u0000` and `\udXXX`, and a backslash as two."""
    return _UNSTORABLE.sub(lambda m: "\\\\" if m[0] == "\\" else f"\\u{ord(m[0]):04x}", text)


def unescape_text(text: str) -> str:
    """Undo `escape_text`; ValueError unless `text` is exactly what it would have written."""
    plain = _ESCAPE.sub(lambda m: "\\" if m[1] == "\\" else chr(int(m[1][1:], 16)), text)
    if escape_text(plain) != text or storable(plain):
        raise ValueError("not an escaped text")
    return plain


def escape_name(name: str) -> str:
    """A member name of the user's as it stands in the tree."""
    return f"${name}" if name.startswith("$") else name


def unescape_name(name: str) -> str:
    """Undo `escape_name` on a name known not to be an annotation."""
    return name[1:] if name.startswith("$$") else name


# --- key order --------------------------------------------------------------------------------


def jsonb_sorted(names: Iterable[str]) -> list[str]:
    """`names` in the order in which jsonb hands them back."""
    return sorted(names, key=lambda name: (len(raw := name.encode()), raw))


class Layout(NamedTuple):
    """How an object that cannot stand as it is must be written.

    `names` are the escaped names in the value's own order, None if a name cannot be stored at
    all (then the object is written as pairs). `keys` says whether that order must be kept.
    """

    names: tuple[str, ...] | None
    keys: bool
    escaped: bool


class TreeLayout(NamedTuple):
    """How an object with annotations, or out of order, is read: its own members and the rest."""

    annotations: tuple[str, ...]
    members: tuple[str, ...]
    escaped: bool


# Shapes repeat (every message of a chat has one), so both answers are remembered, by the tuple of
# names. Callers have checked that every name is exactly a str: equal keys of another type never
# reach the cache. Bounded: cleared when full; tuples that are long or hold long names stay out.
_LAYOUTS: dict[tuple[str, ...], Layout | None] = {}
_TREE_LAYOUTS: dict[tuple[str, ...], TreeLayout | None] = {}
_MOST_SHAPES = 2048
_MOST_NAMES = 48


def _worth_keeping(names: tuple[str, ...], shapes: int) -> bool:
    return len(names) <= _MOST_NAMES and shapes < _MOST_SHAPES and sum(map(len, names)) <= 1024


def layout(names: tuple[str, ...], natural: tuple[str, ...] = ()) -> Layout | None:
    """How members named `names`, in this order, are written; None: just as they are.

    `natural` names members whose order both sides know without being told (the fields of a
    class); members outside it follow in jsonb order.
    """
    if not natural:
        try:
            return _LAYOUTS[names]
        except KeyError:
            pass
    found = _layout(names, natural)
    if not natural:
        if len(_LAYOUTS) >= _MOST_SHAPES:
            _LAYOUTS.clear()
        if _worth_keeping(names, len(_LAYOUTS)):
            _LAYOUTS[names] = found
    return found


def _layout(names: tuple[str, ...], natural: tuple[str, ...]) -> Layout | None:
    if not all(map(storable, names)):
        return Layout(None, keys=True, escaped=True)
    escaped = tuple(map(escape_name, names))
    keys = escaped != natural_order(escaped, natural)
    changed = escaped != names
    return Layout(escaped, keys, changed) if keys or changed else None


def natural_order(names: tuple[str, ...], natural: tuple[str, ...]) -> tuple[str, ...]:
    """The order of members that carry no `$keys`: those of `natural` first, as it has them."""
    present = set(names)
    if len(names) == len(natural) and present.issuperset(natural):
        return natural
    known = [name for name in natural if name in present]
    return (*known, *jsonb_sorted(present.difference(known)))


_ORDERS: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}


def own_order(keys: list[JsonValue], members: tuple[str, ...]) -> tuple[str, ...]:
    """The order `$keys` gives to `members`; Broken unless it lists each of them once."""
    key: Any = (members, tuple(keys))
    try:
        return _ORDERS[key]
    except (KeyError, TypeError):
        pass
    order = tuple(name for name in keys if type(name) is str)
    if len(order) != len(keys) or len(order) != len(members) or set(order) != set(members):
        raise Broken(KEYS, "does not list the object's members")
    if len(_ORDERS) >= _MOST_SHAPES:
        _ORDERS.clear()
    if _worth_keeping(members, len(_ORDERS)):
        _ORDERS[members, order] = order
    return order


def natural_names(names: Iterable[str]) -> tuple[str, ...]:
    """`names` as an order known to both sides; none at all if one of them needs an escape."""
    order = tuple(names)
    return () if any(n.startswith("$") or not storable(n) for n in order) else order


def tree_layout(names: tuple[str, ...]) -> TreeLayout | None:
    """How an object read with members `names` is to be taken; None: just as it is."""
    try:
        return _TREE_LAYOUTS[names]
    except KeyError:
        pass
    annotations = tuple(n for n in names if n.startswith("$") and not n.startswith("$$"))
    members = tuple(jsonb_sorted(set(names).difference(annotations)))
    escaped = any(name.startswith("$") for name in members)
    plain = not annotations and not escaped and members == names
    found = None if plain else TreeLayout(annotations, members, escaped)
    if len(_TREE_LAYOUTS) >= _MOST_SHAPES:
        _TREE_LAYOUTS.clear()
    if _worth_keeping(names, len(_TREE_LAYOUTS)):
        _TREE_LAYOUTS[names] = found
    return found
