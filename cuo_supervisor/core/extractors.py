"""Finds typed values in a request: tax codes, amounts, names, accounts, choices. Pure.

Every extractor answers with one value or none. Two different values for one argument are an
ambiguity, and an ambiguity is answered with none: a missing argument leads to a question, a
wrong one to a wrong act.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from cuo_supervisor.core.catalog import ArgumentSpec
from cuo_supervisor.core.lexicon import (
    ACCOUNT_CONTEXT,
    BANKS,
    FILLERS,
    GENERIC_PARTY,
    NAME_LIKE,
    NAME_STOPS,
    PHONE_CONTEXT,
    TAX_CONTEXT,
)
from cuo_supervisor.core.text import Token, fold, tokenise

__all__ = ["EXTRACTORS", "Found", "Reading", "Vocabulary"]

_LOOKBACK: Final = 4
_MAX_NAME_WORDS: Final = 6
_ACRONYMS: Final = frozenset({"vnd", "mst", "gtgt", "vat", "crm", "stk", "usd", "tk"})

_TAX_SHAPE: Final = re.compile(
    r"(?<![\w.-])(?:\d{10}|\d{4}[ .]\d{3}[ .]\d{3})(?:-?\d{3})?(?![\w-])"
)
_TAX_NEAR: Final = re.compile(r"(?<![\w.-])\d[\d-]{4,16}(?![\w-])")
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,4}[A-Za-z]{2,24}\b")
_DIGITS: Final = re.compile(r"\d{6,19}")
_AMOUNT: Final = re.compile(
    r"(?<![\w.,])(?P<prefix>[$€£¥]\s?)?"
    r"(?P<number>\d{1,3}(?:[.,]\d{3}){1,4}|\d{1,15}(?:[.,]\d{1,2})?)"
    r"\s?(?P<unit>k|ngh[iì]n|ng[aà]n|thousand|m|mil|mio|million|tr|tri[eệ]u|b|bn|billion|t[yỷỹ]|t[ỉi])?"
    r"\s?(?P<currency>vn[dđ]|đ[oồ]ng|dong|[đd₫])?"
    r"(?:\s?(?P<foreign>usd|eur|jpy|sgd|gbp|dollars?|euros?))?(?![\w])",
    re.IGNORECASE,
)
_UNITS: Final = {
    "k": 3, "nghin": 3, "ngan": 3, "thousand": 3, "m": 6, "mil": 6, "mio": 6, "million": 6,
    "tr": 6, "trieu": 6, "b": 9, "bn": 9, "billion": 9, "ty": 9, "ti": 9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """One value and the characters [start, end) it was read from."""

    value: str | int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A normalised request with its words, tokenised once for all extractors."""

    text: str
    tokens: tuple[Token, ...]
    places: Mapping[str, list[int]]
    """Positions of each folded word."""
    folds: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Reading:
        tokens = tokenise(text)
        places: dict[str, list[int]] = {}
        for at, token in enumerate(tokens):
            places.setdefault(token.folded, []).append(at)
        return cls(text, tokens, places, tuple(token.folded for token in tokens))

    def find(self, phrase: Sequence[str]) -> list[int]:
        """Where the folded words of `phrase` stand next to each other."""
        starts = self.places.get(phrase[0])
        if not starts:
            return []
        if len(phrase) == 1:
            return starts
        folds, size, wanted = self.folds, len(phrase), tuple(phrase)
        return [at for at in starts if folds[at : at + size] == wanted]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A skill's own words, which begin no name: comparison keys, and all without marks."""

    keys: frozenset[str]
    folds: frozenset[str]


Extract = Callable[[Reading, ArgumentSpec, Vocabulary], Found | None]


