"""Exit codes, and the one place that turns an exception into one. The table is total."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
import uuid
from typing import Any, Final

import click

from cuo_checkpoint.cli_output import OutputLost, begun, deliver, mute, remark
from cuo_supervisor.errors import PersonaMismatch, PersonaVersionMismatch, SupervisorError

__all__ = [
    "ASK", "AUDIT_FAILED", "BUG", "DATA", "DEFER", "DENIED", "INTERRUPTED", "INVOKED", "MEANINGS",
    "OUTPUT_LOST", "PERMISSION", "SKILL_FAILED", "STORE", "TIMEOUT", "USAGE", "WAITING", "report", "run_main",
]  # fmt: skip

INVOKED: Final = 0
ASK: Final = 1
DEFER: Final = 2
WAITING: Final = 3
DENIED: Final = 4
SKILL_FAILED: Final = 5
USAGE: Final = 64
DATA: Final = 65
STORE: Final = 69
BUG: Final = 70
AUDIT_FAILED: Final = 73
OUTPUT_LOST: Final = 74
TIMEOUT: Final = 75
PERMISSION: Final = 77
INTERRUPTED: Final = 130

MEANINGS: Final = {
    INVOKED: "invoked",
    ASK: "ask",
    DEFER: "defer or blocked",
    WAITING: "waiting for approval",
    DENIED: "denied or expired",
    SKILL_FAILED: "skill failed",
    USAGE: "usage",
    DATA: "bad data or unknown persona",
    STORE: "store unreachable",
    BUG: "our fault",
    AUDIT_FAILED: "audit failure",
    OUTPUT_LOST: "result not written",
    TIMEOUT: "time-out",
    PERMISSION: "permission",
    INTERRUPTED: "interrupted",
}
"""Every code a command can end with; `--help` and docs/operations.md say the same."""


def run_main(command: click.Command, program: str) -> int:
    """Runs a click command and returns the exit code for whatever came of it.

    A user's mistake is one sentence on stderr (with --json, an object on stdout); a bug of ours is
    a sentence with a report id, and its traceback only with --debug.
    """
    arguments = sys.argv[1:]
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        # https://no-color.org: set and not empty means no colours, whatever the value.
        color = False if os.environ.get("NO_COLOR") else None
        result = command.main(args=arguments, prog_name=program, standalone_mode=False, color=color)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as asked:
        return int(asked.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OutputLost):
            deliver(error.ctx.get_help())
        return USAGE
    except click.UsageError as error:
        hint = f"; see: {error.ctx.command_path} --help" if error.ctx else ""
        return report("invalid_argument", error.format_message().rstrip(".") + hint, USAGE, as_json)
    except click.ClickException as error:
        return report("invalid_argument", error.format_message(), USAGE, as_json)
    except (click.Abort, KeyboardInterrupt):
        # Nothing is left to tidy up: whoever asks again is not made to wait for the rest.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if begun():
            mute(1)  # half a result, which whoever reads may no longer take
            as_json = False
        return report(
            "interrupted",
            "interrupted; what was recorded stays: cyberos-cuo runs list names the run, and "
            "cyberos-cuo supervisor continue finishes it",
            INTERRUPTED,
            as_json,
        )
    except SupervisorError as error:
        return report(error.error, str(error), error.exit_code, as_json, **_facts(error))
    except OutputLost as error:
        told = f"{error}, see cyberos-cuo runs list"
        return report("output_lost", told, OUTPUT_LOST, as_json=False)
    except BrokenPipeError:
        # The reader went away (such as `| head`): nothing is wrong, and nobody to tell.
        mute(1)
        return 0
    except Exception as error:
        return _unexpected(error, as_json, debug)


def report(error: str, message: str, code: int, as_json: bool, **facts: Any) -> int:
    """Says what went wrong and returns the code."""
    told = _scrubbed(message)
    if as_json:
        document = {"error": error, **facts, "message": told, "exit_code": code}
        with contextlib.suppress(OutputLost):
            deliver(json.dumps(document))
    else:
        remark(f"error: {told}")
    return code


def _scrubbed(message: str) -> str:
    """Without personal data: some messages repeat an argument, and stderr ends up in logs."""
    from cuo_supervisor.core.scrub import scrub

    return scrub(message)


def _unexpected(error: Exception, as_json: bool, debug: bool) -> int:
    """An exception nobody planned. The store's errors are planned, wherever they surface."""
    from cuo_supervisor.compat import import_problem

    problem = import_problem(error)
    if problem is not None:
        return report("invalid_configuration", problem, USAGE, as_json)
    from cuo_supervisor.compose import translate

    known = translate(error)
    if known is not None:
        return report(known.error, str(known), known.exit_code, as_json)
    if debug:
        traceback.print_exception(error)
    ticket = uuid.uuid4().hex[:12]
    message = (
        f"this is a fault in cyberos-cuo ({type(error).__name__}), report {ticket}; "
        "run the command again with --debug and send what it prints"
    )
    return report("internal_error", message, BUG, as_json, report_id=ticket)


def _facts(error: SupervisorError) -> dict[str, Any]:
    if isinstance(error, (PersonaMismatch, PersonaVersionMismatch)):
        return {"claimed": error.claimed, "requested": error.requested}
    return {}
