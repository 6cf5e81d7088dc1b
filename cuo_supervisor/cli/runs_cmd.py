"""`cyberos-cuo runs`: what the log holds."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Any

import click

from cuo_supervisor.cli.common import debug_option, emit_json, json_option, place_of, run_uuid
from cuo_supervisor.cli.exits import DATA
from cuo_supervisor.cli.export_cmd import export_run
from cuo_supervisor.cli.import_cmd import import_langgraph
from cuo_supervisor.cli.run_text import run_table, run_tree, verification_text
from cuo_supervisor.errors import DataError, UsageError
from cuo_supervisor.settings import Settings

__all__ = ["runs"]

_EPILOG = """\b
Examples:
  cyberos-cuo runs list --path ask --limit 5
  cyberos-cuo runs show 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo runs show RUN --json | jq '.events[].kind'
  cyberos-cuo runs verify RUN
  cyberos-cuo runs export RUN --out evidence
"""


@click.group(epilog=_EPILOG)
def runs() -> None:
    """Read the log: what was asked, decided, invoked, and whether its chain holds."""


@runs.command("list", epilog=_EPILOG)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many."
)
@click.option("--before", help="Continue after the page that named this cursor.")
@click.option(
    "--since", type=click.DateTime(), help="Only runs that began at or after this UTC time."
)
@click.option("--until", type=click.DateTime(), help="Only runs that began before this UTC time.")
@click.option(
    "--state", type=click.Choice(["open", "waiting", "closed"]), help="Only runs in this state."
)
@click.option("--persona", help="Only this persona's (short or long name).")
@click.option(
    "--path", help="Only this path: auto, ask, defer, cascade_then_auto, cascade_then_ask."
)
@click.option("--skill", help="Only this skill's, with or without its version.")
@json_option
@debug_option
def list_(
    limit: int,
    before: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    state: str | None,
    persona: str | None,
    path: str | None,
    skill: str | None,
    as_json: bool,
) -> int:
    """Runs, newest first."""
    with _reader() as reader:
        page = reader.list_runs(
            limit=limit,
            before=before,
            since=_utc(since),
            until=_utc(until),
            state=state,
            persona=persona,
            path=path,
            skill=skill,
        )
    if as_json:
        emit_json(page.to_json())
        return 0
    if not page.runs:
        click.echo("no runs yet" if before is None else "no more runs")
        return 0
    click.echo(run_table(page.runs))
    if page.next:
        click.echo(f"more: cyberos-cuo runs list --before {page.next}", err=True)
    return 0


@runs.command(epilog=_EPILOG)
@click.argument("run")
@click.option("--states/--no-states", default=False, help="Show each step's stored state too.")
@json_option
@debug_option
def show(run: str, states: bool, as_json: bool) -> int:
    """One run: its path through the graph, its decision, its audit rows."""
    run_id = run_uuid(run)
    with _reader() as reader:
        summary = reader.get_run(run_id)
        if summary is None:
            raise DataError(f"there is no run {run}; cyberos-cuo runs list shows them")
        events = _all_events(reader, run_id, with_state=states)
        audit = reader.audit(run_id)
        verified = reader.verify(run_id)
    if as_json:
        emit_json(
            {
                "run": summary.to_json(),
                "events": [event.to_json() for event in events],
                "audit": [row.to_json() for row in audit],
                "verification": verified.to_json(),
            }
        )
    else:
        click.echo(run_tree(summary, events, audit, verified, states=states))
    return 0


@runs.command(epilog=_EPILOG)
@click.argument("run")
@json_option
@debug_option
def verify(run: str, as_json: bool) -> int:
    """Recompute a run's chain and digests; exit 65 and the first bad row when they do not hold."""
    run_id = run_uuid(run)
    with _reader() as reader:
        if reader.get_run(run_id) is None:
            raise DataError(f"there is no run {run}; cyberos-cuo runs list shows them")
        verified = reader.verify(run_id)
    if as_json:
        emit_json(verified.to_json())
    else:
        click.echo(verification_text(verified))
    return 0 if verified.ok else DATA


runs.add_command(export_run)
runs.add_command(import_langgraph)


@contextlib.contextmanager
def _reader() -> Iterator[Any]:
    """A reader of the caller's tenant."""
    from cuo_checkpoint.runs import RunReader
    from cuo_supervisor.compose import identity_of

    settings = Settings.load()
    # Whoever decides on a waiting run must be able to read it first.
    identity = identity_of(settings, approver=True)
    with (
        place_of(settings) as place,
        RunReader(
            place.conninfo, tenant_id=identity.tenant_id, schema=place.schema, connections=1
        ) as reader,
    ):
        yield reader


def _all_events(reader: Any, run_id: Any, *, with_state: bool) -> list[Any]:
    found: list[Any] = []
    while True:
        page = reader.events(run_id, after_seq=found[-1].seq if found else 0, with_state=with_state)
        if not page:
            return found
        found += page


def _utc(at: dt.datetime | None) -> dt.datetime | None:
    if at is None:
        return None
    if at.year < 2000:
        raise UsageError("a time before the year 2000 is no time of this log")
    return at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at
