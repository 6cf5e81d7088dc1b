"""The face of the PII ruleset (`core.pii`): what audit rows, logs and errors pass through."""

from .pii import SCAN_FAILED, Kind, Span, find, scrub, scrub_value

__all__ = ["SCAN_FAILED", "Kind", "Span", "find", "scrub", "scrub_value"]
