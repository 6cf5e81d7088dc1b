"""The rule scorer: how well a request fits each skill, as a confidence in [0, 1]. Pure.

Same query, persona and catalogue content give the same bytes on every host: no clock, no
locale, no hash order, and figures rounded to four decimals.

Evidence for a skill is the best of its trigger phrases found in the request (`phrase_match`),
its name (`name_match`) and its keywords (`keyword_hits`), joined so that each can only add.
That is scaled by the share of the request's content the skill accounts for (`explained`),
because a skill's words inside a request about something else are the usual false alarm. Small
bonuses follow: typed arguments found, the persona's own words, signs of the skill's region.

Above the ask line rules take over. A missing required argument, a close second, words no skill
accounts for (none where the act is destructive), or a sign that the act is forbidden, reversed,
asked about, reported or conditional: each keeps the skill out of the automatic band.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cuo_supervisor.core.arguments import find_arguments
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.caution import Caution, find_cautions
from cuo_supervisor.core.extractors import Found
from cuo_supervisor.core.lexicon import GENERIC_PARTY
from cuo_supervisor.core.matching import (
    MAX_WORDS,
    Match,
    Request,
    keyword_quality,
    lay_out,
    match_skills,
    tells,
    word_quality,
)
from cuo_supervisor.core.models import ASK_THRESHOLD, CASCADE_THRESHOLD_LOW, Candidate
from cuo_supervisor.core.personas import Persona
from cuo_supervisor.core.scoring_index import CatalogIndex, SkillIndex
from cuo_supervisor.core.text import Token, normalise_query, tokenise

__all__ = ["DECIMALS", "GAP", "most_unknown", "owned_words", "score_one_off", "unknown_words"]

DECIMALS: Final = 4
GAP: Final = 0.10
"""Least lead over the second skill at which the first may run unasked."""

_BASE: Final = 0.30
"""Part of the evidence kept when nothing else in the request is explained."""
_ARGUMENTS_BONUS: Final = 0.08
_PERSONA_BONUS: Final = 0.04
_REGION_BONUS: Final = 0.04
_STRANGE: Final = 1.05
"""Most unexplained weight in the automatic band: one word that no skill knows."""
_STRANGE_DESTRUCTIVE: Final = 0.50
"""The same where the act is destructive: no such word ("correct the", "dispute", "test")."""
_WHOLE: Final = 0.90
_KNEE: Final = 0.90
_SLOPE: Final = 0.25
_TOP: Final = 0.97

_ASK_CEILING: Final = ASK_THRESHOLD - 0.01
_DEFER_CEILING: Final = CASCADE_THRESHOLD_LOW - 0.01


def score_one_off(query: str, persona: Persona, catalog: Catalog) -> list[Candidate]:
    """The best skills with evidence in `query` (six at most), by confidence, then name.

    An empty list means no skill was recognised. The persona only weighs words both it and the
    skill own; it never adds or removes a skill.
    """
    index = CatalogIndex.of(catalog)
    request = lay_out(normalise_query(query), index)
    owned = owned_words(request, persona)
    cautions = find_cautions(request.reading)
    seen: dict[int, Found | None] = {}
    candidates = [
        _candidate(request, match, owned, cautions, seen) for match in match_skills(request, index)
    ]
    candidates = [candidate for candidate in candidates if candidate.confidence > 0]
    candidates.sort(key=lambda c: (-c.confidence, c.skill_name))
    return _close_second(candidates)


def _candidate(
    request: Request,
    match: Match,
    owned: frozenset[str],
    cautions: Sequence[Caution],
    seen: dict[int, Found | None],
) -> Candidate:
    manifest = match.skill.manifest
    worth_reading = match.evidence >= CASCADE_THRESHOLD_LOW
    found: dict[str, Found] = {}
    if worth_reading:
        skill = match.skill
        found = find_arguments(
            request.reading, manifest, skill.vocabulary, numbers=skill.readings, seen=seen
        )
    explained, strange = _explained(request, match, found)
    evidence = match.evidence * (_BASE + (1 - _BASE) * explained)

    wanted = manifest.required_arguments or tuple(spec.name for spec in manifest.arguments)
    given = sum(name in found for name in wanted) / len(wanted) if wanted else 0.0
    regional = manifest.region == "VN" and request.vietnamese
    personal = bool(owned & match.skill.folds)
    bonus = _ARGUMENTS_BONUS * given + _PERSONA_BONUS * personal + _REGION_BONUS * regional
    # Bonuses close part of the distance to certainty, in proportion to what is there already.
    confidence = _calibrate(evidence + bonus * evidence)

    missing = [name for name in manifest.required_arguments if name not in found]
    kinds: set[str] = {c.kind for c in cautions if _applies(c, request, match, found)}
    if tells(request, match):
        kinds.add("report")
    if (missing or kinds or strange > most_unknown(manifest)) and confidence >= ASK_THRESHOLD:
        confidence = _ASK_CEILING
    if kinds & {"negation", "reversal"} and confidence < 0.5:
        # Too weak to ask about, and a model must not be the one to overlook the "not".
        confidence = min(confidence, _DEFER_CEILING)
    components: dict[str, float] = {
        "phrase_match": 6 * match.phrase,
        "name_match": 5 * match.name,
        "keyword_hits": 3 * match.keywords,
        "region_bonus": 2.0 * regional,
        "persona_bonus": 1.0 * personal,
        "argument_bonus": 2 * given,
        "explained": explained,
        "unexplained": strange,
        "missing_arguments": float(len(missing)),
        **dict.fromkeys(sorted(kinds), 1.0),
    }
    return Candidate(
        skill_name=match.skill.skill_name,
        confidence=round(confidence, DECIMALS),
        arguments={name: entry.value for name, entry in sorted(found.items())},
        score_components={name: round(value, DECIMALS) for name, value in components.items()},
    )


def most_unknown(manifest: SkillManifest) -> float:
    """The most `unexplained` weight with which a skill may still run unasked."""
    return _STRANGE_DESTRUCTIVE if manifest.is_destructive else _STRANGE


def _calibrate(raw: float) -> float:
    """Presses the top together: the rules have never earned certainty, and 0.97 is their most.

    Precision measured above 0.90 supports no finer steps there; below, values stand as they are.
    """
    return raw if raw <= _KNEE else min(_TOP, _KNEE + (raw - _KNEE) * _SLOPE)


def _explained(request: Request, match: Match, found: dict[str, Found]) -> tuple[float, float]:
    """Weighted share of the content words that are the skill's own, and the weight of the rest.

    Words inside found values count out, and so do words like "customer" that say of whom.
    """
    spans = [(entry.start, entry.end) for entry in found.values()]
    total = float(request.unread)
    own = 0.0
    for at, token in enumerate(request.tokens):
        if request.filler[at] or token.numeric or _inside(token, spans):
            continue
        quality = word_quality(request, at, match.skill)
        if quality == 0.0 and token.folded in GENERIC_PARTY:
            continue
        total += request.weights[at]
        own += request.weights[at] * quality
    return (own / total if total else 0.0), total - own


def unknown_words(
    request: Request, skill: SkillIndex, found: Mapping[str, Found]
) -> tuple[str, ...]:
    """The words that `unexplained` counts whole: content that is in no way the skill's own."""
    spans = [(entry.start, entry.end) for entry in found.values()]
    return tuple(
        token.text
        for at, token in enumerate(request.tokens)
        if not (request.filler[at] or token.numeric or _inside(token, spans))
        and word_quality(request, at, skill) == 0.0
        and token.folded not in GENERIC_PARTY
    )


