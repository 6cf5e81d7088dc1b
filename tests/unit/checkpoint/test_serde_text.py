"""Text of trees: exact both ways."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint.errors import DeserialiseError, SerialiseError
from cuo_checkpoint.serde import text_to_tree, tree_to_text

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(-1e15, 1e15).map(lambda number: number + 0.0)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


def exactly(one: Any) -> str:
    """A spelling that tells 1 from 1.0 and keeps key order."""
    return repr(one)


@given(TREES)
def test_text_and_tree_are_inverse(tree: Any) -> None:
    """Integers of any size stay integers, floats floats, keys in their order."""
    assert exactly(text_to_tree(tree_to_text(tree))) == exactly(tree)


@given(TREES)
def test_the_text_is_json_for_anybody(tree: Any) -> None:
    """The standard library reads the same tree, from bytes as well."""
    text = tree_to_text(tree)
    assert exactly(json.loads(text)) == exactly(tree)
    assert exactly(text_to_tree(text.encode())) == exactly(tree)


@pytest.mark.parametrize(
    "text",
    [
        "1000000000000000000000",
        "[9999999999999999999, -9999999999999999999]",
        '{"a":18446744073709551616}',
        "123456789012345678901234567890.5",
        "[0.00000012345678901234567]",
        '"1234567890123456789012"',
    ],
)
def test_long_numbers_are_read_exactly(text: str) -> None:
    """What jsonb prints in full is not rounded on the way in."""
    assert exactly(text_to_tree(text)) == exactly(json.loads(text))


@pytest.mark.parametrize(
    "tree",
    [
        math.nan,
        [math.inf],
        {"a": -0.0},
        1e16,
        1e300,
        "a\x00",
        {"a\x00": 1},
        "\ud800",
        {"\ud800": 1},
        [2**70, "\x00"],
        [2**70, {1: 2}],
        [2**70, (1,)],
        {1: 2},
        (1,),
        [b"x"],
    ],
)
def test_what_jsonb_would_alter_is_refused(tree: Any) -> None:
    """No silent null, array, integer or replaced character."""
    with pytest.raises(SerialiseError):
        tree_to_text(tree)


def test_an_escaped_backslash_is_not_a_nul() -> None:
    r"""The six characters \u0000 in a text are data."""
    assert text_to_tree(tree_to_text(["\\u0000"])) == ["\\u0000"]


def test_a_tree_that_holds_itself_is_refused() -> None:
    """A typed error, no endless loop."""
    tree: list[Any] = [2**70]
    tree.append(tree)
    with pytest.raises(SerialiseError):
        tree_to_text(tree)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[1e400]",
        "[Infinity, 12345678901234567890]",
        "[1e400, 12345678901234567890]",
        '["\\ud800"]',
        '["\\ud800", 12345678901234567890]',
        '{"\\udc00": 12345678901234567890}',
        "[" * 5000 + "]" * 5000,
        "9" * 5000,
        b"\xff",
    ],
)
def test_text_that_cannot_be_read_exactly_is_refused(text: str | bytes) -> None:
    """One typed error for everything that is not JSON or would be rounded to infinity."""
    with pytest.raises(DeserialiseError):
        text_to_tree(text)
