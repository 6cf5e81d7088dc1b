"""JSON that RFC 8785 canonicalises and PostgreSQL's jsonb stores, whatever came in. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["plain"]

_MAX_SAFE: Final = 2**53 - 1
"""Largest integer RFC 8785 accepts: beyond it, readers that use doubles would round."""

_UNFIT: Final = re.compile("[\x00\ud800-\udfff]")


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a JSON-like mapping, changing what cannot be stored exactly and nothing else.

    Numbers at or beyond 2**53 become decimal strings, NaN and infinities their names, NUL and lone
    surrogates U+FFFD, text NFC, foreign types their bracketed name. Keys that become equal that
    way get `#2`, `#3`, ... Raises RecursionError for values nested about a thousand deep.
    """
    out: dict[str, Any] = {}
    for key, item in row.items():
        name = base = _text(str(key))
        number = 2
        while name in out:
            name, number = f"{base}#{number}", number + 1
        out[name] = _value(item)
    return out


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_SAFE else _decimal(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return value if abs(value) <= _MAX_SAFE else _decimal(int(value))
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_value(item) for item in value]
    return f"[{type(value).__name__}]"


def _text(text: str) -> str:
    return unicodedata.normalize("NFC", _UNFIT.sub("\ufffd", text))


def _decimal(number: int) -> str:
    # Python refuses to print integers of more than 4300 digits; nobody needs them in a row.
    return str(number) if number.bit_length() < 4096 else "[out of range]"
