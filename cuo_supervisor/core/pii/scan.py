"""Find, replace, and fail closed."""

from __future__ import annotations

import re
from typing import Any, Final

from .contexts import Contexts
from .folding import fold
from .kinds import PRIORITY, SCAN_FAILED, Kind, Span, replacement
from .numbers import digit_runs, find_numbers
from .patterns import find_shapes

__all__ = ["MAX_DEPTH", "MAX_SCAN_CHARS", "find", "scrub", "scrub_value"]

MAX_SCAN_CHARS: Final = 256 * 1024
"""Longer texts are not scanned (about 0.3 s of work) but replaced whole."""

MAX_DEPTH: Final = 64
"""Deepest nesting `scrub_value` follows; deeper parts are replaced whole."""

_MAX_ROUNDS: Final = 5

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def find(text: str) -> list[Span]:
    """Ranges of `text` that hold personal data or secrets, in order, not overlapping.

    May raise on a defect of ours; `scrub` never does. Ranges that overlapped are joined, under
    the name of the kind that ranks first in `PRIORITY`.
    """
    folded = fold(text)
    runs = digit_runs(folded)
    # Words only say what numbers are; without a digit nobody asks for them.
    contexts = Contexts(folded.lower if runs else "")
    spans = sorted(
        [
            *find_shapes(folded, contexts, digits=bool(runs)),
            *find_numbers(folded, contexts, runs),
        ]
    )
    merged: list[Span] = []
    for span in spans:
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            if last.kind is Kind.URL_PASSWORD and span.kind is Kind.EMAIL:
                continue  # "password@host" of a URL only looks like an address; keep the host
            kind = min(last.kind, span.kind, key=PRIORITY.__getitem__)
            merged[-1] = Span(last.start, max(last.end, span.end), kind)
        else:
            merged.append(span)
    if folded.origin is None:
        return merged
    return [Span(*folded.span(span.start, span.end), span.kind) for span in merged]


def scrub(text: str) -> str:
    """`text` with every find replaced by `[REDACTED-<KIND>]`; `[SCAN-FAILED]` if that cannot be.

    Never raises, whatever `text` holds. Scrubbing twice gives the same as scrubbing once: a
    replacement can lay bare a number that stood glued to something else, so the scan repeats until
    it finds nothing more (one round for a clean text, two for nearly every other).
    """
    try:
        if len(text) > MAX_SCAN_CHARS:
            return SCAN_FAILED
        for _ in range(_MAX_ROUNDS):
            spans = find(text)
            if not spans:
                return text
            text = _replace(text, spans)
    except Exception:
        return SCAN_FAILED
    return SCAN_FAILED


def scrub_value(value: Any) -> Any:
    """A JSON value with every string, number and key scrubbed; same shape, new containers.

    A key is context for what stands below it, also through lists: `{"mst": "0301479073"}` gives
    `{"mst": "[REDACTED-MST]"}` though the check digit is wrong. Numbers that are personal become
    strings. Keys that become equal get `#2`, `#3`, ... so that nothing is lost. Values that are
    not JSON become `[SCAN-FAILED]`. Never raises.
    """
    try:
        return _value(value, "", 0)
    except Exception:
        return SCAN_FAILED


def _value(value: Any, context: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if depth > MAX_DEPTH:
        return SCAN_FAILED
    if isinstance(value, str):
        return _in_context(value, context)
    if isinstance(value, int | float):
        text = str(value)
        return value if _in_context(text, context) == text else _in_context(text, context)
    if isinstance(value, dict):
        out: dict[str, Any] = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else str(key)
            below = _CAMEL.sub(" ", name).replace("_", " ").replace("-", " ")
            out[_free(scrub(name), out)] = _value(item, below, depth + 1)
        return out
    if isinstance(value, list | tuple):
        return [_value(item, context, depth + 1) for item in value]
    return SCAN_FAILED


def _in_context(text: str, context: str) -> str:
    """Scrub `text` as if `context: ` stood before it."""
    plain = scrub(text)
    if not context or plain != text or len(context) > 64:
        return plain
    lead = f"{context}: "
    spans = [
        Span(max(0, span.start - len(lead)), span.end - len(lead), span.kind)
        for span in find(lead + text)
        if span.end > len(lead)
    ]
    return scrub(_replace(text, spans)) if spans else text


def _replace(text: str, spans: list[Span]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end, kind in spans:
        pieces += (text[position:start], replacement(kind))
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _free(name: str, taken: dict[str, Any]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"
