"""JSON whose objects name each member once, for what others send."""

from __future__ import annotations

from typing import Any

__all__ = ["DuplicateName", "unique"]


class DuplicateName(ValueError):
    """An object names a member twice: two readers of it could disagree about which one counts."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The `object_pairs_hook` of `json.loads` that raises DuplicateName."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateName
    return found
