"""What each of the supervisor's audit rows says. Pure.

The store chains these rows (RFC 8785 bytes) in the transaction of the step they belong to; here is
only their content. Whatever comes in, a row holds nothing RFC 8785 or a jsonb view would refuse
(`plain_json`). Nanosecond stamps exceed 2**53, so they stand as decimal strings.

Query, arguments, rationale and reasons are scrubbed; a skill's output is counted, not quoted. The
full originals are in the run's state, whose SHA-256 the store's own audit rows hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from .models import Candidate, InvocationResult, RoutingDecision
from .plain_json import plain
from .scrub import scrub, scrub_value

__all__ = [
    "CASCADE_ROW_OUTCOMES",
    "ROW_V",
    "SupervisorAuditKind",
    "approval",
    "llm_cascade_timeout",
    "persona_defer_block",
    "persona_unknown",
    "routing_decision",
    "subject_hash16",
]

Row = dict[str, Any]

ROW_V: Final = 1
"""Version of the rows' content; their JSON Schemas ship in `cuo_supervisor/schemas`."""

CASCADE_ROW_OUTCOMES: Final = frozenset(
    {"timeout", "gateway_unreachable", "gateway_error", "residency_denied", "budget_exceeded"}
)
"""Ends of a cascade that get a `cuo.llm_cascade_timeout` row of their own.

A bad answer is the model's, not the gateway's: the decision row tells it. `not_ready` asked nobody.
"""

_TOP: Final = 3
_MAX_REQUESTED: Final = 64


class SupervisorAuditKind(StrEnum):
    """Closed: four kinds, and a test on the number."""

    ROUTING_DECISION = "cuo.routing_decision"
    LLM_CASCADE_TIMEOUT = "cuo.llm_cascade_timeout"
    PERSONA_DEFER_BLOCK = "cuo.persona_defer_block"
    PERSONA_UNKNOWN = "cuo.persona_unknown"


def routing_decision(
    *,
    decision: RoutingDecision,
    tenant_id: str,
    subject_id: str,
    jwt_issuer: str,
    query: str,
    rule_scores: Sequence[Candidate],
    gate: Mapping[str, Any] | None,
    llm_attempts: int,
    cuo_state_v: int,
    trace_id: str,
    catalog_changed: bool = False,
    continued: Mapping[str, Any] | None = None,
) -> Row:
    """The one row every recorded request ends with.

    Every key is present on every path; what does not apply is null (`next_step` always is).
    `catalog_changed` flags that the catalogue in service is no longer the one that was scored.
    `continued` is whose word brought a run that its process had left to this decision.
    """
    pick = decision.llm_pick
    return plain(
        {
            "kind": SupervisorAuditKind.ROUTING_DECISION.value,
            "row_v": ROW_V,
            "tenant_id": tenant_id,
            "subject_id_hash16": subject_hash16(subject_id),
            "persona_key": decision.persona_key,
            "persona_version": decision.persona_version,
            "agent_persona_jwt_iss": jwt_issuer,
            "query": scrub(query),
            "rule_scores": [
                {
                    "skill_name": scored.skill_name,
                    "confidence": scored.confidence,
                    "arguments": scrub_value(scored.arguments),
                    "score_components": dict(scored.score_components),
                }
                for scored in rule_scores[:_TOP]
            ],
            "path_taken": decision.path_taken,
            "routed": decision.routed,
            "reason": decision.reason,
            "operation": decision.operation,
            "skill_chosen": decision.skill_chosen,
            "confidence": decision.confidence,
            "alternatives": [other.model_dump() for other in decision.alternatives],
            "cascade_taken": decision.cascade_outcome is not None,
            "cascade_outcome": decision.cascade_outcome,
            "llm_used": decision.llm_used,
            "llm_attempts": llm_attempts,
            "llm_pick": None
            if pick is None
            else {
                "skill_name": pick.skill_name,
                "arguments": scrub_value(pick.arguments),
                "rationale": scrub(pick.rationale),
                "confidence": pick.confidence,
            },
            "approval": _approval(gate),
            "continued": _word(continued),
            "rerun": _word((gate or {}).get("rerun")),
            "invocation_result": _invocation(decision.invocation_result),
            "next_step": None,
            "catalog_snapshot_hash": decision.catalog_snapshot_hash,
            "catalog_changed": catalog_changed,
            "cuo_state_v": cuo_state_v,
            "request_id": decision.request_id,
            "trace_id": trace_id,
            "ts_ns_start": str(decision.ts_ns_start),
            "ts_ns_end": str(decision.ts_ns_end),
        }
    )


