"""`cyberos-cuo doctor`: every setting, right and dependency, and how to mend what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    printable,
)
from cuo_supervisor.cli.exits import STORE, USAGE
from cuo_supervisor.errors import SupervisorError

if TYPE_CHECKING:
    from cuo_supervisor.cli.doctor_checks import Check

__all__ = ["doctor"]

_EPILOG: Final = """\b
Examples:
  cyberos-cuo doctor
  cyberos-cuo doctor --json | jq -r '.checks[] | select(.ok | not) | .name, .remedy'
"""


@click.command(epilog=_EPILOG)
@json_option
@debug_option
def doctor(as_json: bool) -> int:
    """Check every setting, right and dependency; say how to mend what is wrong.

    Looks at settings, database (rights, row security, months, durability), seals, catalogue, keys
    and token, skill isolation, gateway, telemetry and the service's extra. Changes nothing. Exit 0
    when everything essential is in order, 64 for settings, 69 for the rest.
    """
    from cuo_supervisor.cli.doctor_checks import LOOKS, Check, guarded, strangers

    try:
        settings = load_settings()
    except SupervisorError as error:
        wrong = Check("settings", False, str(error), "Correct the variables named.")
        return _print([wrong, *strangers()], as_json, USAGE)
    checks = [Check("settings", True, f"{settings.mode} mode"), *strangers()]
    for look, remedy in LOOKS:
        checks += guarded(look, settings, remedy)
    return _print(checks, as_json, STORE)


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
    notes = sum(1 for check in checks if not check.ok and not check.essential)
    verdict = f"{len(failed)} to mend (!!)" if failed else "everything essential is in order"
    deliver(f"\n{verdict}{f', {notes} to know of (--)' if notes else ''}")
    return failing if failed else 0
