"""`cyberos-cuo supervisor`: route, resume, continue, expire, replay, skills, personas, graph."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
    stdin_text,
    telemetry_sent,
)
from cuo_supervisor.cli.completion_cmd import complete_persona
from cuo_supervisor.cli.expire_cmd import expire
from cuo_supervisor.cli.replay_cmd import replay
from cuo_supervisor.cli.skills_cmd import skills
from cuo_supervisor.core.envelope import MAX_QUERY_BYTES, check_query
from cuo_supervisor.errors import UsageError

if TYPE_CHECKING:
    from cuo_supervisor.settings import Settings

__all__ = ["supervisor"]

_EPILOG: Final = """\b
Examples:
  cyberos-cuo supervisor route --query "validate MST 0301479073" --persona cfo
  cyberos-cuo supervisor route --query "send invoice" --no-invoke --json
  cyberos-cuo supervisor route --query "gửi hóa đơn" --no-invoke --no-record
  # this one waits for a person, who answers with resume
  cyberos-cuo supervisor route --query "transfer 5M VND to ACME account 0123456789" --persona coo
  cyberos-cuo supervisor resume 01JE... --approve --reason "checked with ACME"
"""


_RESUME_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs list --state waiting
  cyberos-cuo runs show 01M8PZMV75EB6AHSM2Y2NT99T7       # what it would do
  cyberos-cuo supervisor resume 01M8PZMV75EB6AHSM2Y2NT99T7 --approve --reason "checked with ACME"
  cyberos-cuo supervisor resume 01M8PZMV75EB6AHSM2Y2NT99T7 --deny --reason "wrong account"
"""

_CONTINUE_EPILOG: Final = """\b
Examples:
  cyberos-cuo runs list --state open                     # its process went away
  cyberos-cuo runs list --outcome run_failed             # or was stopped amid the run
  cyberos-cuo supervisor continue 01M8PZMV75EB6AHSM2Y2NT99T7
"""

_PERSONAS_EPILOG: Final = """\b
Examples:
  cyberos-cuo supervisor personas
  cyberos-cuo supervisor personas --json | jq -r '.[].short'
"""

_GRAPH_EPILOG: Final = """\b
Examples:
  cyberos-cuo supervisor graph > graph.mmd
"""


@click.group(epilog=_EPILOG)
def supervisor() -> None:
    """Route a request to a skill, under the persona's rules."""


@supervisor.command(epilog=_EPILOG, short_help="Decide which skill a request is for, and run it.")
@click.option(
    "--query", required=True, help="The request in words; - reads it from standard input."
)
@click.option(
    "--persona",
    default="genie",
    show_default=True,
    shell_complete=complete_persona,
    help="Who asks: genie, ceo, coo, cfo, cmo, cto, chro, cso, clo, cdo, cpo.",
)
@click.option("--invoke/--no-invoke", default=True, show_default=True, help="Run the chosen skill.")
@click.option(
    "--record/--no-record",
    default=True,
    show_default=True,
    help="Write the log and the decision; --no-record implies --no-invoke.",
)
@click.option(
    "--traceparent", help="W3C trace context of the caller; malformed ones start a fresh trace."
)
@json_option
@debug_option
@click.pass_context
def route(
    ctx: click.Context,
    query: str,
    persona: str,
    invoke: bool,
    record: bool,
    traceparent: str | None,
    as_json: bool,
) -> int:
    """Decide which skill a request is for, and run it where the gates allow."""
    chosen = ctx.get_parameter_source("invoke")
    if not record and invoke and chosen is click.core.ParameterSource.COMMANDLINE:
        raise UsageError(
            "--invoke with --no-record would run a skill without a trace; drop one of them"
        )
    text = check_query(stdin_text(MAX_QUERY_BYTES) if query == "-" else query)
    settings = load_settings()

    async def ask(made: Any, identity: Any) -> Any:
        return await made.route(
            text,
            persona_key=persona,
            identity=identity,
            do_invoke=invoke and record,
            do_record=record,
            traceparent=traceparent,
        )

    return _answer(settings, ask, as_json, durable=record, invoking=invoke and record)


