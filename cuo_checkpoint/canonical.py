"""Canonical JSON (RFC 8785): one byte string for one JSON tree, whatever wrote it.

Hashes in the log and in the audit chain are taken over these bytes. The reference is the
`rfc8785` package; it is slow (pure Python), so most trees go through orjson instead, which
writes the same bytes where the two agree. They differ in two places, both handled here:

- numbers that are integral or smaller than 1e-5 in magnitude (`1.0` against `1`, `1.5e-6`
  against `0.0000015`): written by the reference, one number at a time;
- the order of keys beyond the Basic Multilingual Plane (RFC 8785 sorts by UTF-16 code units,
  orjson by code points): sorted here.

A property test compares the result with the reference.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any, TypeAlias

import orjson
import rfc8785

from cuo_checkpoint.errors import SerialiseError, UnserialisableValue

__all__ = [
    "MAX_SAFE_INTEGER",
    "SMALLEST_SAME_FLOAT",
    "JsonValue",
    "canonical_bytes",
    "encoded_bytes",
    "first_offence",
    "odd_numbers",
    "parsed_bytes",
    "sha256_hex",
]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer RFC 8785 admits: beyond it a reader that uses doubles would round."""

SMALLEST_SAME_FLOAT = 1e-5
"""Below this magnitude orjson and RFC 8785 may spell a number differently."""

_BEYOND_BMP = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
"""First bytes of the UTF-8 form of characters beyond the Basic Multilingual Plane."""

_ODD_NUMBER = re.compile(rb"[:\[,\s]-?(?:[0-9]+[.eE]|[0-9]{17})")
"""Finds, inside an object or array, every number but integers of up to 16 digits; also in some strings."""

_STRICT = (
    orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


def canonical_bytes(tree: JsonValue) -> bytes:
    """The RFC 8785 form of `tree`.

    Raises UnserialisableValue (a SerialiseError) for NaN and infinities, integers beyond
    +-(2**53 - 1), keys that are not `str`, lone surrogates, and anything that is not exactly one
    of the seven JSON types: a tuple or a `str` subclass would be written as something it is not.
    `1.0` and `1` have the same form, as the RFC demands; the serialiser tags the former.
    """
    try:
        fast = orjson.dumps(tree, option=_STRICT | orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise _explain(tree) from error
    # orjson has now proved the tree finite, acyclic and at most 254 levels deep.
    if _same_as_orjson(tree):
        return fast
    try:
        return orjson.dumps(_respelled(tree), option=_STRICT)
    except TypeError as error:  # pragma: no cover - the tree passed once already
        raise _explain(tree) from error


def encoded_bytes(tree: JsonValue) -> bytes:
    """`canonical_bytes` of a tree the serialiser has just made, without looking at it again.

    Such a tree holds only numbers both libraries spell alike, so keys beyond the BMP are all that
    is left to differ. On any other tree the result may be wrong (NaN becomes null): use
    `canonical_bytes`. Raises SerialiseError for a tree deeper than 254 levels.
    """
    try:
        fast = orjson.dumps(tree, option=_STRICT | orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise _explain(tree) from error
    if fast.isascii() or not any(lead in fast for lead in _BEYOND_BMP):
        return fast
    return canonical_bytes(tree)


def parsed_bytes(text: bytes, tree: JsonValue) -> bytes:
    """`canonical_bytes` of a tree that a JSON parser has just made of `text`, at C's speed if it can.

    A parser makes only the seven types, so without an odd number in the text all that is left to
    differ is what `encoded_bytes` looks for. Raises as `canonical_bytes`.
    """
    return canonical_bytes(tree) if odd_numbers(text) else encoded_bytes(tree)


def odd_numbers(text: bytes) -> bool:
    """Whether a JSON text may hold a number that `encoded_bytes` would spell otherwise than RFC 8785."""
    return text[:1] not in (b"{", b"[") or _ODD_NUMBER.search(text) is not None


def sha256_hex(data: bytes) -> str:
    """SHA-256 of `data`, 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def first_offence(tree: Any) -> UnserialisableValue | None:
    """The first value (depth first) that RFC 8785 has no form for, as an error with its path."""
    stack: list[tuple[str, Any, int]] = [("", tree, 0)]
    while stack:
        path, node, depth = stack.pop()
        kind = type(node)
        reason = ""
        if depth > 250:
            path, reason = path[:64] + "...", "nested deeper than 250 levels, or refers to itself"
        elif kind is dict:
            for number, (key, value) in enumerate(node.items()):
                if type(key) is not str:
                    reason = f"key #{number} is {type(key).__name__}, not str"
                elif not _encodable(key):
                    reason = f"key #{number} holds a lone surrogate"
                name = key if type(key) is str and key.isidentifier() else f"[#{number}]"
                stack.append((f"{path}.{name}".removeprefix("."), value, depth + 1))
        elif kind is list:
            stack.extend((f"{path}[{i}]", value, depth + 1) for i, value in enumerate(node))
        elif kind is float:
            reason = "" if math.isfinite(node) else "NaN and infinities have no canonical form"
        elif kind is int:
            reason = "" if abs(node) <= MAX_SAFE_INTEGER else "beyond +-(2**53 - 1)"
        elif kind is str:
            reason = "" if _encodable(node) else "holds a lone surrogate"
        elif node is not None and kind is not bool:
            reason = "not a JSON type"
        if reason:
            return UnserialisableValue(path, kind.__qualname__, reason)
    return None


def _explain(tree: Any) -> SerialiseError:
    return first_offence(tree) or SerialiseError("the tree has no canonical JSON form")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same_as_orjson(tree: JsonValue) -> bool:
    """Whether orjson's sorted output is RFC 8785 as it stands.

    Also the place where NaN (orjson writes null) and tuples (orjson writes an array) are caught.
    """
    same = True
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is dict:
            for key in node:
                if not key.isascii() and max(key) > "\uffff":
                    same = False
            stack.extend(node.values())
        elif kind is list:
            stack.extend(node)
        elif kind is float:
            if node - node != 0.0:  # true for NaN and both infinities only
                raise _explain(tree)
            if node.is_integer() or -SMALLEST_SAME_FLOAT < node < SMALLEST_SAME_FLOAT:
                same = False
        elif kind is not str and kind is not int and node is not None and kind is not bool:
            raise _explain(tree)
    return same


def _respelled(node: Any) -> Any:
    """A copy with keys in UTF-16 order and odd numbers spelled by the reference."""
    kind = type(node)
    if kind is dict:
        keys = sorted(node, key=lambda key: key.encode("utf-16-be"))
        return {key: _respelled(node[key]) for key in keys}
    if kind is list:
        return [_respelled(item) for item in node]
    if kind is float:
        return orjson.Fragment(rfc8785.dumps(node))
    return node
