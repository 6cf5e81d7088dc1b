"""A decision as one screen of text, with the disclosure of EU AI Act Art. 13 at its foot."""

from __future__ import annotations

import json

import click

from cuo_supervisor.cli.common import one_line, printable
from cuo_supervisor.core.models import InvocationResult, RoutingDecision
from cuo_supervisor.core.operations import why_unknown
from cuo_supervisor.core.personas import get_persona

__all__ = ["decision_text", "footer"]

_MEANING = {
    "auto": "the rules are confident",
    "ask": "likely, but a person should choose",
    "defer": "nothing fits; a person decides",
    "cascade_then_auto": "the model chose, confidently",
    "cascade_then_ask": "the model chose, but not confidently; a person should choose",
    "cascade": "undecided",
}

_REASONS = {
    "persona_defer_matrix": "this role leaves {operation} to a person, at any confidence",
    "approval_required": "{operation} needs a person's approval",
    "approval_denied": "a person denied it",
    "approval_expired": "the approval came, or was to be acted on, too late",
    "operation_unknown": "{unknown}, so it never runs on its own",
    "catalog_changed": "catalogue or persona is no longer the one this was decided with; ask again",
    "invocation_unknown": "an earlier attempt may have run the skill; it is not run twice",
}


def decision_text(decision: RoutingDecision, *, invoking: bool = True) -> str:
    """The whole answer for a terminal, colours included (click drops them off a terminal).

    `invoking` is False for a request that was to be decided only: nothing waits then.
    """
    head = decision.skill_chosen or "no skill chosen"
    colour = "green" if decision.routed else "yellow"
    lines = [
        click.style(
            f"{decision.path_taken} · {head} · {decision.confidence:.2f}", fg=colour, bold=True
        ),
        f"  {_MEANING[decision.path_taken]}",
    ]
    if decision.reason is not None:
        unknown = one_line(why_unknown(decision.operation))
        reason = _REASONS[decision.reason].format(operation=decision.operation, unknown=unknown)
        lines.append(click.style(f"  not invoked: {reason}", fg="yellow"))
    if decision.cascade_outcome not in (None, "success"):
        lines.append(f"  the model was asked in vain: {decision.cascade_outcome}")
    if decision.llm_pick is not None:
        lines.append(f"  the model's reason: {one_line(decision.llm_pick.rationale)}")
    if decision.invocation_result is not None:
        lines += ["", *_result_lines(decision.invocation_result)]
    if decision.alternatives:
        lines += ["", "  also considered" if decision.skill_chosen else "  candidates"]
        width = max(len(a.skill) for a in decision.alternatives)
        lines += [f"    {a.skill:<{width}}  {a.confidence:.2f}" for a in decision.alternatives]
    lines += ["", _next_line(decision, invoking), footer(decision)]
    return "\n".join(lines)


def footer(decision: RoutingDecision) -> str:
    """The disclosure line that chat, mail and project views show under an answer."""
    persona = get_persona(decision.persona_key)
    via = "Genie" if persona.short == "genie" else f"Genie → {persona.short} persona"
    target = decision.skill_chosen or f"no skill ({decision.path_taken})"
    model = " · model asked" if decision.llm_used or decision.cascade_outcome else ""
    # The decision's own word: a request that was blocked, denied, or left to a person is not routed.
    told = "routed via" if decision.routed else "not routed; decided via"
    return f"🤖 {told} {via} → {target} · {decision.confidence:.2f}{model}"


def _next_line(decision: RoutingDecision, invoking: bool) -> str:
    if decision.dry_run:
        return "dry run: nothing was recorded, nothing was invoked"
    if decision.reason == "approval_required" and invoking:
        return (
            f"run {decision.request_id} waits for a person\n"
            f"  what for:   cyberos-cuo runs show {decision.request_id}\n"
            f"  to answer:  cyberos-cuo supervisor resume {decision.request_id}"
            " --approve|--deny --reason TEXT"
        )
    return f"run {decision.request_id} · cyberos-cuo runs show {decision.request_id}"


def _result_lines(result: InvocationResult) -> list[str]:
    status = f"exit {result.exit_code}" + (f", {result.failure}" if result.failure else "")
    lines = [f"  {result.skill_name} ran: {status}, {result.duration_ms:.0f} ms"]
    for name, text in (("answer", _compact(result.stdout)), ("stderr", result.stderr)):
        shown = printable(text).strip().splitlines()
        lines += [f"    {name}: {line}" for line in shown[:12]]
        if len(shown) > 12:
            lines.append(f"    … {len(shown) - 12} more lines; --json shows all")
    return lines


def _compact(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text
