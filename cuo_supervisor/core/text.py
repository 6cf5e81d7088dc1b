"""Turns a request into comparable words. Pure, and the same on every host and locale.

Three spellings of one Vietnamese word must meet: composed or decomposed, with the tone mark
on either vowel ("hoá", "hóa"), and typed without any marks ("hoa"). The first two are the
same word and compare equal. The third is only a hint: about four in five unmarked syllables
can be read as several different words, so `Token` keeps both forms and the scorer weighs them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

__all__ = [
    "Token",
    "canonical",
    "fold",
    "normalise_query",
    "stem",
    "tokenise",
]

_TONES: Final = frozenset("\u0300\u0301\u0303\u0309\u0323")
"""Grave, acute, tilde, hook above, dot below: the five written tones."""

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019\u02bc][^\W_]+)*")
_DIGIT: Final = re.compile(r"\d")
_SPACES: Final = re.compile(r"\s+")
_DOUBLED: Final = frozenset("bdgmnprt")


@dataclass(frozen=True, slots=True)
class Token:
    """One word of a text. `start` and `end` are character offsets into that text."""

    text: str
    """Lower case, as written."""
    key: str
    """Equal for equal words: tone placement unified if marked, English stem if plain."""
    folded: str
    """Without any marks, d-stroke as d."""
    marked: bool
    """True if the word carries Vietnamese (or other) marks."""
    start: int
    end: int
    numeric: bool
    """True if the word holds a digit: an amount, a code, a quarter."""


def normalise_query(text: str) -> str:
    """NFC, invisible characters dropped, runs of white space made one space, ends trimmed.

    This is the form the request keeps from here on; marks and case survive.
    """
    visible = "".join(
        " " if unicodedata.category(c) == "Cc" else c
        for c in text
        if unicodedata.category(c) not in ("Cf", "Cs")
    )
    return _SPACES.sub(" ", unicodedata.normalize("NFC", visible)).strip()


def fold(text: str) -> str:
    """Lower case without marks; the d-stroke, which has no decomposition, becomes d."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold().replace("đ", "d"))
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def canonical(word: str) -> str:
    """One spelling per marked word: the tone mark is moved behind the letters.

    "hoá" and "hóa" give the same result; "thuê" and "thuế" do not.
    """
    letters: list[str] = []
    tones: list[str] = []
    for character in unicodedata.normalize("NFKD", word.casefold()):
        (tones if character in _TONES else letters).append(character)
    return unicodedata.normalize("NFC", "".join(letters)) + "".join(tones)


def stem(word: str) -> str:
    """A light English stem for plain words: plural, -ing, -ed, final e.

    Words below five letters only lose a plural s. Vietnamese typed without marks never ends
    in s, -ed or -ing, and its longest syllables ending in e keep apart after the cut.
    """
    if len(word) < 4 or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if word.endswith("ing") and len(word) > 5:
        word = _undouble(word[:-3])
    elif word.endswith("ed") and len(word) > 4:
        word = _undouble(word[:-2])
    if word.endswith("e") and len(word) > 4:
        word = word[:-1]
    return word


def tokenise(text: str) -> tuple[Token, ...]:
    """Words of `text` in order. Hyphens, slashes and underscores separate words.

    Full-width letters and digits compare as their plain forms; offsets stay those of `text`.
    """
    tokens: list[Token] = []
    for match in _WORD.finditer(text):
        word = match.group()
        if word.isascii():
            lowered = word.lower()
            numeric = not word.isalpha() and _DIGIT.search(word) is not None
            tokens.append(
                Token(lowered, stem(lowered), lowered, False, match.start(), match.end(), numeric)
            )
            continue
        lowered = unicodedata.normalize("NFKC", word).casefold().replace("\u2019", "'")
        lowered = lowered.replace("\u02bc", "'")
        folded = fold(lowered)
        marked = folded != lowered
        key = canonical(lowered) if marked else stem(lowered)
        numeric = _DIGIT.search(word) is not None
        tokens.append(Token(lowered, key, folded, marked, match.start(), match.end(), numeric))
    return tuple(tokens)


def _undouble(word: str) -> str:
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in _DOUBLED:
        return word[:-1]
    return word