@supervisor.command(epilog=_RESUME_EPILOG)
@click.argument("run")
@click.option("--approve", is_flag=True, default=False, help="Let the waiting skill run.")
@click.option("--deny", is_flag=True, default=False, help="End the run without it.")
@click.option("--reason", help="Why; kept with the answer.")
@json_option
@debug_option
def resume(run: str, approve: bool, deny: bool, reason: str | None, as_json: bool) -> int:
    """Answer a run that waits for approval. An answer counts once.

    `runs show RUN` says what would happen: the skill, its arguments, and what was asked for. At a
    terminal, without --approve and --deny, this is shown and the answer is asked for.
    """
    from cuo_supervisor.cli.asking import ask_person
    from cuo_supervisor.cli.common import run_uuid
    from cuo_supervisor.supervisor import Answer

    if approve and deny:
        # As when an alias adds one: the last word must not decide over the other.
        raise UsageError("say --approve or --deny, not both")
    if (approve or deny) and not reason:
        raise UsageError("an answer needs a reason: --reason TEXT")
    run_id = run_uuid(run)
    given = Answer(approve, reason or "") if approve or deny else None
    answer = given or ask_person(run_id, reason)

    async def ask(made: Any, identity: Any) -> Any:
        return await made.resume(run_id, answer, identity=identity)

    return _answer(load_settings(), ask, as_json, durable=True, approver=True)


@supervisor.command("continue", epilog=_CONTINUE_EPILOG)
@click.argument("run")
@click.option(
    "--rerun-idempotent",
    is_flag=True,
    default=False,
    help="Run the skill again although it may have run; only if its manifest says it is harmless.",
)
@json_option
@debug_option
def continue_(run: str, rerun_idempotent: bool, as_json: bool) -> int:
    """Continue a run whose process went away. A skill that may have run is not run again."""
    from cuo_supervisor.cli.common import run_uuid

    run_id = run_uuid(run)

    async def ask(made: Any, identity: Any) -> Any:
        return await made.carry_on(run_id, identity=identity, rerun_idempotent=rerun_idempotent)

    return _answer(load_settings(), ask, as_json, durable=True)


@supervisor.command(
    epilog=_PERSONAS_EPILOG, short_help="Who may ask, and what each leaves to people."
)
@json_option
@debug_option
def personas(as_json: bool) -> int:
    """The eleven personas, and the operations each leaves to a person."""
    from cuo_supervisor.core.personas import PERSONAS

    if as_json:
        emit_json(
            [
                {
                    "key": p.key,
                    "short": p.short,
                    "version": p.claim,
                    "defer_to_human_matrix": list(p.defer_to_human_matrix),
                }
                for p in PERSONAS.values()
            ]
        )
        return 0
    for p in PERSONAS.values():
        deliver(f"{p.short:<6} {p.key:<30} {', '.join(p.defer_to_human_matrix)}")
    return 0


supervisor.add_command(skills)
supervisor.add_command(replay)
supervisor.add_command(expire)


@supervisor.command(epilog=_GRAPH_EPILOG)
@json_option
@debug_option
def graph(as_json: bool) -> int:
    """The supervisor's graph, as Mermaid text."""
    from cuo_supervisor.graph import build_supervisor_graph

    drawn = build_supervisor_graph().compile().get_graph()
    if as_json:
        emit_json(drawn.to_json())
    else:
        deliver(drawn.draw_mermaid())
    return 0


def _answer(
    settings: Settings,
    ask: Callable[[Any, Any], Awaitable[Any]],
    as_json: bool,
    *,
    durable: bool,
    approver: bool = False,
    invoking: bool = True,
) -> int:
    """Opens what the call needs, makes it, prints the decision, returns its exit code."""
    import contextlib

    from cuo_supervisor.cli.render import decision_text
    from cuo_supervisor.compose import identity_of, make_supervisor
    from cuo_supervisor.core.decision import exit_code_of

    identity = identity_of(settings, approver=approver)

    async def work(place: Any) -> Any:
        async with make_supervisor(settings, place, say=remark, max_connections=2) as made:
            return await ask(made, identity)

    with contextlib.ExitStack() as stack:
        stack.enter_context(telemetry_sent())
        place = stack.enter_context(place_of(settings)) if durable else None
        decision = asyncio.run(work(place))
    if as_json:
        emit_json(decision.model_dump(mode="json"))
    else:
        deliver(decision_text(decision, invoking=invoking))
    return exit_code_of(decision)
