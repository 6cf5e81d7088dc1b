"""The graph's channels: the state of `core.models`, and those only the graph itself needs."""

from __future__ import annotations

from typing import Annotated, Any

from langgraph.channels import EphemeralValue

from cuo_supervisor.core.models import CuoState

__all__ = ["GraphState"]


class GraphState(CuoState, total=False):
    """The state's channels, and the outbox, which empties itself after each superstep."""

    llm_answer: str | None
    llm_prompt_sha256: str
    cuo_audit_outbox: Annotated[list[dict[str, Any]], EphemeralValue]
