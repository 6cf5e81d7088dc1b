"""How a run is addressed, and how what comes back from its graph is read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt

from cuo_supervisor.core.personas import PERSONA_KEYS
from cuo_supervisor.errors import (
    PersonaMismatch,
    PersonaUnknown,
    PersonaVersionMismatch,
    SupervisorError,
)
from cuo_supervisor.identity import UNKNOWN_ISSUER, Identity
from cuo_supervisor.ports import Answered

__all__ = ["answered", "config_of", "gate_of_interrupt", "rejection_error", "requester_issuer"]


def config_of(identity: Identity, run_id: uuid.UUID, trace_id: str | None) -> RunnableConfig:
    """How LangGraph addresses a run: one thread each."""
    return {
        "configurable": {
            "thread_id": str(run_id),
            "run_id": str(run_id),
            "tenant_id": identity.tenant_id,
            "trace_id": trace_id,
        },
        # The graph is finite; twelve supersteps are more than its longest path.
        "recursion_limit": 12,
    }


def gate_of_interrupt(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a run that stopped for an approval waits for."""
    pending = state.get("__interrupt__") or []
    value = pending[0].value if pending else {}
    return {"kind": "approval_required", "operation": value.get("operation")}


def rejection_error(rejection: Mapping[str, Any]) -> SupervisorError:
    """The error for a request that its first node refused."""
    error, requested = rejection["error"], rejection["requested"]
    if error == PersonaUnknown.error:
        return PersonaUnknown(requested, PERSONA_KEYS)
    kind = PersonaVersionMismatch if error == PersonaVersionMismatch.error else PersonaMismatch
    return kind(rejection["claimed"], requested)


def answered(waiting: Interrupt, answer: Mapping[str, Any]) -> Answered:
    """An answer to what a run waits on."""
    value = waiting.value if isinstance(waiting.value, Mapping) else {}
    return Answered(waiting.id, value.get("operation"), answer)


def requester_issuer(state: Mapping[str, Any], at_work: Identity) -> str:
    """Who vouched for the requester: not for whoever approves, expires or continues the run."""
    kept = state.get("subject_issuer")
    if isinstance(kept, str):
        return kept
    same = at_work.subject_id == state["subject_id"]
    return at_work.issuer if same else UNKNOWN_ISSUER
