"""`cyberos-cuo supervisor skills`: the catalogue, or why a request matches what it matches."""

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
    one_line,
    place_of,
    run_uuid,
    stdin_text,
)
from cuo_supervisor.cli.completion_cmd import complete_persona
from cuo_supervisor.core.envelope import MAX_QUERY_BYTES, check_query

if TYPE_CHECKING:
    from cuo_supervisor.core.catalog import Catalog
    from cuo_supervisor.core.explain import ExplainedSkill, Explanation
    from cuo_supervisor.settings import Settings

__all__ = ["skills"]

_GATES = {
    "pass": "may run on its own",
    "persona_defer_matrix": "left to a person by this persona, at any confidence",
    "approval_required": "waits for a person's approval",
    "operation_unknown": "never runs on its own: {unknown}",
}


_EPILOG: Final = """\b
Examples:
  cyberos-cuo supervisor skills
  cyberos-cuo supervisor skills --query "gửi hóa đơn cho ACME" --persona cfo
  cyberos-cuo supervisor skills --run 01M8PZMV75EB6AHSM2Y2NT99T7 --json
"""


@click.command(epilog=_EPILOG, short_help="The catalogue, or why a request matches it.")
@click.option("--query", help="Explain how this request matches; - reads it from standard input.")
@click.option(
    "--persona",
    default="genie",
    show_default=True,
    shell_complete=complete_persona,
    help="Who would ask.",
)
@click.option("--run", metavar="RUN", help="The catalogue as it was when this run was decided.")
@json_option
@debug_option
def skills(query: str | None, persona: str, run: str | None, as_json: bool) -> int:
    """The catalogue's skills; with --query, why they match it. Nothing is recorded or invoked."""
    from cuo_supervisor.catalog_loader import load_catalog
    from cuo_supervisor.core.branching import may_pass

    settings = load_settings()
    catalog = load_catalog(settings.catalog) if run is None else _catalog_then(settings, run)
    if query is not None:
        from cuo_supervisor.core.explain import explain
        from cuo_supervisor.core.personas import get_persona

        text = check_query(stdin_text(MAX_QUERY_BYTES) if query == "-" else query)
        explanation = explain(text, get_persona(persona), catalog)
        if as_json:
            emit_json(asdict(explanation))
        else:
            deliver(_explained_text(explanation))
        return 0
    if as_json:
        emit_json({"snapshot_hash": catalog.snapshot_hash, **catalog.to_snapshot()})
        return 0
    for skill in catalog.skills:
        gate = "needs approval" if skill.is_destructive else ""
        if not may_pass(skill):
            gate = "never runs"
        deliver(
            f"{skill.skill_name:<28} {skill.operation or '-':<18} {gate:<15} {skill.description}"
        )
    return 0


def _catalog_then(settings: Settings, run: str) -> Catalog:
    """The stored snapshot a run was decided with."""
    import asyncio

    from cuo_supervisor.compose import CuoStore, identity_of
    from cuo_supervisor.replay import catalog_of_run

    run_id = run_uuid(run)
    identity = identity_of(settings, approver=True)

    async def read(place: Any) -> Catalog:
        store = CuoStore(place, max_connections=1)
        try:
            return await catalog_of_run(store, run_id, identity=identity)
        finally:
            await store.aclose()

    with place_of(settings) as place:
        return asyncio.run(read(place))


def _explained_text(explanation: Explanation) -> str:
    lines = [
        click.style(f"by the rules alone: {explanation.path}", bold=True),
        f"  {explanation.why} (as {explanation.persona_key})",
    ]
    if not explanation.candidates:
        lines.append("  no skill has a word of this request in its phrases, name or keywords")
    for candidate in explanation.candidates:
        lines += ["", *_skill_lines(candidate)]
    return "\n".join(lines)


def _skill_lines(candidate: ExplainedSkill) -> list[str]:
    from cuo_supervisor.core.operations import why_unknown

    gate = _GATES[candidate.gate].format(unknown=one_line(why_unknown(candidate.operation)))
    lines = [
        click.style(f"{candidate.skill_name}  {candidate.confidence:.2f}", bold=True),
        f"  gate        {gate} ({candidate.operation or 'no operation'})",
    ]
    for trigger in candidate.triggers:
        words = one_line(" ".join(trigger.words))
        lines.append(f'  trigger     {trigger.share:.2f} of "{trigger.phrase}": {words}')
    for name, counted in (
        ("keywords", candidate.keywords),
        ("persona", candidate.persona_words),
        ("unknown", candidate.unknown_words),
    ):
        if counted:
            lines.append(f"  {name:<11} {one_line(', '.join(counted))}")
    parts = ", ".join(f"{name} {value:g}" for name, value in candidate.components.items() if value)
    lines.append(f"  components  {parts}")
    if candidate.arguments:
        named = ", ".join(f"{name}={value}" for name, value in candidate.arguments.items())
        lines.append(f"  arguments   {one_line(named)}")
    if candidate.missing_arguments:
        lines.append(f"  missing     {', '.join(candidate.missing_arguments)}")
    lines += [f"  held back   {one_line(reason)}" for reason in candidate.held_back]
    return lines
