"""`cyberos-cuo completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from cuo_supervisor.cli.common import debug_option, deliver

__all__ = ["PATHS", "complete_path", "complete_persona", "complete_skill", "completion"]

PATHS = ("auto", "ask", "defer", "cascade_then_auto", "cascade_then_ask")
"""What a decision's `path_taken` may be."""

_EPILOG = """\b
Examples:
  cyberos-cuo completion bash > ~/.local/share/bash-completion/completions/cyberos-cuo
  cyberos-cuo completion zsh > "${fpath[1]}/_cyberos-cuo"
  cyberos-cuo completion fish > ~/.config/fish/completions/cyberos-cuo.fish
  source <(cyberos-cuo completion bash)      # this shell only
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell. It asks this command for each completion.

    A shell reads it as it is, so there is no --json.
    """
    made = get_completion_class(shell)
    if made is None:  # the choice above names only those click has
        raise click.UsageError(f"no completion for {shell}")
    deliver(made(ctx.find_root().command, {}, "cyberos-cuo", "_CYBEROS_CUO_COMPLETE").source())
    return 0


def complete_persona(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
    """Short names of personas."""
    from cuo_supervisor.core.personas import PERSONAS

    return [
        CompletionItem(p.short, help=p.key)
        for p in PERSONAS.values()
        if p.short.startswith(incomplete)
    ]


def complete_skill(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
    """Names in the catalogue that CUO_CATALOG names, or that ships; none when it cannot be read."""
    import os
    from pathlib import Path

    from cuo_supervisor.catalog_loader import load_catalog
    from cuo_supervisor.errors import SupervisorError

    place = os.environ.get("CUO_CATALOG")
    try:
        catalog = load_catalog(Path(place) if place else None)
    except SupervisorError:
        return []
    return [
        CompletionItem(skill.skill_name, help=skill.description)
        for skill in catalog.skills
        if skill.skill_name.startswith(incomplete)
    ]


def complete_path(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
    """The paths a decision may take."""
    return [CompletionItem(name) for name in PATHS if name.startswith(incomplete)]