def llm_cascade_timeout(
    *,
    tenant_id: str,
    persona_key: str,
    query: str,
    outcome: str,
    elapsed_ms: int,
    attempts: int,
    request_id: str,
    trace_id: str,
    ts_ns: int,
) -> Row:
    """The model was asked and could not be heard: out of time (`error` null), or `error` says why.

    `outcome` must be one of `CASCADE_ROW_OUTCOMES`; ValueError otherwise.
    """
    if outcome not in CASCADE_ROW_OUTCOMES:
        raise ValueError("this outcome has no row of its own")
    return plain(
        {
            "kind": SupervisorAuditKind.LLM_CASCADE_TIMEOUT.value,
            "row_v": ROW_V,
            "tenant_id": tenant_id,
            "persona_key": persona_key,
            "query": scrub(query),
            "error": None if outcome == "timeout" else outcome,
            "elapsed_ms": elapsed_ms,
            "attempts": attempts,
            "request_id": request_id,
            "trace_id": trace_id,
            "ts_ns": str(ts_ns),
        }
    )


def persona_defer_block(
    *,
    tenant_id: str,
    persona_key: str,
    operation: str,
    rule_top_skill: str,
    rule_top_confidence: float,
    request_id: str,
    trace_id: str,
    ts_ns: int,
) -> Row:
    """The persona's matrix keeps an operation for people, however sure the score was."""
    return plain(
        {
            "kind": SupervisorAuditKind.PERSONA_DEFER_BLOCK.value,
            "row_v": ROW_V,
            "tenant_id": tenant_id,
            "persona_key": persona_key,
            "operation": operation,
            "rule_top_skill": rule_top_skill,
            "rule_top_confidence": rule_top_confidence,
            "request_id": request_id,
            "trace_id": trace_id,
            "ts_ns": str(ts_ns),
        }
    )


def persona_unknown(
    *,
    tenant_id: str,
    subject_id: str,
    requested: str,
    request_id: str,
    trace_id: str,
    ts_ns: int,
) -> Row:
    """Somebody asked for a persona that does not exist. The name is theirs: scrubbed, then cut."""
    return plain(
        {
            "kind": SupervisorAuditKind.PERSONA_UNKNOWN.value,
            "row_v": ROW_V,
            "tenant_id": tenant_id,
            "subject_id_hash16": subject_hash16(subject_id),
            "requested": scrub(requested)[:_MAX_REQUESTED],
            "request_id": request_id,
            "trace_id": trace_id,
            "ts_ns": str(ts_ns),
        }
    )


def subject_hash16(subject_id: str) -> str:
    """The first 16 hex digits of the subject id's SHA-256. A pseudonym, not a secret."""
    return sha256(subject_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _invocation(result: InvocationResult | None) -> Row | None:
    """Facts about an execution without what it printed.

    No digest either: SHA-256 of a short output ("valid": true and a tax code) can be undone by
    trying all tax codes.
    """
    if result is None:
        return None
    return {
        "skill_name": result.skill_name,
        "exit_code": result.exit_code,
        "duration_ms": result.duration_ms,
        "failure": result.failure,
        "stdout_bytes": len(result.stdout.encode("utf-8", "surrogatepass")),
        "stderr_bytes": len(result.stderr.encode("utf-8", "surrogatepass")),
    }


def _approval(gate: Mapping[str, Any] | None) -> Row | None:
    """Who answered a waiting run, and how; null when nobody was asked or has answered."""
    answer = (gate or {}).get("answer")
    return approval(answer) if isinstance(answer, Mapping) else None


def _word(given: Any) -> Row | None:
    """Whose word it was and when; null where nobody's was needed."""
    if not isinstance(given, Mapping):
        return None
    return {
        "by_hash16": given["by_hash16"],
        "by_issuer": given["by_issuer"],
        "at_ns": str(given["at_ns"]),
    }


def approval(answer: Mapping[str, Any]) -> Row:
    """Who answered, when, how and why: part of the decision row, and the chain's `approval` row.

    The reason is scrubbed. The chain's row stands from the moment of the answer on, so it is also
    there when the process dies before the decision.
    """
    at_ns = answer.get("at_ns")
    return {
        "approved": bool(answer.get("approved")),
        "expired": bool(answer.get("expired")),
        "reason": scrub(str(answer.get("reason") or "")),
        "by_hash16": answer.get("by_hash16"),
        "by_issuer": answer.get("by_issuer"),
        "interrupt_id": answer.get("interrupt_id"),
        "at_ns": None if at_ns is None else str(at_ns),
    }
