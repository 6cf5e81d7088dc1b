"""`cuo-archive drop-old-partitions`, `hold`, `rebuild-index`, `expire-approvals`."""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from cuo_checkpoint.cli_output import deliver, emit_json, remark

if TYPE_CHECKING:
    from cuo_checkpoint.retention import HoldRecord, MonthFacts

__all__ = ["DATA", "add_to"]

FLOOR: Final = 84
"""As the database has it; asking for less is a wrong flag before anything is connected."""

DATA: Final = 65

_WAIT_HOURS: Final = 24
"""How long the supervisor waits for an approval (D8.6)."""


class _Target(Protocol):
    @property
    def dsn(self) -> str: ...
    @property
    def schema(self) -> str: ...


_Open = Callable[[bool, str], contextlib.AbstractContextManager[_Target]]


def add_to(cli: click.Group, target: _Open) -> None:
    """Gives the group these commands; `target(local, role)` opens the database."""

    @cli.command("drop-old-partitions")
    @click.option("--dry-run", is_flag=True, help="Show what would go; change nothing.")
    @click.option(
        "--older-than-months",
        "months",
        type=click.IntRange(min=FLOOR),
        default=FLOOR,
        show_default=True,
        help="Months to keep after a month's newest row.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def drop_old_partitions(local: bool, dry_run: bool, months: int, as_json: bool) -> None:
        """Drop the months that are past keeping.

        Kept all the same: what is under a legal hold, what an unfinished run or a thread in use
        needs, and what is not sealed. Safe to repeat, to run at once and to kill. As
        cyberos_archiver. Ends with 0 also when months were kept; with 75 when the log was in use.
        """
        from cuo_checkpoint import retention

        with target(local, "archiver") as place:
            done = retention.drop(
                place.dsn,
                schema=place.schema,
                older_than_months=months,
                dry_run=dry_run,
                progress=(lambda month: None) if as_json else _show_month,
            )
        if as_json:
            emit_json(done.to_json())
            return
        if dry_run:
            for month in done.months:
                _show_month(month)
        if not done.months:
            deliver("No month is past keeping.")
        kept = [month for month in done.months if month.status == "refused"]
        if kept:
            remark(f"{len(kept)} months past keeping are kept; see above.")

    @cli.group()
    def hold() -> None:
        """Keep a run, or all of a tenant, from being dropped."""

    @hold.command("set")
    @click.option("--tenant", required=True, metavar="UUID", help="Whose.")
    @click.option("--run", metavar="RUN", help="One run, by UUID or ULID; else the whole tenant.")
    @click.option("--reason", required=True, help="Why; kept in the database, not in the chain.")
    @click.option("--by", default=None, help="Who; by default the account that runs this.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def set_hold(
        local: bool, tenant: str, run: str | None, reason: str, by: str | None, as_json: bool
    ) -> None:
        """Place a hold and print its id."""
        from cuo_checkpoint import ids, retention

        with target(local, "archiver") as place:
            made = retention.place_hold(
                place.dsn,
                ids.tenant_of(tenant),
                None if run is None else ids.run_id_from_ulid(run),
                reason=_words("--reason", reason),
                by=by or getpass.getuser(),
                schema=place.schema,
            )
        if as_json:
            emit_json({"hold_id": str(made)})
        else:
            deliver(str(made))

    @hold.command("release")
    @click.argument("hold_id", metavar="HOLD")
    @click.option("--tenant", required=True, metavar="UUID", help="Whose.")
    @click.option("--reason", required=True, help="Why it ends.")
    @click.option("--by", default=None, help="Who; by default the account that runs this.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def release_hold(
        local: bool, hold_id: str, tenant: str, reason: str, by: str | None, as_json: bool
    ) -> None:
        """End a hold; the hold and its end both stay on record."""
        from cuo_checkpoint import errors, ids, retention

        try:
            held = ids.run_id_from_ulid(hold_id)
        except errors.InvalidIdentifier:
            raise click.UsageError("HOLD is no hold's id, as hold list prints it.") from None
        with target(local, "archiver") as place:
            retention.release_hold(
                place.dsn,
                ids.tenant_of(tenant),
                held,
                reason=_words("--reason", reason),
                by=by or getpass.getuser(),
                schema=place.schema,
            )
        if as_json:
            emit_json({"released": str(held)})
        else:
            deliver(f"released {hold_id}")

    @hold.command("list")
    @click.option("--tenant", metavar="UUID", help="Of one tenant; else of all.")
    @click.option("--all", "everything", is_flag=True, help="Those that have ended, too.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def list_holds(local: bool, tenant: str | None, everything: bool, as_json: bool) -> None:
        """List holds."""
        from cuo_checkpoint import ids, retention

        tenant_id = None if tenant is None else ids.tenant_of(tenant)
        with target(local, "archiver") as place:
            found = retention.holds(place.dsn, tenant_id=tenant_id, schema=place.schema)
        shown = [one for one in found if everything or one.in_force]
        if as_json:
            emit_json([_hold_json(one) for one in shown])
            return
        for one in shown:
            what = f"run {one.run_id}" if one.run_id else "everything"
            end = ""
            if one.released_at is not None:
                end = f", released {one.released_at:%Y-%m-%d} by {one.released_by}"
            deliver(
                f"{one.hold_id}  tenant {one.tenant_id}  {what}  since {one.created_at:%Y-%m-%d} "
                f"by {one.placed_by}{end}: {one.reason}"
            )
        if not shown:
            remark("No holds." if everything or not found else "No hold is in force; see --all.")

    @cli.command("rebuild-index")
    @click.option("--tenant", metavar="UUID", help="One tenant; else all.")
    @click.option("--apply", is_flag=True, help="Make the index follow the log.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def rebuild_index(local: bool, tenant: str | None, apply: bool, as_json: bool) -> int:
        """Compare the index tables with the log; with --apply, rebuild what differs.

        The index is derived and no evidence. Without --apply it ends with 65 when anything
        differs. With it, writers wait while a tenant is read.
        """
        from cuo_checkpoint import ids, rebuild_index

        tenant_id = None if tenant is None else ids.tenant_of(tenant)
        work = rebuild_index.rebuild if apply else rebuild_index.differences
        with target(local, "archiver") as place:
            found = work(place.dsn, schema=place.schema, tenant_id=tenant_id)
        if as_json:
            emit_json({"applied": apply, "differences": [one.to_json() for one in found]})
        else:
            for one in found:
                columns = ", ".join(one.columns)
                deliver(f"tenant {one.tenant_id}  {one.table}  {one.key}: {columns}")
            if not found:
                deliver("The index is what the log gives.")
            elif apply:
                deliver(f"{len(found)} rows rebuilt.")
        return DATA if found and not apply else 0

    @cli.command("expire-approvals")
    @click.option(
        "--hours",
        type=click.IntRange(min=_WAIT_HOURS),
        default=_WAIT_HOURS,
        show_default=True,
        help="How long ago the run began.",
    )
    @click.option("--tenant", metavar="UUID", help="One tenant; else all.")
    @click.option("--commands", is_flag=True, help="Print only the commands that end them.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    def expire_approvals(
        local: bool, hours: int, tenant: str | None, commands: bool, as_json: bool
    ) -> None:
        """List waiting runs whose approval has run out, for the supervisor to end.

        As cyberos_archiver, which may write no row: the decision that ends a run is the
        supervisor's, as cyberos_app:

        \b
        cuo-archive expire-approvals --json | cyberos-cuo supervisor expire -
        """
        from cuo_checkpoint import ids, retention

        tenant_id = None if tenant is None else ids.tenant_of(tenant)
        with target(local, "archiver") as place:
            found = retention.expired_approvals(
                place.dsn, schema=place.schema, older_than=dt.timedelta(hours=hours)
            )
        shown = [one for one in found if tenant_id in (None, one.tenant_id)]
        if as_json:
            emit_json(
                [
                    {
                        "tenant_id": str(one.tenant_id),
                        "run_id": str(one.run_id),
                        "first_at": one.first_at.astimezone(dt.UTC).isoformat(),
                    }
                    for one in shown
                ]
            )
            return
        for one in shown:
            ulid = ids.ulid_of(one.run_id)
            if not commands:
                deliver(f"tenant {one.tenant_id}  run {ulid}  since {one.first_at:%Y-%m-%d %H:%M}")
                continue
            deliver(f"cyberos-cuo supervisor expire {ulid} --tenant {one.tenant_id}")
        if not shown and not commands:
            deliver("No approval has run out.")


def _show_month(month: MonthFacts) -> None:
    rows = sum(month.rows.values())
    line = f"{month.month}  {month.status:8} {rows:>10} rows  {month.runs:>8} runs  {_size(month.size):>8}"
    if month.locked_ms is not None:
        line += f"  log locked {month.locked_ms} ms"
    deliver(line)
    for code, detail in month.refusals:
        deliver(f"         kept: {code}: {detail}")


def _hold_json(one: HoldRecord) -> dict[str, Any]:
    return {
        "hold_id": str(one.hold_id),
        "tenant_id": str(one.tenant_id),
        "run_id": None if one.run_id is None else str(one.run_id),
        "reason": one.reason,
        "placed_by": one.placed_by,
        "created_at": one.created_at.astimezone(dt.UTC).isoformat(),
        "released_at": None
        if one.released_at is None
        else one.released_at.astimezone(dt.UTC).isoformat(),
        "release_reason": one.release_reason,
        "released_by": one.released_by,
    }


def _words(option: str, text: str) -> str:
    if not text.strip():
        raise click.UsageError(f"{option} must not be empty.")
    return text


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
