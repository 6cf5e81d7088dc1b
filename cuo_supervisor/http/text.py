"""Stored values as text a person can read and nothing can hide in. Pure."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["get", "plain_form", "pretty", "shortened", "size_text", "visible"]

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MARKS: Final = frozenset({"Mn", "Me"})
_MOST_MARKS: Final = 4
"""Marks on one letter that stay: Vietnamese needs two, pointed Hebrew three. More reach into other
lines and could strike out what stands there."""

_SCALARS: Final = {"$int": int, "$float": float}


def visible(text: str) -> str:
    """The text with every character that cannot be seen, turns others around or piles up, spelled
    out.

    Escaping for HTML is the template's; this is against text that looks like another.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for c in text:
        kind = unicodedata.category(c)
        marks = marks + 1 if kind in _MARKS else 0
        if c in "\n\t" or (kind not in _HIDDEN and marks <= _MOST_MARKS):
            shown.append(c)
        else:
            shown.append(c.encode("unicode_escape", "surrogatepass").decode())
    return "".join(shown)


def plain_form(tree: Any) -> Any:
    """A stored value without the serialiser's marks where they say nothing to a reader.

    Key order is restored, whole floats and long integers stand as numbers; other tagged values
    stay as they are stored.
    """
    if isinstance(tree, list):
        return [plain_form(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((key, value),) = tree.items()
        if key in _SCALARS and isinstance(value, str):
            try:
                return _SCALARS[key](value)
            except ValueError:
                return tree
    order = tree.get("$keys")
    if isinstance(order, list):
        named = [key for key in order if isinstance(key, str) and key in tree]
        if len(set(named)) == len(tree) - 1:
            return {key: plain_form(tree[key]) for key in named}
    return {key: plain_form(value) for key, value in tree.items()}


def pretty(value: Any) -> str:
    """A value as JSON, one line where it is short, otherwise indented."""
    if isinstance(value, (dict, list)):
        line = json.dumps(value, ensure_ascii=False)
        text = line if len(line) <= 60 else json.dumps(value, ensure_ascii=False, indent=2)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return visible(text)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def size_text(count: int) -> str:
    """A number of characters as people say it."""
    if count < 1000:
        return f"{count} characters"
    return f"{count / 1000:.1f} k characters" if count < 1e6 else f"{count / 1e6:.1f} M characters"


def get(tree: Any, *path: str) -> Any:
    """A member of a member; None where there is none. Stored states may hold anything."""
    for key in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree
