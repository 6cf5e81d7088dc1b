"""The whole cascade over the wire: real catalogue, real client, a server that misbehaves."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from loopback_gateway import LoopbackGateway, Step

from cuo_supervisor.cascade import CascadeResult, run_cascade
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.arguments import validate_arguments
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.prompt import AnswerProblem
from cuo_supervisor.core.scoring import score_one_off
from cuo_supervisor.gateway import Gateway

QUERY = "what should we do about the unpaid Q4 contract from ACME"
CATALOG = load_catalog()
GOOD = {
    "skill_name": "inv-dunning-draft@1.2",
    "arguments": {"customer": "ACME"},
    "rationale": "An unpaid contract calls for a reminder.",
    "confidence": 0.85,
}


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Load LiteLLM once; its import warns about its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gateway = Gateway()
        gateway.warm_up()
        assert gateway.wait_ready(120)


@pytest.fixture
def server() -> Iterator[LoopbackGateway]:
    with LoopbackGateway() as running:
        yield running


async def cascade(url: str, **options: Any) -> CascadeResult:
    persona = get_persona("genie")
    gateway = Gateway(base_url=url)
    try:
        return await run_cascade(
            gateway,
            query=QUERY,
            persona=persona,
            candidates=score_one_off(QUERY, persona, CATALOG)[:5],
            catalog=CATALOG,
            validate_arguments=validate_arguments,
            tenant_id="t",
            decision_id="01HG7V8B0K8M4Z8Z8M8M8M8M8M",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            monotonic=time.monotonic,
            **options,
        )
    finally:
        await gateway.aclose()


async def test_stand_in_picks_the_dunning_draft(server: LoopbackGateway) -> None:
    """With nothing scripted the double reads the offer from the prompt and picks at 0.83."""
    result = await cascade(server.url)
    assert result.outcome == "success"
    assert result.pick is not None
    assert (result.pick.skill_name, result.pick.confidence) == ("inv-dunning-draft@1.2", 0.83)


async def test_prompt_describes_the_offer(server: LoopbackGateway) -> None:
    """The model sees what each candidate does and which arguments it takes."""
    await cascade(server.url)
    text = server.requests[0].body["messages"][1]["content"]
    document = json.loads(text.split("\n", 1)[1].rsplit("\n", 1)[0])
    entry = next(c for c in document["candidates"] if c["skill_name"] == "inv-dunning-draft@1.2")
    assert "reminder" in entry["description"]
    assert entry["arguments_taken"]["amount_vnd"]["type"] == "integer"
    assert entry["arguments_taken"]["level"]["one_of"] == ["final", "first", "second"]


@pytest.mark.criterion("101-AC9")
@pytest.mark.parametrize(
    ("answer", "outcome", "problem"),
    [
        ("I think you should...", "schema_violation", AnswerProblem.NOT_JSON),
        (json.dumps(GOOD)[:60], "schema_violation", AnswerProblem.NOT_JSON),
        (GOOD | {"skill_name": "make-up-skill"}, "unknown_skill", AnswerProblem.UNKNOWN_SKILL),
        (GOOD | {"arguments": {"x": 1}}, "bad_arguments", AnswerProblem.BAD_ARGUMENTS),
        (GOOD | {"arguments": {"amount_vnd": "4M"}}, "bad_arguments", AnswerProblem.BAD_ARGUMENTS),
    ],
    ids=str,
)
async def test_two_bad_answers(
    server: LoopbackGateway, answer: Any, outcome: str, problem: AnswerProblem
) -> None:
    """An answer that is refused twice ends without a pick after exactly two requests."""
    server.script(Step("answer", answer=answer), Step("answer", answer=answer))
    result = await cascade(server.url)
    assert (result.outcome, result.problem, result.pick) == (outcome, problem, None)
    assert len(server.requests) == result.attempts == 2
    first, second = (request.body["messages"] for request in server.requests)
    assert first[1] == second[1]
    assert f"rejected ({problem.value})" in second[0]["content"]


@pytest.mark.parametrize("mode", ["malformed", "truncated", "empty", "null_content", "no_choices"])
async def test_unusable_envelope_is_asked_again(server: LoopbackGateway, mode: str) -> None:
    """An envelope without text earns the second attempt, which may succeed."""
    server.script(Step(mode), Step("answer", answer=GOOD))
    result = await cascade(server.url)
    assert (result.outcome, result.attempts) == ("success", 2)


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (Step("status", status=451), "residency_denied"),
        (Step("status", status=402), "budget_exceeded"),
        (Step("status", status=429), "budget_exceeded"),
        (Step("status", status=503), "gateway_error"),
        (Step("reset"), "gateway_unreachable"),
    ],
    ids=str,
)
async def test_refusals_are_not_repeated(server: LoopbackGateway, step: Step, outcome: str) -> None:
    """A refusal ends the cascade after one request."""
    server.script(step)
    result = await cascade(server.url)
    assert (result.outcome, result.attempts, len(server.requests)) == (outcome, 1, 1)


@pytest.mark.clause("101-6")
@pytest.mark.slow
async def test_three_seconds_for_both_attempts(server: LoopbackGateway) -> None:
    """A bad answer after two seconds leaves one second for the second attempt, not three."""
    server.script(Step("answer", answer="prose", delay_s=2.0), Step("answer", GOOD, delay_s=5.0))
    started = time.monotonic()
    result = await cascade(server.url)
    assert (result.outcome, result.attempts) == ("timeout", 2)
    assert 2.9 < time.monotonic() - started < 3.5
    assert 2900 <= result.elapsed_ms <= 3500


@pytest.mark.slow
async def test_slow_success_within_budget(server: LoopbackGateway) -> None:
    """An answer after 2.5 s is used, and the whole cascade stays under 3.5 s."""
    server.script(Step("answer", GOOD, delay_s=2.5))
    started = time.monotonic()
    result = await cascade(server.url)
    assert result.outcome == "success"
    assert time.monotonic() - started < 3.5
