"""Ask the model at most twice, inside one budget, and accept only a pick that holds.

The port (`Model`) and its two results stand here, beside their only consumer; the client that
fulfils it lives in `gateway`. Nothing here raises for anything a model or gateway can do: every
end is a `CascadeResult` whose `outcome` is one of the words of `core.models.CascadeOutcome`.
A pick that comes out has passed no gate; it still has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from .core.models import Candidate, CascadeOutcome, LlmRoutingPick
from .core.prompt import (
    AnswerProblem,
    Message,
    PersonaView,
    build_prompt,
    parse_answer,
    prompt_sha256,
)

__all__ = [
    "CASCADE_BUDGET_S",
    "MAX_ATTEMPTS",
    "CascadeResult",
    "FailureOutcome",
    "GatewayFailure",
    "GatewayReply",
    "Model",
    "SkillLookup",
    "run_cascade",
]

CASCADE_BUDGET_S: Final = 3.0
"""Seconds for the whole cascade, both attempts together (DEC-169; D10.2)."""

MAX_ATTEMPTS: Final = 2
"""The first question and one stricter repetition (TASK-CUO-101 §1 #23)."""

FailureOutcome = Literal[
    "timeout",
    "gateway_unreachable",
    "gateway_error",
    "residency_denied",
    "budget_exceeded",
    "not_ready",
    "unusable_reply",
]


@dataclass(frozen=True)
class GatewayReply:
    """The model's text as the gateway handed it over; `status` is the HTTP status."""

    text: str
    status: int


@dataclass(frozen=True)
class GatewayFailure:
    """No text came. `detail` is made of fixed words only, never of what a server or user said.

    `unusable_reply` means the gateway answered 200 but its envelope holds no text (not JSON, cut
    off, no choices, null content, too large); asking again may help, unlike for all the others.
    """

    outcome: FailureOutcome
    status: int | None
    detail: str


class Model(Protocol):
    """A way to a model. Must not raise for anything the far side does."""

    async def complete(
        self,
        messages: list[Message],
        *,
        tenant_id: str,
        decision_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> GatewayReply | GatewayFailure: ...


class SkillLookup(Protocol):
    """The catalogue, as far as a pick is concerned. Unknown: `None` or `KeyError`."""

    def get(self, skill_name: str, /) -> Any: ...


@dataclass(frozen=True)
class CascadeResult:
    """How the cascade ended.

    `elapsed_ms` is measured on the clock passed in. `answer` is the last text the model gave
    (for replay; it is user data and belongs in the state, not in audit rows), `problem` what was
    wrong with it, `prompt_sha256` names the last prompt sent. `detail` is fixed words.
    """

    pick: LlmRoutingPick | None
    outcome: CascadeOutcome
    attempts: int
    elapsed_ms: int
    prompt_sha256: str
    answer: str | None = None
    problem: AnswerProblem | None = None
    detail: str = ""
    status: int | None = None
    dropped_candidates: int = 0


async def run_cascade(
    model: Model,
    *,
    query: str,
    persona: PersonaView,
    candidates: Sequence[Candidate],
    catalog: SkillLookup,
    validate_arguments: Callable[[Mapping[str, Any], Any], Sequence[str]],
    tenant_id: str,
    decision_id: str,
    traceparent: str,
    monotonic: Callable[[], float],
    budget_s: float = CASCADE_BUDGET_S,
) -> CascadeResult:
    """Ask, validate, ask once more more strictly, and give up politely.

    Only an unacceptable answer earns the second attempt; a time-out, an unreachable gateway and
    every refusal end the cascade at once. Both attempts draw on the same `budget_s`; an answer
    that arrives after it is a time-out even if it would have been a good one. Cancellation
    passes through.
    """
    started = monotonic()
    rejected: AnswerProblem | None = None
    answer: str | None = None
    digest, dropped, attempt, status, detail = "", 0, 0, None, ""
    about = _about(catalog, candidates)

    def ended(outcome: CascadeOutcome, pick: LlmRoutingPick | None = None) -> CascadeResult:
        return CascadeResult(
            pick=pick,
            outcome=outcome,
            attempts=attempt,
            elapsed_ms=max(0, round((monotonic() - started) * 1000)),
            prompt_sha256=digest,
            answer=answer,
            problem=rejected,
            detail=detail,
            status=status,
            dropped_candidates=dropped,
        )

    while attempt < MAX_ATTEMPTS:
        remaining = budget_s - (monotonic() - started)
        if remaining <= 0:
            return ended("timeout")
        prompt = build_prompt(
            query=query,
            # The subject and the clock stay out: the choice needs neither, and a prompt that is
            # the same for the same request can be compared across replays.
            envelope={
                "tenant_id": tenant_id,
                "persona_key": persona.key,
                "request_id": decision_id,
            },
            persona=persona,
            candidates=candidates,
            about=about,
            rejected=rejected,
        )
        digest, dropped = prompt_sha256(prompt.messages), prompt.dropped_candidates
        attempt += 1
        reply = await _ask(
            model, list(prompt.messages), tenant_id, decision_id, traceparent, remaining
        )
        status = reply.status
        if isinstance(reply, GatewayFailure):
            detail = reply.detail
            if reply.outcome == "not_ready":
                attempt -= 1  # nothing was asked
            if reply.outcome != "unusable_reply":
                return ended(reply.outcome)
            answer, rejected = None, AnswerProblem.EMPTY
        else:
            answer, detail = reply.text, ""
            verdict = _judge(reply.text, candidates, catalog, validate_arguments)
            if isinstance(verdict, LlmRoutingPick):
                if monotonic() - started > budget_s:
                    return ended("timeout")
                rejected = None
                return ended("success", verdict)
            rejected = verdict
    return ended(_outcome(rejected))


async def _ask(
    model: Model,
    messages: list[Message],
    tenant_id: str,
    decision_id: str,
    traceparent: str,
    remaining: float,
) -> GatewayReply | GatewayFailure:
    try:
        # wait_for although the model was told the limit: the budget must hold for a model that
        # does not keep it.
        return await asyncio.wait_for(
            model.complete(
                messages,
                tenant_id=tenant_id,
                decision_id=decision_id,
                traceparent=traceparent,
                timeout_s=remaining,
            ),
            timeout=remaining,
        )
    except TimeoutError:
        return GatewayFailure("timeout", None, "budget spent")


def _judge(
    text: str,
    candidates: Sequence[Candidate],
    catalog: SkillLookup,
    validate_arguments: Callable[[Mapping[str, Any], Any], Sequence[str]],
) -> LlmRoutingPick | AnswerProblem:
    pick = parse_answer(text)
    if isinstance(pick, AnswerProblem):
        return pick
    manifest = _look_up(catalog, pick.skill_name)
    if manifest is None:
        # A bare name is accepted when exactly one version of it was offered.
        full = [
            c.skill_name for c in candidates if c.skill_name.partition("@")[0] == pick.skill_name
        ]
        if len(full) != 1 or (manifest := _look_up(catalog, full[0])) is None:
            return AnswerProblem.UNKNOWN_SKILL
        pick = pick.model_copy(update={"skill_name": full[0]})
    if validate_arguments(pick.arguments, manifest):
        return AnswerProblem.BAD_ARGUMENTS
    return pick


def _look_up(catalog: SkillLookup, skill_name: str) -> Any:
    try:
        return catalog.get(skill_name)
    except KeyError:
        return None


def _about(catalog: SkillLookup, candidates: Sequence[Candidate]) -> dict[str, dict[str, Any]]:
    """What the manifests say that helps to choose: description, and the arguments each takes."""
    found: dict[str, dict[str, Any]] = {}
    for candidate in candidates:
        manifest = _look_up(catalog, candidate.skill_name)
        entry: dict[str, Any] = {}
        if description := getattr(manifest, "description", ""):
            entry["description"] = description
        takes = {
            spec.name: {
                "type": spec.type,
                "required": spec.required,
                "description": spec.description,
                **({"one_of": sorted(spec.choices)} if spec.choices else {}),
            }
            for spec in getattr(manifest, "arguments", ())
        }
        if takes:
            entry["arguments_taken"] = takes
        found[candidate.skill_name] = entry
    return found


def _outcome(problem: AnswerProblem | None) -> CascadeOutcome:
    if problem is AnswerProblem.UNKNOWN_SKILL:
        return "unknown_skill"
    if problem is AnswerProblem.BAD_ARGUMENTS:
        return "bad_arguments"
    return "schema_violation"
