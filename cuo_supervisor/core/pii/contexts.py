"""Words that say what a number is: "MST", "số tài khoản", "passport no".

With such a word close by, the shape is redacted even when the check digit fails: a number with a
typing error is still somebody's.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
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

_WORD: Final = re.compile(
    # Not inside our own replacements, or a second scan would see more than the first.
    r"(?<![a-z0-9_])(?<!redacted-)(?:"
    + "|".join(re.escape(phrase) for phrase in sorted(_KIND_OF, key=len, reverse=True))
    + r")(?![a-z_])"
)
"""The right edge lets digits follow at once: "sdt0912345678" is common in chat."""

_REACH_BEFORE: Final = 36
"""Characters between a context word and a number after it ("so tai khoan cua cong ty ABC la ")."""

_REACH_AFTER: Final = 12
"""The same for a word after its number ("0912345678 (sdt)")."""

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

    def __bool__(self) -> bool:
        return bool(self._words)

    def has(self, kind: Kind) -> bool:
        """Whether any word of this kind stands anywhere in the text."""
        return kind in self._kinds

    def near(self, start: int, end: int, previous_end: int) -> Iterator[Kind]:
        """Kinds of the words that reach [start, end), nearest first, a preceding one before a tie.

        A preceding word reaches over an earlier number (which ends at `previous_end`) only along
        a list: "STK 123456789, 987654321".
        """
        if not self._words:
            return
        found: list[tuple[int, Kind]] = []
        at = bisect_left(self._ends, start + 1)
        for word in reversed(self._words[max(0, at - 4) : at]):
            distance = start - word.end
            if distance > _REACH_BEFORE:
                break
            barrier = max(previous_end, self._replaced(word.end, start))
            if barrier <= word.end or _LIST.fullmatch(self._lower, barrier, start):
                found.append((distance, word.kind))
        for word in self._words[at : at + 2]:
            distance = word.start - end
            if 0 <= distance <= _REACH_AFTER:
                # A word after a number more often belongs to the next one.
                found.append((distance + _REACH_AFTER, word.kind))
        found.sort(key=lambda pair: pair[0])
        for _, kind in found:
            yield kind

    def _replaced(self, start: int, end: int) -> int:
        """End of the last replacement in the range: it stands for a number; 0 if there is none."""
        at = self._lower.rfind("[redacted-", start, end)
        return 0 if at < 0 else self._lower.find("]", at, end) + 1

    def ends_at(self, position: int) -> bool:
        """Whether a context word ends exactly here, so that a digit may follow without a space."""
        at = bisect_left(self._ends, position)
        return at < len(self._ends) and self._ends[at] == position
