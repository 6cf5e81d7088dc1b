"""`cuo-archive --log`: what a command did, as events, beside or instead of the sentences.

Without the option nothing here is loaded or changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from cuo_checkpoint.cli_output import complain

__all__ = ["told"]

_OPTION: Final = "--log"
_COMMANDS: Final = frozenset(
    {
        "drop-old-partitions", "ensure-partitions", "status", "seal", "verify", "export", "hold",
        "keys", "rebuild-index", "expire-approvals", "metrics",
    }
)  # fmt: skip
_USAGE: Final = 64
_OUTPUT_LOST: Final = 74
_FAILURES: Final = {
    "drop-old-partitions": "archive_failed",
    "ensure-partitions": "archive_failed",
    "seal": "archive_failed",
    "metrics": "archive_failed",
}
_DATA: Final = 65
_DATA_FAILURES: Final = {
    "verify": "chain_broken",
    "seal": "chain_broken",
    "rebuild-index": "index_disagrees",
}
_CALLERS: Final = frozenset({0, _USAGE, 130})


def told(arguments: Sequence[str], run: Callable[[], int]) -> int:
    """Runs the command; with `--log` one event says how it ended. Returns its exit code.

    A command that did its work ends with 74 when the file did not take all of its events.
    """
    place = _place(arguments)
    if place is None:
        return run()
    if place == "-":
        return _logged(sys.stderr, arguments, run, take_stderr=True)
    try:
        own = open(place, "a", encoding="utf-8")  # noqa: SIM115 - closed below, where that may fail
    except OSError as error:
        complain(f"{place} cannot be written: {error.strerror}.")
        return _USAGE
    code = _OUTPUT_LOST
    try:
        code = _logged(own, arguments, run, take_stderr=False)
    finally:
        try:
            own.close()
        except OSError as error:
            complain(f"{place} did not take the events: {error.strerror}.")
            code = code or _OUTPUT_LOST
    return code


def _logged(
    stream: TextIO, arguments: Sequence[str], run: Callable[[], int], *, take_stderr: bool
) -> int:
    import logging

    from cuo_checkpoint.logs import event, logging_to

    log = logging.getLogger("cuo_checkpoint.archive")
    with logging_to(stream, take_stderr=take_stderr):
        began = time.monotonic()
        code = run()
        command = next((word for word in arguments if word in _COMMANDS), "none")
        level, fields = _ended(command, code)
        took = round(time.monotonic() - began, 3)
        event(log, level, "archive.finished", command=command, code=code, seconds=took, **fields)
        return code


def _ended(command: str, code: int) -> tuple[int, dict[str, str | int]]:
    """The level of a command's end, and the failure it means."""
    from cuo_checkpoint.telemetry_names import FAILURES, LEVELS

    if code in _CALLERS:
        return 20 if code == 0 else 30, {}
    failure = _DATA_FAILURES.get(command) if code == _DATA else _FAILURES.get(command)
    if failure is None:
        return 30, {}
    return LEVELS[FAILURES[failure]], {"failure": failure, "severity": FAILURES[failure]}


def _place(arguments: Sequence[str]) -> str | None:
    """The option's value, before click reads it: its errors are to be events too."""
    for word, after in zip(arguments, [*arguments, ""][1:], strict=True):
        if word in _COMMANDS or word == "--":
            return None
        if word == _OPTION and after:
            return after
        if word.startswith(f"{_OPTION}="):
            return word.partition("=")[2] or None
    return None
