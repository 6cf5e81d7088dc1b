"""The six nodes: each reads state, asks the pure core or one port, and returns what changed.

Audit rows leave a node through the reserved outbox channel; the store chains them in the
transaction of the node's own superstep, so a step and its audit row exist together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from cuo_supervisor.cascade import run_cascade
from cuo_supervisor.core import audit
from cuo_supervisor.core.arguments import validate_arguments
from cuo_supervisor.core.branching import choose_path, decide_gate
from cuo_supervisor.core.decision import candidates_of, chosen_of, decision_of
from cuo_supervisor.core.envelope import normalise_query
from cuo_supervisor.core.models import CUO_STATE_V
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.scoring import score_one_off
from cuo_supervisor.core.scrub import SCAN_FAILED
from cuo_supervisor.errors import PersonaMismatch, PersonaUnknown, PersonaVersionMismatch
from cuo_supervisor.identity import check_persona
from cuo_supervisor.ports import Answered, NodeContext
from cuo_supervisor.rerun import claim_rerun, may_rerun
from cuo_supervisor.run_config import requester_issuer
from cuo_supervisor.state import GraphState

__all__ = ["OUTBOX", "branch", "invoke", "llm_cascade", "parse", "record", "rule_score"]

OUTBOX: Final = "cuo_audit_outbox"
"""The channel whose rows the store chains with the step that wrote them."""

_INVOCATION: Final = "invoke"

Update = dict[str, Any]


async def parse(state: GraphState, runtime: Runtime[NodeContext]) -> Update:
    """Normalises the query, names the persona in full, and refuses whom it may not serve."""
    context = runtime.context
    with context.telemetry.node_span("parse"):
        base: Update = {
            "query": normalise_query(state["query"]),
            "cuo_state_v": CUO_STATE_V,
            "catalog_snapshot_hash": context.catalog.snapshot_hash,
            "cascade_taken": False,
            "cascade_outcome": None,
            "llm_attempts": 0,
            "next_step": None,
            "audit_emitted": False,
        }
        try:
            persona = get_persona(state["persona_key"])
            check_persona(context.identity, persona)
        except PersonaUnknown as error:
            row = audit.persona_unknown(
                tenant_id=state["tenant_id"],
                subject_id=state["subject_id"],
                requested=error.requested,
                request_id=state["request_id"],
                trace_id=state["trace_id"],
                ts_ns=context.clock.time_ns(),
            )
            return base | {
                "rejection": {"error": error.error, "requested": error.requested},
                OUTBOX: [_handed(row)],
            }
        except (PersonaMismatch, PersonaVersionMismatch) as error:
            return base | {
                "rejection": {
                    "error": error.error,
                    "claimed": error.claimed,
                    "requested": error.requested,
                }
            }
        return base | {"persona_key": persona.key, "persona_version": persona.claim}


async def rule_score(state: GraphState, runtime: Runtime[NodeContext]) -> Update:
    """Scores every skill of the catalogue by rule."""
    context = runtime.context
    with context.telemetry.node_span("rule_score"):
        scored = score_one_off(state["query"], get_persona(state["persona_key"]), context.catalog)
        return {"rule_scores": [candidate.model_dump(mode="json") for candidate in scored]}


async def branch(state: GraphState, runtime: Runtime[NodeContext]) -> Update:
    """Chooses the path from the best confidence, the model's once it was asked."""
    with runtime.context.telemetry.node_span("branch"):
        scored = state.get("rule_scores") or []
        pick = state.get("llm_pick")
        taken = bool(state.get("cascade_taken"))
        path = choose_path(
            scored[0]["confidence"] if scored else None,
            cascade_taken=taken,
            llm_confidence=pick["confidence"] if pick else None,
            cascade_failed=taken and pick is None,
        )
        return {"branch_decision": path}


