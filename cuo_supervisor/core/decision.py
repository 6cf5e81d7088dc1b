"""From graph state to the answer a caller gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from cuo_supervisor.core.branching import alternatives
from cuo_supervisor.core.models import (
    Candidate,
    InvocationResult,
    LlmRoutingPick,
    Outcome,
    PathTaken,
    RoutingDecision,
    TransparencyDisclosure,
)

__all__ = ["INVOKING_PATHS", "chosen_of", "decision_of", "exit_code_of", "outcome_of"]

INVOKING_PATHS: Final = frozenset({"auto", "cascade_then_auto"})

_REASON_OF_GATE: Final = {
    "persona_defer_matrix": "persona_defer_matrix",
    "operation_unknown": "operation_unknown",
    "catalog_changed": "catalog_changed",
    "approval_required": "approval_required",
    "approval_denied": "approval_denied",
    "approval_expired": "approval_expired",
    "invocation_unknown": "invocation_unknown",
}


def candidates_of(state: Mapping[str, Any]) -> list[Candidate]:
    """The rule scores as objects."""
    return [Candidate.model_validate(item) for item in state.get("rule_scores") or []]


def chosen_of(state: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The skill the path would invoke, with its arguments; None when the path invokes nothing."""
    path = state.get("branch_decision")
    if path == "cascade_then_auto" and state.get("llm_pick"):
        pick = state["llm_pick"]
        return pick["skill_name"], dict(pick["arguments"])
    scores: Sequence[Mapping[str, Any]] = state.get("rule_scores") or []
    if path == "auto" and scores:
        return scores[0]["skill_name"], dict(scores[0]["arguments"])
    return None


def decision_of(state: Mapping[str, Any], *, ts_ns_end: int, dry_run: bool) -> RoutingDecision:
    """The decision of a request whose path is taken and whose gates have spoken."""
    scored = candidates_of(state)
    path = cast("PathTaken", state["branch_decision"])
    chosen = chosen_of(state)
    skill = chosen[0] if chosen else None
    pick = LlmRoutingPick.model_validate(state["llm_pick"]) if state.get("llm_pick") else None
    gate: Mapping[str, Any] = state.get("gate") or {}
    reason = _REASON_OF_GATE.get(str(gate.get("kind")))
    top = scored[0].confidence if scored else 0.0
    confidence = pick.confidence if pick is not None else top
    others = alternatives(scored, skill)
    invoked = state.get("invocation_result")
    return RoutingDecision.model_validate(
        {
            "routed": chosen is not None and reason is None,
            "reason": reason,
            "operation": gate.get("operation") if reason is not None else None,
            "skill_chosen": skill,
            "confidence": confidence,
            "path_taken": path,
            "llm_used": pick is not None,
            "cascade_outcome": state.get("cascade_outcome"),
            "llm_pick": pick,
            "alternatives": others,
            "invocation_result": InvocationResult.model_validate(invoked) if invoked else None,
            "next_step": None,
            "transparency": TransparencyDisclosure(
                skill_chosen=skill,
                confidence=confidence,
                alternatives=others,
                path_taken=path,
                llm_used=pick is not None,
            ),
            "persona_key": state["persona_key"],
            "persona_version": state["persona_version"],
            "catalog_snapshot_hash": state["catalog_snapshot_hash"],
            "dry_run": dry_run,
            "request_id": state["request_id"],
            "ts_ns_start": state["ts_ns_start"],
            "ts_ns_end": ts_ns_end,
        }
    )


def outcome_of(decision: RoutingDecision) -> Outcome:
    """The outcome label of a request that got a decision."""
    if decision.cascade_outcome == "timeout":
        return "timeout"
    result = decision.invocation_result
    if result is not None and (result.failure is not None or result.exit_code != 0):
        return "invoke_error"
    if decision.reason == "invocation_unknown":
        return "invoke_error"
    return "success" if decision.routed else "routed_false"


def exit_code_of(decision: RoutingDecision) -> int:
    """The command's exit code for a decision.

    0 invoked (or would have been), 1 ask, 2 defer or blocked, 3 waiting for approval, 4 denied or
    expired, 5 skill failed or its result unknown, 75 the cascade timed out.
    """
    by_reason = {
        "persona_defer_matrix": 2,
        "operation_unknown": 2,
        "catalog_changed": 2,
        "approval_required": 3,
        "approval_denied": 4,
        "approval_expired": 4,
        "invocation_unknown": 5,
    }
    if decision.reason is not None:
        return by_reason[decision.reason]
    if decision.cascade_outcome == "timeout":
        return 75
    if outcome_of(decision) == "invoke_error":
        return 5
    if decision.path_taken in INVOKING_PATHS:
        return 0
    return 2 if decision.path_taken == "defer" else 1
