"""The scorer: fixed points, evidence, the rules above the ask line, and measured precision."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.branching import choose_path
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.caution import find_cautions
from cuo_supervisor.core.extractors import Reading
from cuo_supervisor.core.matching import SHORTLIST
from cuo_supervisor.core.models import ASK_THRESHOLD, Candidate
from cuo_supervisor.core.personas import PERSONAS, get_persona
from cuo_supervisor.core.scoring import GAP, score_one_off

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
CATALOG = load_catalog()


def score(query: str, persona: str = "genie", catalog: Catalog = CATALOG) -> list[Candidate]:
    return score_one_off(query, get_persona(persona), catalog)


def path_of(candidates: list[Candidate]) -> str:
    top = candidates[0].confidence if candidates else None
    return choose_path(top, cascade_taken=False, llm_confidence=None, cascade_failed=False)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("persona", ["cfo", "genie"])
def test_a_tax_code_check_runs(persona: str) -> None:
    """The plain request for a check is automatic, with its argument."""
    top = score("validate MST 0301479073", persona)[0]
    assert top.skill_name == "vietnam-mst-validate@1.0"
    assert top.confidence >= 0.70
    assert top.arguments == {"mst": "0301479073"}
    assert {"name_match", "keyword_hits", "region_bonus"} <= top.score_components.keys()


def test_a_mixed_language_invoice_is_understood() -> None:
    """English verb, unmarked Vietnamese noun, name and amount: automatic, with types."""
    top = score("emit hoa don for ACME 4M VND", "cfo")[0]
    assert top.skill_name == "vietnam-vat-invoice@1.2"
    assert top.confidence >= 0.70
    assert top.arguments == {"customer": "ACME", "amount_vnd": 4_000_000}


@pytest.mark.parametrize("persona", sorted(PERSONAS))
@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("send invoice", "ask"),
        ("what should we do about the unpaid Q4 contract", "cascade"),
        ("what should we do about the unpaid Q4 contract from ACME", "cascade"),
        ("what should we do about Q4 churn", "cascade"),
        ("asdfghjkl", "defer"),
        ("validate MST 0301479073", "auto"),
        ("emit hoa don for ACME 4M VND", "auto"),
    ],
)
def test_fixed_points_hold_for_every_persona(query: str, path: str, persona: str) -> None:
    """The promised bands hold whoever asks."""
    assert path_of(score(query, persona)) == path


@pytest.mark.criterion("101-AC5")
def test_gibberish_has_no_candidates() -> None:
    """Where nothing is recognised nothing is listed, so there are no alternatives either."""
    assert score("asdfghjkl") == []
    assert score("") == []
    assert score("0301479073") == []


def test_personas_only_shift_by_their_own_words() -> None:
    """A role's words raise a shared skill a little and change nothing else."""
    for query in ("send invoice", "nhắc công nợ quá hạn"):
        plain, owned = score(query, "genie")[0], score(query, "cfo")[0]
        assert plain.skill_name == owned.skill_name
        assert owned.score_components["persona_bonus"] == 1.0
        assert 0 <= owned.confidence - plain.confidence < 0.05


@pytest.mark.clause("101-4")
def test_the_list_is_sorted_and_short() -> None:
    """By confidence, then name; at most what a decision needs."""
    for line in lines("heldout_queries.jsonl"):
        found = score(line["query"])
        assert len(found) <= SHORTLIST
        assert found == sorted(found, key=lambda c: (-c.confidence, c.skill_name))
        assert all(0 < c.confidence <= 0.97 for c in found)


@pytest.mark.parametrize(
    "query",
    [
        "don't validate MST 0301479073",
        "do not issue a VAT invoice for ACME 4M VND",
        "never transfer 5M VND to ACME account 0123456789",
        "đừng xuất hóa đơn cho ACME 4 triệu",
        "ĐỪNG XUẤT HOÁ ĐƠN CHO ACME 4 TRIỆU",
        "chớ gửi thư nhắc nợ cho Globex",
        "không chuyển khoản 5 triệu cho ACME stk 0123456789",
        "khong chuyen khoan 5 trieu cho ACME stk 0123456789",
        "không được xuất hóa đơn cho ACME 4 triệu",
        "dung xuat hoa don cho ACME 4 trieu",
        "validate MST 0301479073? no",
    ],
)
def test_a_negated_request_is_never_carried_out(query: str) -> None:
    """With a prohibition in it a request is asked about or deferred, and no model is consulted."""
    assert path_of(score(query)) in ("ask", "defer")


def test_a_weak_negated_request_reaches_no_model() -> None:
    """Below the ask line a negation defers: overlooking it must not be the model's to do."""
    assert path_of(score("chase the contract")) == "cascade"
    assert path_of(score("do not chase the contract")) == "defer"


@pytest.mark.parametrize(
    "query",
    ["MST 0301479073 có hợp lệ không?", "mã số thuế 0301479073 có hợp lệ không ạ"],
)
def test_the_closing_khong_of_a_question_is_no_negation(query: str) -> None:
    """ "có ... không?" asks for the check it names."""
    assert path_of(score(query)) == "auto"