async def llm_cascade(state: GraphState, runtime: Runtime[NodeContext]) -> Update:
    """Asks the model once (twice at most, inside one budget) which of the candidates fits."""
    context = runtime.context
    with context.telemetry.node_span("llm_cascade"):
        if context.model is None:
            context.telemetry.cascade("not_ready")
            return {"cascade_taken": True, "cascade_outcome": "not_ready", "llm_pick": None}
        if context.prepare_model is not None:
            await context.prepare_model()
        result = await run_cascade(
            context.model,
            query=state["query"],
            persona=get_persona(state["persona_key"]),
            candidates=candidates_of(state)[:5],
            catalog=context.catalog,
            validate_arguments=validate_arguments,
            tenant_id=state["tenant_id"],
            decision_id=state["request_id"],
            traceparent=context.traceparent(),
            monotonic=context.clock.monotonic,
        )
        context.telemetry.cascade(result.outcome)
        context.telemetry.note(
            llm_attempts=result.attempts, dropped_candidates=result.dropped_candidates
        )
        update: Update = {
            "cascade_taken": True,
            "cascade_outcome": result.outcome,
            "llm_pick": result.pick.model_dump(mode="json") if result.pick else None,
            "llm_attempts": result.attempts,
            "llm_elapsed_ms": result.elapsed_ms,
            "llm_answer": result.answer,
            "llm_prompt_sha256": result.prompt_sha256,
        }
        if result.outcome in audit.CASCADE_ROW_OUTCOMES:
            row = audit.llm_cascade_timeout(
                tenant_id=state["tenant_id"],
                persona_key=state["persona_key"],
                query=state["query"],
                outcome=result.outcome,
                elapsed_ms=result.elapsed_ms,
                attempts=result.attempts,
                request_id=state["request_id"],
                trace_id=state["trace_id"],
                ts_ns=context.clock.time_ns(),
            )
            update[OUTBOX] = [_handed(row)]
        return update


async def invoke(
    state: GraphState, config: RunnableConfig, runtime: Runtime[NodeContext]
) -> Update:
    """Takes the chosen skill through the gates, in order, and runs it at most once."""
    context = runtime.context
    with context.telemetry.node_span("invoke"):
        chosen = chosen_of(state)
        if chosen is None:
            return {"gate": None}
        skill_name, arguments = chosen
        persona = get_persona(state["persona_key"])
        in_service = context.catalog.snapshot_hash, persona.claim
        if in_service != (state["catalog_snapshot_hash"], state["persona_version"]):
            # What was scored, and what a person may have approved or denied, is not what would run
            # now; under other manifests or another matrix even the gates below could say otherwise.
            return {"gate": _outdated(context.answered)}
        manifest = context.catalog.get(skill_name)
        verdict = decide_gate(persona, manifest)
        gate: Update = {"kind": verdict.kind, "operation": verdict.operation}
        context.telemetry.note(skill_name=skill_name, gate=verdict.kind)
        if verdict.kind == "persona_defer_matrix":
            context.telemetry.persona_defer_block(state["persona_key"], verdict.operation or "")
            row = audit.persona_defer_block(
                tenant_id=state["tenant_id"],
                persona_key=state["persona_key"],
                operation=verdict.operation or "",
                rule_top_skill=skill_name,
                rule_top_confidence=_confidence(state),
                request_id=state["request_id"],
                trace_id=state["trace_id"],
                ts_ns=context.clock.time_ns(),
            )
            return {"gate": gate, OUTBOX: [_handed(row)]}
        if verdict.kind == "operation_unknown" or manifest is None:
            return {"gate": gate}
        if verdict.kind == "approval_required":
            if context.dry_run or not state["do_invoke"]:
                context.telemetry.destructive_block(skill_name)
                return {"gate": gate}
            # Nothing below this line runs until a person's answer arrives; the node starts over
            # then, so nothing above it may have an effect that must not be repeated.
            try:
                answer = interrupt(
                    {"skill": skill_name, "operation": verdict.operation, "arguments": arguments}
                )
            except GraphInterrupt:
                context.telemetry.destructive_block(skill_name)
                raise
            if context.late and answer.get("approved") and context.store is not None:
                # Said in time, but whoever was to act on it died: a yes for that day is none for
                # this one. Only where it had not begun, or its fate is unknown and not "expired".
                begun = await context.store.claimed(config, _INVOCATION) is not None
                kind = "invocation_unknown" if begun else "approval_expired"
                return {"gate": gate | {"kind": kind, "answer": answer}}
            if not answer.get("approved"):
                kind = "approval_expired" if answer.get("expired") else "approval_denied"
                return {"gate": gate | {"kind": kind, "answer": answer}}
            gate = gate | {"kind": "pass", "answer": answer}
        if context.dry_run or not state["do_invoke"]:
            return {"gate": gate}
        if context.runner is None or context.store is None:
            return {"gate": gate | {"kind": "operation_unknown"}}
        # Durable intent first: whoever finds it taken knows that the skill may have run.
        if not await context.store.claim(config, _INVOCATION, {"skill": skill_name}):
            again = None
            if context.rerun_idempotent and may_rerun(manifest):
                again = await claim_rerun(context, config, skill_name)
            if again is None:
                return {"gate": gate | {"kind": "invocation_unknown"}}
            gate = gate | {"rerun": again}
        result = await context.runner.run(
            manifest,
            arguments,
            tenant_id=state["tenant_id"],
            request_id=state["request_id"],
            approval_id=gate.get("answer", {}).get("interrupt_id", ""),
            traceparent=context.traceparent(),
        )
        return {"gate": gate, "invocation_result": result.model_dump(mode="json")}


