"""`cyberos-cuo runs export`: one run as files that prove themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from cuo_checkpoint.cli_text import NEW_FOLDER
from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    notice_when_slow,
    place_of,
    remark,
    run_uuid,
)
from cuo_supervisor.errors import UsageError

__all__ = ["export_run"]


_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs export 01M8PZMV75EB6AHSM2Y2NT99T7 --out evidence
  python3 -I evidence/verify.py evidence --key keys.txt
"""


@click.command("export", epilog=_EPILOG, short_help="Write a run as a bundle that proves itself.")
@click.argument("run")
@click.option("--out", type=NEW_FOLDER, required=True, help="A new folder for the files.")
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
    if os.path.lexists(out):
        raise UsageError(f"{out} exists; name a new folder")
    settings = load_settings()
    tenant = ids.tenant_of(identity_of(settings, approver=True).tenant_id)
    with place_of(settings) as place, notice_when_slow("writing the bundle ..."):
        report = export(place.conninfo, tenant, run_id, out, schema=place.schema)
    for name in report.removed:
        remark(f"removed {name}: the draft of an export that was killed")
    if as_json:
        emit_json(report.to_json())
        return 0
    rows = ", ".join(f"{count} {name}" for name, count in report.rows.items())
    deliver(f"{out}: {rows}, {report.size} bytes")
    deliver(f"check it with: python3 {out / 'verify.py'} {out} --key YOUR-COPY-OF-THE-KEYS")
    if report.unsealed_runs:
        remark("this run is not sealed yet: nobody could tell had its end been cut")
    return 0
