"""`cyberos-cuo runs import-langgraph`: a stock LangGraph saver's database into the log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    place_of,
    printable,
    remark,
)
from cuo_supervisor.cli.exits import DATA
from cuo_supervisor.cli.progress import progress
from cuo_supervisor.errors import UsageError

if TYPE_CHECKING:
    from cuo_checkpoint.importing import ImportReport

__all__ = ["import_langgraph"]

_SHOWN: Final = 20


_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs import-langgraph --from postgresql://db/agents --dry-run
  cyberos-cuo runs import-langgraph --from postgresql://db/agents --allow app.state:Invoice
"""


@click.command(
    "import-langgraph", epilog=_EPILOG, short_help="Copy a stock LangGraph saver's database."
)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="CONNINFO",
    help="The stock saver's database; it is only read. Keep a password in PGPASSWORD or ~/.pgpass.",
)
@click.option("--thread", help="Only this thread.")
@click.option("--dry-run", is_flag=True, help="Read and encode everything, store nothing.")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="MODULE:CLASS",
    help="A class of yours that states may hold; repeatable. Others refuse their checkpoint.",
)
@click.option(
    "--keep-metadata",
    "kept",
    multiple=True,
    metavar="KEY",
    help="A metadata key to copy beside LangGraph's own; repeatable.",
)
@json_option
@debug_option
def import_langgraph(
    source: str,
    thread: str | None,
    dry_run: bool,
    allowed: tuple[str, ...],
    kept: tuple[str, ...],
    as_json: bool,
) -> int:
    """Copy a stock LangGraph Postgres saver's database into the log.

    One way and repeatable: what is there already is left alone, so an interrupted copy is taken up
    again by the same command. Exit 65 when some checkpoint was refused; the report names each.
    """
    from cuo_checkpoint.importing import import_langgraph as run
    from cuo_checkpoint.saver import PostgresCheckpointer
    from cuo_supervisor.compose import identity_of

    types = [_class(text) for text in allowed]
    settings = load_settings()
    tenant = identity_of(settings).tenant_id

    with (
        place_of(settings) as place,
        PostgresCheckpointer(
            place.conninfo, schema=place.schema, tenant_id=tenant, allowed_types=types
        ) as store,
        progress("copying checkpoints", None) as told,
    ):

        def step(report: ImportReport, name: str) -> None:
            told(report.checkpoints)
            if sys.stderr is not None and not sys.stderr.isatty():  # a log gets lines, not a bar
                done = f"{report.checkpoints} checkpoints so far"
                remark(f"{report.threads}. {printable(name)}: {done}")

        report = run(
            source,
            store,
            thread=thread,
            dry_run=dry_run,
            keep_metadata=kept,
            allowed_types=types,
            progress=step,
        )
    if as_json:
        emit_json(report.to_json())
    else:
        deliver(_text(report))
    return DATA if report.refused else 0


def _class(text: str) -> tuple[str, str]:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError("--allow takes MODULE:CLASS, such as app.state:Invoice")
    return module, name


def _text(report: ImportReport) -> str:
    """The report for a person."""
    done = "would be copied" if report.dry_run else "copied"
    lines = [
        f"{report.threads} threads, {report.checkpoints} checkpoints, {report.writes} writes read",
        (
            f"{report.copied} {done}, {report.already_there} there already, "
            f"{len(report.refused)} refused"
        ),
    ]
    for item in report.refused[:_SHOWN]:
        where = f"{printable(item.thread_id)} {item.checkpoint_id}"
        if item.checkpoint_ns:
            where += f" in {printable(item.checkpoint_ns)}"
        value = f"{printable(item.path) or '(root)'}: {printable(item.type_name)}"
        lines.append(f"  refused: {where}: {value}: {printable(item.reason)}")
    if len(report.refused) > _SHOWN:
        lines.append(f"  and {len(report.refused) - _SHOWN} more: --json names all")
    lines += [
        f"  deleted here, not copied: {printable(n)}" for n in report.deleted_threads[:_SHOWN]
    ]
    if report.metadata_left_out:
        named = ", ".join(
            f"{printable(k)} ({n})" for k, n in sorted(report.metadata_left_out.items())
        )
        lines.append(f"metadata left out (--keep-metadata KEY copies it): {named}")
    return "\n".join(lines)
