"""From graph state to the answer a caller gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import click
import pytest

from cuo_supervisor.cli.render import decision_text
from cuo_supervisor.core import models
from cuo_supervisor.core.decision import chosen_of, decision_of, exit_code_of, outcome_of
from cuo_supervisor.core.models import RoutingDecision
from cuo_supervisor.http.run_page import gates_of, headline_of

PICK = {
    "skill_name": "c@1.0",
    "arguments": {"x": 1},
    "rationale": "because",
    "confidence": 0.83,
}


def state(path: str, **more: Any) -> dict[str, Any]:
    scored = [
        {"skill_name": f"{name}@1.0", "confidence": value, "arguments": {}, "score_components": {}}
        for name, value in (("a", 0.9), ("b", 0.5), ("c", 0.4), ("d", 0.3), ("e", 0.0))
    ]
    return {
        "branch_decision": path,
        "rule_scores": scored,
        "persona_key": "genie",
        "persona_version": "cuo-genie@0.1.0",
        "catalog_snapshot_hash": "0" * 64,
        "request_id": "01M8Q05D6TEYXTMDMD111EEJP6",
        "ts_ns_start": 1,
    } | more


def decide(path: str, **more: Any) -> RoutingDecision:
    return decision_of(state(path, **more), ts_ns_end=2, dry_run=False)


def result(code: int, failure: str | None = None) -> dict[str, Any]:
    return {
        "skill_name": "a@1.0",
        "exit_code": code,
        "stdout": "",
        "stderr": "",
        "duration_ms": 1.0,
        "failure": failure,
    }


@pytest.mark.clause("101-13", "101-25")
@pytest.mark.criterion("101-AC29")
@pytest.mark.parametrize("path", get_args(models.PathTaken))
def test_the_disclosure_repeats_the_decision(path: str) -> None:
    """Skill, confidence, alternatives, path and model use stand in `transparency` too."""
    decision = decide(path, llm_pick=PICK if path.startswith("cascade_then") else None)
    shown = decision.transparency
    for name in ("skill_chosen", "confidence", "alternatives", "path_taken", "llm_used"):
        assert getattr(shown, name) == getattr(decision, name)
    plain = decision.model_dump(mode="json")
    assert "next_step" in plain
    assert plain["next_step"] is None


def test_alternatives_leave_out_the_chosen_and_the_hopeless() -> None:
    """The three best others above zero."""
    assert [a.skill for a in decide("auto").alternatives] == ["b@1.0", "c@1.0", "d@1.0"]
    assert [a.skill for a in decide("ask").alternatives] == ["a@1.0", "b@1.0", "c@1.0"]
    assert [a.skill for a in decide("cascade_then_auto", llm_pick=PICK).alternatives] == [
        "a@1.0", "b@1.0", "d@1.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        ("auto", ("a@1.0", {})),
        ("cascade_then_auto", ("c@1.0", {"x": 1})),
        ("cascade_then_ask", None),
        ("ask", None),
        ("defer", None),
        ("cascade", None),
    ],
)
def test_only_two_paths_choose_a_skill(path: str, chosen: Any) -> None:
    """auto takes the rules' best, cascade_then_auto the model's pick, no other path any."""
    assert chosen_of(state(path, llm_pick=PICK)) == chosen
    assert chosen_of(state(path, rule_scores=[], llm_pick=None)) is None


REASONS = {
    "persona_defer_matrix": 2,
    "operation_unknown": 2,
    "catalog_changed": 2,
    "approval_required": 3,
    "approval_denied": 4,
    "approval_expired": 4,
    "invocation_unknown": 5,
}


def test_the_table_of_reasons_is_whole() -> None:
    """Every reason has an exit code."""
    assert set(REASONS) == set(get_args(models.Reason))


@pytest.mark.clause("101-19", "101-22")
@pytest.mark.criterion("101-AC27")
@pytest.mark.parametrize("kind", REASONS)
def test_a_gate_that_stops_the_skill_is_not_routed(kind: str) -> None:
    """The path stays what it was; the reason decides the exit code."""
    decision = decide("auto", gate={"kind": kind, "operation": "wire_transfer"})
    assert not decision.routed
    assert decision.reason == kind
    assert decision.operation == "wire_transfer"
    assert decision.path_taken == "auto"
    assert exit_code_of(decision) == REASONS[kind]
    assert outcome_of(decision) == (
        "invoke_error" if kind == "invocation_unknown" else "routed_false"
    )


@pytest.mark.clause("101-22")
@pytest.mark.criterion("101-AC27")
@pytest.mark.parametrize(
    ("path", "more", "code", "outcome"),
    [
        ("auto", {"invocation_result": result(0)}, 0, "success"),
        ("auto", {"invocation_result": result(3)}, 5, "invoke_error"),
        ("auto", {"invocation_result": result(0, "not_utf8")}, 5, "invoke_error"),
        ("cascade_then_auto", {"llm_pick": PICK, "invocation_result": result(0)}, 0, "success"),
        ("ask", {}, 1, "routed_false"),
        ("ask", {"cascade_outcome": "timeout"}, 75, "timeout"),
        ("ask", {"cascade_outcome": "gateway_error"}, 1, "routed_false"),
        ("cascade_then_ask", {"llm_pick": PICK}, 1, "routed_false"),
        ("defer", {}, 2, "routed_false"),
    ],
)
def test_exit_code_and_outcome_follow_the_path(
    path: str, more: dict[str, Any], code: int, outcome: str
) -> None:
    """0 invoked, 1 ask, 2 defer, 5 skill failed, 75 the model timed out."""
    decision = decide(path, gate={"kind": "pass", "operation": "x"}, **more)
    assert exit_code_of(decision) == code
    assert outcome_of(decision) == outcome


@pytest.mark.clause("101-18")
def test_what_was_considered_is_returned_when_a_person_decides() -> None:
    """Deferred or asked: the top three that scored above zero, and nothing chosen."""
    for path in ("defer", "ask"):
        decision = decide(path)
        assert [a.skill for a in decision.alternatives] == ["a@1.0", "b@1.0", "c@1.0"]
        assert (decision.routed, decision.skill_chosen) == (False, None)


def test_nothing_scored_is_a_decision_too() -> None:
    """No candidate: confidence 0, no alternatives."""
    decision = decide("defer", rule_scores=[])
    assert decision.confidence == 0.0
    assert decision.alternatives == []
    assert decision.skill_chosen is None


@pytest.mark.parametrize(
    ("gate", "told", "foot"),
    [
        ({"kind": "pass", "operation": "tax_code_validate"}, "", "🤖 routed via Genie"),
        ({"kind": "approval_denied", "operation": "wire_transfer"}, "denied it", "🤖 not routed"),
        (
            {"kind": "operation_unknown", "operation": "tax_code_validate"},
            "which is not what that command does, so it never runs on its own",
            "🤖 not routed",
        ),
        (
            {"kind": "operation_unknown", "operation": None},
            "no operation is named for the skill, so it never runs on its own",
            "🤖 not routed",
        ),
    ],
)
def test_what_was_not_invoked_is_said_with_its_own_reason(
    gate: dict[str, Any], told: str, foot: str
) -> None:
    """At a terminal and on the page; the last line says routed of what was routed only."""
    decision = decide("auto", gate=gate)
    *lines, last = click.unstyle(decision_text(decision)).splitlines()
    assert last.startswith(foot)
    assert told in "\n".join(lines)
    if gate["kind"] == "operation_unknown":
        run: Any = SimpleNamespace(decision=decision.model_dump(mode="json"))
        page = headline_of(run, {})
        (blocked,) = gates_of({"gate": gate}, [], None)[1:]
        why = told.partition(",")[0]
        assert why in page
        assert why in blocked.detail
