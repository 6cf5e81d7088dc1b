"""JSON text of trees, as PostgreSQL's jsonb takes and gives it, without loss either way."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.errors import DeserialiseError, SerialiseError, UnserialisableValue
from cuo_checkpoint.serde.tags import storable

__all__ = ["text_to_tree", "tree_to_text", "trusted_text"]

_OPTIONS = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_DIGITS = bytes(48 if chr(b) in "0123456789" else 46 if b == 46 else 32 for b in range(256))
_LONG_NUMBER = b" " + b"0" * 19
"""orjson reads integers of up to 18 digits exactly; longer ones may become floats. After every
digit is made 0 and all else but the point a space, this finds them, and not the tail of a float."""

_LARGEST_POINTED = 1e16
"""From here on an integral float is written with an exponent, which jsonb spells as an integer."""


def tree_to_text(tree: JsonValue) -> str:
    """JSON text that jsonb takes without altering a value.

    Raises UnserialisableValue for what jsonb refuses (NUL, lone surrogates) or alters (NaN, -0.0,
    floats it would print as integers) and for anything not exactly a JSON type; SerialiseError
    for a tree that holds itself or is too deep.
    """
    try:
        raw = orjson.dumps(tree, option=_OPTIONS)
    except TypeError as error:
        # Integers beyond 64 bits end here too: jsonb takes them and the standard library
        # writes them. It also shows that the tree is finite, so that it may be inspected.
        try:
            text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise SerialiseError("the tree cannot be written as JSON") from error
        _inspect(tree, strings=True)
        return text
    _inspect(tree, strings=b"\\u0000" in raw)
    return raw.decode()


def trusted_text(tree: JsonValue) -> str:
    """`tree_to_text` of a tree fresh from the encoder, which holds nothing to be refused."""
    try:
        return orjson.dumps(tree, option=_OPTIONS).decode()
    except TypeError:
        return tree_to_text(tree)


def text_to_tree(text: str | bytes) -> JsonValue:
    """The tree of a JSON text: integers of any size stay `int`, numbers with a point `float`.

    Raises DeserialiseError for text that is not JSON, holds a lone surrogate, or a number no
    `float` can hold.
    """
    try:
        raw = text.encode() if isinstance(text, str) else text
        if _LONG_NUMBER not in b" " + raw.translate(_DIGITS):
            tree: JsonValue = orjson.loads(raw)
            return tree
        tree = json.loads(raw, parse_float=_float, parse_constant=_float)
    except (ValueError, RecursionError) as error:
        raise DeserialiseError("", "json", "not a JSON text") from error
    if b"\\u" in raw and not _all_encodable(tree):
        raise DeserialiseError("", "str", "holds a lone surrogate")
    return tree


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("beyond the range of a float")
    return value


def _all_encodable(tree: JsonValue) -> bool:
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if type(node) is dict:
            stack.extend(node)
            stack.extend(node.values())
        elif type(node) is list:
            stack.extend(node)
        elif type(node) is str and not storable(node.replace("\0", "")):
            return False
    return True


def _inspect(tree: JsonValue, *, strings: bool) -> None:
    """Refuse what orjson would write otherwise than it is, or jsonb keep otherwise."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is str:
            if strings and not storable(node):
                raise UnserialisableValue("", "str", "NUL or a lone surrogate, which jsonb refuses")
        elif kind is dict:
            stack.extend(node.values())
            if strings:
                for key in node:
                    if type(key) is not str:
                        raise UnserialisableValue("", kind.__qualname__, "a key that is not a str")
                    stack.append(key)
        elif kind is list:
            stack.extend(node)
        elif kind is float:
            integral = node - node == 0.0 and node.is_integer()
            if not node - node == 0.0 or (
                integral and (abs(node) >= _LARGEST_POINTED or repr(node) == "-0.0")
            ):
                raise UnserialisableValue("", "float", "jsonb would not keep it as a float")
        elif kind is not int and node is not None and kind is not bool:
            raise UnserialisableValue("", kind.__qualname__, "not a JSON type")
