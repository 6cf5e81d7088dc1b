"""A catalogue turned inside out: which phrase of which skill each word belongs to. Pure.

Built once per catalogue (by content hash) and read-only afterwards. All weights are ratios of
small integers, so they are the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cuo_supervisor.core.arguments import reading_key, skill_words
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.extractors import Vocabulary
from cuo_supervisor.core.lexicon import FILLERS
from cuo_supervisor.core.text import Token, tokenise

__all__ = ["FILLER_WEIGHT", "CatalogIndex", "Phrase", "SkillIndex", "is_filler", "word_weight"]

FILLER_WEIGHT: Final = 0.1
_REGION_WORDS: Final = frozenset({"vietnam", "viet", "nam", "vn"})


@dataclass(frozen=True, slots=True)
class Phrase:
    """One trigger phrase of a skill: words, their weights, and the sum of those as `mass`."""

    skill: int
    words: tuple[Token, ...]
    weights: tuple[float, ...]
    telling: tuple[bool, ...]
    """Per word: whether it is more than grammar."""
    mass: float
    content: int
    """How many different content words it has."""
    slack: float
    """Share of the mass that grammar words hold; found or not, it is never much."""


@dataclass(frozen=True, slots=True)
class Posting:
    """The phrases that hold a word: their numbers, and each with the word's share of it."""

    numbers: frozenset[int]
    shares: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SkillIndex:
    """What the scorer asks of one skill."""

    manifest: SkillManifest
    skill_name: str
    name_words: tuple[Token, ...]
    keywords: tuple[tuple[Token, ...], ...]
    keys: frozenset[str]
    """Comparison keys of all its words."""
    folds: frozenset[str]
    """The same words without marks."""
    marked_folds: frozenset[str]
    """Those of `folds` that some word of the skill writes with marks."""
    vocabulary: Vocabulary
    readings: tuple[int, ...]
    """A number for each of its arguments, the same for those any request fills alike."""


@dataclass(frozen=True, slots=True)
class CatalogIndex:
    """Where each word stands. Shares are parts of a phrase's, or of a name's, whole weight."""

    skills: tuple[SkillIndex, ...]
    phrases: tuple[Phrase, ...]
    """Those of one skill stand together; `spans` says from where to where."""
    spans: tuple[range, ...]
    slack: tuple[float, ...]
    owner: tuple[int, ...]
    alone: frozenset[int]
    """Per phrase, as the scorer's inner loop reads them: its slack and skill; those of one word."""
    postings: Mapping[str, Posting]
    """Where each content word stands, by comparison key."""
    folded: Mapping[str, tuple[str, ...]]
    """Word without marks: the keys it may stand for, other than itself."""
    names: Mapping[str, tuple[tuple[int, float], ...]]
    """Comparison key: (skill, share of its name)."""
    keywords: Mapping[str, tuple[tuple[tuple[Token, ...], tuple[tuple[int, int], ...]], ...]]
    """First word of a keyword, without marks or as key: its words, (skill, number) of each use."""
    weights: Mapping[str, float]

    @staticmethod
    @lru_cache(maxsize=8)
    def of(catalog: Catalog) -> CatalogIndex:
        """The index of `catalog`; equal catalogues share one."""
        return _build(catalog)


def is_filler(token: Token) -> bool:
    """True for grammar words and single letters. A marked word is one only if its marks fit."""
    return token.folded in FILLERS or (len(token.text) == 1 and not token.numeric)


def word_weight(index: CatalogIndex, token: Token) -> float:
    """How much a word of a request says: 1 if no skill knows it, less the more skills share it."""
    if is_filler(token):
        return FILLER_WEIGHT
    return index.weights.get(token.key, index.weights.get(token.folded, 1.0))


