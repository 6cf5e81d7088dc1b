"""vietnam-mst-validate: form and check digit of a Vietnamese tax code.

An invalid code is an answer, not a failure. No registry is asked, so no company is named and
"valid" means well-formed, not registered. Since July 2025 a person's tax code is the 12-digit
citizen number, which has no check digit; such a number is answered as a wrong length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stdnum.exceptions import (
    InvalidChecksum,
    InvalidComponent,
    InvalidFormat,
    InvalidLength,
    ValidationError,
)
from stdnum.vn import mst as vietnamese

__all__ = ["ARGUMENTS", "run"]

ARGUMENTS: Final = ("mst",)
_REASONS: Final = (
    (InvalidLength, "length"),
    (InvalidFormat, "format"),
    (InvalidComponent, "component"),
    (InvalidChecksum, "check_digit"),
)


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """{"mst", "valid", "reason", "basis"}; `reason` is None for a valid code.

    Raises ValueError naming the argument if it is missing or no text.
    """
    number = arguments.get("mst")
    if not isinstance(number, str) or not number.strip():
        raise ValueError("mst")
    reason: str | None = None
    try:
        vietnamese.validate(number)
    except ValidationError as problem:
        reason = next((word for kind, word in _REASONS if isinstance(problem, kind)), "format")
    return {
        "mst": vietnamese.format(number) if reason is None else number.strip(),
        "valid": reason is None,
        "reason": reason,
        "basis": "form and check digit only; no registry was consulted",
    }