def tax_code(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """A tax code by shape, or any run of digits that a tax word introduces.

    Nearest context decides: after a phone or account word the same ten digits are not one.
    """
    announced = [
        _found(match, match.group().strip("-"))
        for match in _TAX_NEAR.finditer(reading.text)
        if _context(reading, match.start()) == "tax"
    ]
    if announced:
        return _only(announced)
    return _only(
        _found(match, re.sub(r"[ .]", "", match.group()))
        for match in _TAX_SHAPE.finditer(reading.text)
        if _context(reading, match.start()) in ("tax", "")
    )


def amount_vnd(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """An amount in whole dong: "4M VND", "1,5 tỷ", "500k", "9.900.000 đồng".

    A bare number needs a unit, a currency or at least two groups of thousands. Other
    currencies are not converted and not taken.
    """
    found: list[Found] = []
    for match in _AMOUNT.finditer(reading.text):
        if match["prefix"] or match["foreign"]:
            return None
        number, unit, currency = match["number"], match["unit"], match["currency"]
        parts = re.split(r"[.,]", number)
        if not unit and not currency and len(parts) < 3:
            continue
        if len(parts) > 1 and len(parts[-1]) == 3:
            if unit and len(parts) == 2:
                return None  # "4.500 triệu": 4.5 or 4500 million, both are written so
            value = Decimal("".join(parts))
        else:
            value = Decimal(".".join(parts))
        value *= Decimal(10) ** (_UNITS[fold(unit)] if unit else 0)
        if value != value.to_integral_value():
            return None
        found.append(_found(match, int(value)))
    return _only(found)


def account_number(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """6 to 19 digits that an account word introduces."""
    return _only(
        Found(token.text, token.start, token.end)
        for token in reading.tokens
        if _DIGITS.fullmatch(token.text) and _context(reading, token.start) == "account"
    )


def bank(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """A bank by its common short name, in one spelling."""
    return _only(
        Found(BANKS[token.folded], token.start, token.end)
        for token in reading.tokens
        if token.folded in BANKS
    )


def email(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """An e-mail address, as written."""
    return _only(_found(match, match.group()) for match in _EMAIL.finditer(reading.text))


def rest(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """Everything behind the first of the words in `after`."""
    tokens = reading.tokens
    introducers = [
        (at, -len(words))
        for words in map(_folded_words, spec.after)
        for at in reading.find(words)
        if at > 0
    ]
    if not introducers:
        return None
    at, size = min(introducers)  # the first; of two there, the longer ("về việc", not "về")
    first = at - size
    if first >= len(tokens):
        return None
    start = tokens[first].start
    value = reading.text[start : start + spec.max_length].rstrip(" .!?,;:")
    return Found(value, start, start + len(value)) if value else None


def choice(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """One of the manifest's choices by any of its synonyms, best behind a word in `after`.

    An unmarked single syllable counts only behind such a word: "thang" may be thắng or tháng.
    """
    introduced: list[Found] = []
    loose: list[Found] = []
    introducers = [_folded_words(words) for words in spec.after]
    tokens = reading.tokens
    for value, synonyms in spec.choices.items():
        for synonym in synonyms:
            words = _words(synonym)
            for at in reading.find(_folded_words(synonym)):
                here = tokens[at : at + len(words)]
                if any(t.marked and t.key != w.key for t, w in zip(here, words, strict=True)):
                    continue
                found = Found(value, here[0].start, here[-1].end)
                if any(
                    at >= len(i) and tuple(t.folded for t in tokens[at - len(i) : at]) == i
                    for i in introducers
                ):
                    introduced.append(found)
                elif len(words) > 1 or words[0].key == here[0].key:
                    loose.append(found)
    return _longest(introduced) or _longest(loose)


def party(reading: Reading, spec: ArgumentSpec, vocabulary: Vocabulary) -> Found | None:
    """A name behind one of the words in `after`, else in front of one of those in `before`."""
    tokens = reading.tokens
    cased = _case_tells(tokens, reading.text)
    found: list[Found] = []
    for words in map(_folded_words, spec.after):
        for at in reading.find(words):
            name = _name_from(reading, at + len(words), vocabulary, cased)
            if name is not None:
                found.append(name)
    if not found:
        for words in map(_folded_words, spec.before):
            for at in reading.find(words):
                name = _name_before(reading, at, vocabulary, cased)
                if name is not None:
                    found.append(name)
    return _only(found)


EXTRACTORS: Final[Mapping[str, Extract]] = MappingProxyType(
    {
        "tax_code": tax_code,
        "amount_vnd": amount_vnd,
        "account_number": account_number,
        "bank": bank,
        "email": email,
        "rest": rest,
        "choice": choice,
        "party": party,
    }
)


def _found(match: re.Match[str], value: str | int) -> Found:
    return Found(value, match.start(), match.end())


def _only(found: Iterable[Found]) -> Found | None:
    """The single value among `found`; the first place it stands if it is repeated."""
    listed = sorted(found, key=lambda f: (f.start, -f.end))
    return listed[0] if listed and len({f.value for f in listed}) == 1 else None


def _longest(found: list[Found]) -> Found | None:
    if not found:
        return None
    size = max(f.end - f.start for f in found)
    return _only(f for f in found if f.end - f.start == size)


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[Token, ...]:
    """Words of a manifest's own text; the same few hundred texts come for every request."""
    return tokenise(text)


@lru_cache(maxsize=4096)
def _folded_words(text: str) -> tuple[str, ...]:
    return tuple(token.folded for token in _words(text))


def _context(reading: Reading, offset: int) -> str:
    """Which kind of number the nearest of the few words before `offset` announces."""
    before = [t for t in reading.tokens if t.end <= offset][-_LOOKBACK:]
    for token in reversed(before):
        if token.folded in TAX_CONTEXT:
            return "tax"
        if token.folded in PHONE_CONTEXT:
            return "phone"
        if token.folded in ACCOUNT_CONTEXT:
            return "account"
    return ""


def _case_tells(tokens: Sequence[Token], text: str) -> bool:
    """True if capitals mark names here: some later word is capitalised and some is not."""
    shapes = {
        text[t.start].isupper() for t in tokens[1:] if not t.numeric and t.folded not in _ACRONYMS
    }
    return len(shapes) == 2 and any(
        text[t.start].isupper() and t.folded not in _ACRONYMS and not t.numeric for t in tokens[1:]
    )


def _is_name_word(token: Token, text: str, cased: bool) -> bool:
    if token.numeric or token.folded in _ACRONYMS:
        return False
    if cased:
        return text[token.start].isupper()
    return token.folded not in NAME_STOPS


def _name_from(reading: Reading, index: int, vocabulary: Vocabulary, cased: bool) -> Found | None:
    tokens, text = reading.tokens, reading.text
    opening = index
    while index < len(tokens) and tokens[index].folded in GENERIC_PARTY:
        if text[tokens[index].start].isupper() and cased:
            break
        index += 1
    end = index
    while end < len(tokens) and end - index < _MAX_NAME_WORDS:
        if not _is_name_word(tokens[end], text, cased):
            break
        if end > index and not _joined(text[tokens[end - 1].end : tokens[end].start]):
            break
        end += 1
    name = _name(reading, index, end, vocabulary, cased)
    # "khách hàng Minh Long": the words that lead to the name belong to the place, not the value.
    return name and Found(name.value, tokens[opening].start, name.end)


def _name_before(reading: Reading, index: int, vocabulary: Vocabulary, cased: bool) -> Found | None:
    tokens, text = reading.tokens, reading.text
    start = index
    while start > 0 and index - start < _MAX_NAME_WORDS:
        token = tokens[start - 1]
        # Looking backwards the verb comes up: "chuyen deal", typed without marks, is no name.
        known = token.key in vocabulary.keys or (not cased and token.folded in vocabulary.folds)
        if known or not _is_name_word(token, text, cased):
            break
        if not _joined(text[token.end : tokens[start].start]):
            break
        start -= 1
    return _name(reading, start, index, vocabulary, cased)


def _name(
    reading: Reading, start: int, end: int, vocabulary: Vocabulary, cased: bool
) -> Found | None:
    if start >= end:
        return None
    first = reading.tokens[start]
    # "send invoice to accounting": a word of the skill itself, or of grammar, begins no name.
    if first.folded in GENERIC_PARTY:
        return None
    if first.folded in FILLERS:
        # An, Minh, Do are names where capitals tell or another word follows, else grammar.
        if not cased and not (first.folded in NAME_LIKE and end - start > 1):
            return None
    elif first.key in vocabulary.keys:
        return None
    begin, stop = first.start, reading.tokens[end - 1].end
    return Found(reading.text[begin:stop], begin, stop)


def _joined(gap: str) -> bool:
    return gap in (" ", "-", "&", " & ", ".", ". ", "'")
