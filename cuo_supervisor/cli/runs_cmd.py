"""`cyberos-cuo runs`: what the log holds."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from cuo_checkpoint.run_records import OUTCOMES, STATES
from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    remark,
    run_reader,
    run_uuid,
)
from cuo_supervisor.cli.completion_cmd import (
    PATHS,
    complete_path,
    complete_persona,
    complete_skill,
)
from cuo_supervisor.cli.exits import DATA
from cuo_supervisor.cli.export_cmd import export_run
from cuo_supervisor.cli.import_cmd import import_langgraph
from cuo_supervisor.cli.run_text import run_table, verification_text
from cuo_supervisor.errors import DataError, UsageError

__all__ = ["runs"]

_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs list --state waiting
  cyberos-cuo runs show 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo runs verify 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo runs export 01M8PZMV75EB6AHSM2Y2NT99T7 --out evidence
"""

_LIST_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs list --state waiting                  # what waits for a person
  cyberos-cuo runs list --since 24h --outcome run_failed
  cyberos-cuo runs list --persona cfo --path ask --limit 5
  cyberos-cuo runs list --skill vietnam-bank-transfer --since 2026-11-01
  cyberos-cuo runs list --watch                          # until Ctrl-C
  cyberos-cuo runs list --json | jq -r '.runs[].ulid'
"""

_SHOW_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs show 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo runs show RUN --states | less -R
  cyberos-cuo runs show RUN --json | jq '.events[].kind'
"""

