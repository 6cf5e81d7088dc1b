"""A catalogue turned inside out: which phrase of which skill each word belongs to. Pure.

Built once per catalogue (by content hash) and read-only afterwards. All weights are ratios of
small integers, so they are the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.lexicon import FILLERS
from cuo_supervisor.core.text import Token, tokenise

__all__ = ["FILLER_WEIGHT", "CatalogIndex", "Phrase", "SkillIndex", "is_filler", "word_weight"]

FILLER_WEIGHT: Final = 0.1
_REGION_WORDS: Final = frozenset({"vietnam", "viet", "nam", "vn"})


@dataclass(frozen=True, slots=True)
class Phrase:
    """One trigger phrase: its words and their weights. `mass` is the sum of the weights."""

    skill: int
    words: tuple[Token, ...]
    weights: tuple[float, ...]
    mass: float


@dataclass(frozen=True, slots=True)
class SkillIndex:
    """What the scorer asks of one skill."""

    manifest: SkillManifest
    name_words: tuple[Token, ...]
    keywords: tuple[tuple[Token, ...], ...]
    keys: frozenset[str]
    """Comparison keys of all its words."""
    folds: frozenset[str]
    """The same words without marks."""
    marked_folds: frozenset[str]
    """Those of `folds` that some word of the skill writes with marks."""


@dataclass(frozen=True, slots=True)
class CatalogIndex:
    """`exact` and `folded` map a word to the phrases holding it, in catalogue order."""

    skills: tuple[SkillIndex, ...]
    phrases: tuple[Phrase, ...]
    exact: Mapping[str, tuple[int, ...]]
    folded: Mapping[str, tuple[int, ...]]
    keyword_skills: Mapping[str, tuple[int, ...]]
    """Folded first words of keywords and names, to the skills holding them."""
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
    skills = tuple(_skill(manifest) for manifest in catalog.skills)
    shared: dict[str, int] = {}
    for skill in skills:
        for word in skill.keys | skill.folds:
            shared[word] = shared.get(word, 0) + 1
    total = len(skills)
    weights = {word: (total - count + 1) / total for word, count in shared.items()}

    phrases: list[Phrase] = []
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    starts: dict[str, list[int]] = {}
    for number, skill in enumerate(skills):
        triggers = skill.manifest.triggers
        for text in (*triggers.en, *triggers.vi):
            words = tokenise(text)
            masses = tuple(FILLER_WEIGHT if is_filler(w) else weights[w.key] for w in words)
            at = len(phrases)
            phrases.append(Phrase(number, words, masses, sum(masses)))
            for word in dict.fromkeys(w.key for w in words):
                exact.setdefault(word, []).append(at)
            for word in dict.fromkeys(w.folded for w in words):
                folded.setdefault(word, []).append(at)
        for group in (*skill.keywords, *((word,) for word in skill.name_words)):
            if group:
                for word in {group[0].folded, group[0].key}:
                    starts.setdefault(word, []).append(number)
    return CatalogIndex(
        skills=skills,
        phrases=tuple(phrases),
        exact={word: tuple(found) for word, found in exact.items()},
        folded={word: tuple(found) for word, found in folded.items()},
        keyword_skills={word: tuple(dict.fromkeys(found)) for word, found in starts.items()},
        weights=weights,
    )


def _skill(manifest: SkillManifest) -> SkillIndex:
    names = tuple(t for t in tokenise(manifest.name) if t.folded not in _REGION_WORDS)
    keywords = tuple(tokenise(keyword) for keyword in manifest.keywords)
    triggers = [tokenise(text) for text in (*manifest.triggers.en, *manifest.triggers.vi)]
    words = [w for group in (*triggers, *keywords, names) for w in group]
    return SkillIndex(
        manifest=manifest,
        name_words=names,
        keywords=keywords,
        keys=frozenset(w.key for w in words),
        folds=frozenset(w.folded for w in words),
        marked_folds=frozenset(w.folded for w in words if w.marked),
    )
