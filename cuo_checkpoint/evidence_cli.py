"""`cuo-archive seal` and `export`, and the heads' part of `verify`: `add_to` adds them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cuo_checkpoint import keys_cli
from cuo_checkpoint.cli_output import deliver, emit_json, remark
from cuo_checkpoint.cli_text import NEW_FOLDER

if TYPE_CHECKING:
    from cuo_checkpoint.head_files import HeadFolder
    from cuo_checkpoint.keys import KeyRing
    from cuo_checkpoint.notes import PublicKey
    from cuo_checkpoint.seal import SealReport
    from cuo_checkpoint.seal_findings import SealCheck

__all__ = ["add_to", "check_heads", "head_options", "progress", "show_checks"]

F = TypeVar("F", bound=Callable[..., Any])
Opener = Callable[[bool, str], AbstractContextManager[Any]]

_DATA: Final = 65
_SHOWN: Final = 20
_PROGRESS_AFTER: Final = 2.0
"""Seconds of silence before progress is told, and between two tellings."""

_FILE: Final = click.Path(path_type=Path)
_AT_HAND: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


def add_to(cli: click.Group, open_target: Opener) -> None:
    """Adds the commands to `cli`; `open_target(local, role)` opens the database they work on."""

    @cli.command()
    @click.option("--tenant", metavar="UUID", help="Seal this tenant.")
    @click.option("--all", "everything", is_flag=True, help="Seal every tenant.")
    @click.option(
        "--declare-restore",
        metavar="REASON",
        help="After a restore: state in the tree what it lost, and go on. Names nobody.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def seal(
        local: bool,
        tenant: str | None,
        everything: bool,
        declare_restore: str | None,
        as_json: bool,
    ) -> int:
        """Sign the heads of all chains that advanced and export them.

        Needs CUO_SEAL_KEY (the key file's path) and CUO_EXPORT_DIR (a folder that the database's
        owner cannot write). For cron, every few minutes; safe to repeat, to run at once and to
        kill. Ends with 65 when a chain no longer extends what was sealed; the others are sealed.
        """
        from cuo_checkpoint import ids
        from cuo_checkpoint.seal import Sealer
        from cuo_checkpoint.seal_restore import declare_restore as declare

        if everything == (tenant is not None) or (everything and declare_restore is not None):
            raise click.UsageError("Say what to seal: --tenant UUID, or --all.")
        ring, folder = _ring(), _folder(None)
        with (
            open_target(local, "auditor") as target,
            Sealer(
                target.dsn,
                ring=ring,
                folder=folder,
                schema=target.schema,
                progress=progress("runs followed to their heads"),
            ) as sealer,
        ):
            if tenant is not None and declare_restore is not None:
                report, lost = declare(sealer, ids.tenant_of(tenant), declare_restore)
                for loss in lost:
                    end = f"ends at {loss.found_seq}" if loss.found_seq else "is gone"
                    remark(f"run {loss.run_id}: sealed up to row {loss.sealed_seq}, now {end}")
                reports = [report]
            else:
                wanted = sealer.tenants() if tenant is None else [ids.tenant_of(tenant)]
                reports = [_sealed(sealer, one) for one in wanted]
        if as_json:
            emit_json([report.to_json() for report in reports])
        else:
            for report in reports:
                deliver(
                    f"{report.tenant_id}  {report.leaves} heads sealed, {report.size} leaves, "
                    f"{len(report.exported)} exported"
                )
        for report in reports:
            for problem in report.problems:
                remark(f"{report.tenant_id}: {problem}")
        return 0 if all(report.ok for report in reports) else _DATA

    @cli.command()
    @click.option("--month", metavar="YYYY-MM", help="Every run with a row in this month.")
    @click.option("--run", "run", metavar="RUN", help="One run, by UUID or ULID.")
    @click.option("--tenant", metavar="UUID", required=True, help="Whose.")
    @click.option("--out", type=NEW_FOLDER, required=True, help="A new folder.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def export(
        local: bool, month: str | None, run: str | None, tenant: str, out: Path, as_json: bool
    ) -> None:
        """Write a month or a run as files that prove themselves: python3 OUT/verify.py OUT.

        States are exported as stored, personal data included.
        """
        from cuo_checkpoint import ids
        from cuo_checkpoint.export import export_month, export_run

        if (month is None) == (run is None):
            raise click.UsageError("Say what to export: --month YYYY-MM, or --run RUN.")
        if os.path.lexists(out):
            raise click.UsageError(f"{out} exists; name a new folder.")
        tenant_id = ids.tenant_of(tenant)
        with open_target(local, "auditor") as target:
            if run is not None:
                run_id = ids.run_id_from_ulid(run)
                report = export_run(target.dsn, tenant_id, run_id, out, schema=target.schema)
            else:
                report = export_month(
                    target.dsn,
                    tenant_id,
                    _month(month or ""),
                    out,
                    schema=target.schema,
                    progress=progress("runs written"),
                )
        if as_json:
            emit_json(report.to_json())
        else:
            deliver(f"{report.folder}: {report.runs} runs, {report.size} bytes")
        for name in report.removed:
            remark(f"removed {name}: the draft of an export that was killed")
        if report.unsealed_runs:
            remark(f"{report.unsealed_runs} runs are not sealed yet; seal, and export again.")

    cli.add_command(keys_cli.keys)


def progress(what: str) -> Callable[[int, int], None]:
    """Tells on stderr how far a long command is, now and then: (done, in all)."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_AFTER:
            last = time.monotonic()
            remark(f"{done} of about {total} {what} ...")

    return tell