async def record(state: GraphState, runtime: Runtime[NodeContext]) -> Update:
    """Writes the one routing decision of the request."""
    context = runtime.context
    with context.telemetry.node_span("record"):
        ended = context.clock.time_ns()
        decision = decision_of(state, ts_ns_end=ended, dry_run=context.dry_run)
        update: Update = {
            "decision": decision.model_dump(mode="json"),
            "ts_ns_end": ended,
            "next_step": None,
        }
        if not context.dry_run:
            row = audit.routing_decision(
                decision=decision,
                tenant_id=state["tenant_id"],
                subject_id=state["subject_id"],
                jwt_issuer=requester_issuer(state, context.identity),
                query=state["query"],
                rule_scores=candidates_of(state)[:3],
                gate=state.get("gate"),
                continued=context.continued,
                llm_attempts=state.get("llm_attempts", 0),
                cuo_state_v=state["cuo_state_v"],
                trace_id=state["trace_id"],
                catalog_changed=context.catalog.snapshot_hash != state["catalog_snapshot_hash"],
            )
            if row["query"] == SCAN_FAILED:
                context.telemetry.failure("scrub_failed")
            update |= {OUTBOX: [_handed(row)], "audit_emitted": True}
        return update


def _outdated(given: Answered | None) -> Update:
    """The gate of a run whose catalogue or persona changed. Whoever answered it is told of all the
    same, and an approval that ran out has run out under any catalogue."""
    if given is None:
        return {"kind": "catalog_changed", "operation": None}
    if given.answer.get("expired"):
        gone: Update = {"kind": "approval_expired", "operation": given.operation}
    else:
        gone = {"kind": "catalog_changed", "operation": None}
    return gone | {"answer": dict(given.answer)}


def _handed(row: Mapping[str, Any]) -> Update:
    """A row as the store takes it over."""
    return {"kind": row["kind"], "body": dict(row)}


def _confidence(state: GraphState) -> float:
    pick = state.get("llm_pick")
    if state.get("branch_decision") == "cascade_then_auto" and pick:
        return float(pick["confidence"])
    scores = state.get("rule_scores") or [{"confidence": 0.0}]
    return float(scores[0]["confidence"])