def _build(catalog: Catalog) -> CatalogIndex:
    weights = _weights(catalog)
    numbers: dict[tuple[str, Vocabulary | None], int] = {}
    skills = tuple(_skill(manifest, numbers) for manifest in catalog.skills)
    phrases: list[Phrase] = []
    spans: list[range] = []
    postings: dict[str, list[tuple[int, float]]] = {}
    folded: dict[str, dict[str, None]] = {}
    names: dict[str, list[tuple[int, float]]] = {}
    keywords: dict[str, dict[tuple[str, ...], list[tuple[int, int]]]] = {}
    spelled: dict[tuple[str, ...], tuple[Token, ...]] = {}
    for number, skill in enumerate(skills):
        began = len(phrases)
        for text in (*skill.manifest.triggers.en, *skill.manifest.triggers.vi):
            phrase, shares = _phrase(number, text, weights)
            for key, share in shares.items():
                postings.setdefault(key, []).append((len(phrases), share))
            for word in phrase.words:
                if word.folded != word.key and not is_filler(word):
                    folded.setdefault(word.folded, {})[word.key] = None
            phrases.append(phrase)
        spans.append(range(began, len(phrases)))
        total_name = sum(weights[word.key] for word in skill.name_words)
        for word in skill.name_words:
            names.setdefault(word.key, []).append((number, weights[word.key] / total_name))
        for place, group in enumerate(skill.keywords):
            written = tuple(word.text for word in group)
            spelled[written] = group
            for start in sorted({group[0].folded, group[0].key}):
                keywords.setdefault(start, {}).setdefault(written, []).append((number, place))
    return CatalogIndex(
        skills=skills,
        phrases=tuple(phrases),
        spans=tuple(spans),
        slack=tuple(phrase.slack for phrase in phrases),
        owner=tuple(phrase.skill for phrase in phrases),
        alone=frozenset(at for at, phrase in enumerate(phrases) if phrase.content <= 1),
        postings={
            key: Posting(frozenset(number for number, _ in found), tuple(found))
            for key, found in postings.items()
        },
        folded={word: tuple(found) for word, found in folded.items()},
        names={key: tuple(found) for key, found in names.items()},
        keywords={
            start: tuple((spelled[written], tuple(uses)) for written, uses in found.items())
            for start, found in keywords.items()
        },
        weights=weights,
    )


def _words(manifest: SkillManifest) -> list[tuple[Token, ...]]:
    """Words of its triggers, keywords and name."""
    triggers = manifest.triggers
    texts = (*triggers.en, *triggers.vi, *manifest.keywords, manifest.name)
    return [tokenise(text) for text in texts]


def _weights(catalog: Catalog) -> dict[str, float]:
    """1 for a word of one skill only, down to 1/n for a word of all n."""
    shared: dict[str, int] = {}
    for manifest in catalog.skills:
        words = [word for group in _words(manifest) for word in group]
        for spelling in {w.key for w in words} | {w.folded for w in words}:
            shared[spelling] = shared.get(spelling, 0) + 1
    total = len(catalog.skills)
    return {word: (total - count + 1) / total for word, count in shared.items()}


def _phrase(skill: int, text: str, weights: Mapping[str, float]) -> tuple[Phrase, dict[str, float]]:
    """The phrase, and each content word's share of its mass."""
    words = tokenise(text)
    masses = tuple(FILLER_WEIGHT if is_filler(w) else weights[w.key] for w in words)
    mass = sum(masses)
    shares = {w.key: m / mass for w, m in zip(words, masses, strict=True) if not is_filler(w)}
    slack = 1.0 - sum(shares.values())
    telling = tuple(not is_filler(w) for w in words)
    return Phrase(skill, words, masses, telling, mass, len(shares), slack), shares


def _skill(
    manifest: SkillManifest, numbers: dict[tuple[str, Vocabulary | None], int]
) -> SkillIndex:
    everything = [word for group in _words(manifest) for word in group]
    vocabulary = skill_words(manifest.triggers, manifest.keywords)
    return SkillIndex(
        manifest=manifest,
        skill_name=manifest.skill_name,
        name_words=tuple(t for t in tokenise(manifest.name) if t.folded not in _REGION_WORDS),
        keywords=tuple(words for k in manifest.keywords if (words := tokenise(k))),
        keys=frozenset(w.key for w in everything),
        folds=frozenset(w.folded for w in everything),
        marked_folds=frozenset(w.folded for w in everything if w.marked),
        vocabulary=vocabulary,
        readings=tuple(
            numbers.setdefault(reading_key(spec, vocabulary), len(numbers))
            for spec in manifest.arguments
        ),
    )
