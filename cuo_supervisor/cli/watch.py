"""`runs list --watch`: the same listing again and again, until Ctrl-C."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from cuo_supervisor.cli.common import deliver, remark
from cuo_supervisor.cli.exits import INTERRUPTED
from cuo_supervisor.cli.run_text import run_rows, run_table

__all__ = ["watch"]

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def watch(look: Callable[[], Any], *, every: float, as_json: bool) -> int:
    """Shows a page of runs every so many seconds; a terminal is drawn anew, a pipe gets changes.

    A database that is away for a while is told and waited for. Ends with Ctrl-C (130), or when
    nobody reads any more (0).
    """
    from cuo_checkpoint.errors import StoreUnavailable

    known: dict[str, Any] = {}
    tty = sys.stdout is not None and sys.stdout.isatty() and not as_json
    away = False
    try:
        while True:
            try:
                page = look()
                away = False
            except StoreUnavailable as error:
                # Told once: a screen full of the same sentence hides what was there.
                if not away:
                    remark(f"{error}; trying again every {every:g} s")
                away = True
            else:
                if not (_screen(page, every) if tty else _changes(page, known, as_json)):
                    return 0
            time.sleep(every)
    except KeyboardInterrupt:
        return INTERRUPTED


def _screen(page: Any, every: float) -> bool:
    width = shutil.get_terminal_size().columns
    table = run_table(page.runs, width=width) if page.runs else "no runs fit"
    at = time.strftime("%H:%M:%S", time.gmtime())
    foot = click.style(f"{at} UTC, every {every:g} s; Ctrl-C ends", dim=True)
    return deliver(f"{_CLEAR}{table}\n\n{foot}")


def _changes(page: Any, known: dict[str, Any], as_json: bool) -> bool:
    """A line for each run that is new or stands otherwise than when it was last told."""
    for run in reversed(page.runs):
        stands = (run.state, run.outcome, run.log_rows)
        if known.get(run.ulid) == stands:
            continue
        known[run.ulid] = stands
        line = json.dumps(run.to_json()) if as_json else "  ".join(run_rows([run])[0]).rstrip()
        if not deliver(line):
            return False
    return True
