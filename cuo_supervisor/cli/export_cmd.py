"""`cyberos-cuo runs export`: one run as files that prove themselves."""

from __future__ import annotations

from pathlib import Path

import click

from cuo_supervisor.cli.common import (
    debug_option,
    emit_json,
    json_option,
    place_of,
    remark,
    run_uuid,
)
from cuo_supervisor.errors import UsageError
from cuo_supervisor.settings import Settings

__all__ = ["export_run"]


@click.command("export")
@click.argument("run")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="A new folder for the files."
)
@json_option
@debug_option
def export_run(run: str, out: Path, as_json: bool) -> int:
    """Write a run as a bundle that anybody can check: python3 OUT/verify.py OUT --key KEYS.

    The states are in it as stored, personal data included; the folder is yours alone to read.
    """
    from cuo_checkpoint import ids
    from cuo_checkpoint.export import export_run as export
    from cuo_supervisor.compose import identity_of

    run_id = run_uuid(run)
    if out.exists():
        raise UsageError(f"{out} exists; name a new folder")
    settings = Settings.load()
    tenant = ids.tenant_of(identity_of(settings, approver=True).tenant_id)
    with place_of(settings) as place:
        report = export(place.conninfo, tenant, run_id, out, schema=place.schema)
    if as_json:
        emit_json(report.to_json())
        return 0
    rows = ", ".join(f"{count} {name}" for name, count in report.rows.items())
    click.echo(f"{out}: {rows}, {report.size} bytes")
    click.echo(f"check it with: python3 {out / 'verify.py'} {out} --key YOUR-COPY-OF-THE-KEYS")
    if report.unsealed_runs:
        remark("this run is not sealed yet: nobody could tell had its end been cut")
    return 0
