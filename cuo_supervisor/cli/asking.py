"""A waiting run put before the person at the terminal: what it would do, then yes or no, and why."""

from __future__ import annotations

import sys
from typing import Any

import click

from cuo_supervisor.cli.asked import asked_lines, asked_of
from cuo_supervisor.cli.common import remark, run_reader
from cuo_supervisor.errors import DataError, UsageError
from cuo_supervisor.supervisor import Answer

__all__ = ["ask_person"]


def ask_person(run_id: Any, reason: str | None) -> Answer:
    """Shows what the run waits for and takes the answer; the questions go to stderr.

    Raises UsageError where nobody can be asked (without a terminal the flags say it), DataError for a
    run that does not wait.
    """
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise UsageError("say --approve or --deny")
    with run_reader() as reader:
        summary = reader.get_run(run_id)
        if summary is None or summary.state != "waiting":
            said = "there is no such run" if summary is None else "the run waits for no approval"
            raise DataError(said)
        for line in asked_lines(asked_of(reader, run_id, reader.events(run_id)) or {}):
            remark(line)
    # No default: a return too many must not answer for anybody.
    verdict = click.prompt("approve or deny", type=click.Choice(["approve", "deny"]), err=True)
    return Answer(verdict == "approve", reason or click.prompt("reason", err=True))
