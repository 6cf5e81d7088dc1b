"""Lays a request beside every skill of a catalogue and says what of it fits. Pure.

Marked words that agree count fully. A word that agrees only without marks counts nearly fully
where its neighbour agrees too (one syllable in five keeps a single reading, two together
mostly do) and little where it stands alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cuo_supervisor.core.extractors import Reading
from cuo_supervisor.core.lexicon import VIETNAM_SIGNS
from cuo_supervisor.core.scoring_index import (
    CatalogIndex,
    Phrase,
    SkillIndex,
    is_filler,
    word_weight,
)
from cuo_supervisor.core.text import Token

__all__ = [
    "MAX_WORDS",
    "Match",
    "Request",
    "keyword_quality",
    "lay_out",
    "match_skills",
    "word_quality",
]

MAX_WORDS: Final = 256
"""Words read for evidence; the rest still counts as unexplained."""

_PHRASE_SHARE: Final = 0.85
_NAME_SHARE: Final = 0.50
_KEYWORD_SHARE: Final = 0.30

_FOLD_NEAR: Final = 0.95
_FOLD_ALONE: Final = 0.35
_RETONED_NEAR: Final = 0.70
_RETONED_ALONE: Final = 0.10
_REACH: Final = 3
"""Content words between two words of a phrase that still count as one saying."""
_ALIGNED: Final = 4
"""Phrases per skill aligned word by word, best upper bounds first."""


@dataclass(slots=True)
class Match:
    """One skill's evidence. `covered` are word positions its best phrase accounts for."""

    skill: SkillIndex
    phrase: float = 0.0
    name: float = 0.0
    keywords: float = 0.0
    evidence: float = 0.0
    covered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """A request laid out for matching. `rank` numbers content words only."""

    reading: Reading
    tokens: tuple[Token, ...]
    by_key: Mapping[str, list[int]]
    by_fold: Mapping[str, list[int]]
    weights: tuple[float, ...]
    rank: tuple[int, ...]
    unread: int
    vietnamese: bool


def lay_out(text: str, index: CatalogIndex) -> Request:
    reading = Reading.of(text)
    tokens = reading.tokens[:MAX_WORDS]
    by_key: dict[str, list[int]] = {}
    by_fold: dict[str, list[int]] = {}
    rank: list[int] = []
    content = 0
    for at, token in enumerate(tokens):
        by_key.setdefault(token.key, []).append(at)
        by_fold.setdefault(token.folded, []).append(at)
        rank.append(content)
        content += not (is_filler(token) or token.numeric)
    return Request(
        reading=reading,
        tokens=tokens,
        by_key=by_key,
        by_fold=by_fold,
        weights=tuple(word_weight(index, token) for token in tokens),
        rank=tuple(rank),
        unread=len(reading.tokens) - len(tokens),
        vietnamese=any(t.marked or t.folded in VIETNAM_SIGNS for t in tokens),
    )


def match_skills(request: Request, index: CatalogIndex) -> list[Match]:
    """Every skill that shares a content word with the request, with its evidence."""
    reached: dict[int, float] = {}
    for word, places in request.by_key.items():
        if not is_filler(request.tokens[places[0]]):
            _reach(reached, index, index.exact.get(word, ()), word, by_key=True)
    for word, places in request.by_fold.items():
        if not is_filler(request.tokens[places[0]]):
            _reach(reached, index, index.folded.get(word, ()), word, by_key=False)

    best: dict[int, list[tuple[float, int]]] = {}
    for at, upper in reached.items():
        best.setdefault(index.phrases[at].skill, []).append((-upper, at))
    for words in (request.by_key, request.by_fold):
        for word in words:
            for skill in index.keyword_skills.get(word, ()):
                best.setdefault(skill, [])

    matches = []
    for number, phrases in best.items():
        match = Match(index.skills[number])
        for _, at in sorted(phrases)[:_ALIGNED]:
            score, covered = _align(request, index.phrases[at])
            if score > match.phrase:
                match.phrase, match.covered = score, covered
        match.name = _share_of(request, index, match.skill.name_words)
        hits = sum(keyword_quality(request, words) for words in match.skill.keywords)
        match.keywords = min(1.0, hits / 2)
        match.evidence = 1 - (
            (1 - _PHRASE_SHARE * match.phrase)
            * (1 - _NAME_SHARE * match.name)
            * (1 - _KEYWORD_SHARE * match.keywords)
        )
        matches.append(match)
    return matches


