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


@pytest.mark.criterion("102-AC18")
def test_every_paragraph_is_there() -> None:
    """Each paragraph of the five articles has its line."""
    text = ACT.read_text()
    paragraphs = [f"| {article}({n}" for article, last in ((12, 3), (13, 3), (14, 5), (19, 2), (26, 12))
                  for n in range(1, last + 1)]  # fmt: skip
    assert [p for p in paragraphs if p not in text] == []
