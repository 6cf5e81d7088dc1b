"""Typed arguments: what is read from a request, and what is refused from anyone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.arguments import extract_arguments, validate_arguments
from cuo_supervisor.core.catalog import SkillManifest

CATALOG = load_catalog()


def skill(name: str) -> SkillManifest:
    return next(s for s in CATALOG.skills if s.name == name)


def read(name: str, query: str) -> dict[str, Any]:
    return extract_arguments(query, skill(name))


@pytest.mark.parametrize(
    ("query", "mst"),
    [
        ("validate MST 0301479073", "0301479073"),
        ("mã số thuế 0301479073-001 đúng không", "0301479073-001"),
        ("MST: 0301 479 073", "0301479073"),
        ("check 0301.479.073", "0301479073"),
        ("validate MST 12345", "12345"),
        ("call 0301479073", None),
        ("stk 0301479073", None),
        ("MST 0301479073 hay MST 0302345678", None),
        ("MST 0301479073, tôi nhắc lại 0301479073", "0301479073"),
        ("order AB-0301479073-XY", None),
        ("validate my number", None),
    ],
)
def test_tax_codes(query: str, mst: str | None) -> None:
    """Shape or context gives a tax code; phone and account context, or two codes, give none."""
    assert read("vietnam-mst-validate", query).get("mst") == mst


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4M VND", 4_000_000), ("4tr", 4_000_000), ("4 triệu", 4_000_000), ("4 TRIEU", 4_000_000),
        ("1,5 tỷ", 1_500_000_000), ("1.5bn", 1_500_000_000), ("500k", 500_000),
        ("500 nghìn đồng", 500_000), ("9.900.000 đồng", 9_900_000), ("4,000,000", 4_000_000),
        ("12,500,000 VND", 12_500_000), ("3.000.000đ", 3_000_000), ("250000 VND", 250_000),
        ("4M USD", None), ("$4M", None), ("€ 4.000.000", None), ("4000000", None), ("4,000", None),
        ("4.500 triệu", None), ("4M VND và 5M VND", None), ("0.0001k VND", None), ("4mx", None),
    ],
)  # fmt: skip
def test_amounts(text: str, amount: int | None) -> None:
    """Units, groups and decimals of both languages; other currencies and doubts give none."""
    assert read("vietnam-vat-invoice", f"emit invoice for ACME {text}").get("amount_vnd") == amount


@pytest.mark.parametrize(
    ("query", "customer"),
    [
        ("emit hoa don for ACME 4M VND", "ACME"),
        ("EMIT HOA DON FOR ACME 4M VND", "ACME"),
        ("emit hoa don for acme 4m vnd", "acme"),
        ("issue a VAT invoice to Vina Foods for 10M VND", "Vina Foods"),
        ("xuất hóa đơn cho khách hàng Minh Long 15 triệu", "Minh Long"),
        ("xuat hoa don cho cong ty minh long 5 trieu", "minh long"),
        ("xuất hóa đơn cho An 4 triệu", "An"),
        ("issue invoice for the customer", None),
        ("issue invoice for the unpaid Q4 contract", None),
        ("issue invoice for ACME or for Globex", None),
        ("send invoice", None),
    ],
)
def test_names(query: str, customer: str | None) -> None:
    """A name stands behind its preposition; grammar and the skill's own words are none."""
    assert read("vietnam-vat-invoice", query).get("customer") == customer


def test_a_transfer_is_read_whole() -> None:
    """Amount, account, payee and bank are told apart."""
    text = "chuyển khoản 5 triệu cho Nguyễn Văn An số tài khoản 0071000123456 Vietcombank"
    assert read("vietnam-bank-transfer", text) == {
        "amount_vnd": 5_000_000,
        "account_number": "0071000123456",
        "payee": "Nguyễn Văn An",
        "bank": "Vietcombank",
    }


@pytest.mark.parametrize(
    ("query", "deal", "stage"),
    [
        ("move deal Globex Renewal to negotiation", "Globex Renewal", "negotiation"),
        ("update the ACME deal to closed won", "ACME", "won"),
        ("chuyển deal Minh Long sang thắng", "Minh Long", "won"),
        ("chuyen deal minh long sang thang", "minh long", "won"),
        ("cập nhật deal ACME tháng này", "ACME", None),
        ("move deal ACME from proposal to won", "ACME", "won"),
    ],
)
def test_deals_and_stages(query: str, deal: str, stage: str | None) -> None:
    """A stage is best told by the word before it; an unmarked syllable needs that word."""
    found = read("crm-deal-update", query)
    assert (found.get("deal"), found.get("stage")) == (deal, stage)


def test_topic_is_the_rest_of_the_sentence() -> None:
    """What follows "about" or "về" is the topic, without the full stop."""
    assert read("email-genie-draft", "Draft an email to Lan about the audit.") == {
        "recipient": "Lan",
        "topic": "the audit",
    }
    assert read("email-genie-draft", "viết email cho Lan về việc chậm tiến độ")["topic"] == (
        "chậm tiến độ"
    )


@pytest.mark.parametrize("name", [s.name for s in CATALOG.skills])
@given(text=st.text(max_size=120))
def test_whatever_is_read_is_valid(name: str, text: str) -> None:
    """No text yields an argument that its own check would refuse, apart from missing ones."""
    manifest = skill(name)
    problems = validate_arguments(extract_arguments(text, manifest), manifest)
    assert all(problem.endswith(": required") for problem in problems)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "account_number: required"),
        ({"amount_vnd": "5000000"}, "amount_vnd: must be an integer"),
        ({"amount_vnd": True}, "amount_vnd: must be an integer"),
        ({"amount_vnd": 5.0}, "amount_vnd: must be an integer"),
        ({"amount_vnd": 1}, "amount_vnd: must be at least 1000"),
        ({"amount_vnd": 10**15}, "amount_vnd: must be at most 1000000000000"),
        ({"account_number": 123456}, "account_number: must be a string"),
        ({"account_number": "12-34"}, "account_number: does not have the required form"),
        ({"payee": " "}, "payee: must not be empty"),
        ({"payee": "x" * 121}, "payee: must be at most 120 characters"),
        ({"payee": "a\0b"}, "payee: must not hold NUL or lone surrogates"),
        ({"payee": None}, "payee: must be a string"),
        ({"to": "x"}, "1 keys that are no arguments of this skill"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], problem: str) -> None:
    """Each rule is reported under the argument's name."""
    good = {"amount_vnd": 5_000_000, "account_number": "0071000123456"}
    given_ = {**good, **arguments} if arguments else {"amount_vnd": 5_000_000}
    assert validate_arguments(given_, skill("vietnam-bank-transfer")) == [problem]


def test_problems_never_repeat_a_value_or_a_foreign_key() -> None:
    """A refused value or key may be personal; only the rule is told."""
    problems = validate_arguments(
        {"account_number": "secret-value", "secret-key": "secret"}, skill("vietnam-bank-transfer")
    )
    assert problems
    assert "secret" not in " ".join(problems)


def test_choices_are_closed() -> None:
    """A stage outside the list is refused, whoever proposes it."""
    problems = validate_arguments({"deal": "ACME", "stage": "closed"}, skill("crm-deal-update"))
    assert problems == ["stage: must be one of lost, negotiation, proposal, qualified, won"]
