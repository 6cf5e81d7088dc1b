"""Signs that a request must not be carried out without asking, however well it matches. Pure.

A prohibition, a reversal, a question about how, a condition: in each the words of a skill are
present and its act is not wanted now. A sign that a skill's own trigger phrase contains ("has
not paid") is part of that phrase and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cuo_supervisor.core.extractors import Reading
from cuo_supervisor.core.lexicon import CONDITIONALS, NEGATORS, QUESTIONS, REVERSALS
from cuo_supervisor.core.text import Token

__all__ = ["Caution", "CautionKind", "find_cautions"]

CautionKind = Literal["negation", "reversal", "question", "condition"]


@dataclass(frozen=True, slots=True)
class Caution:
    """One sign and the word positions it stands on."""

    kind: CautionKind
    places: frozenset[int]


_MARKED_ONLY: Final = frozenset({"dung", "cho", "huy", "xoa", "ngung", "hoan"})
"""Vietnamese signs that, typed without marks, are mostly other words (dùng, cho, hoàn thành)."""
_MARKED_FORMS: Final = frozenset(
    {"đừng", "dừng", "chớ", "hủy", "huỷ", "xóa", "xoá", "ngừng", "hoãn"}
)
_CLOSERS: Final = frozenset({"nhi", "a", "vay", "em", "anh", "chi", "ban", "the", "ha"})
"""Particles and addresses that may follow the "không" of a question."""
_UNMARKED_PAIRS: Final = (("dung", "co"), ("xoa", "bo"), ("huy", "bo"), ("khong", "duoc"))


def find_cautions(reading: Reading) -> list[Caution]:
    """Every sign in the request, in reading order within each kind.

    The caller leaves out those that stand inside the trigger phrase it matched.
    """
    tokens = reading.tokens
    found: list[Caution] = []
    for at, token in enumerate(tokens):
        word = token.folded
        if word in _MARKED_ONLY:
            if token.text in _MARKED_FORMS or _opens(tokens, at):
                forbids = token.text in ("đừng", "chớ") or word == "cho"
                found.append(Caution("negation" if forbids else "reversal", frozenset({at})))
        elif _forbids(tokens, at):
            found.append(Caution("negation", frozenset({at})))
        elif word in REVERSALS:
            found.append(Caution("reversal", frozenset({at})))
    kinds: tuple[tuple[CautionKind, tuple[tuple[str, ...], ...]], ...] = (
        ("question", QUESTIONS),
        ("condition", CONDITIONALS),
    )
    for kind, phrases in kinds:
        for phrase in phrases:
            found.extend(
                Caution(kind, frozenset(range(at, at + len(phrase)))) for at in reading.find(phrase)
            )
    return found


def _opens(tokens: Sequence[Token], at: int) -> bool:
    """An unmarked "dung", "huy", "xoa" is read as the sign where it opens the request."""
    if tokens[at].marked:
        return False
    if at == 0 and tokens[at].folded != "cho":
        return True
    return at + 1 < len(tokens) and (tokens[at].folded, tokens[at + 1].folded) in _UNMARKED_PAIRS


def _forbids(tokens: Sequence[Token], at: int) -> bool:
    """ "not", "never", "don't", and "không" where it does not merely close a question."""
    word = tokens[at].folded
    if word != "khong":
        return word in NEGATORS or word.endswith("n't")
    after = [token.folded for token in tokens[at + 1 :]]
    return bool(after) and not (len(after) == 1 and after[0] in _CLOSERS)
