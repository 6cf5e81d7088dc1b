"""`cuo-archive`: months, status and verification of the log, for operators and cron.

Results go to stdout, remarks to stderr. What a command needs is imported when it runs, so that
`--help` is quick. Exit codes: 0 done, 64 usage or settings, 65 the log does not verify or holds no
such run, 69 store unreachable or not migrated, 70 a bug, 74 the result could not be written, 75 the
log was in use, 77 permission, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import click

from cuo_checkpoint import archive_help, archive_log, evidence_cli, metrics_cli, retention_cli
from cuo_checkpoint.cli_output import OutputLost, begun, complain, deliver, emit_json, mute, remark
from cuo_checkpoint.cli_text import in_utf8, version_option

if TYPE_CHECKING:
    from cuo_checkpoint.archive import VerifyReport

__all__ = ["cli", "main"]

USAGE: Final = 64
DATA: Final = 65
UNAVAILABLE: Final = 69
BUG: Final = 70
OUTPUT_LOST: Final = 74
BUSY: Final = 75
PERMISSION: Final = 77
INTERRUPTED: Final = 130

_SHOWN_RUNS: Final = 20
_SHOWN_PROBLEMS: Final = 5
"""What fits on a screen; --json has all that was kept."""


class Target(NamedTuple):
    """The database a command works on."""

    dsn: str
    schema: str


class Refused(Exception):
    """The command ends with a sentence and a code of its own."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; never raises, prints no traceback unasked."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return archive_log.told(arguments, lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="cuo-archive", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        remark(error.ctx.get_help())
        return USAGE
    except click.UsageError as error:
        complain(_misuse(error))
        return USAGE
    except click.ClickException as error:
        complain(error.format_message())
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        # Nothing is left to tidy up: whoever asks again is not made to wait for the rest.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if begun():
            mute(1)  # half a result, which whoever reads may no longer take
        complain(
            "interrupted; what was done until then stays, and it is safe to repeat the command"
        )
        return INTERRUPTED
    except OutputLost as error:
        complain(str(error))
        return OUTPUT_LOST
    except BrokenPipeError:
        mute(1)  # the reader has seen enough of the help
        return 0
    except Exception as error:
        return _failed(error, debug="--debug" in arguments)


def _misuse(error: click.UsageError) -> str:
    """A wrong call in a line, with where to read on."""
    if isinstance(error, click.NoSuchOption) and error.ctx and error.ctx.parent:
        first = error.ctx.find_root()
        if any(error.option_name in param.opts for param in first.command.params):
            command = error.ctx.command_path.partition(" ")[2]
            shown = f"{first.command_path} {error.option_name} {command} ..."
            return f"{error.option_name} stands before the command: {shown}"
    hint = f"; see: {error.ctx.command_path} --help" if error.ctx else ""
    return error.format_message().rstrip(".") + hint


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--local", is_flag=True, help="Use the local mode's database, starting it if need be."
)
@click.option("--debug", is_flag=True, help="Show the traceback of a bug.")
@click.option(
    "--log",
    type=click.Path(),
    metavar="FILE",
    help="Append JSON events, one a line, to FILE; - makes standard error all events.",
)
@version_option("{}")
@click.pass_context
def cli(context: click.Context, local: bool, debug: bool, log: str | None) -> None:
    """Care for the log: its months, its proof.

    The database is the one CUO_DATABASE_URL names, in schema CUO_SCHEMA. A local database is
    used, and started, only with --local.
    """
    context.obj = local


