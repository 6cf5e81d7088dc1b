"""Canonical JSON against the reference implementation."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from cuo_checkpoint.canonical import (
    MAX_SAFE_INTEGER,
    canonical_bytes,
    parsed_bytes,
    sha256_hex,
)
from cuo_checkpoint.errors import CheckpointError, SerialiseError
from cuo_checkpoint.serde import text_to_tree

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(-1e-3, 1e-3)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=30,
)


@given(TREES)
@example({"\U00010000": 1, "\ue000": 2, "\uffff": 3, "a": 4})
@example([1.0, -0.0, 1e-5, 9.999e-6, 1e-7, 1e21, 1e20, 5e-324, 1.7976931348623157e308, 333333333.3])
@example('\x00\x08\x09\x0a\x0b\x0c\x0d\x1f\x7f\u2028\\"/')
def test_the_fast_form_is_the_reference_form(tree: Any) -> None:
    """Every tree gives the bytes the rfc8785 package gives."""
    assert canonical_bytes(tree) == rfc8785.dumps(tree)


@given(TREES, st.sampled_from([None, 1, "\t"]), st.booleans())
@example({"\U00010000": 1, "\uffff": 3, "n": 1.0}, None, True)
def test_a_parsed_text_gives_the_same_bytes(tree: Any, indent: Any, escaped: bool) -> None:
    """However the text is laid out and whatever numbers are in it."""
    text = json.dumps(tree, indent=indent, ensure_ascii=escaped).encode()
    assert parsed_bytes(text, text_to_tree(text)) == rfc8785.dumps(tree)


@pytest.mark.parametrize(
    "text",
    [
        '{"n":9007199254740993}',
        "[123456789012345678901234567890]",
        '{"n":1E400}',
        "-9007199254740992",
        '{"a": 1e999}',
    ],
)
def test_a_number_without_a_form_is_refused_in_a_text_too(text: str) -> None:
    """No faster way to the bytes may round it."""
    with pytest.raises(CheckpointError):
        parsed_bytes(text.encode(), text_to_tree(text))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-7, 1e-3))
def test_every_number_is_spelled_as_the_reference_does(number: float) -> None:
    """Also alone: both sides of the limit below which the two libraries differ."""
    assert canonical_bytes(number) == rfc8785.dumps(number)


@given(st.lists(st.text("\ud7ff\ue000\uffff\U00010000\U0010ffffa", max_size=3), unique=True))
def test_keys_sort_by_utf16_units(keys: list[str]) -> None:
    """Keys beyond the BMP come before the private use area, as the RFC wants."""
    tree: Any = dict.fromkeys(keys, 1)
    assert canonical_bytes(tree) == rfc8785.dumps(tree)


def test_the_order_of_keys_does_not_matter() -> None:
    """Two trees that differ in key order have one form."""
    assert canonical_bytes({"b": {"d": 1, "c": 2}, "a": 0}) == b'{"a":0,"b":{"c":2,"d":1}}'


class Word(enum.StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("tree", "path", "kind"),
    [
        (math.nan, "(root)", "float"),
        ({"a": [math.inf]}, "a[0]", "float"),
        ({"a": {"b": 2**53}}, "a.b", "int"),
        ([-(2**53)], "[0]", "int"),
        ([2**70], "[0]", "int"),
        ({1: 2}, "(root)", "dict"),
        (["\ud800"], "[0]", "str"),
        ({"\ud800": 1}, "(root)", "dict"),
        ([(1,)], "[0]", "tuple"),
        ([Word.YES], "[0]", "Word"),
        ({"a": {1}}, "a", "set"),
        ({Word.YES: 1}, "(root)", "dict"),
        ({"a": b"x"}, "a", "bytes"),
    ],
)
def test_what_has_no_canonical_form_is_named(tree: Any, path: str, kind: str) -> None:
    """A typed error says where and of what type, never the value."""
    with pytest.raises(SerialiseError, match=r"cannot store") as caught:
        canonical_bytes(tree)
    assert str(caught.value).startswith(f"cannot store {path}: {kind}")


def test_a_tree_that_holds_itself_is_refused() -> None:
    """No recursion error, no endless loop."""
    tree: list[Any] = []
    tree.append({"x": tree})
    with pytest.raises(SerialiseError, match="refers to itself"):
        canonical_bytes(tree)


def test_sha256_of_nothing() -> None:
    """The digest is lower-case hexadecimal."""
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
