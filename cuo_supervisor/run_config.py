"""How a run is addressed, and how what comes back from its graph is read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from cuo_supervisor.core.personas import PERSONA_KEYS
from cuo_supervisor.errors import (
    PersonaMismatch,
    PersonaUnknown,
    PersonaVersionMismatch,
    SupervisorError,
)
from cuo_supervisor.identity import Identity

__all__ = ["config_of", "gate_of_interrupt", "rejection_error"]


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
