"""Personal data and secrets in text: one ruleset for everything that is written down. Pure.

`scrub` and `scrub_value` are what callers use; `find` tells where, for tests and tools.
"""

from .kinds import SCAN_FAILED, Kind, Span, replacement
from .scan import MAX_DEPTH, MAX_SCAN_CHARS, find, scrub, scrub_value

__all__ = [
    "MAX_DEPTH",
    "MAX_SCAN_CHARS",
    "SCAN_FAILED",
    "Kind",
    "Span",
    "find",
    "replacement",
    "scrub",
    "scrub_value",
]
