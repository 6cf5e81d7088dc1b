"""Words that say what a number is: "MST", "số tài khoản", "passport no".

With such a word close by, the shape is redacted even when the check digit fails: a number with a
typing error is still somebody's.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from operator import itemgetter
from typing import Final, NamedTuple

from .kinds import Kind

__all__ = ["Contexts", "Word"]

_PHRASES: Final[dict[Kind, tuple[str, ...]]] = {
    # Folded and lower case. Order does not matter: longer phrases are tried first.
    Kind.PHONE: (
        "sdt", "so dien thoai", "dien thoai", "dt", "so dt", "di dong", "so may", "lien he",
        "lh", "phone", "phone number", "telephone", "tel", "mobile", "cell", "cellphone", "hotline",
        "zalo", "whatsapp", "viber", "fax", "call", "sms",
    ),
    Kind.MST: (
        "mst", "ma so thue", "ma thue", "so thue", "masothue", "tax code", "taxcode", "tax id",
        "tax no", "tax number", "tax identification number", "vat number", "vat no", "vat id",
    ),
    Kind.CCCD: (
        "cccd", "can cuoc", "can cuoc cong dan", "so dinh danh", "ma dinh danh", "dinh danh ca nhan",
        "citizen id", "citizen identity", "national id", "id card", "personal id",
    ),
    Kind.CMND: (
        "cmnd", "cmt", "cmtnd", "chung minh", "chung minh nhan dan", "chung minh thu",
        "giay to tuy than", "identity card", "id number", "id no",
    ),
    Kind.PASSPORT: ("passport", "passport no", "passport number", "ho chieu", "so ho chieu"),
    Kind.BANK_ACCOUNT: (
        "stk", "so tai khoan", "tai khoan", "so tk", "tk", "tknh", "bank account", "account number",
        "account no", "account", "acct", "acct no", "a/c", "acc no", "beneficiary account",
    ),
    Kind.CARD: (
        "card", "card number", "card no", "credit card", "debit card", "so the", "the tin dung",
        "the ghi no", "the ngan hang", "the atm", "visa", "mastercard", "amex", "jcb", "napas", "pan",
    ),
    Kind.IBAN: ("iban",),
}  # fmt: skip

_KIND_OF: Final = {phrase: kind for kind, phrases in _PHRASES.items() for phrase in phrases}


def _by_first_letter() -> str:
    """The phrases, longest first. Grouped, so that a word is compared with its own letter's only."""
    groups: dict[str, list[str]] = {}
    for phrase in sorted(_KIND_OF, key=len, reverse=True):
        groups.setdefault(phrase[0], []).append(re.escape(phrase[1:]))
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in groups.items())


_WORD: Final = re.compile(
    # Not inside our own replacements, or a second scan would see more than the first.
    rf"(?<![a-z0-9_])(?<!redacted-)(?:{_by_first_letter()})(?![a-z_])"
)
"""The right edge lets digits follow at once: "sdt0912345678" is common in chat."""

_REACH_BEFORE: Final = 36
"""Characters between a context word and a number after it ("so tai khoan cua cong ty ABC la ")."""

_REACH_AFTER: Final = 12
"""The same for a word after its number ("0912345678 (sdt)")."""

_REPLACED: Final = "[redacted-"
_DISTANCE: Final = itemgetter(0)
_LIST: Final = re.compile(r"[\s,;/&+|()-]*(?:va|and|hoac|or)?[\s,;/&+|()-]*")


class Word(NamedTuple):
    start: int
    end: int
    kind: Kind


class Contexts:
    """All context words of one folded text, and which of them reach a given number."""

    def __init__(self, lower: str) -> None:
        self._lower = lower
        self._words = [Word(m.start(), m.end(), _KIND_OF[m[0]]) for m in _WORD.finditer(lower)]
        self._ends = [word.end for word in self._words]
        self._kinds = {word.kind for word in self._words}
        self._has_replacements = _REPLACED in lower

    def __bool__(self) -> bool:
        return bool(self._words)

    def has(self, kind: Kind) -> bool:
        """Whether any word of this kind stands anywhere in the text."""
        return kind in self._kinds

    def near(self, start: int, end: int, previous_end: int) -> list[Kind]:
        """Kinds of the words that reach [start, end), nearest first, a preceding one before a tie.

        A preceding word reaches over an earlier number (which ends at `previous_end`) only along
        a list: "STK 123456789, 987654321".
        """
        if not self._words:
            return []
        found: list[tuple[int, Kind]] = []
        at = bisect_left(self._ends, start + 1)
        # The nearest four before, nearest first, and two after.
        for number in range(at - 1, max(-1, at - 5), -1):
            _, word_end, kind = self._words[number]
            distance = start - word_end
            if distance > _REACH_BEFORE:
                break
            barrier = previous_end
            if self._has_replacements:
                barrier = max(barrier, self._replaced(word_end, start))
            if barrier <= word_end or _LIST.fullmatch(self._lower, barrier, start):
                found.append((distance, kind))
        for word_start, _, kind in self._words[at : at + 2]:
            distance = word_start - end
            if 0 <= distance <= _REACH_AFTER:
                # A word after a number more often belongs to the next one.
                found.append((distance + _REACH_AFTER, kind))
        if len(found) > 1:
            found.sort(key=_DISTANCE)
        return [kind for _, kind in found]

    def _replaced(self, start: int, end: int) -> int:
        """End of the last replacement in the range: it stands for a number; 0 if there is none."""
        at = self._lower.rfind(_REPLACED, start, end)
        return 0 if at < 0 else self._lower.find("]", at, end) + 1

    def ends_at(self, position: int) -> bool:
        """Whether a context word ends exactly here, so that a digit may follow without a space."""
        at = bisect_left(self._ends, position)
        return at < len(self._ends) and self._ends[at] == position
