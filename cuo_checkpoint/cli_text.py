"""Texts that commands are given and give of themselves.

Given ones are UTF-8, whatever the terminal or the locale made of them. Help and version are results
like any other: click's own writing of them takes a full disk for a bug, and a reader that went away
for an exit code of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cuo_checkpoint.cli_output import deliver

__all__ = ["NEW_FOLDER", "in_utf8", "version_option"]

C = TypeVar("C", bound=click.Command)
F = TypeVar("F", bound=Callable[..., Any])


class _Utf8(click.types.StringParamType):
    """Text. In a locale without UTF-8 its bytes are read again as what they were."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            return os.fsencode(text).decode("utf-8")
        except UnicodeError:
            self.fail("not valid UTF-8; check the terminal's or file's encoding", param, ctx)


class _NewFolder(click.Path):
    """A folder that is not there yet, by a name that one could have."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("is empty; name a new folder", param, ctx)
        try:
            os.lstat(value)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self.fail("is longer than a name may be", param, ctx)
        return super().convert(value, param, ctx)


NEW_FOLDER: Final = _NewFolder(path_type=Path)


def version_option(message: str) -> Callable[[F], F]:
    """`--version`: prints `message` with the package's version in the place of {}."""

    def show(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            from importlib.metadata import version

            deliver(message.format(version("cuo")))
            ctx.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        help="Show the version and exit.",
        callback=show,
    )


def _show_help(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        deliver(ctx.get_help())
        ctx.exit()


def in_utf8(command: C) -> C:
    """The command, it and its subcommands taking no other texts. Paths may be any bytes.

    Their help is written as results are.
    """
    helping = command.get_help_option(click.Context(command, help_option_names=["-h", "--help"]))
    if helping is not None:
        helping.callback = _show_help
    for param in command.params:
        if param.type is click.STRING:
            param.type = _Utf8()
    if isinstance(command, click.Group):
        for child in command.commands.values():
            in_utf8(child)
    return command
