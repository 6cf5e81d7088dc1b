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
from itertools import pairwise
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

__all__ = ["digit_runs", "find_numbers"]

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

_LOOSE_AT: Final = tuple(
    tuple(kind for kind, counts in _LOOSE.items() if count in counts)
    for count in range(_MAX_DIGITS + 1)
)
_CHECKED: Final = (Kind.PHONE, Kind.CARD, Kind.CCCD, Kind.MST)
"""Kinds with a check of their own, the more certain first."""

_CURRENCY: Final = re.compile(r" ?(?:vnd|vnđ|usd|eur|dong\b|d\b|\$|€|₫|trieu|nghin|ty\b|k\b|%)")
_NANP_GROUPS: Final = frozenset({(3, 3, 4), (1, 3, 3, 4)})
_CARD_GROUPS: Final = frozenset({(4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3)})
_CCCD_GROUPS: Final = frozenset({(12,), (3, 3, 3, 3), (4, 4, 4), (3, 3, 6), (6, 6)})


class _Number(NamedTuple):
    start: int
    end: int
    digits: str
    groups: tuple[int, ...]
    separators: tuple[str, ...]
    plus: bool


def digit_runs(folded: Folded) -> list[tuple[int, int]]:
    """Where digits stand together (folded offsets)."""
    return [match.span() for match in _RUN.finditer(folded.text)]


def find_numbers(folded: Folded, contexts: Contexts, runs: list[tuple[int, int]]) -> Iterator[Span]:
    """Spans (in folded offsets) of numbers that are personal. They do not overlap."""
    text, lower = folded.text, folded.lower
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
        began, ended = runs[at + taken - 1]
        if taken > 1 or ended - began >= 4:
            previous_end = ended
        at += taken


def _joined(text: str, runs: list[tuple[int, int]], at: int) -> Iterator[tuple[_Number, int]]:
    """The numbers that may begin with run `at`, longest first, and how many runs each takes."""
    start, end = runs[at]
    total = end - start
    if total > _MAX_DIGITS:
        return
    ends = [end]
    for next_start, next_end in runs[at + 1 : at + _MAX_RUNS]:
        # The slice is only taken when it is short: between two runs may lie a whole page.
        if next_start - end > 3 or text[end:next_start] not in _JOIN:
            break
        more = total + next_end - next_start
        if more > _MAX_DIGITS:
            break
        total, end = more, next_end
        ends.append(end)
    if total < _MIN_DIGITS:
        return
    lead, plus = _lead(text, start)
    # The longest is taken more often than not, so the shorter ones are made when asked for.
    for count in range(len(ends), 1, -1):
        taken = runs[at : at + count]
        groups = tuple([last - first for first, last in taken])
        if sum(groups) < _MIN_DIGITS:
            return
        digits = "".join([text[first:last] for first, last in taken])
        between = tuple([text[one[1] : other[0]] for one, other in pairwise(taken)])
        yield _Number(lead, ends[count - 1], digits, groups, between, plus), count
    alone = ends[0] - start
    if alone >= _MIN_DIGITS:
        yield _Number(lead, ends[0], text[start : ends[0]], (alone,), (), plus), 1


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
    count, plus = len(number.digits), number.plus
    if count < _MIN_BARE and not plus and not contexts:
        return None
    if _is_part_of_word(number.start, number.end, text, contexts):
        return None
    international = plus and _is_phone_with_plus(number.digits, lookups)
    near = contexts.near(number.start, number.end, previous_end)
    if count < _MIN_BARE and not plus and not near:
        return None  # too short for any check of its own
    loose: Kind | None = None
    for kind in near:
        named = _by_length(kind, number)
        if _passes(named, number, international):
            return named
        if loose is None and named in _LOOSE_AT[count]:
            loose = named
    if _is_money(number, lower):
        return None
    if loose is not None:
        return loose
    if _touches(number, text):
        return None
    for kind in _CHECKED:
        if _passes(kind, number, international) and _is_well_grouped(kind, number):
            return kind
    return None


def _is_phone_with_plus(digits: str, lookups: list[int]) -> bool:
    if not 7 <= len(digits) <= 15:
        return False
    if is_vn_phone(digits):
        return True
    lookups[0] -= 1
    return lookups[0] < 0 or is_international_phone(digits)


def _passes(kind: Kind, number: _Number, international: bool) -> bool:
    """Whether the digits pass the kind's own check; never for kinds that have none."""
    digits = number.digits
    if kind is Kind.PHONE:
        if number.plus and 7 <= len(digits) <= 15:
            return international
        return is_vn_phone(digits) or (number.groups in _NANP_GROUPS and is_nanp_phone(digits))
    if kind is Kind.CARD:
        return is_card(digits)
    if kind is Kind.CCCD:
        return is_cccd(digits)
    return kind is Kind.MST and is_mst(digits)


def _by_length(kind: Kind, number: _Number) -> Kind:
    """Identity numbers have 9 digits (CMND) or 12 (CCCD), whatever word people use for them."""
    if kind is Kind.CCCD or kind is Kind.CMND:
        return Kind.CCCD if len(number.digits) >= 11 else Kind.CMND
    return kind


def _is_part_of_word(start: int, end: int, text: str, contexts: Contexts) -> bool:
    """Letters directly before or after: an identifier, unless the letters are a context word."""
    before = text[start - 1] if start else " "
    after = text[end] if end < len(text) else " "
    if (before.isalnum() or before == "_") and not contexts.ends_at(start):
        return True
    if before == "." and start > 1 and text[start - 2].isdigit():
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
