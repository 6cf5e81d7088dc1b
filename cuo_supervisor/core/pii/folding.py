"""Fold a text so that patterns can be plain ASCII, and remember where each character came from.

Full-width forms, other scripts' digits, odd spaces and hyphens, and Vietnamese diacritics all map
one to one. Combining marks and zero-width characters vanish, so decomposed (NFD) text and numbers
with invisible characters in them fold to the same as their plain spelling.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final, NamedTuple

__all__ = ["Folded", "fold"]

_DROPPED: Final = re.compile(
    "[\u00ad\u0300-\u036f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
)
_SPACES: Final = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_HYPHENS: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_STROKES: Final = {"đ": "d", "Đ": "D", "ð": "d", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ı": "i"}
_DIGIT_BLOCKS: Final = ((0x660, 0x1C60), (0xA620, 0xABFA), (0x104A0, 0x16B6A), (0x1D7CE, 0x1FBFA))
"""Where Unicode keeps decimal digits of other scripts; between them lie mostly ideographs."""


class Folded(NamedTuple):
    """`text` to search in, `lower` of the same length, `origin[i]` = offset in the original.

    `origin` is None when nothing was dropped, i.e. offsets are the same.
    """

    text: str
    lower: str
    origin: list[int] | None
    original_length: int

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Translate a range back; marks that belong to its last character come along."""
        if self.origin is None:
            return start, end
        last = self.origin[end] if end < len(self.origin) else self.original_length
        return self.origin[start], last


def fold(text: str) -> Folded:
    """Fold `text`. Accepts any string, lone surrogates included."""
    if text.isascii():
        return Folded(text, text.lower(), None, len(text))
    origin: list[int] | None = None
    kept = text
    if _DROPPED.search(text):
        dropped = {match.start() for match in _DROPPED.finditer(text)}
        origin = [at for at in range(len(text)) if at not in dropped]
        kept = "".join(text[at] for at in origin)
    # Not str.translate: on text outside Latin-1 that costs three times as much.
    folded = "".join(map(_table().get, kept, kept))
    lower = folded.lower()
    if len(lower) != len(folded):  # a script where lower case is longer than upper case
        lower = "".join(low if len(low := ch.lower()) == 1 else ch for ch in folded)
    return Folded(folded, lower, origin, len(text))


@cache
def _table() -> dict[str, str]:
    table: dict[int, str] = {}
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        base = unicodedata.normalize("NFD", chr(code))[0]
        if base.isascii():
            table[code] = base
    for code in range(0xFF01, 0xFF5F):
        table[code] = chr(code - 0xFEE0)
    for first, last in _DIGIT_BLOCKS:
        for code in range(first, last):
            digit = unicodedata.decimal(chr(code), None)
            if digit is not None:
                table[code] = str(digit)
    table.update(dict.fromkeys(_SPACES, " "))
    table.update({ord(ch): "-" for ch in _HYPHENS})
    table.update({ord(ch): plain for ch, plain in _STROKES.items()})
    return {chr(code): plain for code, plain in table.items()}