@cli.command("ensure-partitions")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def ensure_partitions(local: bool, as_json: bool) -> None:
    """Make the current month and the next three, where they are missing.

    Safe to repeat and to run at once; any of the log's roles may. For cron: once a day.
    """
    from cuo_checkpoint import archive

    with _target(local, "archiver") as target:
        report = archive.ensure_partitions(target.dsn, schema=target.schema)
    if as_json:
        emit_json(report.to_json())
        return
    for name in report.made:
        deliver(f"made     {name}")
    for month in report.present:
        if month.name not in report.made:
            deliver(f"present  {month.name}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status(local: bool, as_json: bool) -> None:
    """Show months, estimated rows and sizes of each table.

    Rows are the planner's estimate, unknown before the first ANALYZE; sizes include indexes.
    """
    from cuo_checkpoint import archive

    with _target(local, "auditor") as target:
        found = archive.status(target.dsn, schema=target.schema)
    if as_json:
        emit_json(found)
    else:
        for table in found["tables"]:
            deliver(
                f"{table['table']}: {len(table['months'])} months, {table['oldest']} to "
                f"{table['newest']}, {_rows(table['rows_estimate'])}, {_size(table['bytes'])}"
            )
            for month in table["months"]:
                name = month["month"] or month["partition"]
                rows, size = _rows(month["rows_estimate"]), _size(month["bytes"])
                deliver(f"  {name}  {rows:>16}  {size:>10}")
    if found["missing"]:
        remark(f"Missing: {', '.join(found['missing'])}. Run: cuo-archive ensure-partitions")


@cli.command()
@click.option("--run", "run", metavar="RUN", help="One run, by UUID or ULID.")
@click.option("--tenant", metavar="UUID", help="The tenant of the run, or all runs of this tenant.")
@click.option("--all", "everything", is_flag=True, help="Every tenant; needs the auditor role.")
@evidence_cli.head_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def verify(
    local: bool,
    run: str | None,
    tenant: str | None,
    everything: bool,
    as_json: bool,
    heads: Path | None,
    key_file: Path | None,
    kept: tuple[Path, ...],
) -> int:
    """Recompute chains and digests and compare them with what is stored.

    Ends with 0 when everything agrees and with 65 when anything does not, naming the first bad
    row of each run. A tail cut from rows, chain and index together shows only against exported
    heads, which are compared too when their folder is named.
    """
    from cuo_checkpoint import archive, ids

    if everything == bool(run or tenant):
        raise click.UsageError("Say what to verify: --run RUN, --tenant UUID, or --all.")
    run_id = None if run is None else ids.run_id_from_ulid(run)
    tenant_id = None if tenant is None else ids.tenant_of(tenant)
    with _target(local, "auditor") as target:
        if tenant_id is None and not archive.sees_all(target.dsn, schema=target.schema):
            raise Refused(
                PERMISSION,
                "This role sees one tenant at a time. Name it with --tenant, or connect as "
                "cyberos_auditor.",
            )
        if run_id is not None and tenant_id is None:
            tenants = archive.tenants_of(target.dsn, run_id, schema=target.schema)
            if len(tenants) != 1:
                many = f"{len(tenants)} tenants have" if tenants else "No tenant has"
                raise Refused(DATA, f"{many} a run {run_id}. Name its tenant with --tenant.")
            tenant_id = tenants[0]
        report = archive.verify(
            target.dsn,
            schema=target.schema,
            tenant_id=tenant_id,
            run_id=run_id,
            progress=evidence_cli.progress("runs verified"),
        )
        checks = evidence_cli.check_heads(
            target,
            None if tenant_id is None else [tenant_id],
            heads=heads,
            key_file=key_file,
            kept=kept,
            progress=evidence_cli.progress("leaves compared"),
        )
    if as_json:
        told = None if checks is None else [check.to_json() for check in checks]
        emit_json({**report.to_json(), "heads": told})
    else:
        _show(report)
        evidence_cli.show_checks(checks)
    return 0 if report.ok and all(check.ok for check in checks or ()) else DATA


def _show(report: VerifyReport) -> None:
    deliver(
        f"Verified {report.runs} runs: {report.rows} log rows, {report.chain_rows} chain rows, "
        f"{report.writes} pending writes."
    )
    for verdict in report.broken[:_SHOWN_RUNS]:
        deliver(f"run {verdict.run_id} (tenant {verdict.tenant_id}) does not verify:")
        for problem in verdict.problems[:_SHOWN_PROBLEMS]:
            deliver(f"  {problem}")
        if len(verdict.problems) > _SHOWN_PROBLEMS:
            deliver("  and more; see --json")
    if len(report.broken) > _SHOWN_RUNS:
        deliver(f"and {len(report.broken) - _SHOWN_RUNS} more runs; see --json")
    for stray in report.strays:
        deliver(stray)
    for tenant, drop in report.drops:
        deliver(f"tenant {tenant}: dropped by retention: {drop}")
    for verdict in report.cut[:_SHOWN_RUNS]:
        for gap in verdict.dropped:
            deliver(
                f"run {verdict.run_id}: chain rows {gap.first} to {gap.last} went with {gap.drop}"
            )
    if report.ok:
        deliver("Everything agrees.")
        return
    found = f"{len(report.broken)} of {report.runs} runs do not verify" if report.broken else ""
    strays = "rows lie outside every run" if report.strays else ""
    remark(
        f"{' and '.join(part for part in (found, strays) if part)}. Someone changed the log "
        "behind its triggers, or a restore was incomplete; keep this database as it is and compare "
        "it with a backup."
    )


@contextlib.contextmanager
def _target(local: bool, role: str) -> Iterator[Target]:
    """The database to work on: the one named, or the local one when that was asked for."""
    from cuo_checkpoint.settings import StoreSettings

    settings = StoreSettings.load()
    if settings.conninfo is not None:
        if local:
            raise Refused(USAGE, "--local was given and CUO_DATABASE_URL is set; choose one.")
        yield Target(settings.conninfo, settings.schema_name)
        return
    if not local:
        raise Refused(
            USAGE,
            "CUO_DATABASE_URL is not set. Set it to the log's database, or pass --local before "
            "the command to use the local one.",
        )
    from cuo_checkpoint.local import local_database

    with local_database(data_dir=settings.data_dir) as server:
        yield Target(getattr(server, f"{role}_dsn"), "public")


def _failed(error: Exception, *, debug: bool) -> int:
    """Says what went wrong and returns the code for it."""
    from cuo_checkpoint import errors

    if isinstance(error, Refused):
        complain(str(error))
        return error.code
    usage = (
        errors.SettingInvalid,
        errors.InvalidIdentifier,
        errors.TenantRequired,
        errors.KeyUnusable,
        errors.RetentionRefused,
    )
    codes: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
        (errors.KeyUnwritten, UNAVAILABLE),
        (usage, USAGE),
        ((errors.RunUnknown, errors.ChainBroken, errors.SealRefused), DATA),
        ((errors.StoreUnavailable, errors.SchemaNotReady, errors.ExportRefused), UNAVAILABLE),
    )
    if isinstance(error, errors.RetentionFailed):
        complain(str(error))
        if _was_refused(error):
            return PERMISSION
        return BUSY if error.busy else UNAVAILABLE
    for kinds, code in codes:
        if isinstance(error, kinds):
            complain(str(error))
            return PERMISSION if _was_refused(error) else code
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    complain(
        f"this is a bug in cuo-archive ({type(error).__name__}, report {_report_id(error)}). "
        "Please report it with that id; repeat with --debug before the command for details."
    )
    return BUG


def _was_refused(error: BaseException) -> bool:
    """Whether the server refused the role or its password, somewhere in the chain of causes."""
    import psycopg

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, psycopg.Error):
            state = cause.sqlstate or ""
            text = str(cause)
            # A failed login carries no state: libpq gives text only.
            return state == "42501" or state.startswith("28") or "authentication failed" in text
        cause = cause.__cause__
    return False


def _report_id(error: BaseException) -> str:
    """The same for the same bug in the same place: nothing needs to be kept to recognise it."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    place = [f"{os.path.basename(frame.filename)}:{frame.name}:{frame.lineno}" for frame in frames]
    return hashlib.sha256(repr((type(error).__name__, place)).encode()).hexdigest()[:10]


def _rows(estimate: int | None) -> str:
    return "rows unknown" if estimate is None else f"about {estimate} rows"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


evidence_cli.add_to(cli, lambda local, role: _target(local, role))
metrics_cli.add_to(cli, lambda local, role: _target(local, role))
retention_cli.add_to(cli, lambda local, role: _target(local, role))
archive_help.teach(in_utf8(cli))


def run() -> NoReturn:
    """For `python -m cuo_checkpoint.archive_cli`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
