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
    FILLER_WEIGHT,
    CatalogIndex,
    Phrase,
    SkillIndex,
    is_filler,
    word_weight,
)
from cuo_supervisor.core.text import Token

__all__ = [
    "MAX_WORDS",
    "SHORTLIST",
    "Match",
    "Request",
    "closest_phrases",
    "keyword_quality",
    "lay_out",
    "match_skills",
    "tells",
    "word_quality",
]

SHORTLIST: Final = 6
"""Skills scored in full: the model is shown five, a caller the chosen one and three more."""
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
_APART: Final = 0.75
"""What a phrase keeps of its score if its words stand apart or out of order."""
_NOWHERE: Final = -2
_ALIGNED: Final = 4
"""Phrases per skill aligned word by word, best upper bounds first."""


@dataclass(slots=True)
class Match:
    """One skill's evidence. `covered` are word positions its best phrase accounts for."""

    skill: SkillIndex
    name: float = 0.0
    keywords: float = 0.0
    phrase: float = 0.0
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
    filler: tuple[bool, ...]
    rank: tuple[int, ...]
    unread: int
    marked: bool
    """True if the writer types marks: at least two words carry them."""
    vietnamese: bool


def lay_out(text: str, index: CatalogIndex) -> Request:
    """A normalised request, laid out for comparison with the skills of `index`."""
    reading = Reading.of(text)
    tokens = reading.tokens[:MAX_WORDS]
    fillers = tuple(is_filler(token) for token in tokens)
    by_key: dict[str, list[int]] = {}
    by_fold: dict[str, list[int]] = {}
    rank: list[int] = []
    content = 0
    for at, token in enumerate(tokens):
        by_key.setdefault(token.key, []).append(at)
        by_fold.setdefault(token.folded, []).append(at)
        rank.append(content)
        content += not (fillers[at] or token.numeric)
    return Request(
        reading=reading,
        tokens=tokens,
        by_key=by_key,
        by_fold=by_fold,
        weights=tuple(
            FILLER_WEIGHT if filler else word_weight(index, token)
            for token, filler in zip(tokens, fillers, strict=True)
        ),
        filler=fillers,
        rank=tuple(rank),
        unread=len(reading.tokens) - len(tokens),
        marked=sum(token.marked for token in tokens) >= 2,
        vietnamese=any(t.marked or t.folded in VIETNAM_SIGNS for t in tokens),
    )


def tells(request: Request, match: Match) -> bool:
    """True if the request has the past of a verb of the skill: "issued" tells of issuing.

    Words that the skill itself uses in that form ("unsigned", "overdue") are no such verbs.
    """
    return any(
        token.text.endswith("ed")
        and not token.marked
        and token.key != token.text
        and token.folded not in match.skill.folds
        for token in (request.tokens[at] for at in match.covered)
    )


def match_skills(request: Request, index: CatalogIndex) -> list[Match]:
    """The best few skills that share a content word with the request, with their evidence.

    Phrases are compared word by word in the order of an upper bound (every word found, order
    ignored), and only as long as that bound beats the worst skill already in the list.
    """
    bounds, touched, tops, names = _bounds(request, index)
    keywords = {
        skill: min(1.0, sum(found.values()) / 2)
        for skill, found in _keyword_hits(request, index).items()
    }
    most = {
        skill: _evidence(
            min(1.0, tops.get(skill, 0.0)), names.get(skill, 0.0), keywords.get(skill, 0.0)
        )
        for skill in {**tops, **names, **keywords}
    }
    best: list[Match] = []
    floor = 0.0
    for number in sorted(most, key=lambda skill: (-most[skill], skill)):
        if most[number] <= floor:
            break
        match = Match(index.skills[number], names.get(number, 0.0), keywords.get(number, 0.0))
        own = [(bounds[at], at) for at in index.spans[number] if at in touched]
        match.phrase, match.covered = _best_phrase(request, index, own)
        match.evidence = _evidence(match.phrase, match.name, match.keywords)
        best.append(match)
        best.sort(key=lambda m: (-m.evidence, m.skill.skill_name))
        if len(best) >= SHORTLIST:
            del best[SHORTLIST:]
            floor = best[-1].evidence
    return best


def closest_phrases(
    request: Request, index: CatalogIndex, skill: SkillIndex, limit: int = 3
) -> list[tuple[str, float, tuple[str, ...]]]:
    """A skill's phrases nearest to the request: text, share found, the request's words that count.

    For explaining, not for scoring: every phrase of the skill is aligned.
    """
    found = [
        (" ".join(word.text for word in phrase.words), *_align(request, phrase))
        for phrase in index.phrases
        if index.skills[phrase.skill] is skill
    ]
    # A phrase found by its grammar words alone ("the") explains nothing.
    found = [entry for entry in found if any(not request.filler[at] for at in entry[2])]
    found.sort(key=lambda entry: (-entry[1], entry[0]))
    return [
        (text, share, tuple(request.tokens[at].text for at in sorted(places)))
        for text, share, places in found[:limit]
    ]