def head_options(command: F) -> F:
    """The options of `verify` that name exported heads."""
    for option in (
        click.option(
            "--head",
            "kept",
            multiple=True,
            type=_AT_HAND,
            help="A signed head you kept: the export must agree with it. Repeatable.",
        ),
        click.option(
            "--keys",
            "key_file",
            type=_AT_HAND,
            help="File of public seal keys; by default those of CUO_SEAL_KEY.",
        ),
        click.option(
            "--heads", type=_FILE, help="Folder of exported heads; by default CUO_EXPORT_DIR."
        ),
    ):
        command = option(command)
    return command


def check_heads(
    target: Any,
    tenants: list[uuid.UUID] | None,
    *,
    heads: Path | None,
    key_file: Path | None,
    kept: tuple[Path, ...],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[SealCheck] | None:
    """Holds the database against its exported heads; None when no folder of heads is named.

    `tenants` None means every tenant that has runs or heads.
    """
    from cuo_checkpoint.seal_check import check_tenant, tenants_with_runs

    settings = _settings()
    if heads is None and settings.export_dir is None:
        if key_file or kept:
            raise click.UsageError("Name the folder of exported heads: --heads or CUO_EXPORT_DIR.")
        return None
    folder = _folder(heads)
    believed = _believed(key_file)
    if tenants is None:
        with_runs = tenants_with_runs(target.dsn, schema=target.schema)
        tenants = sorted({*with_runs, *folder.tenants()})
    given = [(str(path), path.read_bytes()) for path in kept]
    return [
        check_tenant(
            target.dsn,
            tenant,
            keys=believed,
            folder=folder,
            schema=target.schema,
            heads=given,
            progress=progress,
        )
        for tenant in tenants
    ]


def show_checks(checks: list[SealCheck] | None) -> None:
    """Says what the heads showed, or that there were none to look at."""
    if checks is None:
        remark(
            "Not compared with exported heads (CUO_EXPORT_DIR): a cut tail, a rewritten chain or a "
            "missing run does not show without them."
        )
        return
    for check in checks:
        deliver(
            f"tenant {check.tenant_id}: {check.heads} signed heads over {check.leaves} leaves; "
            f"{check.unsealed} chain rows of {check.unsealed_runs} runs are newer than the seals"
        )
        for finding in check.findings[:_SHOWN]:
            deliver(f"  {finding.kind}: {finding.text}")
        if len(check.findings) > _SHOWN:
            deliver(f"  and {len(check.findings) - _SHOWN} more; see --json")


def _sealed(sealer: Any, tenant_id: uuid.UUID) -> SealReport:
    """One tenant's report; one that may not be signed does not stop the others."""
    from cuo_checkpoint.errors import SealRefused
    from cuo_checkpoint.seal import SealReport

    try:
        report: SealReport = sealer.seal(tenant_id)
    except SealRefused as error:
        report = SealReport(tenant_id, problems=[str(error)])
    return report


def _settings() -> Any:
    from cuo_checkpoint.settings import StoreSettings

    return StoreSettings.load()


def _ring() -> KeyRing:
    from cuo_checkpoint import keys

    secret = _settings().seal_key
    if secret is None:
        raise click.UsageError("CUO_SEAL_KEY is not set: the seal key file's absolute path.")
    return keys.load(secret.get_secret_value())


def _believed(key_file: Path | None) -> tuple[PublicKey, ...]:
    from cuo_checkpoint import keys

    if key_file is not None:
        return keys.load_public(key_file)
    if _settings().seal_key is None:
        raise click.UsageError("Name the keys to believe: --keys FILE, or CUO_SEAL_KEY.")
    return _ring().believed


def _folder(given: Path | None) -> HeadFolder:
    from cuo_checkpoint.head_files import HeadFolder

    folder = given or _settings().export_dir
    if folder is None:
        raise click.UsageError(
            "CUO_EXPORT_DIR is not set: where signed heads go, out of the database owner's reach."
        )
    return HeadFolder(folder)


def _month(text: str) -> Any:
    from cuo_checkpoint.partitions import Month

    year, _, number = text.partition("-")
    if len(text) != 7 or not (year + number).isdecimal() or not 1 <= int(number) <= 12:
        raise click.UsageError("A month is written YYYY-MM.")
    return Month(int(year), int(number))
