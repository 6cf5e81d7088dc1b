"""Why a request matches the skills it matches: the scorer's figures with the words behind them. Pure.

Nothing here decides: confidences come from `score_one_off`, the path from `choose_path`, gates
from `decide_gate`; this only says which phrases, words and signs led there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cuo_supervisor.core.branching import GateKind, choose_path, decide_gate
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.caution import find_cautions
from cuo_supervisor.core.matching import closest_phrases, lay_out
from cuo_supervisor.core.models import Candidate, PathTaken
from cuo_supervisor.core.personas import Persona
from cuo_supervisor.core.scoring import score_one_off
from cuo_supervisor.core.scoring_index import CatalogIndex
from cuo_supervisor.core.text import normalise_query

__all__ = ["ExplainedSkill", "Explanation", "Trigger", "explain"]

_SIGNS: Final = ("negation", "reversal", "question", "report", "condition")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger phrase near the request: the share of it found, and by which of its words."""

    phrase: str
    share: float
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedSkill:
    """One candidate. `held_back` says in words what kept it out of the automatic band."""

    skill_name: str
    confidence: float
    components: Mapping[str, float]
    triggers: tuple[Trigger, ...]
    arguments: Mapping[str, Any]
    missing_arguments: tuple[str, ...]
    held_back: tuple[str, ...]
    operation: str | None
    gate: GateKind


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request's candidates, best first. `path` is the rules' own; a model may change "cascade"."""

    persona_key: str
    catalog_snapshot_hash: str
    path: PathTaken
    candidates: tuple[ExplainedSkill, ...]


def explain(query: str, persona: Persona, catalog: Catalog) -> Explanation:
    """The candidates of a request with the reasons for each figure."""
    index = CatalogIndex.of(catalog)
    text = normalise_query(query)
    request = lay_out(text, index)
    signs: dict[str, str] = {}
    for caution in find_cautions(request.reading):
        words = [request.reading.tokens[at].text for at in sorted(caution.places)]
        signs.setdefault(caution.kind, " ".join(words))
    by_name = {skill.skill_name: skill for skill in index.skills}
    scored = score_one_off(text, persona, catalog)
    explained = []
    for candidate in scored:
        skill = by_name[candidate.skill_name]
        verdict = decide_gate(persona, skill.manifest)
        explained.append(
            ExplainedSkill(
                skill_name=candidate.skill_name,
                confidence=candidate.confidence,
                components=candidate.score_components,
                triggers=tuple(
                    Trigger(phrase, round(share, 4), words)
                    for phrase, share, words in closest_phrases(request, index, skill)
                ),
                arguments=candidate.arguments,
                missing_arguments=tuple(
                    name
                    for name in skill.manifest.required_arguments
                    if name not in candidate.arguments
                ),
                held_back=_held_back(candidate, signs),
                operation=verdict.operation,
                gate=verdict.kind,
            )
        )
    path = choose_path(
        scored[0].confidence if scored else None,
        cascade_taken=False,
        llm_confidence=None,
        cascade_failed=False,
    )
    return Explanation(persona.key, catalog.snapshot_hash, path, tuple(explained))


def _held_back(candidate: Candidate, signs: Mapping[str, str]) -> tuple[str, ...]:
    parts = candidate.score_components
    found = [
        f"{kind}: {signs[kind]!r}" if kind in signs else kind for kind in _SIGNS if parts.get(kind)
    ]
    if parts.get("missing_arguments"):
        found.append("a required argument is missing")
    if parts.get("close_second"):
        found.append("another skill is nearly as good")
    return tuple(found)
