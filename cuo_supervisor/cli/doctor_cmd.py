"""`cyberos-cuo doctor`: every setting, right and dependency, and how to mend what is wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    notice_when_slow,
    printable,
    waiting_text,
)
from cuo_supervisor.cli.exits import STORE, USAGE
from cuo_supervisor.errors import SupervisorError

if TYPE_CHECKING:
    from cuo_supervisor.settings import Settings

__all__ = ["doctor"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `essential` ones decide the exit code."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    essential: bool = True


_EPILOG: Final = """\b
Examples:
  cyberos-cuo doctor
  cyberos-cuo doctor --json | jq -r '.checks[] | select(.ok | not) | .name, .remedy'
"""


@click.command(epilog=_EPILOG)
@json_option
@debug_option
def doctor(as_json: bool) -> int:
    """Check settings, database, catalogue, skill isolation and gateway; say how to mend each.

    Exit 0 when everything essential is in order, 64 for settings, 69 for the rest.
    """
    try:
        settings = load_settings()
    except SupervisorError as error:
        return _print(
            [Check("settings", False, str(error), "Correct the variables named.")], as_json, USAGE
        )
    checks = [Check("settings", True, f"{settings.mode} mode")]
    for look in (_store, _catalog, _identity, _isolation, _gateway):
        checks += _guarded(look, settings)
    return _print(checks, as_json, STORE)


def _guarded(look: Callable[[Settings], list[Check]], settings: Settings) -> list[Check]:
    try:
        return look(settings)
    except SupervisorError as error:
        return [Check(look.__name__.strip("_"), False, str(error), "See the message.")]


def _store(settings: Settings) -> list[Check]:
    from cuo_checkpoint import readiness
    from cuo_supervisor.compose import open_place

    with (
        notice_when_slow(waiting_text(settings)),
        open_place(settings, check=False) as place,
    ):
        found = readiness.check(place.conninfo, schema=place.schema)
    return [Check(f"database: {f.name}", f.ok, f.detail, f.remedy) for f in found]


def _catalog(settings: Settings) -> list[Check]:
    from cuo_supervisor.catalog_loader import load_catalog

    catalog = load_catalog(settings.catalog)
    return [Check("catalogue", True, f"{len(catalog.skills)} skills, {catalog.snapshot_hash[:16]}")]


def _identity(settings: Settings) -> list[Check]:
    from cuo_supervisor.compose import identity_of

    who = identity_of(settings)
    return [Check("identity", True, f"issuer {who.issuer}, tenant {who.tenant_id}")]


def _isolation(settings: Settings) -> list[Check]:
    from cuo_supervisor.compose import make_runner

    report = make_runner(settings).sandbox_report()
    detail = f"{report.level} ({report.reason})" if report.reason else report.level
    return [Check("skill isolation", report.full, detail, report.remedy, essential=False)]


def _gateway(settings: Settings) -> list[Check]:
    """Whether something listens there. Nothing is asked: a request would cost the tenant money."""
    parts = urlsplit(settings.gateway_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=2.0):
            pass
    except OSError as error:
        reason = type(error).__name__
        return [
            Check(
                "AI gateway",
                False,
                f"{settings.gateway_url} does not answer ({reason}); unclear requests will be asked back",
                "Start the gateway, or set CYBEROS_AI_GATEWAY_URL.",
                essential=False,
            )
        ]
    return [Check("AI gateway", True, f"{settings.gateway_url} answers")]


def _print(checks: list[Check], as_json: bool, failing: int) -> int:
    failed = [check for check in checks if not check.ok and check.essential]
    if as_json:
        document: dict[str, Any] = {"ok": not failed, "checks": [asdict(check) for check in checks]}
        emit_json(document)
        return failing if failed else 0
    for check in checks:
        mark, colour = (
            ("ok", "green") if check.ok else ("!!", "red") if check.essential else ("--", "yellow")
        )
        deliver(f"{click.style(mark, fg=colour)}  {check.name}: {printable(check.detail)}")
        if not check.ok and check.remedy:
            deliver(f"      {printable(check.remedy)}")
    return failing if failed else 0
