"""Codecs of the standard library's containers other than `list` and `dict` with plain keys."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import orjson

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tag, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.tags import Broken, Refused, type_name

__all__ = ["CODECS", "TAGS"]

_FACTORIES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
} | {kind.__name__: kind for kind in (Counter, OrderedDict, deque)}


def _tuple(enc: Encoder, value: tuple[Any, ...], depth: int) -> JsonValue:
    return {"$tuple": enc.items(value, depth + 1)}


def _set(enc: Encoder, value: set[Any] | frozenset[Any], depth: int) -> JsonValue:
    # Sorted by their stored form: the same set is the same bytes in every process.
    try:
        items: Any = enc.items(tuple(value), depth + 1)
    except Refused as refused:
        refused.blur()
        raise
    items.sort(key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    return {f"${type(value).__name__}": items}


def _deque(enc: Encoder, value: deque[Any], depth: int) -> JsonValue:
    tree: dict[str, JsonValue] = {"$deque": enc.items(tuple(value), depth + 1)}
    if value.maxlen is not None:
        tree["$maxlen"] = enc.value(value.maxlen, depth + 1)
    return tree


def _pairs(enc: Encoder, value: dict[Any, Any], depth: int) -> JsonValue:
    # __orig_class__ is what typing leaves behind on typing.Counter[str](...).
    if value.__dict__.keys() - {"__orig_class__"}:
        raise Refused(type_name(type(value)), "carries attributes besides its items")
    return {f"${type(value).__name__}": enc.pairs(value, depth + 1)}


def _defaultdict(enc: Encoder, value: defaultdict[Any, Any], depth: int) -> JsonValue:
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise Refused("collections.defaultdict", "its default_factory is not a built-in type")
    return {"$defaultdict": enc.pairs(value, depth + 1), "$factory": name}


CODECS: dict[type, Callable[[Encoder, Any, int], JsonValue]] = {
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    deque: _deque,
    Counter: _pairs,
    OrderedDict: _pairs,
    defaultdict: _defaultdict,
}
"""Exact type -> codec."""


def _read_items(tag: str, kind: Callable[[list[Any]], Any]) -> Tag:
    def decode(dec: Decoder, tree: Tree, depth: int) -> Any:
        items = dec.items(expect(tree[tag], list), depth + 1)
        value = kind(items)
        if len(value) != len(items):
            raise Broken(tag, "the same member twice")
        return value

    return Tag(decode)


def _read_deque(dec: Decoder, tree: Tree, depth: int) -> deque[Any]:
    items = dec.items(expect(tree["$deque"], list), depth + 1)
    if "$maxlen" not in tree:
        return deque(items)
    longest = expect(dec.value(tree["$maxlen"], depth + 1), int)
    if longest < len(items):
        raise Broken("$deque", "more items than $maxlen")
    return deque(items, longest)


def _read_pairs(tag: str, empty: Callable[[Tree], Any], also: frozenset[str] = frozenset()) -> Tag:
    def decode(dec: Decoder, tree: Tree, depth: int) -> Any:
        pairs = dec.pairs(tree[tag], depth + 1)
        value = empty(tree)
        dict.update(value, pairs) if type(value) is Counter else value.update(pairs)
        if len(value) != len(pairs):
            raise Broken(tag, "the same key twice")
        return value

    return Tag(decode, also)


def _factory(tree: Tree) -> defaultdict[Any, Any]:
    name = tree["$factory"]
    return defaultdict(None if name is None else _FACTORIES[expect(name, str)])


TAGS: dict[str, Tag] = {
    "$tuple": _read_items("$tuple", tuple),
    "$set": _read_items("$set", set),
    "$frozenset": _read_items("$frozenset", frozenset),
    "$deque": Tag(_read_deque, frozenset({"$maxlen"})),
    "$dict": _read_pairs("$dict", lambda tree: {}),
    "$OrderedDict": _read_pairs("$OrderedDict", lambda tree: OrderedDict()),
    "$Counter": _read_pairs("$Counter", lambda tree: Counter()),
    "$defaultdict": _read_pairs("$defaultdict", _factory, frozenset({"$factory"})),
}
"""`$tag` -> how it is read."""
