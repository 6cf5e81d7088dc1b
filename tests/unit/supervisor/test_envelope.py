"""What a request must look like before anything is done with it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.core.envelope import MAX_QUERY_BYTES, check_query, normalise_query
from cuo_supervisor.errors import UsageError

SECRET = "nguyen.van.an@example.vn"


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("", "empty"),
        (" \t\n\u3000", "empty"),
        (f"{SECRET}\x00", "NUL"),
        (f"{SECRET}\udcff", "UTF-8"),
        (SECRET * 1000, "bytes"),
        (None, "NoneType"),
        (b"send invoice", "bytes"),
        (7, "int"),
    ],
)
def test_a_query_that_cannot_be_routed_is_refused_by_rule(query: object, word: str) -> None:
    """The message names the rule and repeats nothing of the query."""
    with pytest.raises(UsageError, match=word) as refused:
        check_query(query)
    assert SECRET not in str(refused.value)
    assert refused.value.exit_code == 64


def test_the_limit_is_in_bytes_and_inclusive() -> None:
    """16 KiB are accepted, one byte more is not; a letter may be three bytes."""
    assert check_query("a" * MAX_QUERY_BYTES)
    with pytest.raises(UsageError):
        check_query("a" * (MAX_QUERY_BYTES + 1))
    with pytest.raises(UsageError):
        check_query("ế" * (MAX_QUERY_BYTES // 3 + 1))


@given(st.text(min_size=1, max_size=60))
@pytest.mark.clause("101-3")
def test_normalising_is_nfc_and_settles(query: str) -> None:
    """Diacritics stay, in one spelling; a second pass changes nothing."""
    once = normalise_query(query)
    assert once == unicodedata.normalize("NFC", query)
    assert normalise_query(once) == once
    assert normalise_query(unicodedata.normalize("NFD", once)) == once
