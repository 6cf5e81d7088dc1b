"""Texts that commands are given: UTF-8, whatever the terminal or the locale made of them."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import click

__all__ = ["in_utf8"]

C = TypeVar("C", bound=click.Command)


class _Utf8(click.types.StringParamType):
    """Text. In a locale without UTF-8 its bytes are read again as what they were."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            return os.fsencode(text).decode("utf-8")
        except UnicodeError:
            self.fail("not valid UTF-8; check the terminal's or file's encoding", param, ctx)


def in_utf8(command: C) -> C:
    """The command, it and its subcommands taking no other texts. Paths may be any bytes."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = _Utf8()
    if isinstance(command, click.Group):
        for child in command.commands.values():
            in_utf8(child)
    return command