def _bounds(
    request: Request, index: CatalogIndex
) -> tuple[list[float], set[int], dict[int, float], dict[int, float]]:
    """The most each phrase can score, the phrases that share a word with the request at all, the
    most of each skill's, and the share of its name found.

    The inner loop walks every such phrase of every skill, so it does nothing but add.
    """
    bound = list(index.slack)
    touched: set[int] = set()
    several: set[int] = set()
    names: dict[int, float] = {}
    for key, quality in _content(request, index).items():
        # In the request's order throughout: sums of floats depend on it.
        posting = index.postings.get(key)
        if posting is not None:
            several |= touched & posting.numbers
            touched |= posting.numbers
            for number, share in posting.shares:
                bound[number] += quality * share
        if key in request.by_key:
            for skill, share in index.names.get(key, ()):
                names[skill] = names.get(skill, 0.0) + share
    for number in touched - several - index.alone:
        bound[number] *= _APART  # a word alone stands in no order
    tops: dict[int, float] = {}
    owner = index.owner
    for number in touched:
        skill, value = owner[number], bound[number]
        if value > tops.get(skill, 0.0):
            tops[skill] = value
    return bound, touched, tops, names


def _content(request: Request, index: CatalogIndex) -> dict[str, float]:
    """Keys of skill words the request may hold, with the most each can be worth."""
    worth: dict[str, float] = {}
    for at, token in enumerate(request.tokens):
        if request.filler[at]:
            continue
        worth[token.key] = 1.0
    for word in request.by_fold:
        for key in (*index.folded.get(word, ()), word):
            worth.setdefault(key, _FOLD_NEAR)
    return worth


def _keyword_hits(request: Request, index: CatalogIndex) -> dict[int, dict[int, float]]:
    """Per skill, how surely each of its keywords (by number) stands in the request."""
    hits: dict[int, dict[int, float]] = {}
    for start in {**request.by_fold, **request.by_key}:
        for words, uses in index.keywords.get(start, ()):
            quality = keyword_quality(request, words)
            if quality > 0:
                for skill, place in uses:
                    hits.setdefault(skill, {})[place] = quality
    return hits


def _best_phrase(
    request: Request, index: CatalogIndex, bounds: Sequence[tuple[float, int]]
) -> tuple[float, frozenset[int]]:
    """The best trigger phrase of one skill and the word positions it accounts for."""
    best, covered = 0.0, frozenset[int]()
    for bound, number in sorted(bounds, key=lambda entry: (-entry[0], entry[1]))[:_ALIGNED]:
        if bound <= best:
            break
        score, places = _align(request, index.phrases[number])
        if score > best:
            best, covered = score, places
    return best, covered


def _evidence(phrase: float, name: float, keywords: float) -> float:
    """Three independent signs joined: each can only add, and none alone reaches 1."""
    return 1 - (
        (1 - _PHRASE_SHARE * phrase) * (1 - _NAME_SHARE * name) * (1 - _KEYWORD_SHARE * keywords)
    )


def _align(request: Request, phrase: Phrase) -> tuple[float, frozenset[int]]:
    """Weighted share of the phrase found, less if its words stand apart or out of order."""
    by_key, by_fold = request.by_key, request.by_fold
    places_of: list[int] = []  # where each word of the phrase stands, -2 for nowhere
    exact: list[bool] = []
    previous = -2
    for word in phrase.words:
        places = by_key.get(word.key)
        exact.append(places is not None)
        places = places or by_fold.get(word.folded)
        if not places:
            places_of.append(_NOWHERE)
            continue
        at = previous + 1
        if at not in places:
            at = next((place for place in places if place > previous), places[0])
        places_of.append(at)
        previous = at

    found = 0.0
    order: list[int] = []
    covered: set[int] = set()
    last = len(places_of) - 1
    for number, at in enumerate(places_of):
        if at < 0:
            continue
        meant = phrase.words[number]
        if exact[number]:
            quality = 1.0
        else:
            near = (number > 0 and places_of[number - 1] == at - 1 >= 0) or (
                number < last and places_of[number + 1] == at + 1
            )
            quality = _fold_quality(request, request.tokens[at], meant, near)
            if quality <= 0.0:
                continue
        found += quality * phrase.weights[number]
        covered.add(at)
        if phrase.telling[number]:
            order.append(request.rank[at])
    steps = [0 < b - a <= _REACH for a, b in itertools.pairwise(order)]
    together = sum(steps) / len(steps) if steps else float(len(phrase.words) == len(covered))
    return found / phrase.mass * (_APART + (1 - _APART) * together), frozenset(covered)


def _fold_quality(request: Request, seen: Token, meant: Token, near: bool) -> float:
    """What a word is worth that matches only without its marks.

    Whoever types marks types them throughout: there an unmarked syllable is another word.
    """
    if meant.marked and (seen.marked or request.marked):
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
    if (token.marked or request.marked) and token.folded in skill.marked_folds:
        return _RETONED_NEAR if near else _RETONED_ALONE
    return _FOLD_NEAR if near else _FOLD_ALONE


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
            near = len(words) > 1
            return min(_fold_quality(request, seen, meant, near) for seen, meant in pairs)
    return 0.0
