"""What the supervisor computes with: candidates, picks, decisions, graph state. Pure.

Graph state holds plain JSON values only (dicts made by `model_dump(mode="json")`),
never instances: rows live seven years and must not depend on a class still existing.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ASK_THRESHOLD",
    "CASCADE_THRESHOLD_HIGH",
    "CASCADE_THRESHOLD_LOW",
    "CUO_STATE_V",
    "Alternative",
    "Candidate",
    "CascadeOutcome",
    "CuoState",
    "InvocationResult",
    "LlmRoutingPick",
    "Outcome",
    "PathTaken",
    "RoutingDecision",
    "TransparencyDisclosure",
]

CUO_STATE_V: Final = 1
"""Version of `CuoState`; replays accept 1 to 3 (current +/- 2)."""

CASCADE_THRESHOLD_LOW: Final = 0.10
CASCADE_THRESHOLD_HIGH: Final = 0.50
ASK_THRESHOLD: Final = 0.70

PathTaken = Literal["auto", "ask", "cascade", "defer", "cascade_then_auto", "cascade_then_ask"]
CascadeOutcome = Literal[
    "success",
    "timeout",
    "schema_violation",
    "unknown_skill",
    "bad_arguments",
    "gateway_unreachable",
    "gateway_error",
    "residency_denied",
    "budget_exceeded",
    "not_ready",
]
Outcome = Literal[
    "success", "routed_false", "invoke_error", "persona_mismatch", "timeout", "unknown_persona"
]
Reason = Literal[
    "persona_defer_matrix",
    "approval_required",
    "approval_denied",
    "approval_expired",
    "operation_unknown",
    "catalog_changed",
    "invocation_unknown",
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Candidate(_Model):
    """One scored skill. `skill_name` is `name@version`; `confidence` lies in [0, 1]."""

    skill_name: str
    confidence: float = Field(ge=0.0, le=1.0)
    arguments: dict[str, Any] = Field(default_factory=dict)
    score_components: dict[str, float] = Field(default_factory=dict)


class Alternative(_Model):
    skill: str
    confidence: float = Field(ge=0.0, le=1.0)


class LlmRoutingPick(_Model):
    """The model's answer, as validated. Being valid passes no gate."""

    skill_name: str = Field(min_length=1, max_length=200)
    arguments: dict[str, Any]
    rationale: str = Field(min_length=1, max_length=500)
    confidence: float = Field(ge=0.0, le=1.0)


class InvocationResult(_Model):
    """What one execution of a skill's own CLI left behind. `duration_ms` is wall time."""

    skill_name: str
    exit_code: int
    stdout: str
    stderr: str
    duration_ms: float
    failure: (
        Literal["missing_executable", "timeout", "crash", "output_cap", "not_utf8", "bad_output"]
        | None
    ) = None


class TransparencyDisclosure(_Model):
    """EU AI Act Art. 13: what a caller shows its user about how the answer came about."""

    skill_chosen: str | None
    confidence: float
    alternatives: list[Alternative]
    path_taken: PathTaken
    llm_used: bool


class RoutingDecision(_Model):
    """The answer to one request.

    Volatile fields are request_id, ts_ns_start, ts_ns_end and what an invocation measured;
    all else is a function of (query, persona, catalogue hash) on the rule path.
    """

    routed: bool
    reason: Reason | None = None
    operation: str | None = None
    skill_chosen: str | None
    confidence: float
    path_taken: PathTaken
    llm_used: bool
    cascade_outcome: CascadeOutcome | None = None
    llm_pick: LlmRoutingPick | None = None
    alternatives: list[Alternative]
    invocation_result: InvocationResult | None = None
    next_step: None = None
    transparency: TransparencyDisclosure
    persona_key: str
    persona_version: str
    catalog_snapshot_hash: str
    dry_run: bool = False
    request_id: str
    ts_ns_start: int
    ts_ns_end: int


class CuoState(TypedDict, total=False):
    """Channels of the supervisor graph. Values are plain JSON."""

    # request envelope
    query: str
    tenant_id: str
    subject_id: str
    subject_issuer: str
    persona_key: str
    persona_version: str
    request_id: str
    trace_id: str
    ts_ns_start: int
    cuo_state_v: int
    do_invoke: bool
    catalog_snapshot_hash: str

    # scoring and routing
    rule_scores: list[dict[str, Any]]
    branch_decision: PathTaken
    cascade_taken: bool
    cascade_outcome: str | None

    # model cascade
    llm_pick: dict[str, Any] | None
    llm_attempts: int
    llm_elapsed_ms: int

    # invocation and gates
    invocation_result: dict[str, Any] | None
    gate: dict[str, Any] | None
    rejection: dict[str, Any] | None

    # output
    decision: dict[str, Any]
    next_step: None
    ts_ns_end: int
    audit_emitted: bool
