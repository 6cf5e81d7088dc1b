"""What a command prints: results on stdout, remarks on stderr; readers that go away, full disks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import click

__all__ = ["OutputLost", "begun", "complain", "deliver", "emit_json", "mute", "remark"]

_told: set[str] = set()


class OutputLost(Exception):
    """Standard output did not take the result."""


def emit_json(document: Any) -> bool:
    """Writes one document, readable and with letters as they are. False: nobody reads any more."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2)  # escapes that JSON has itself
    return deliver(text)


def deliver(text: str, *, line: bool = True) -> bool:
    """Prints a result. A reader that went away (such as `| head`) changes nothing about it.

    False when nobody reads any more. Letters the output does not have are spelled out. Raises
    OutputLost when it could not be written for another reason, such as a full disk.
    """
    if sys.stdout is None:
        raise OutputLost(
            "the result could not be written (standard output is closed); what was done and"
            " recorded stays"
        )
    _told.add("stdout")
    try:
        try:
            click.echo(text, nl=line)
        except UnicodeEncodeError:
            known = sys.stdout.encoding
            click.echo(text.encode(known, "backslashreplace").decode(known), nl=line)
    except BrokenPipeError:
        mute(1)
        return False
    except OSError as error:
        mute(1)
        raise OutputLost(
            f"the result could not be written ({os.strerror(error.errno or 0)}); what was done and"
            " recorded stays"
        ) from error
    return True


def begun() -> bool:
    """Whether some result was printed, or begun to be: what follows would stand amid it."""
    return bool(_told)


def remark(text: str) -> None:
    """A remark for a person: stderr, so that stdout stays the result. Nobody there: no harm."""
    try:
        click.echo(text, err=True)
    except OSError:
        mute(2)


def complain(text: str) -> None:
    """Why a command ends without its result."""
    remark(f"error: {text}")


def mute(fd: int) -> None:
    """Points a standard stream nowhere: the interpreter would complain at its exit otherwise.

    One that was closed from the start is left alone: its number may be another file's by now.
    """
    if (sys.stdout if fd == 1 else sys.stderr) is None:
        return
    with contextlib.suppress(OSError):
        void = os.open(os.devnull, os.O_WRONLY)
        os.dup2(void, fd)
        os.close(void)
