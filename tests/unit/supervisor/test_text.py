"""Words: Vietnamese spellings that must meet, and those that must not."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.core.text import canonical, fold, normalise_query, stem, tokenise


@pytest.mark.parametrize(
    ("left", "right"), [("hoá", "hóa"), ("thuỷ", "thủy"), ("HOÁ", "hóa"), ("khoẻ", "khỏe")]
)
def test_tone_placement_makes_no_difference(left: str, right: str) -> None:
    """The tone mark may stand on either vowel, in any case and normal form."""
    assert canonical(left) == canonical(right)
    assert canonical(unicodedata.normalize("NFD", left)) == canonical(right)


@pytest.mark.parametrize(
    ("left", "right"), [("thuê", "thuế"), ("nợ", "no"), ("đo", "do"), ("thắng", "tháng")]
)
def test_different_words_stay_different(left: str, right: str) -> None:
    """Words that differ by a mark or a stroke are not the same word."""
    assert canonical(left) != canonical(right)


@pytest.mark.parametrize(
    ("word", "plain"), [("Đường", "duong"), ("hoá", "hoa"), ("ĐẶNG", "dang"), ("naïve", "naive")]
)
def test_fold_drops_marks_and_the_stroke(word: str, plain: str) -> None:
    """Folding gives the unmarked letters, d-stroke included."""
    assert fold(word) == plain
    assert fold(unicodedata.normalize("NFD", word)) == plain


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("invoices", "invoice"), ("validating", "validate"), ("emails", "email"),
        ("transferred", "transfer"), ("companies", "company"), ("drafted", "draft"),
    ],
)  # fmt: skip
def test_english_forms_meet(left: str, right: str) -> None:
    """Plural, -ing and -ed forms share a stem with the word."""
    assert stem(left) == stem(right)


@pytest.mark.parametrize("word", ["thue", "thu", "khach", "trang", "address", "status", "tax"])
def test_short_and_vietnamese_words_keep_their_form(word: str) -> None:
    """No stem is cut from unmarked Vietnamese, nor an s that is no plural."""
    assert stem(word) == word


def test_normalise_keeps_marks_and_case() -> None:
    """NFC, single blanks, no invisible characters; all else as written."""
    text = unicodedata.normalize("NFD", "  Xuất\u200b  hóa\tđơn\n") + "\ufeff"
    assert normalise_query(text) == "Xuất hóa đơn"


def test_tokens_carry_their_place() -> None:
    """Offsets point into the text the words were read from."""
    text = "check MST 0301479073, don't wait: e-invoice"
    tokens = tokenise(text)
    assert [text[t.start : t.end].lower() for t in tokens] == [t.text for t in tokens]
    assert [t.text for t in tokens][-4:] == ["don't", "wait", "e", "invoice"]
    assert [t.text for t in tokens if t.numeric] == ["0301479073"]


def test_full_width_forms_compare_as_plain() -> None:
    """Full-width letters and digits are the same words."""
    assert [t.key for t in tokenise("ＭＳＴ ０３０１")] == ["mst", "0301"]


@given(st.text(max_size=200))
def test_any_text_is_taken(text: str) -> None:
    """No text, surrogates included, breaks normalising or tokenising; both are stable."""
    clean = normalise_query(text)
    assert normalise_query(clean) == clean
    tokens = tokenise(clean)
    assert all(0 <= t.start < t.end <= len(clean) for t in tokens)
    assert tokenise(clean) == tokens
