"""The golden set: what the rules decided when last looked at, byte for byte.

A change of scorer, manifests or persona words that moves any of these is shown here. After
looking at the difference, rewrite the file with

    python tests/unit/supervisor/test_golden.py --write
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.branching import choose_path
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.scoring import score_one_off

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "fixtures" / "golden_queries.jsonl"
CATALOG = load_catalog()


def decide(query: str, persona: str) -> dict[str, Any]:
    """The golden line for one query."""
    candidates = score_one_off(query, get_persona(persona), CATALOG)
    top = candidates[0] if candidates else None
    path = choose_path(
        top.confidence if top else None,
        cascade_taken=False,
        llm_confidence=None,
        cascade_failed=False,
    )
    scored = rfc8785.dumps([c.model_dump(mode="json") for c in candidates])
    return {
        "arguments": top.arguments if top else {},
        "candidates_sha256": hashlib.sha256(scored).hexdigest(),
        "confidence": f"{top.confidence:.4f}" if top else "0.0000",
        "path": path,
        "persona": persona,
        "query": query,
        "skill": top.skill_name if top else None,
    }


def render(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, sort_keys=True)


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]


def variants(query: str) -> Iterator[str]:
    yield query.upper()
    yield unicodedata.normalize("NFD", query)
    yield "  " + query.replace(" ", "   ") + " \t"


def unmarked(query: str) -> str:
    plain = unicodedata.normalize("NFD", query.replace("đ", "d").replace("Đ", "D"))
    return "".join(c for c in plain if not unicodedata.combining(c))


@pytest.mark.clause("101-4", "101-17")
@pytest.mark.criterion("101-AC20")
def test_every_line_is_reproduced_byte_for_byte() -> None:
    """Same query, persona and catalogue give the recorded decision, to the byte."""
    stored = GOLDEN.read_text("utf-8").splitlines()
    assert [render(decide(line["query"], line["persona"])) for line in read()] == stored


def test_the_set_is_large_and_covers_each_path() -> None:
    """At least 40 queries, 15 of them decided by rule alone, in both languages."""
    lines = read()
    assert len(lines) >= 40
    assert sum(line["path"] != "cascade" for line in lines) >= 15
    assert {line["path"] for line in lines} == {"auto", "ask", "cascade", "defer"}
    marked = sum(unmarked(line["query"]) != line["query"] for line in lines)
    assert 10 <= marked <= len(lines) - 10


@pytest.mark.clause("101-17")
@pytest.mark.criterion("101-AC20")
@pytest.mark.parametrize(("seed", "locale"), [("1", "C"), ("987654", "C.UTF-8"), ("0", "POSIX")])
def test_another_process_decides_the_same(seed: str, locale: str) -> None:
    """Neither the hash seed nor the locale of a process moves a byte."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--print"],
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "LC_ALL": locale, "PATH": "/bin"},
        cwd=os.sep,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == GOLDEN.read_bytes()


@pytest.mark.parametrize("line", read(), ids=lambda line: line["query"][:40])
def test_spelling_variants_keep_path_and_skill(line: dict[str, Any]) -> None:
    """Upper case, decomposed marks and stray blanks change neither path nor skill."""
    for variant in variants(line["query"]):
        seen = decide(variant, line["persona"])
        assert (seen["path"], seen["skill"]) == (line["path"], line["skill"]), variant


@pytest.mark.parametrize(
    "line",
    [line for line in read() if line.get("path") == "auto"],
    ids=lambda line: line["query"][:40],
)
def test_typing_without_marks_keeps_the_skill(line: dict[str, Any]) -> None:
    """A Vietnamese request typed without marks leads to the same skill."""
    assert decide(unmarked(line["query"]), line["persona"])["skill"] == line["skill"]


if __name__ == "__main__":
    text = "".join(render(decide(line["query"], line["persona"])) + "\n" for line in read())
    if sys.argv[1:] == ["--write"]:
        GOLDEN.write_text(text, "utf-8")
    else:
        sys.stdout.buffer.write(text.encode("utf-8"))