def test_a_negation_inside_a_topic_is_text() -> None:
    """What an e-mail is about may well be a "not"."""
    assert path_of(score("draft an email to Lan about not renewing the lease")) == "auto"


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("cancel it", "reversal"), ("huỷ bỏ", "reversal"), ("hủy hóa đơn", "reversal"),
        ("how to do it", "question"), ("làm sao đây", "question"), ("did we pay", "question"),
        ("đã xong", "report"), ("if they pay", "condition"), ("nếu họ trả", "condition"),
        ("won't do", "negation"), ("khoan hãy gửi", "reversal"), ("xong chưa", "question"),
    ],
)  # fmt: skip
def test_signs_are_recognised(query: str, kind: str) -> None:
    """Each kind of sign is found in both languages."""
    assert kind in {c.kind for c in find_cautions(Reading.of(query))}


@pytest.mark.parametrize(
    "query", ["dùng MST này", "chuyển khoản", "hoàn thành", "cho ACME", "số dư"]
)
def test_look_alikes_are_no_signs(query: str) -> None:
    """Words that only look like a sign without their marks are left alone."""
    assert find_cautions(Reading.of(query)) == []


def test_missing_arguments_keep_a_skill_out_of_auto() -> None:
    """A perfect phrase without what the skill needs is a question."""
    top = score("xuất hóa đơn cho khách hàng")[0]
    assert top.score_components["missing_arguments"] > 0
    assert top.confidence < ASK_THRESHOLD


def test_two_wishes_at_once_are_asked_about() -> None:
    """The lead of the first over the second is too small to act on."""
    first = "soạn thư nhắc nợ cho ACME"
    second = "cập nhật deal ACME sang thắng"
    assert path_of(score(first)) == "auto"
    assert path_of(score(second)) == "auto"
    assert path_of(score(f"{first} và {second}")) == "ask"


def test_a_close_second_holds_the_first_back() -> None:
    """Two skills with the same phrases tie, and a tie is a question."""
    base = CATALOG.get("vietnam-mst-validate@1.0")
    assert base is not None
    twin = SkillManifest.model_validate({**base.model_dump(mode="json"), "name": "vn-mst-validate"})
    found = score("validate MST 0301479073", catalog=Catalog.of([*CATALOG.skills, twin]))
    assert found[0].confidence - found[1].confidence < GAP
    assert found[0].score_components["close_second"] == 1.0
    assert path_of(found) == "ask"


def test_a_foreign_word_stops_only_the_destructive() -> None:
    """One word no skill knows is a question where money moves, and none for a draft."""
    assert path_of(score("chuyển khoản 5 triệu cho ACME stk 0123456789")) == "auto"
    assert path_of(score("quẩy chuyển khoản 5 triệu cho ACME stk 0123456789")) == "ask"
    assert path_of(score("soạn thư nhắc nợ cho ACME")) == "auto"
    assert path_of(score("soạn nhanh thư nhắc nợ cho ACME")) == "auto"


@pytest.mark.parametrize("line", lines("near_miss_queries.jsonl"), ids=lambda e: e["query"][:40])
def test_near_misses_are_not_carried_out(line: dict[str, Any]) -> None:
    """A skill's words, complete with arguments, in a request for something else."""
    for persona in ("genie", "cfo", "cso"):
        assert path_of(score(line["query"], persona)) != "auto"


def wilson(hits: int, total: int, z: float = 1.959964) -> float:
    """Lower bound of the 95 % Wilson interval."""
    share, spread = hits / total, z * z / total
    middle = share + spread / 2
    return (middle - z * math.sqrt(share * (1 - share) / total + spread / (4 * total))) / (
        1 + spread
    )


def test_precision_at_auto_on_held_out_queries() -> None:
    """Two in five queries are foreign; what runs unasked is right, with a margin for luck.

    The queries were written before the trigger phrases and are not used for tuning. They come
    from the same desk, so real traffic will be harder.
    """
    rows = lines("heldout_queries.jsonl")
    foreign = sum(row["skill"] is None for row in rows)
    assert foreign / len(rows) >= 0.4
    hits = total = covered = 0
    for row in rows:
        found = score(row["query"], row["persona"])
        if path_of(found) == "auto":
            total += 1
            hits += found[0].skill_name.split("@")[0] == row["skill"]
            covered += row["skill"] is not None
    assert wilson(hits, total) >= 0.90
    assert covered / (len(rows) - foreign) >= 0.6


@settings(max_examples=60)
@given(st.text(max_size=300))
def test_any_text_is_scored(text: str) -> None:
    """No text breaks the scorer, and scoring twice gives equal bytes."""
    found = score(text, "cfo")
    assert [c.model_dump_json() for c in found] == [
        c.model_dump_json() for c in score(text, "cfo", Catalog.of(reversed(CATALOG.skills)))
    ]


def test_a_flood_of_words_cannot_push_a_skill_up() -> None:
    """Far more text than any request: what is not read counts as unexplained."""
    assert path_of(score("validate MST 0301479073 " + "lorem " * 5000)) in ("cascade", "defer")


@pytest.mark.parametrize(
    "unit",
    ["1.", "1,000", "a@", "a.b@c.", "1 ", "0-", "for ", "cho ACME ", "về ", "\u0301", "đừng "],
)
def test_hostile_text_costs_no_more_than_its_length(unit: str) -> None:
    """Eight thousand characters of anything take a small part of a second (about 25 ms)."""
    text = (unit * 8000)[:8000]
    started = time.thread_time()
    assert path_of(score(text)) != "auto"
    assert time.thread_time() - started < 1.0


def test_an_empty_catalogue_recognises_nothing() -> None:
    """No skills, no candidates, no failure."""
    assert score("validate MST 0301479073", catalog=Catalog.of([])) == []