def _reach(
    reached: dict[int, float], index: CatalogIndex, at: Sequence[int], word: str, *, by_key: bool
) -> None:
    """Raise each phrase's upper bound by the weight of one word found, but never twice."""
    for place in at:
        phrase = index.phrases[place]
        for token, weight in zip(phrase.words, phrase.weights, strict=True):
            if by_key and token.key == word:
                reached[place] = reached.get(place, 0.0) + weight / phrase.mass
                break
            if not by_key and token.folded == word and token.key != word:
                reached[place] = reached.get(place, 0.0) + 0.9 * weight / phrase.mass
                break


def _align(request: Request, phrase: Phrase) -> tuple[float, frozenset[int]]:
    """Weighted share of the phrase found, less if its words stand apart or out of order."""
    placed: list[tuple[int, bool] | None] = []
    previous = -2
    for word in phrase.words:
        places = request.by_key.get(word.key)
        exact = places is not None
        places = places or request.by_fold.get(word.folded)
        if not places:
            placed.append(None)
            continue
        at = previous + 1
        if at not in places:
            at = next((place for place in places if place > previous), places[0])
        placed.append((at, exact))
        previous = at

    found = 0.0
    order: list[int] = []
    covered: set[int] = set()
    for number, spot in enumerate(placed):
        if spot is None:
            continue
        at, exact = spot
        near = any(
            other is not None and other[0] == at + step
            for step, other in ((-1, _at(placed, number - 1)), (1, _at(placed, number + 1)))
        )
        quality = 1.0 if exact else _fold_quality(request.tokens[at], phrase.words[number], near)
        if quality <= 0.0:
            continue
        found += quality * phrase.weights[number]
        covered.add(at)
        if not is_filler(phrase.words[number]):
            order.append(request.rank[at])
    steps = [0 < b - a <= _REACH for a, b in itertools.pairwise(order)]
    together = sum(steps) / len(steps) if steps else float(len(phrase.words) == len(covered))
    return found / phrase.mass * (0.75 + 0.25 * together), frozenset(covered)


def _at(placed: Sequence[tuple[int, bool] | None], number: int) -> tuple[int, bool] | None:
    return placed[number] if 0 <= number < len(placed) else None


def _fold_quality(seen: Token, meant: Token, near: bool) -> float:
    """What a word is worth that matches only without its marks."""
    if seen.marked and meant.marked:
        return _RETONED_NEAR if near else _RETONED_ALONE
    if near:
        return _FOLD_NEAR
    return 0.0 if is_filler(seen) else _FOLD_ALONE


def word_quality(request: Request, at: int, skill: SkillIndex) -> float:
    """How surely the request's word number `at` is one of the skill's words, 0 to 1."""
    token = request.tokens[at]
    if token.key in skill.keys:
        return 1.0
    if token.folded not in skill.folds:
        return 0.0
    near = any(
        0 <= other < len(request.tokens) and request.tokens[other].folded in skill.folds
        for other in (at - 1, at + 1)
    )
    if token.marked and token.folded in skill.marked_folds:
        return _RETONED_NEAR if near else _RETONED_ALONE
    return _FOLD_NEAR if near else _FOLD_ALONE


def _share_of(request: Request, index: CatalogIndex, words: Sequence[Token]) -> float:
    total = sum(word_weight(index, word) for word in words)
    seen = sum(word_weight(index, word) for word in words if word.key in request.by_key)
    return seen / total if total else 0.0


def keyword_quality(request: Request, words: Sequence[Token]) -> float:
    """1 if the keyword's words stand together as written, less without marks, else 0."""
    for at in request.by_fold.get(words[0].folded, request.by_key.get(words[0].key, [])):
        here = request.tokens[at : at + len(words)]
        if len(here) < len(words):
            continue
        pairs = list(zip(here, words, strict=True))
        if all(seen.key == meant.key for seen, meant in pairs):
            return 1.0
        if all(seen.folded == meant.folded for seen, meant in pairs):
            return min(_fold_quality(seen, meant, len(words) > 1) for seen, meant in pairs)
    return 0.0
