"""What can be found, and where."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["PRIORITY", "SCAN_FAILED", "Kind", "Span", "replacement"]

SCAN_FAILED: Final = "[SCAN-FAILED]"
"""Stands for a whole text whose scan failed. The text itself is never returned then."""


class Kind(StrEnum):
    """Closed set; the value is what stands in the replacement."""

    EMAIL = "EMAIL"
    PHONE = "PHONE"
    CARD = "CARD"
    IBAN = "IBAN"
    IP = "IP"
    JWT = "JWT"
    SECRET = "SECRET"  # noqa: S105 - a name
    URL_PASSWORD = "URL_PASSWORD"  # noqa: S105 - a name
    CCCD = "CCCD"  # citizen identity card of Viet Nam, 12 digits
    CMND = "CMND"  # its predecessor, 9 digits
    MST = "MST"  # tax code of Viet Nam, 10 or 10-3 digits
    PASSPORT = "PASSPORT"
    BANK_ACCOUNT = "BANK_ACCOUNT"


class Span(NamedTuple):
    """Half-open range of the original text, in characters."""

    start: int
    end: int
    kind: Kind


PRIORITY: Final = {
    kind: rank
    for rank, kind in enumerate(
        (
            Kind.JWT,
            Kind.SECRET,
            Kind.URL_PASSWORD,
            Kind.EMAIL,
            Kind.IBAN,
            Kind.CARD,
            Kind.CCCD,
            Kind.MST,
            Kind.PHONE,
            Kind.CMND,
            Kind.PASSPORT,
            Kind.IP,
            Kind.BANK_ACCOUNT,
        )
    )
}
"""Which kind names an overlap; lower wins. Both ranges are redacted either way."""


def replacement(kind: Kind) -> str:
    """`[REDACTED-<KIND>]`."""
    return f"[REDACTED-{kind.value}]"