_VERIFY_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs verify 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo runs verify RUN --json | jq -r '.problems[]'
"""

_AGE: Final = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class _When(click.ParamType[dt.datetime]):
    """A time as ISO 8601 has it (UTC unless it names a zone), or an age such as 90m, 24h, 7d."""

    name = "TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> dt.datetime:
        text = str(value).strip()
        now = dt.datetime.now(dt.UTC)
        try:
            age = _AGE.fullmatch(text)
            at = (
                now - dt.timedelta(**{_UNITS[age[2]]: int(age[1])})
                if age is not None
                else dt.datetime.fromisoformat(text)
            )
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time such as 2026-11-30T08:15, and no age such as 24h")
        if at.year < 2000:
            raise UsageError("a time before the year 2000 is no time of this log")
        return at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at


@click.group(epilog=_EPILOG)
def runs() -> None:
    """Read the log: what was asked, decided, invoked, and whether its chain holds."""


@runs.command("list", epilog=_LIST_EPILOG)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many."
)
@click.option("--before", metavar="CURSOR", help="Go on after the page that named this cursor.")
@click.option("--since", type=_When(), help="Began at or after: a UTC time, or an age like 24h.")
@click.option("--until", type=_When(), help="Began before: a UTC time, or an age like 90m.")
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="How it stands, or ended, as the column STATE says; closed is however it ended.",
)
@click.option(
    "--outcome",
    type=click.Choice(OUTCOMES),
    help="How it ended.",
)
@click.option("--persona", shell_complete=complete_persona, help="Short or long name.")
@click.option(
    "--path",
    shell_complete=complete_path,
    help="auto, ask, defer, cascade_then_auto or cascade_then_ask.",
)
@click.option("--skill", shell_complete=complete_skill, help="With or without its version.")
@click.option(
    "--watch",
    is_flag=True,
    help="Go on until Ctrl-C: redrawn on a terminal, a line for each change in a pipe.",
)
@click.option(
    "--every",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between looks of --watch.",
)
@json_option
@debug_option
def list_(watch: bool, every: float, as_json: bool, **asked: Any) -> int:
    """Runs, newest first. Every filter given must fit."""
    if watch and asked["before"] is not None:
        raise UsageError("--watch looks at the newest runs; drop --before")
    with run_reader() as reader:
        if watch:
            from cuo_supervisor.cli.watch import watch as watching

            return watching(lambda: reader.list_runs(**asked), every=every, as_json=as_json)
        page = reader.list_runs(**asked)
    if as_json:
        emit_json(page.to_json())
        return 0
    if not page.runs:
        narrowed = any(asked[name] for name in asked if name not in ("limit", "before"))
        told = "no more runs" if asked["before"] else "no run fits" if narrowed else "no runs yet"
        remark(told + _unknown_names(asked))
    else:
        deliver(run_table(page.runs, width=_width()))
    if page.next:
        remark(f"more: add --before {page.next}")
    return 0


@runs.command(epilog=_SHOW_EPILOG, short_help="One run as a tree, and whether it holds.")
@click.argument("run")
@click.option("--states/--no-states", default=False, help="Show each step's stored state too.")
@json_option
@debug_option
def show(run: str, states: bool, as_json: bool) -> int:
    """One run as a tree: its path through the graph, its decision, its audit rows.

    RUN is a run's id, as `runs list` prints it. States are shown as stored, personal data included;
    so is what a waiting run asks for.
    """
    from cuo_supervisor.cli.progress import progress

    run_id = run_uuid(run)
    with run_reader() as reader:
        summary = _summary(reader, run_id, run)
        with progress("reading rows", summary.log_rows) as told:
            events = _all_events(reader, run_id, states, told)
        audit = reader.audit(run_id)
        asked = None
        if summary.state == "waiting":
            from cuo_supervisor.cli.asked import asked_of

            asked = asked_of(reader, run_id, events)
        with progress("recomputing rows", summary.log_rows) as told:
            verified = reader.verify(run_id, progress=told)
    if as_json:
        emit_json(
            {
                "run": summary.to_json(),
                "asked": asked,
                "events": [event.to_json() for event in events],
                "audit": [row.to_json() for row in audit],
                "verification": verified.to_json(),
            }
        )
    else:
        from cuo_supervisor.cli.run_tree import rendered, run_tree

        deliver(rendered(run_tree(summary, events, audit, verified, states=states, asked=asked)))
    return 0


@runs.command(epilog=_VERIFY_EPILOG)
@click.argument("run")
@json_option
@debug_option
def verify(run: str, as_json: bool) -> int:
    """Recompute a run's chain and digests.

    Exit 65 when they do not hold, with every row that does not.
    """
    from cuo_supervisor.cli.progress import progress

    run_id = run_uuid(run)
    with run_reader() as reader:
        summary = _summary(reader, run_id, run)
        with progress("recomputing rows", summary.log_rows) as told:
            verified = reader.verify(run_id, progress=told)
    if as_json:
        emit_json(verified.to_json())
    else:
        deliver(verification_text(verified))
    return 0 if verified.ok else DATA


runs.add_command(export_run)
runs.add_command(import_langgraph)


def _unknown_names(asked: Mapping[str, Any]) -> str:
    """Filters that fit no run because nothing is called so; other graphs' runs have other names."""
    from cuo_supervisor.core.personas import PERSONAS

    personas = {name for p in PERSONAS.values() for name in (p.short, p.key)}
    if asked["persona"] is not None and asked["persona"] not in personas:
        return f"; --persona is none of {', '.join(PERSONAS)}"
    if asked["path"] is not None and asked["path"] not in PATHS:
        return f"; --path is none of {', '.join(PATHS)}"
    return ""


def _summary(reader: Any, run_id: Any, named: str) -> Any:
    found = reader.get_run(run_id)
    if found is None:
        raise DataError(f"there is no run {named}; cyberos-cuo runs list shows them")
    return found


def _all_events(reader: Any, run_id: Any, with_state: bool, told: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        page = reader.events(run_id, after_seq=found[-1].seq if found else 0, with_state=with_state)
        if not page:
            return found
        found += page
        told(len(found))


def _width() -> int | None:
    """The terminal's columns; None where there is no terminal, and lines may be long."""
    tty = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if tty else None
