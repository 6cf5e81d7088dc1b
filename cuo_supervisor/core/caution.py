"""Signs that a request must not be carried out without asking, however well it matches. Pure.

A prohibition, a reversal, a question, a report, a condition: in each the words of a skill are
present and its act is not wanted now. A sign inside a skill's own trigger phrase ("has not
paid") or inside a free text it was given ("about not renewing") is no sign; the scorer, which
knows both, leaves those out by their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cuo_supervisor.core.extractors import Reading
from cuo_supervisor.core.lexicon import (
    ASKING_OPENERS,
    CONDITIONALS,
    MARKED_NEGATORS,
    MARKED_REVERSALS,
    NEGATORS,
    QUESTIONS,
    REPORTS,
    REVERSALS,
    UNMARKED_SIGNS,
)
from cuo_supervisor.core.text import Token, canonical, fold

__all__ = ["Caution", "CautionKind", "find_cautions"]

CautionKind = Literal["negation", "reversal", "question", "report", "condition"]

_MARKED_NEGATORS: Final = frozenset(map(canonical, MARKED_NEGATORS))
_MARKED_REVERSALS: Final = frozenset(map(canonical, MARKED_REVERSALS))
_OPENING: Final = frozenset(map(fold, (*MARKED_NEGATORS, *MARKED_REVERSALS))) - {"cho", "bo", "sua"}
"""Read as the sign, marks or not, where they open the request."""
_CLOSERS: Final = frozenset({"nhi", "a", "vay", "em", "anh", "chi", "ban", "the", "ha"})
"""Particles and addresses that may follow the "không" or "chưa" of a question."""

_PHRASES: Final[tuple[tuple[CautionKind, tuple[tuple[str, ...], ...]], ...]] = (
    ("question", QUESTIONS),
    ("report", REPORTS),
    ("condition", CONDITIONALS),
    ("reversal", UNMARKED_SIGNS),
)

_BY_FIRST: Final[dict[str, list[tuple[int, CautionKind, tuple[str, ...]]]]] = {}
"""The same by first word, each with its place in the order above: a request has few of them."""
for _order, (_kind, _phrase) in enumerate(
    (kind, phrase) for kind, phrases in _PHRASES for phrase in phrases
):
    _BY_FIRST.setdefault(_phrase[0], []).append((_order, _kind, _phrase))


@dataclass(frozen=True, slots=True)
class Caution:
    """One sign and the word positions it stands on."""

    kind: CautionKind
    places: frozenset[int]


def find_cautions(reading: Reading) -> list[Caution]:
    """Every sign in the request: those of one word in reading order, then those of more."""
    found = [
        Caution(kind, frozenset({at}))
        for at, token in enumerate(reading.tokens)
        if (kind := _sign(reading.tokens, at, token)) is not None
    ]
    begun = (entry for word in reading.places for entry in _BY_FIRST.get(word, ()))
    for _, kind, phrase in sorted(begun):
        found.extend(
            Caution(kind, frozenset(range(at, at + len(phrase)))) for at in reading.find(phrase)
        )
    return found


def _sign(tokens: Sequence[Token], at: int, token: Token) -> CautionKind | None:
    word = token.folded
    if token.key in _MARKED_NEGATORS or word in NEGATORS or word.endswith("n't"):
        return "negation"
    if word in REVERSALS or (token.marked and token.key in _MARKED_REVERSALS):
        return "reversal"
    if at == 0 and not token.marked and word in _OPENING:
        return "reversal"
    if word in ("khong", "chua"):
        if _closes(tokens, at):
            # "... chưa?" asks whether it was done; "... không?" belongs to checking things.
            return "question" if word == "chua" else None
        return "negation" if word == "khong" else None
    if at == 0 and word in ASKING_OPENERS:
        return "question"
    return None


def _closes(tokens: Sequence[Token], at: int) -> bool:
    """True if only an address or a particle follows."""
    after = [token.folded for token in tokens[at + 1 :]]
    return not after or (len(after) == 1 and after[0] in _CLOSERS)
