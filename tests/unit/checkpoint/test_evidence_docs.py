"""The pages on evidence and on the AI Act name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ACT = ROOT / "docs" / "compliance" / "eu-ai-act.md"
EVIDENCE = ROOT / "docs" / "evidence.md"


def test_every_named_file_exists() -> None:
    """A claim whose test was moved or removed is no claim."""
    named = set(re.findall(r"\b(?:unit|integration|acceptance)/[\w/]+\.py", ACT.read_text()))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()] == []


@pytest.mark.parametrize("name", re.findall(r"`(test_\w+)`", EVIDENCE.read_text()))
def test_every_named_test_exists(name: str) -> None:
    """Procedures that are said to be tried are."""
    files = (ROOT / "tests").rglob("test_*.py")
    assert any(f"def {name}(" in path.read_text() for path in files)


POINTS = (
    "12(1)", "12(2)(a)", "12(2)(b)", "12(2)(c)", *(f"12(3)({p})" for p in "abcd"),
    "13(1)", "13(2)", "13(3)(a)",
    *(f"13(3)(b)({p})" for p in ("i", "ii", "iii", "iv", "v", "vi", "vii")),
    *(f"13(3)({p})" for p in "cdef"),
    "14(1)", "14(2)", "14(3)(a)", "14(3)(b)", *(f"14(4)({p})" for p in "abcde"), "14(5)",
    "19(1)", "19(2)", *(f"26({n})" for n in range(1, 13)),
)  # fmt: skip
"""Every paragraph of the five articles and every point that one is divided into, as enacted."""


@pytest.mark.criterion("102-AC18")
def test_every_paragraph_and_point_is_there_once() -> None:
    """In order, each in a line with five cells; and no line for what the Act does not have."""
    lines = [line for line in ACT.read_text().splitlines() if re.match(r"\| \d", line)]
    assert [line.split("|")[1].strip() for line in lines] == list(POINTS)
    assert {line.count("|") for line in lines} == {6}


def test_the_texts_date_and_what_was_not_compared_are_said() -> None:
    """A reader must know which wording this is about, from when it applies, and what to look up."""
    text = " ".join(ACT.read_text().split())
    for said in ("12 July 2024", "2026/1744", "27 July 2026", "2 December 2027", "2 August 2028"):
        assert said in text
    assert "could **not** be reached" in text
