"""Text forms of the numbers JSON cannot carry: odd floats and big integers.

One number has one text; reading accepts nothing else.
"""

from __future__ import annotations

import math
import re
import struct

from cuo_checkpoint.canonical import MAX_SAFE_INTEGER, SMALLEST_SAME_FLOAT
from cuo_checkpoint.serde.tags import Refused

__all__ = ["big_integer", "is_plain_float", "odd_float", "read_big_integer", "read_odd_float"]

_MOST_DECIMAL_BITS = 2048
"""Up to 617 digits: under the least limit Python allows for conversions (640 digits)."""

_MOST_BITS = 8 * 1024 * 1024
"""A number of one mebibyte. Hexadecimal conversion takes linear time; decimal does not."""

_DECIMAL = re.compile(r"-?[1-9][0-9]{15,617}")
_HEX = re.compile(r"-?0x[1-9a-f][0-9a-f]{511,}")
_NAN = re.compile(r"nan:([0-9a-f]{16})")
_QUIET_NAN = 0x7FF8000000000000


def big_integer(value: int) -> str:
    """`value` in decimal, beyond 2048 bits in hexadecimal; Refused beyond a mebibyte."""
    bits = value.bit_length()
    if bits > _MOST_BITS:
        raise Refused("int", f"{bits} bits; the most is {_MOST_BITS}")
    return str(value) if bits <= _MOST_DECIMAL_BITS else hex(value)


def read_big_integer(text: str) -> int:
    """Undo `big_integer`; ValueError for any other text, also of a number that fits JSON."""
    if _DECIMAL.fullmatch(text):
        value = int(text)
        if value.bit_length() <= _MOST_DECIMAL_BITS and abs(value) > MAX_SAFE_INTEGER:
            return value
    elif len(text) <= _MOST_BITS // 4 + 3 and _HEX.fullmatch(text):
        value = int(text, 16)
        if value.bit_length() > _MOST_DECIMAL_BITS:
            return value
    raise ValueError("not the text of a big integer")


def is_plain_float(value: float) -> bool:
    """Whether RFC 8785, jsonb and orjson all keep `value` a number with a fraction."""
    # NaN fails every comparison; beyond the upper limit every float is integral.
    return SMALLEST_SAME_FLOAT <= abs(value) < MAX_SAFE_INTEGER and value % 1.0 != 0.0


def odd_float(value: float) -> str:
    """`repr(value)`; a NaN other than the usual quiet one carries its 64 bits in hexadecimal."""
    if math.isnan(value):
        (bits,) = struct.unpack(">Q", struct.pack(">d", value))
        return "nan" if bits == _QUIET_NAN else f"nan:{bits:016x}"
    return repr(value)


def read_odd_float(text: str) -> float:
    """Undo `odd_float`; ValueError for any other text, also of a number that fits JSON."""
    value: float
    if match := _NAN.fullmatch(text):
        (value,) = struct.unpack(">d", bytes.fromhex(match[1]))
    else:
        value = float(text)
    if odd_float(value) != text or is_plain_float(value):
        raise ValueError("not the text of an odd float")
    return value
