"""Why a request matches the skills it matches: the scorer's figures with the words behind them. Pure.

Nothing here decides: confidences come from `score_one_off`, the path from `choose_path`, gates
from `decide_gate`; this only says which phrases, words and signs led there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cuo_supervisor.core.arguments import find_arguments
from cuo_supervisor.core.branching import GateKind, choose_path, decide_gate
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.caution import find_cautions
from cuo_supervisor.core.matching import closest_phrases, keyword_quality, lay_out
from cuo_supervisor.core.models import (
    ASK_THRESHOLD,
    CASCADE_THRESHOLD_HIGH,
    CASCADE_THRESHOLD_LOW,
    Candidate,
    PathTaken,
)
from cuo_supervisor.core.personas import Persona
from cuo_supervisor.core.scoring import (
    most_unknown,
    owned_words,
    score_one_off,
    unknown_words,
)
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
    keywords: tuple[str, ...]
    """The skill's keywords found in the request."""
    persona_words: tuple[str, ...]
    """Words of the request that both the persona and the skill own."""
    unknown_words: tuple[str, ...]
    """Content of the request that is none of the skill's: each lowers the confidence."""
    arguments: Mapping[str, Any]
    missing_arguments: tuple[str, ...]
    held_back: tuple[str, ...]
    operation: str | None
    gate: GateKind


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request's candidates, best first. `path` is the rules' own; a model may change "cascade".

    `why` says which band the best confidence lies in.
    """

    persona_key: str
    catalog_snapshot_hash: str
    path: PathTaken
    why: str
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
    owned = owned_words(request, persona)
    by_name = {skill.skill_name: skill for skill in index.skills}
    scored = score_one_off(text, persona, catalog)
    explained = []
    for candidate in scored:
        skill = by_name[candidate.skill_name]
        verdict = decide_gate(persona, skill.manifest)
        found = find_arguments(request.reading, skill.manifest, skill.vocabulary)
        found = {name: entry for name, entry in found.items() if name in candidate.arguments}
        explained.append(
            ExplainedSkill(
                skill_name=candidate.skill_name,
                confidence=candidate.confidence,
                components=candidate.score_components,
                triggers=tuple(
                    Trigger(phrase, round(share, 4), words)
                    for phrase, share, words in closest_phrases(request, index, skill)
                ),
                keywords=tuple(
                    dict.fromkeys(
                        " ".join(word.text for word in words)
                        for words in skill.keywords
                        if keyword_quality(request, words) > 0
                    )
                ),
                persona_words=tuple(
                    dict.fromkeys(
                        token.text
                        for token in request.tokens
                        if token.folded in owned & skill.folds
                    )
                ),
                unknown_words=unknown_words(request, skill, found),
                arguments=candidate.arguments,
                missing_arguments=tuple(
                    name
                    for name in skill.manifest.required_arguments
                    if name not in candidate.arguments
                ),
                held_back=_held_back(candidate, skill.manifest, signs, _rival(candidate, scored)),
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
    why = _band(scored[0].confidence if scored else 0.0)
    return Explanation(persona.key, catalog.snapshot_hash, path, why, tuple(explained))


def _band(top: float) -> str:
    """Where a confidence lies among the bands, and what follows."""
    if top >= ASK_THRESHOLD:
        return f"{top:.2f} is {ASK_THRESHOLD:.2f} or more: it may run, if its gate lets it"
    if top >= CASCADE_THRESHOLD_HIGH:
        return f"{top:.2f} is less than {ASK_THRESHOLD:.2f}: a person chooses"
    if top >= CASCADE_THRESHOLD_LOW:
        return f"{top:.2f} is less than {CASCADE_THRESHOLD_HIGH:.2f}: a model would be asked"
    return f"{top:.2f} is less than {CASCADE_THRESHOLD_LOW:.2f}: left to a person"


def _rival(candidate: Candidate, scored: Sequence[Candidate]) -> str:
    """Of the two that are nearly alike, the other one."""
    return next((c.skill_name for c in scored[:2] if c.skill_name != candidate.skill_name), "")


def _held_back(
    candidate: Candidate, manifest: SkillManifest, signs: Mapping[str, str], rival: str
) -> tuple[str, ...]:
    parts = candidate.score_components
    found = [
        f"{kind}: {signs[kind]!r}" if kind in signs else kind for kind in _SIGNS if parts.get(kind)
    ]
    if parts.get("missing_arguments"):
        found.append("a required argument is missing")
    if parts["unexplained"] > most_unknown(manifest):
        found.append("too much of the request is none of its words")
    if parts.get("close_second"):
        found.append(f"{rival} is nearly as good")
    return tuple(found)
