"""Why a request matches: figures of the scorer, phrases and words behind them, gates ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.explain import Explanation, explain
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.scoring import score_one_off

CATALOG = load_catalog()
GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden_queries.jsonl"
QUERIES = [json.loads(line)["query"] for line in GOLDEN.read_text("utf-8").splitlines() if line]


def explained(query: str, persona: str = "genie") -> Explanation:
    return explain(query, get_persona(persona), CATALOG)


@pytest.mark.parametrize("query", QUERIES)
def test_figures_are_the_scorers_own(query: str) -> None:
    """An explanation shows the candidates that routing would see, in the same order."""
    scored = score_one_off(query, get_persona("cfo"), CATALOG)
    shown = explained(query, "cfo").candidates
    assert [(c.skill_name, c.confidence, c.components) for c in shown] == [
        (s.skill_name, s.confidence, s.score_components) for s in scored
    ]
    for candidate in shown:
        shares = [trigger.share for trigger in candidate.triggers]
        assert len(shares) <= 3
        assert shares == sorted(shares, reverse=True)
        assert all(0 < share <= 1 for share in shares)


def test_the_phrase_that_matched_is_named() -> None:
    """The whole phrase found, the words it was found by, and the arguments read."""
    top = explained("validate MST 0301479073", "cfo").candidates[0]
    assert (top.triggers[0].phrase, top.triggers[0].share) == ("validate mst", 1.0)
    assert top.triggers[0].words == ("validate", "mst")
    assert top.arguments == {"mst": "0301479073"}
    assert (top.gate, top.held_back) == ("pass", ())


@pytest.mark.parametrize(
    ("query", "persona", "gate"),
    [
        ("emit hoa don for ACME 4M VND", "cfo", "persona_defer_matrix"),
        ("chuyển khoản 5.000.000 VND cho ACME stk 0123456789", "coo", "approval_required"),
        ("validate MST 0301479073", "cfo", "pass"),
    ],
)
def test_the_gate_it_would_meet_is_named(query: str, persona: str, gate: str) -> None:
    """The same skill may be free for one persona and closed for another."""
    assert explained(query, persona).candidates[0].gate == gate


@pytest.mark.parametrize(
    ("query", "sign"),
    [
        ("don't send invoice for ACME 4M VND", 'negation: "don\'t"'),
        ("đừng xuất hóa đơn cho ACME 4 triệu", "negation: 'đừng'"),
        ("what should we do about the unpaid Q4 contract", "condition: 'should we'"),
        ("send invoice", "a required argument is missing"),
    ],
)
def test_what_held_it_back_is_said_in_its_own_words(query: str, sign: str) -> None:
    """A negation, a question or a missing argument is shown with the words that made it."""
    assert sign in explained(query).candidates[0].held_back


@pytest.mark.parametrize("query", QUERIES)
def test_words_stand_behind_the_figures(query: str) -> None:
    """Keywords, the persona's words and strange words are named where their figures say so."""
    for shown in explained(query, "cfo").candidates:
        assert bool(shown.keywords) == (shown.components["keyword_hits"] > 0)
        assert bool(shown.persona_words) == (shown.components["persona_bonus"] > 0)
        assert not shown.unknown_words or shown.components["unexplained"] > 0
        for trigger in shown.triggers:
            assert set(trigger.words) - {"the", "a", "cho", "to", "of"}, trigger


@pytest.mark.parametrize(
    ("query", "keywords", "unknown", "why"),
    [
        ("what should we do about the unpaid Q4 contract", ("unpaid",), ("contract",), "a model"),
        ("kiểm tra mã số thuế 0301479073 giúp tôi", ("mã số thuế",), (), "0.92 is 0.70 or more"),
        ("kiem tra ma so thue 0301479073", ("mã số thuế",), (), "0.70 or more"),
        ("gửi hóa đơn cho ACME", ("hóa đơn", "hoa don"), (), "a person chooses"),
        ("tell me a joke about unpaid tax", ("unpaid",), ("tell", "joke", "tax"), "less than"),
    ],
)
def test_a_user_reads_which_words_counted(
    query: str, keywords: tuple[str, ...], unknown: tuple[str, ...], why: str
) -> None:
    """In English, Vietnamese and Vietnamese without marks: what was found, what was not, the band."""
    told = explained(query)
    assert (told.candidates[0].keywords, told.candidates[0].unknown_words) == (keywords, unknown)
    assert why in told.why


def test_of_two_alike_each_names_the_other() -> None:
    """Two skills nearly alike keep each other back, by name."""
    own = next(skill for skill in CATALOG.skills if "mst" in skill.name)
    catalog = Catalog.of([own, own.model_copy(update={"name": "vietnam-mst-examine"})])
    query = "validate MST 0301479073"
    first, second = explain(query, get_persona("genie"), catalog).candidates[:2]
    assert f"{second.skill_name} is nearly as good" in first.held_back
    assert f"{first.skill_name} is nearly as good" in second.held_back


def test_nothing_recognised_is_an_empty_explanation() -> None:
    """No candidate, and the path says so."""
    nothing = explained("asdfghjkl")
    assert (nothing.candidates, nothing.path) == ((), "defer")
