"""`cuo-archive metrics`: the store's gauges as text, for Prometheus' textfile collector.

The service sees one tenant at a time and cannot say how old the seals are; an auditor can. No SDK
is needed: these are values read once, not counted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cuo_checkpoint.cli_output import deliver

if TYPE_CHECKING:
    from cuo_checkpoint.gauges import Point

__all__ = ["add_to", "exposition"]


def add_to(
    cli: click.Group, open_target: Callable[[bool, str], AbstractContextManager[Any]]
) -> None:
    """Adds the command to `cli`; `open_target(local, role)` opens the database it works on."""

    @cli.command()
    @click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="A file to replace, such as one of the textfile collector's; by default stdout.",
    )
    @click.pass_obj
    def metrics(local: bool, out: Path | None) -> None:
        """Print months ahead, rows, the age of what no seal covers, and failed archive jobs.

        As cyberos_auditor; another role sees months and rows alone. For cron, every few minutes.
        Prometheus reads it as it is, so there is no --json; see status.
        """
        from cuo_checkpoint.gauges import observe, points

        with open_target(local, "auditor") as target:
            text = exposition(points(observe(target.dsn, schema=target.schema)))
        if out is None:
            deliver(text, line=False)
        else:
            _replace(out, text)


def exposition(points: list[Point]) -> str:
    """The points as Prometheus reads them. Names and labels are ours: none needs quoting."""
    from cuo_checkpoint.telemetry_names import METRICS

    lines: list[str] = []
    told = ""
    for point in sorted(points, key=lambda point: (point.metric, sorted(point.labels.items()))):
        if point.metric != told:
            told = point.metric
            lines += [f"# HELP {told} {METRICS[told].says}", f"# TYPE {told} gauge"]
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(point.labels.items()))
        lines.append(f"{point.metric}{f'{{{labels}}}' if labels else ''} {point.value:g}")
    return "".join(f"{line}\n" for line in lines)


def _replace(out: Path, text: str) -> None:
    """Whole or not at all: the collector may read at any moment. Others may read the file."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=out.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, out)
    except OSError as error:
        raise click.UsageError(f"{out} cannot be written: {error.strerror}.") from None
