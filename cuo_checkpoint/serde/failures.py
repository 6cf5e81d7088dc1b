"""Exceptions as they stand in LangGraph's error writes.

An exception cannot be rebuilt safely: it may be of any class and hold sockets and frames.
LangGraph's own serialiser keeps `repr(error)` and gives back that string. This one keeps the
class and the message too, and gives back the same string with both as attributes.
"""

from __future__ import annotations

from typing import Any

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tag, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.registry import full_name
from cuo_checkpoint.serde.tags import Broken

__all__ = ["TAGS", "ErrorPlan", "StoredError"]


class StoredError(str):
    """An exception read back: equal to its `repr`, with `type_name` and `message` beside it.

    It is a `str` because LangGraph and its users compare such writes with text.
    """

    __slots__ = ("message", "type_name")

    type_name: str
    """`module:qualname` of the exception's class."""
    message: str
    """`str(error)`."""

    def __new__(cls, text: str, *, type_name: str, message: str) -> StoredError:
        """`text` is the exception's `repr`."""
        self = super().__new__(cls, text)
        self.type_name = type_name
        self.message = message
        return self


class ErrorPlan:
    """Writes exceptions, and StoredError back to the very same form; stateless."""

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        if type(value) is StoredError:
            name, text, message = value.type_name, str.__str__(value), value.message
        else:
            name = full_name(type(value))
            text, message = _spell(repr, value), _spell(str, value)
        return {"$error": enc.text(name), "$repr": enc.text(text), "$message": enc.text(message)}


def _spell(how: Any, error: BaseException) -> str:
    try:
        return str.__str__(how(error))
    except Exception:
        # A failing __repr__ must not keep the failure from being recorded.
        return f"<{type(error).__qualname__} that cannot be shown>"


def _read(dec: Decoder, tree: Tree, depth: int) -> StoredError:
    if "$repr" not in tree or "$message" not in tree:
        raise Broken("$error", "malformed")
    name, text, message = (
        expect(dec.value(tree[part], depth + 1), str) for part in ("$error", "$repr", "$message")
    )
    return StoredError(text, type_name=name, message=message)


TAGS: dict[str, Tag] = {"$error": Tag(_read, frozenset({"$repr", "$message"}))}
"""`$tag` -> how it is read."""
