"""Digits: phone, tax code, identity, card, account. Which is it, and is it one at all?

The text is cut into runs of digits; neighbouring runs with single separators between them are
tried as one number, longest first. A number is named by, in this order:

1. a kind whose own check it passes *and* whose context word is near (nearest word first);
2. the nearest context word, if the number has at all the shape of that kind;
3. its own check alone, under stricter rules for boundaries and grouping.

9 % of mobile numbers pass the check digit of a tax code, so without a context word a phone prefix
wins over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from .checks import (
    is_card,
    is_cccd,
    is_international_phone,
    is_mst,
    is_nanp_phone,
    is_vn_phone,
)
from .contexts import Contexts
from .folding import Folded
from .kinds import Kind, Span

__all__ = ["find_numbers"]

_RUN: Final = re.compile(r"\d+")
_JOIN: Final = frozenset(
    {" ", ".", "-", ") ", ")", " (", "(", ")-", "  ", " - ", "-(", ") (", ".("}
)
_MAX_RUNS: Final = 7
_MIN_DIGITS: Final = 6
_MAX_DIGITS: Final = 19
_MIN_BARE: Final = 10
_MAX_LOOKUPS: Final = 40
"""Numbers with "+" checked against phone metadata per text; beyond it the shape is enough."""

_LOOSE: Final = {
    Kind.PHONE: range(7, 16),
    Kind.MST: range(9, 15),
    Kind.CCCD: range(9, 13),
    Kind.CMND: range(9, 13),
    Kind.PASSPORT: range(7, 10),
    Kind.BANK_ACCOUNT: range(6, 20),
    Kind.CARD: range(12, 20),
}
"""Digits a number may have to be redacted because of a context word alone."""

_CURRENCY: Final = re.compile(r" ?(?:vnd|vnđ|usd|eur|dong\b|d\b|\$|€|₫|trieu|nghin|ty\b|k\b|%)")
_CARD_GROUPS: Final = frozenset({(4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3)})
_CCCD_GROUPS: Final = frozenset({(12,), (3, 3, 3, 3), (4, 4, 4), (3, 3, 6), (6, 6)})


class _Number(NamedTuple):
    start: int
    end: int
    digits: str
    groups: tuple[int, ...]
    separators: tuple[str, ...]
    plus: bool


def find_numbers(folded: Folded, contexts: Contexts) -> Iterator[Span]:
    """Spans (in folded offsets) of numbers that are personal. They do not overlap."""
    text, lower = folded.text, folded.lower
    runs = [(m.start(), m.end()) for m in _RUN.finditer(text)]
    lookups = [_MAX_LOOKUPS]
    previous_end = at = 0
    while at < len(runs):
        taken = 1
        for number, count in _joined(text, runs, at):
            kind = _classify(number, text, lower, contexts, previous_end, lookups)
            if kind is not None:
                yield Span(number.start, number.end, kind)
                taken = count
                break
        last = runs[at + taken - 1]
        if taken > 1 or last[1] - last[0] >= 4:
            previous_end = last[1]
        at += taken


def _joined(text: str, runs: list[tuple[int, int]], at: int) -> list[tuple[_Number, int]]:
    """The numbers that may begin with run `at`, longest first, and how many runs each takes."""
    start, end = runs[at]
    total = end - start
    if total > _MAX_DIGITS:
        return []
    digits = text[start:end]
    groups: tuple[int, ...] = (total,)
    separators: tuple[str, ...] = ()
    found: list[tuple[_Number, int]] = []
    lead = plus = None
    for count in range(1, min(_MAX_RUNS, len(runs) - at) + 1):
        if count > 1:
            next_start, next_end = runs[at + count - 1]
            total += next_end - next_start
            # The slice is only taken when it is short: between two runs may lie a whole page.
            if next_start - end > 3 or total > _MAX_DIGITS:
                break
            separator = text[end:next_start]
            if separator not in _JOIN:
                break
            end = next_end
            digits += text[next_start:end]
            groups += (end - next_start,)
            separators += (separator,)
        if total >= _MIN_DIGITS:
            if lead is None or plus is None:
                lead, plus = _lead(text, start)
            found.append((_Number(lead, end, digits, groups, separators, plus), count))
    found.reverse()
    return found


def _lead(text: str, start: int) -> tuple[int, bool]:
    """Take in "(" and "+" before the first digit."""
    at = start
    if at and text[at - 1] == "(":
        at -= 1
    plus = at > 0 and text[at - 1] == "+"
    if plus:
        at -= 1
        if at and text[at - 1] == "(":
            at -= 1
    return at, plus


def _classify(
    number: _Number,
    text: str,
    lower: str,
    contexts: Contexts,
    previous_end: int,
    lookups: list[int],
) -> Kind | None:
    if len(number.digits) < _MIN_BARE and not number.plus and not contexts:
        return None
    if _is_part_of_word(number, text, contexts):
        return None
    money = _is_money(number, lower)
    checked = _checked(number, lookups)
    loose: Kind | None = None
    for kind in contexts.near(number.start, number.end, previous_end):
        named = _by_length(kind, number)
        if named in checked:
            return named
        if loose is None and len(number.digits) in _LOOSE.get(named, ()) and not money:
            loose = named
    if loose is not None:
        return loose
    if money or _touches(number, text):
        return None
    return next((kind for kind in checked if _is_well_grouped(kind, number)), None)


def _checked(number: _Number, lookups: list[int]) -> list[Kind]:
    """Kinds whose own check the digits pass, the more certain first."""
    digits = number.digits
    out: list[Kind] = []
    if number.plus and 7 <= len(digits) <= 15:
        if is_vn_phone(digits):
            out.append(Kind.PHONE)
        else:
            lookups[0] -= 1
            if lookups[0] < 0 or is_international_phone(digits):
                out.append(Kind.PHONE)
    elif is_vn_phone(digits) or (
        number.groups in {(3, 3, 4), (1, 3, 3, 4)} and is_nanp_phone(digits)
    ):
        out.append(Kind.PHONE)
    if is_card(digits):
        out.append(Kind.CARD)
    if is_cccd(digits):
        out.append(Kind.CCCD)
    if is_mst(digits):
        out.append(Kind.MST)
    return out


def _by_length(kind: Kind, number: _Number) -> Kind:
    """Identity numbers have 9 digits (CMND) or 12 (CCCD), whatever word people use for them."""
    if kind in {Kind.CCCD, Kind.CMND}:
        return Kind.CCCD if len(number.digits) >= 11 else Kind.CMND
    return kind


def _is_part_of_word(number: _Number, text: str, contexts: Contexts) -> bool:
    """Letters directly before or after: an identifier, unless the letters are a context word."""
    before = text[number.start - 1] if number.start else " "
    after = text[number.end] if number.end < len(text) else " "
    if (before.isalnum() or before == "_") and not contexts.ends_at(number.start):
        return True
    if before == "." and number.start > 1 and text[number.start - 2].isdigit():
        return True  # the rest of a decimal, an amount or a version whose beginning was refused
    return after.isalnum() or after == "_"


def _touches(number: _Number, text: str) -> bool:
    """Part of something longer with dots, hyphens, colons or slashes: a stamp, a path, an id."""
    start, end = number.start, number.end
    if start >= 2 and text[start - 1] in ".-:/," and text[start - 2].isalnum():
        return text[start - 1] != ":" or text[start - 2].isdigit()
    if end + 1 < len(text) and text[end] in ".-:/," and text[end + 1].isalnum():
        return text[end] != "." or text[end + 1].isdigit()
    return False


def _is_money(number: _Number, lower: str) -> bool:
    if not number.plus and _CURRENCY.match(lower, number.end):
        return True
    first, *rest = number.groups
    thousands = bool(rest) and first <= 3 and all(group == 3 for group in rest)
    return thousands and set(number.separators) == {"."} and number.digits[0] != "0"


def _is_well_grouped(kind: Kind, number: _Number) -> bool:
    """Without a context word: is it also written the way such a number is written?"""
    groups, separators = number.groups, set(number.separators)
    if kind is Kind.CARD:
        return len(groups) == 1 or (
            groups in _CARD_GROUPS and len(separators) == 1 and separators <= {" ", "-"}
        )
    if kind is Kind.CCCD:
        return groups in _CCCD_GROUPS and separators <= {" "}
    if kind is Kind.MST:
        return groups == (10,) or (groups == (10, 3) and separators == {"-"})
    return not _is_date(number)


def _is_date(number: _Number) -> bool:
    """09.12.2026 10 has the digits of a phone number."""
    groups, digits = number.groups, number.digits
    if len(groups) < 3:
        return False
    if groups[0] <= 2 and groups[1] <= 2 and groups[2] == 4:
        year = digits[groups[0] + groups[1] :][:4]
        return year[:2] in {"19", "20"} and number.separators[0] == number.separators[1]
    return groups[0] == 4 and groups[1] <= 2 and groups[2] <= 2