def _applies(caution: Caution, request: Request, match: Match, found: dict[str, Found]) -> bool:
    """False if the sign is part of the skill's own phrase, said whole, or of a free text."""
    if match.phrase >= _WHOLE and caution.places <= match.covered:
        return False
    spans = [(entry.start, entry.end) for entry in found.values()]
    return not all(_inside(request.tokens[at], spans) for at in caution.places if at < MAX_WORDS)


def _inside(token: Token, spans: Collection[tuple[int, int]]) -> bool:
    # Asked of every word of every candidate, mostly with nothing to look at.
    return bool(spans) and any(start <= token.start and token.end <= end for start, end in spans)


def _close_second(candidates: list[Candidate]) -> list[Candidate]:
    """Holds the first back to the ask band if the second is nearly as good."""
    if len(candidates) < 2:
        return candidates
    first, second = candidates[0], candidates[1]
    lead = round(first.confidence - second.confidence, DECIMALS)
    if first.confidence < ASK_THRESHOLD or lead >= GAP:
        return candidates
    return [
        c.model_copy(
            update={
                "confidence": min(c.confidence, round(_ASK_CEILING, DECIMALS)),
                "score_components": {**c.score_components, "close_second": 1.0},
            }
        )
        if c.confidence >= ASK_THRESHOLD
        else c
        for c in candidates
    ]


def owned_words(request: Request, persona: Persona) -> frozenset[str]:
    """Folded words of the request that stand in the persona's bank."""
    owned: set[str] = set()
    for words in _bank(persona.keyword_bank):
        if keyword_quality(request, words) > 0.5:
            owned.update(word.folded for word in words)
    return frozenset(owned)


@lru_cache(maxsize=32)
def _bank(bank: tuple[str, ...]) -> tuple[tuple[Token, ...], ...]:
    return tuple(tokenise(entry) for entry in bank)
