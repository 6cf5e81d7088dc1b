"""`cyberos-cuo`: the command's root. Subcommands are imported when they are named."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import textwrap
from typing import Final, NoReturn

import click
from click.shell_completion import CompletionItem

from cuo_checkpoint.cli_text import in_utf8, version_option
from cuo_supervisor.cli.common import mute
from cuo_supervisor.cli.exits import MEANINGS, run_main

__all__ = ["cli", "main"]

_COMMANDS: Final = {
    "supervisor": (
        "cuo_supervisor.cli.supervisor_cmd",
        "supervisor",
        "Route a request; answer or continue a run.",
    ),
    "runs": (
        "cuo_supervisor.cli.runs_cmd",
        "runs",
        "Read the log: list, show, verify and export runs.",
    ),
    "serve": ("cuo_supervisor.cli.serve_cmd", "serve", "Serve the HTTP API and the run pages."),
    "doctor": (
        "cuo_supervisor.cli.doctor_cmd",
        "doctor",
        "Check settings, database, skills and gateway.",
    ),
    "completion": (
        "cuo_supervisor.cli.completion_cmd",
        "completion",
        "Print what bash, zsh or fish needs to complete commands.",
    ),
}


class _Lazy(click.Group):
    """Knows its subcommands by name and help; imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        return in_utf8(command) if isinstance(command, click.Command) else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The original imports every command to ask whether it is hidden.
        named = [
            CompletionItem(name, help=text)
            for name, (_, _, text) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


_CODES: Final = textwrap.fill(
    "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + ".",
    width=94,
)
_EPILOG: Final = f"""\b
Examples:
  cyberos-cuo supervisor route --query "validate MST 0301479073" --persona cfo
  echo "gửi hóa đơn cho ACME" | cyberos-cuo supervisor route --query - --json
  # this one waits for a person, who answers with supervisor resume
  cyberos-cuo supervisor route --query "transfer 5M VND to ACME account 0123456789" --persona coo
  cyberos-cuo runs list
  cyberos-cuo doctor

\b
{_CODES}
"""


@click.group(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("cyberos-cuo, version {}")
def cli() -> None:
    """Turns a request in words (English or Vietnamese) into one governed skill call.

    Every step is kept in an append-only log. Without CUO_DATABASE_URL everything runs on this
    machine, in a database of its own.
    """


def main() -> None:
    """The console script."""
    # Imports make hardly any garbage; the collector looks more rarely for it in so short a life.
    gc.set_threshold(50_000, 20, 20)
    code = run_main(in_utf8(cli), "cyberos-cuo")
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            mute(1)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the process with the code, also amid the loading of the model client.

    An interpreter that ends stops other threads where they are; inside an extension's start-up
    that aborts the process, and whoever asked it to stop would read a crash.
    """
    provider = sys.modules.get("cuo_supervisor.gateway_provider")
    if provider is not None and provider.is_loading():
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
