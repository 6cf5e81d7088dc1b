"""`cyberos-cuo supervisor expire`: ends waiting runs whose approval has run out."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any, Final

import click

from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    place_of,
    remark,
    run_uuid,
    stdin_text,
    telemetry_sent,
)
from cuo_supervisor.errors import DataError, UsageError

if TYPE_CHECKING:
    from cuo_supervisor.settings import Settings

__all__ = ["expire", "listed_runs"]

_LIST_BYTES: Final = 16 * 1024 * 1024
_PAGE: Final = 200
_DATA: Final = 65

Waiting = tuple[str, uuid.UUID]
"""Tenant and run."""


@click.command(
    short_help="End waiting runs that nobody answered in time.",
    epilog="""\b
Examples:
  cuo-archive expire-approvals --json | cyberos-cuo supervisor expire -
  cyberos-cuo supervisor expire --tenant 0d5f...
""",
)
@click.argument("runs", nargs=-1, metavar="[RUN...|-]")
@click.option("--tenant", metavar="UUID", help="Whose runs; not needed in local mode.")
@json_option
@debug_option
def expire(runs: tuple[str, ...], tenant: str | None, as_json: bool) -> int:
    """End waiting runs that nobody answered in time, each with its decision "approval_expired".

    The runs named; or, with -, those that `cuo-archive expire-approvals --json` lists, of every
    tenant; or every one of the tenant. For cron: no login is needed, since this can only say no,
    and not before the time is over. Safe to repeat, to run at once and to kill. Ends with 65 when
    a run could not be ended; the others are.
    """
    settings = load_settings()
    if runs == ("-",):
        listed = listed_runs(stdin_text(_LIST_BYTES))
    else:
        listed = [(_tenant(settings, tenant), run_uuid(run)) for run in runs]
    if not runs:
        _tenant(settings, tenant)
    with telemetry_sent(), place_of(settings) as place:
        if not runs:
            listed = _waiting(place, _tenant(settings, tenant))
        ended = asyncio.run(_end(settings, place, listed))
    if as_json:
        emit_json(ended)
    else:
        for one in ended:
            deliver(f"tenant {one['tenant_id']}  run {one['run_id']}  {one['reason']}")
        if not ended:
            remark("No approval has run out.")
    return 0 if all(one["ended"] for one in ended) else _DATA


async def _end(settings: Settings, place: Any, listed: list[Waiting]) -> list[dict[str, Any]]:
    from cuo_supervisor.compose import make_supervisor
    from cuo_supervisor.core.catalog import Catalog

    told = []
    # Runs end with the catalogue they were asked with, and nothing is invoked: a folder of
    # manifests that is gone or broken must not keep them waiting.
    none = Catalog.of(())
    async with make_supervisor(
        settings, place, say=remark, max_connections=2, catalog=none
    ) as made:
        for tenant_id, run_id in listed:
            one: dict[str, Any] = {"tenant_id": tenant_id, "run_id": str(run_id)}
            try:
                decision = await made.expire(run_id, tenant_id=tenant_id)
                one |= {"ended": True, "reason": decision.reason}
            except DataError as error:
                one |= {"ended": False, "reason": str(error)}
            told.append(one)
    return told


def _tenant(settings: Settings, given: str | None) -> str:
    from cuo_supervisor.identity import LOCAL_TENANT_ID

    if given is None and settings.mode == "local":
        return LOCAL_TENANT_ID
    try:
        return str(uuid.UUID(given or ""))
    except ValueError:
        raise UsageError("say whose runs: --tenant UUID") from None


def listed_runs(text: str) -> list[Waiting]:
    """The runs in what `cuo-archive expire-approvals --json` printed. Raises UsageError."""
    try:
        return [
            (str(uuid.UUID(one["tenant_id"])), uuid.UUID(one["run_id"])) for one in json.loads(text)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            "standard input is not the list that cuo-archive expire-approvals --json prints"
        ) from None


def _waiting(place: Any, tenant_id: str) -> list[Waiting]:
    """The tenant's waiting runs that began long enough ago."""
    import datetime as dt

    from cuo_checkpoint.runs import RunReader
    from cuo_supervisor.expiry import APPROVAL_SECONDS

    began = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=APPROVAL_SECONDS)
    found: list[Waiting] = []
    with RunReader(
        place.conninfo, tenant_id=tenant_id, schema=place.schema, connections=1
    ) as reader:
        before = None
        while True:
            page = reader.list_runs(state="waiting", until=began, limit=_PAGE, before=before)
            found += [(tenant_id, run.run_id) for run in page.runs if not run.hidden]
            if page.next is None:
                return found
            before = page.next
