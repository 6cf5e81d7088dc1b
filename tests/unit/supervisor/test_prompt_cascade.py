"""Two attempts, one budget, and what each end is called."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from cuo_supervisor.cascade import (
    CascadeResult,
    GatewayFailure,
    GatewayReply,
    run_cascade,
)
from cuo_supervisor.core.models import Candidate
from cuo_supervisor.core.prompt import AnswerProblem, Message

PICK = {
    "skill_name": "inv-dunning-draft@1.2",
    "arguments": {"customer": "ACME"},
    "rationale": "unpaid",
    "confidence": 0.83,
}
CATALOG: dict[str, Any] = {
    "inv-dunning-draft@1.2": object(),
    "crm-deal-update@1.0": object(),
    "crm-deal-update@2.0": object(),
}
CANDIDATES = [Candidate(skill_name=name, confidence=0.3) for name in CATALOG]


@dataclass(frozen=True)
class Persona:
    key: str = "genie"
    display_name: str = "Genie"
    system_prompt: str = "Route."


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedModel:
    """A `Model` that gives prepared replies and advances the clock by `cost` per call."""

    replies: list[Any]
    clock: Clock = field(default_factory=Clock)
    cost: float = 0.5
    prompts: list[list[Message]] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    async def complete(
        self, messages: list[Message], *, timeout_s: float, **_: str
    ) -> GatewayReply | GatewayFailure:
        self.prompts.append(messages)
        self.limits.append(timeout_s)
        self.clock.now += self.cost
        reply = self.replies.pop(0)
        if isinstance(reply, GatewayFailure):
            return reply
        return GatewayReply(reply if isinstance(reply, str) else json.dumps(reply), 200)


def check(arguments: Any, manifest: object) -> list[str]:
    return ["customer: not text"] if not isinstance(arguments.get("customer", ""), str) else []


async def cascade(model: Any, **options: Any) -> CascadeResult:
    return await run_cascade(
        model,
        query="what about the unpaid contract",
        persona=Persona(),
        candidates=CANDIDATES,
        catalog=CATALOG,
        validate_arguments=check,
        tenant_id="t",
        decision_id="d",
        traceparent="",
        monotonic=options.pop("monotonic", None) or model.clock,
        **options,
    )


async def test_success() -> None:
    """A good first answer ends it: one attempt, the answer and the prompt's digest kept."""
    model = ScriptedModel([PICK])
    result = await cascade(model)
    assert result.outcome == "success"
    assert result.pick is not None
    assert result.pick.model_dump() == PICK
    assert (result.attempts, result.elapsed_ms) == (1, 500)
    assert result.answer == json.dumps(PICK)
    assert len(result.prompt_sha256) == 64
    assert result.problem is None


async def test_second_attempt_is_stricter_and_shares_the_budget() -> None:
    """A bad answer is followed by one stricter question with what is left of three seconds."""
    model = ScriptedModel(["I think you should", PICK])
    result = await cascade(model)
    assert (result.outcome, result.attempts) == ("success", 2)
    assert model.limits == [3.0, 2.5]
    assert "rejected (not_json)" in model.prompts[1][0]["content"]
    assert "I think you should" not in json.dumps(model.prompts[1])


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        ("freeform", "schema_violation"),
        ("", "schema_violation"),
        ({**PICK, "confidence": 2}, "schema_violation"),
        ({**PICK, "skill_name": "make-up-skill"}, "unknown_skill"),
        ({**PICK, "skill_name": "crm-deal-update"}, "unknown_skill"),
        ({**PICK, "arguments": {"customer": 7}}, "bad_arguments"),
        (GatewayFailure("unusable_reply", 200, "reply is not JSON"), "schema_violation"),
    ],
    ids=str,
)
async def test_two_bad_answers(bad: Any, outcome: str) -> None:
    """Twice unacceptable: no pick, never a third question."""
    model = ScriptedModel([bad, bad, PICK])
    result = await cascade(model)
    assert (result.outcome, result.pick, result.attempts) == (outcome, None, 2)
    assert len(model.prompts) == 2
    assert isinstance(result.problem, AnswerProblem)


@pytest.mark.parametrize(
    "outcome",
    ["timeout", "gateway_unreachable", "gateway_error", "residency_denied", "budget_exceeded"],
)
async def test_failures_end_at_once(outcome: Any) -> None:
    """A failure of the gateway is not asked again."""
    model = ScriptedModel([GatewayFailure(outcome, 451, "fixed"), PICK])
    result = await cascade(model)
    assert (result.outcome, result.attempts, result.pick) == (outcome, 1, None)
    assert (result.status, result.detail) == (451, "fixed")


async def test_not_ready_counts_no_attempt() -> None:
    """A model that is still loading was not asked."""
    model = ScriptedModel([GatewayFailure("not_ready", None, "loading")])
    result = await cascade(model)
    assert (result.outcome, result.attempts) == ("not_ready", 0)


async def test_budget_spent_after_bad_answer() -> None:
    """No second question once three seconds are gone."""
    model = ScriptedModel(["freeform", PICK], cost=3.0)
    result = await cascade(model)
    assert (result.outcome, result.attempts) == ("timeout", 1)


async def test_late_answer_is_a_timeout() -> None:
    """A good answer after the budget is a time-out: the limit is hard."""
    result = await cascade(ScriptedModel([PICK], cost=3.012))
    assert (result.outcome, result.pick, result.elapsed_ms) == ("timeout", None, 3012)


async def test_model_that_ignores_its_limit() -> None:
    """The budget holds even for a model that does not keep it."""

    class Deaf:
        async def complete(self, messages: list[Message], **_: Any) -> GatewayReply:
            await asyncio.sleep(30)
            raise AssertionError

    result = await cascade(Deaf(), monotonic=time.monotonic, budget_s=0.05)
    assert (result.outcome, result.attempts) == ("timeout", 1)
    assert 40 <= result.elapsed_ms < 1000


async def test_bare_name_resolves_when_one_version_was_offered() -> None:
    """A name without version is completed from the offer when that is unambiguous."""
    result = await cascade(ScriptedModel([{**PICK, "skill_name": "inv-dunning-draft"}]))
    assert result.pick is not None
    assert result.pick.skill_name == "inv-dunning-draft@1.2"


async def test_catalogue_that_raises_keyerror() -> None:
    """A catalogue may say "unknown" by KeyError as well as by None."""

    class Strict:
        def get(self, skill_name: str) -> object:
            return CATALOG[skill_name]

    model = ScriptedModel([{**PICK, "skill_name": "nope@1.0"}, PICK])
    result = await run_cascade(
        model,
        query="q",
        persona=Persona(),
        candidates=CANDIDATES,
        catalog=Strict(),
        validate_arguments=check,
        tenant_id="t",
        decision_id="d",
        traceparent="",
        monotonic=model.clock,
    )
    assert (result.outcome, result.attempts) == ("success", 2)
