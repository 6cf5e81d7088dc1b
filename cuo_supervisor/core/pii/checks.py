"""Does a row of digits carry the marks of a real number? Check digits, prefixes, ranges.

Each function takes digits only (IBAN: letters too) and answers yes or no. None of them decides
whether something is redacted; context words may overrule all of them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from stdnum import luhn
from stdnum.iso7064 import mod_97_10
from stdnum.vn import mst

__all__ = [
    "IBAN_LENGTHS",
    "is_card",
    "is_cccd",
    "is_iban",
    "is_international_phone",
    "is_mst",
    "is_nanp_phone",
    "is_vn_phone",
]

_CARD_PREFIX: Final = re.compile(
    r"4|5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)|3[47]|3(?:0[0-5]|[689])|35|6(?:011|4[4-9]|5)|62|9704"
)
"""Visa, Mastercard, American Express, Diners, JCB, Discover, UnionPay, and Viet Nam's Napas."""

_VN_MOBILE: Final = r"(?:3[2-9]|5[25689]|7[06-9]|8[1-9]|9\d)\d{7}"
_VN_LANDLINE: Final = r"2(?:0[3-9]|1\d|2[0-25-9]|3[2-9]|[48]\d|5[124-9]|6[0-39]|7[0-7]|9\d)\d{7}"
_VN_PHONE: Final = re.compile(rf"(?:0084|84|0|840)(?:{_VN_MOBILE}|{_VN_LANDLINE})")
"""Numbering plan of Viet Nam since 2018; "840" is the "+84 (0)" slip."""

_NANP: Final = re.compile(r"1?[2-9]\d{2}[2-9]\d{6}")

_PROVINCES: Final = frozenset(
    """001 002 004 006 008 010 011 012 014 015 017 019 020 022 024 025 026 027 030 031 033 034 035
    036 037 038 040 042 044 045 046 048 049 051 052 054 056 058 060 062 064 066 067 068 070 072 074
    075 077 079 080 082 083 084 086 087 089 091 092 093 094 095 096""".split()  # noqa: SIM905
)
"""The 63 province codes a citizen identity number may begin with (Circular 07/2016/TT-BCA)."""

_NEWEST_BIRTH_YEAR: Final = 49
"""For century digits 2 and 3 (born 2000 or later). No clock here: a fixed bound, only a hint."""

IBAN_LENGTHS: Final = {
    country: int(length)
    for country, length in (
        pair.split(":")
        for pair in """AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BR:29 BY:28 CH:21 CR:22
        CY:28 CZ:24 DE:22 DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18
        GR:27 GT:28 HR:21 HU:28 IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21
        LT:20 LU:20 LV:21 LY:25 MC:27 MD:24 ME:22 MK:19 MR:27 MT:31 MU:30 NL:18 NO:15 PK:24 PL:28
        PS:29 PT:25 QA:29 RO:24 RS:22 SA:24 SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 ST:25 SV:28 TL:23
        TN:24 TR:26 UA:29 VA:22 VG:24 XK:20""".split()  # noqa: SIM905
    )
}
"""Length by country (ISO 13616 registry). Viet Nam issues none."""


def is_card(digits: str) -> bool:
    """Issuer prefix and Luhn; Luhn alone passes a tenth of all numbers and of time stamps."""
    return (
        13 <= len(digits) <= 19
        and _CARD_PREFIX.match(digits) is not None
        and len(set(digits)) > 1
        and luhn.checksum(digits) == 0
    )


def is_iban(text: str) -> bool:
    """Country, length and mod 97; `text` without spaces, upper case."""
    if IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return mod_97_10.checksum(text[4:] + text[:4]) == 1


def is_mst(digits: str) -> bool:
    """Check digit of a 10-digit tax code, alone or with a three-digit branch."""
    # The arithmetic alone: the library's is_valid cleans its input first, four times the work.
    return (
        len(digits) in {10, 13}
        and digits[9] == mst.calc_check_digit(digits)
        and digits[2:9] != "0000000"
        and digits[10:] != "000"
    )


def is_vn_phone(digits: str) -> bool:
    """A mobile or landline number of Viet Nam, with 0, 84 or 0084 in front."""
    return _VN_PHONE.fullmatch(digits) is not None


def is_nanp_phone(digits: str) -> bool:
    """A number of the North American plan; the caller checks its 3-3-4 grouping."""
    return _NANP.fullmatch(digits) is not None


def is_international_phone(digits: str) -> bool:
    """Whether +digits is a valid number. Without the metadata library: whether it could be one."""
    if not 7 <= len(digits) <= 15 or digits[0] == "0":
        return False
    library = _phonenumbers()
    if library is None:
        return True
    try:
        number = library.parse(f"+{digits}", None)
    except library.NumberParseException:
        return False
    return bool(library.is_valid_number(number))


def is_cccd(digits: str) -> bool:
    """Province, century and year of a 12-digit citizen number. It has no check digit."""
    if len(digits) != 12 or digits[:3] not in _PROVINCES:
        return False
    century, year = digits[3], int(digits[4:6])
    return century in "01" or (century in "23" and year <= _NEWEST_BIRTH_YEAR)


@cache
def _phonenumbers() -> Any:
    # 0.1 s to import, and only texts with a "+" need it.
    try:
        import phonenumbers
    except ImportError:
        return None
    return phonenumbers
