"""From a confidence to a path, from a pick to a gate. Pure.

The bands are closed below and open above and are code, never settings: a replayed decision
must fall on the same side. Gates follow the path and do not change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cuo_supervisor.core.catalog import SkillManifest
from cuo_supervisor.core.models import (
    ASK_THRESHOLD,
    CASCADE_THRESHOLD_HIGH,
    CASCADE_THRESHOLD_LOW,
    Alternative,
    Candidate,
    PathTaken,
)
from cuo_supervisor.core.operations import command_fits, get_operation
from cuo_supervisor.core.personas import Persona

__all__ = ["GateKind", "GateVerdict", "alternatives", "choose_path", "decide_gate", "may_pass"]

GateKind = Literal["pass", "persona_defer_matrix", "approval_required", "operation_unknown"]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a chosen skill may run now. `operation` is None if the manifest names none."""

    kind: GateKind
    operation: str | None


def choose_path(
    top_confidence: float | None,
    *,
    cascade_taken: bool,
    llm_confidence: float | None,
    cascade_failed: bool,
) -> PathTaken:
    """The path for a best rule score and, once the model was asked, for its answer.

    A failed cascade asks; a valid pick below the auto band gives cascade_then_ask; the cascade
    is never entered twice. A rule score that is missing, not finite or outside [0, 1] defers;
    such a value from the model asks, because the rules had found something worth asking about.
    """
    if cascade_taken or cascade_failed:
        if cascade_failed or llm_confidence is None or not _is_confidence(llm_confidence):
            return "ask"
        return "cascade_then_auto" if llm_confidence >= ASK_THRESHOLD else "cascade_then_ask"
    if top_confidence is None or not _is_confidence(top_confidence):
        return "defer"
    if top_confidence >= ASK_THRESHOLD:
        return "auto"
    if top_confidence >= CASCADE_THRESHOLD_HIGH:
        return "ask"
    if top_confidence >= CASCADE_THRESHOLD_LOW:
        return "cascade"
    return "defer"


def alternatives(candidates: Iterable[Candidate], chosen: str | None) -> list[Alternative]:
    """The three best others scored above zero, best first, ties by name."""
    others = [c for c in candidates if c.confidence > 0 and c.skill_name != chosen]
    others.sort(key=lambda c: (-c.confidence, c.skill_name))
    return [Alternative(skill=c.skill_name, confidence=c.confidence) for c in others[:3]]


def decide_gate(persona: Persona, manifest: SkillManifest | None) -> GateVerdict:
    """The first gate that stops this persona from running this skill, or "pass".

    The role's matrix comes first, so an approver cannot release what the role never does alone.
    A skill outside the catalogue, whose operation is missing or unregistered, or that runs a
    shipped command under another operation than its own, never passes.
    """
    operation = manifest.operation if manifest is not None else None
    if operation is not None and persona.defers(operation):
        return GateVerdict("persona_defer_matrix", operation)
    if manifest is None or not may_pass(manifest):
        return GateVerdict("operation_unknown", operation)
    if manifest.is_destructive:
        return GateVerdict("approval_required", operation)
    return GateVerdict("pass", operation)


def may_pass(manifest: SkillManifest) -> bool:
    """False for a skill that no persona may run and no approval releases: its operation is missing
    or unregistered, or its shipped command is another operation's."""
    operation = manifest.operation
    known = operation is not None and get_operation(operation) is not None
    return known and command_fits(manifest.argv, operation)


def _is_confidence(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= 1.0
