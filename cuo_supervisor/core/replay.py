"""What a replay compares: a recorded decision beside one made again from the same inputs. Pure.

A replay never asks a model: the recorded answer is given again (`recorded_reply`), so whatever
differs comes from our code, the personas or the catalogue, and the difference names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cuo_supervisor.core.branching import GateKind
from cuo_supervisor.core.models import CUO_STATE_V
from cuo_supervisor.errors import DataError, StateVersionUnsupported

__all__ = [
    "COMPARED",
    "MAX_DIFFERENCES",
    "TOLERATED_STATES",
    "Difference",
    "Recorded",
    "check_state_version",
    "compare",
    "facts_of",
    "recorded_of",
    "replayed_body",
]

TOLERATED_STATES: Final = range(max(1, CUO_STATE_V - 2), CUO_STATE_V + 3)
"""State versions 1 to 3: the current one and the two a rolling upgrade may bring."""

MAX_DIFFERENCES: Final = 50
"""Differences named in an audit row; all of them are counted."""

COMPARED: Final = (
    "persona_version",
    "path_taken",
    "skill",
    "confidence",
    "alternatives",
    "cascade_outcome",
    "llm_pick",
    "gate",
    "rule_scores",
)

_ENDS: Final[Mapping[str, str]] = {
    "approval_denied": "approval_required",
    "approval_expired": "approval_required",
    "invocation_unknown": "pass",
}
"""What a gate became once somebody answered or a process died, and what it had said before."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One leaf that is not the same. `field` is a path such as alternatives[0].confidence."""

    field: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a replay needs of a stored run: the inputs, the model's part, and the decision's facts.

    `reply` is the text the model gave, or None; `failure` says instead why there is none.
    """

    query: str
    persona_key: str
    tenant_id: str
    request_id: str
    trace_id: str
    ts_ns_start: int
    cuo_state_v: int
    catalog_snapshot_hash: str
    reply: str | None
    failure: str | None
    prompt_sha256: str | None
    facts: Mapping[str, Any]


def check_state_version(state: Mapping[str, Any]) -> int:
    """The state's version. Raises StateVersionUnsupported outside 1 to 3."""
    version = state.get("cuo_state_v")
    if not isinstance(version, int) or version not in TOLERATED_STATES:
        raise StateVersionUnsupported(
            f"the run's state has version {version!r}; this version reads "
            f"{TOLERATED_STATES.start} to {TOLERATED_STATES.stop - 1}"
        )
    return version


def recorded_of(state: Mapping[str, Any], *, waiting: bool) -> Recorded:
    """The stored state of a run that ended with a decision.

    Raises DataError, saying which, for a run that waits, has not ended or was refused, and for a
    state that lacks what a replay needs; StateVersionUnsupported for a version outside 1 to 3.
    """
    version = check_state_version(state)
    if state.get("rejection") is not None:
        raise DataError("the run was refused before any decision; there is nothing to replay")
    if "decision" not in state:
        if waiting:
            raise DataError(
                "the run waits for an approval; answer it first: cyberos-cuo supervisor resume"
            )
        raise DataError("the run has not ended; finish it first: cyberos-cuo supervisor continue")
    try:
        outcome = state.get("cascade_outcome")
        reply, failure = _model_part(state, outcome)
        return Recorded(
            query=str(state["query"]),
            persona_key=str(state["persona_key"]),
            tenant_id=str(state["tenant_id"]),
            request_id=str(state["request_id"]),
            trace_id=str(state["trace_id"]),
            ts_ns_start=int(state["ts_ns_start"]),
            cuo_state_v=version,
            catalog_snapshot_hash=str(state["catalog_snapshot_hash"]),
            reply=reply,
            failure=failure,
            # After a first bad answer the second prompt quotes what was wrong with it; only the
            # last answer is kept, so only a single question can be asked again word for word.
            prompt_sha256=state.get("llm_prompt_sha256")
            if state.get("llm_attempts") == 1
            else None,
            facts=facts_of(state),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"the stored state cannot be replayed: {type(error).__name__} in reading it"
        ) from None


def facts_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The compared facts of a state that has a decision; plain JSON."""
    decision: Mapping[str, Any] = state["decision"]
    return {
        "persona_version": state["persona_version"],
        "path_taken": decision["path_taken"],
        "skill": decision["skill_chosen"],
        "confidence": decision["confidence"],
        "alternatives": decision["alternatives"],
        "cascade_outcome": decision.get("cascade_outcome"),
        "llm_pick": decision.get("llm_pick"),
        "gate": _gate(state.get("gate")),
        "rule_scores": state.get("rule_scores") or [],
    }


def compare(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[Difference]:
    """Every leaf that differs, in the order of COMPARED; empty when the decisions are identical.

    A run whose catalogue had changed before its gates were asked has no verdict to compare.
    """
    unasked = recorded["gate"]["kind"] == "catalog_changed"
    return [
        difference
        for name in COMPARED
        if not (unasked and name == "gate")
        for difference in _walk(name, recorded.get(name), replayed.get(name))
    ]


def replayed_body(
    recorded: Recorded, differences: Sequence[Difference], *, by_hash16: str, by_issuer: str
) -> dict[str, Any]:
    """What the `cuo.checkpoint_replayed` row says: which fields differ, never their values."""
    return {
        "row_v": 1,
        "request_id": recorded.request_id,
        "identical": not differences,
        "difference_count": len(differences),
        "differences": [d.field for d in differences[:MAX_DIFFERENCES]],
        "catalog_snapshot_hash": recorded.catalog_snapshot_hash,
        "cuo_state_v": recorded.cuo_state_v,
        "by_hash16": by_hash16,
        "by_issuer": by_issuer,
    }


def _model_part(state: Mapping[str, Any], outcome: Any) -> tuple[str | None, str | None]:
    """What the model's double has to say: the recorded text, or the recorded failure."""
    if not state.get("cascade_taken"):
        return None, None
    answer = state.get("llm_answer")
    if outcome in ("success", "schema_violation", "unknown_skill", "bad_arguments"):
        if isinstance(answer, str):
            return answer, None
        if state.get("llm_pick") is not None:
            return json.dumps(state["llm_pick"], ensure_ascii=False), None
        return None, "unusable_reply"
    return None, str(outcome)


def _gate(gate: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the gates said before anybody answered; paths that invoke nothing meet no gate."""
    kind: str | GateKind = "none"
    if gate is not None:
        kind = str(gate.get("kind"))
        if kind != "catalog_changed":
            given = gate.get("answer") is not None
            kind = "approval_required" if given else _ENDS.get(kind, kind)
    return {"kind": kind, "operation": (gate or {}).get("operation")}


def _walk(path: str, recorded: Any, replayed: Any) -> Iterator[Difference]:
    if isinstance(recorded, Mapping) and isinstance(replayed, Mapping):
        for key in sorted({*recorded, *replayed}):
            yield from _walk(f"{path}.{key}", recorded.get(key), replayed.get(key))
    elif isinstance(recorded, list) and isinstance(replayed, list):
        for at in range(max(len(recorded), len(replayed))):
            left = recorded[at] if at < len(recorded) else None
            right = replayed[at] if at < len(replayed) else None
            yield from _walk(f"{path}[{at}]", left, right)
    elif recorded != replayed or isinstance(recorded, bool) != isinstance(replayed, bool):
        yield Difference(path, recorded, replayed)
