"""A hostile writer: forged rows end in a typed error, run no code and import nothing."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pathlib
import sys
from collections import Counter, OrderedDict, deque
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.types import Command, Send
from pydantic import BaseModel, SecretStr

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.errors import CheckpointError, DeserialiseError
from cuo_checkpoint.serde import Serializer

HERE = __name__


class Part(BaseModel):
    a: int


@dataclasses.dataclass
class Holder:
    x: Any
    y: Any = 1


class Row(NamedTuple):
    x: Any


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Plain:
    pass


class Name(str):
    pass


SERDE = Serializer(allowed_types=[Part, Holder, Row, Level, Plain, Name])


def broken(tree: Any, serde: Serializer = SERDE) -> DeserialiseError:
    """The error of decode, the same from text."""
    with pytest.raises(DeserialiseError) as caught:
        serde.decode(tree)
    with pytest.raises(DeserialiseError):
        serde.loads(json.dumps(tree))
    return caught.value


FORGED: list[Any] = [
    # no such tag, or not one
    {"$": 1},
    {"$nope": 1},
    {"$pickle": "gASVCgAAAAAAAACMBmJ1aWx0aW5z"},
    {"$keys": ["a"]},
    {"$set": [1], "$frozenset": [1]},
    {"$str": "a\\u0000", "$int": "1"},
    {"$UUID": "x", "$fold": 1},
    {"$tuple": [1], "more": 2},
    {"$float": "nan", "$$x": 1},
    {"$date": "2026-01-01", "$keys": []},
    # tags of the store
    {"$enc": "x"},
    {"$ref": "x"},
    {"$state_of": "x"},
    {"$state_of": "x", "a": 1},
    {"$ref": "x", "$tuple": []},
    # key order
    {"a": 1, "b": 2, "$keys": ["a"]},
    {"a": 1, "b": 2, "$keys": ["a", "a"]},
    {"a": 1, "b": 2, "$keys": ["a", "c"]},
    {"a": 1, "b": 2, "$keys": ["a", "b", "c"]},
    {"a": 1, "b": 2, "$keys": ["a", 1]},
    {"a": 1, "b": 2, "$keys": ["a", ["b"]]},
    {"a": 1, "b": 2, "$keys": "ab"},
    {"a": 1, "b": 2, "$keys": ["a", "b"]},
    # numbers jsonb or the RFC would not tell apart
    1.0,
    -0.0,
    1e300,
    5e-324,
    2**53,
    -(2**70),
    {"$int": "1"},
    {"$int": "9007199254740991"},
    {"$int": "+9007199254740993"},
    {"$int": "009007199254740993"},
    {"$int": "9_007_199_254_740_993"},
    {"$int": " 9007199254740993"},
    {"$int": "٩٠٠٧١٩٩٢٥٤٧٤٠٩٩٣"},
    {"$int": "0xfffffffffffffffff"},
    {"$int": "9" * 5000},
    {"$int": 5},
    {"$float": "0.5"},
    {"$float": "1"},
    {"$float": "1e5"},
    {"$float": "NaN"},
    {"$float": "Infinity"},
    {"$float": "nan:7ff8000000000000"},
    {"$float": "nan:0000000000000000"},
    {"$float": "1e999"},
    {"$float": 1},
    # text
    {"$str": "plain"},
    {"$str": "\\x00"},
    {"$str": "\\u0000\\"},
    {"$str": "\\u0041\\u0000"},
    {"$str": "\\uD800"},
    {"$str": ["\\u0000"]},
    {"$bytes": "a"},
    {"$bytes": "YWI"},
    {"$bytes": "YW J="},
    {"$bytes": "YWJ="},
    {"$bytes": [1]},
    {"$bytearray": None},
    # moments
    {"$datetime": "2026-01-01"},
    {"$datetime": "20260101T000000"},
    {"$datetime": "2026-01-01T00:00:00Z"},
    {"$datetime": "2026-01-01T00:00:00+00:00", "$tz": {"$ZoneInfo": "UTC"}},
    {"$datetime": "2026-01-01T00:00:00", "$tz": "UTC"},
    {"$datetime": "2026-01-01T00:00:00", "$tz": {"$ZoneInfo": "../../etc/passwd"}},
    {"$datetime": "2026-01-01T00:00:00", "$tz": {"$ZoneInfo": "/etc/passwd"}},
    {"$datetime": "2026-01-01T00:00:00", "$fold": 0},
    {"$datetime": "2026-01-01T00:00:00", "$fold": True},
    {"$datetime": 5},
    {"$time": "25:00"},
    {"$date": "2026-02-30"},
    {"$date": "2026-W01-1"},
    {"$timedelta": [0, 86400, 0]},
    {"$timedelta": [0, 0]},
    {"$timedelta": [10**10, 0, 0]},
    {"$timedelta": [True, 0, 0]},
    {"$timezone": [2, 0, 0]},
    {"$timezone": [0, 0, 0], "$name": 5},
    {"$ZoneInfo": "No/Where"},
    # other values
    {"$UUID": "{12345678-1234-5678-1234-567812345678}"},
    {"$UUID": "12345678-1234-5678-1234-567812345678", "$is_safe": 7},
    {"$Decimal": "1_0"},
    {"$Decimal": " 1"},
    {"$Decimal": "one"},
    {"$Decimal": 1},
    {"$IPv4Address": "1.2.3"},
    {"$IPv4Address": 5},
    {"$IPv4Network": "10.0.0.1/8"},
    {"$PosixPath": 5},
    {"$PosixPath": "a//b"},
    {"$Pattern": "(", "$flags": 32},
    {"$Pattern": "a", "$flags": 128},
    {"$Pattern": "a", "$flags": 0},
    {"$Pattern": "a"},
    {"$Pattern": 5, "$flags": 32},
    # containers
    {"$tuple": {"a": 1}},
    {"$tuple": "abc"},
    {"$set": [1, 1]},
    {"$set": [[1]]},
    {"$set": [True, 1]},
    {"$frozenset": [{"$set": []}]},
    {"$deque": [1, 2], "$maxlen": 1},
    {"$deque": [1], "$maxlen": "2"},
    {"$deque": [1], "$maxlen": -1},
    {"$dict": [[1, 2, 3]]},
    {"$dict": [1]},
    {"$dict": {"a": 1}},
    {"$dict": [[1, 2], [1, 3]]},
    {"$dict": [[[1], 2]]},
    {"$Counter": [["a", 1], ["a", 2]]},
    {"$OrderedDict": "ab"},
    {"$defaultdict": [], "$factory": "eval"},
    {"$defaultdict": [], "$factory": "os:system"},
    {"$defaultdict": [], "$factory": ["list"]},
    {"$defaultdict": []},
    # arrays
    {"$ndarray": "AAAA", "$dtype": "|u1", "$shape": [4], "$order": "C"},
    {"$ndarray": "", "$dtype": "|u1", "$shape": [0, -1], "$order": "C"},
    {"$ndarray": "AAAAAAAAAAA=", "$dtype": "|O", "$shape": [1], "$order": "C"},
    {"$ndarray": "AAAAAAAAAAA=", "$dtype": "|V8", "$shape": [1], "$order": "C"},
    {"$ndarray": "AAAAAAAAAAA=", "$dtype": "i4,i4", "$shape": [1], "$order": "C"},
    {"$ndarray": "AAAA", "$dtype": "|u1", "$shape": [3], "$order": "K"},
    {"$ndarray": "AAAA", "$dtype": "|u1", "$shape": [3.5], "$order": "C"},
    {"$ndarray": "AAAA", "$dtype": "|u1", "$shape": [3], "$order": "C", "$readonly": 0},
    {"$ndarray": "AAAA"},
    {"$numpy": "AAAA", "$dtype": "<i8"},
    {"$numpy": "AA==", "$dtype": "<U1"},
    # exceptions
    {"$error": "builtins:ValueError"},
    {"$error": 1, "$repr": "", "$message": ""},
    {"$error": "x", "$repr": {"$tuple": []}, "$message": ""},
    # objects of classes
    {"$dataclass": f"{HERE}:Holder"},
    {"$dataclass": f"{HERE}:Holder", "x": 1, "z": 2},
    {"$dataclass": f"{HERE}:Holder", "x": 1, "__class__": 2},
    {"$dataclass": f"{HERE}:Holder", "$missing": "xy"},
    {"$dataclass": f"{HERE}:Part", "a": 1},
    {"$dataclass": 5},
    {"$dataclass": None, "x": 1},
    {"$model": f"{HERE}:Part"},
    {"$model": f"{HERE}:Part", "a": 1, "b": 2},
    {"$model": f"{HERE}:Part", "a": 1, "__dict__": {}},
    {"$model": f"{HERE}:Part", "a": 1, "$fields_set": "a"},
    {"$model": f"{HERE}:Part", "a": 1, "$fields_set": [1]},
    {"$model": f"{HERE}:Part", "a": 1, "$private": {"_x": 1}},
    {"$model": f"{HERE}:Part", "a": 1, "$args": ["builtins:int"]},
    {"$model": f"{HERE}:Part", "a": 1, "$args": ["os:system"]},
    {"$model": f"{HERE}:Part", "a": 1, "$args": {"of": "builtins:int"}},
    {"$model": f"{HERE}:Part", "a": 1, "$secret": 1},
    {"$model": f"{HERE}:Holder", "x": 1},
    {"$model_v1": f"{HERE}:Part", "a": 1},
    {"$namedtuple": f"{HERE}:Row"},
    {"$namedtuple": f"{HERE}:Row", "x": 1, "y": 2},
    {"$namedtuple": f"{HERE}:Row", "y": 2},
    {"$enum": f"{HERE}:Level", "name": "LOW", "value": 2},
    {"$enum": f"{HERE}:Level", "name": "LOW", "value": True},
    {"$enum": f"{HERE}:Level", "name": "__class__", "value": 1},
    {"$enum": f"{HERE}:Level", "name": "MID", "value": 3},
    {"$enum": f"{HERE}:Level", "value": 1},
    {"$enum": f"{HERE}:Level"},
    {"$enum": f"{HERE}:Level", "name": "LOW", "value": 1, "more": 1},
    {"$object": f"{HERE}:Plain", "__class__": 1},
    {"$object": f"{HERE}:Plain", "__dict__": {"a": 1}},
    {"$object": f"{HERE}:Plain", "$base": "x"},
    {"$object": f"{HERE}:Name"},
    {"$object": f"{HERE}:Name", "$base": 5},
    {"$object": f"{HERE}:Holder", "x": 1},
    {"$object": "langgraph.types:Send", "node": "n", "arg": 1, "more": 1},
]


@pytest.mark.parametrize("tree", FORGED, ids=lambda tree: json.dumps(tree)[:60])
def test_a_forged_form_is_a_typed_error(tree: Any) -> None:
    """At the root, in an array, under a key and inside another tag."""
    broken(tree)
    broken([tree])
    broken({"a": [{"b": tree}]})
    broken({"$tuple": [tree]})
    broken({"$dict": [[1, tree]]})


def test_the_error_names_path_and_type_but_no_stored_value() -> None:
    """An operator finds the place; the row's content stays in the row."""
    error = broken({"a": [{"b": {"$Decimal": "top secret"}}]})
    assert (error.path, error.type_name) == ("a[0].b", "$Decimal")
    assert "secret" not in str(error)
    assert "secret" not in str(broken({"$secret word": 1}))
    assert "secret" not in str(broken({"$dataclass": "secret words"}))


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "os:PathLike",
        "subprocess:Popen",
        "builtins:eval",
        "builtins:object",
        "builtins:type",
        "pydantic.types:SecretStr",
        "langgraph.types:interrupt",
        "langgraph.types.sys.modules.os:system",
        "cuo_checkpoint.serde:Serializer",
        "a.b.c:D.E",
        "..os:system",
        "os:",
        ":system",
        "os",
        "os:a:b",
        "os:system()",
        "x" * 600 + ":Y",
        "",
    ],
)
@pytest.mark.parametrize("tag", ["$dataclass", "$model", "$namedtuple", "$enum", "$object"])
def test_a_class_not_allowed_is_neither_imported_nor_built(tag: str, name: str) -> None:
    """Whatever the tag, the name alone decides."""
    before = set(sys.modules)
    broken({tag: name})
    broken({tag: name, "args": ["touch x"]})
    assert set(sys.modules) == before


@pytest.fixture
def planted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A module that leaves a mark when it is imported."""
    mark = tmp_path / "mark"
    source = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass Evil: pass\n"
    (tmp_path / "planted_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted_module", raising=False)
    return mark


@pytest.mark.parametrize(
    "tree",
    [
        {"$object": "planted_module:Evil"},
        {"$model": f"{HERE}:Part", "a": 1, "$args": ["planted_module:Evil"]},
        {"$model": f"{HERE}:Part", "a": {"$dataclass": "planted_module:Evil"}},
        {"$defaultdict": [], "$factory": "planted_module:Evil"},
        {"$error": "planted_module:Evil", "$repr": "Evil()", "$message": ""},
    ],
)
def test_reading_imports_no_module_on_a_rows_word(tree: Any, planted: pathlib.Path) -> None:
    """Also not for the class of an exception, which comes back as text."""
    if "$error" in tree:
        assert SERDE.decode(tree) == "Evil()"
    else:
        broken(tree)
    assert not planted.exists()
    assert "planted_module" not in sys.modules


def test_an_allowed_name_is_imported_when_needed(planted: pathlib.Path) -> None:
    """The counterpart: the list is what decides."""
    serde = Serializer(allowed_types=[("planted_module", "Evil")])
    assert type(serde.decode({"$object": "planted_module:Evil"})).__name__ == "Evil"
    assert planted.exists()


def test_an_allowed_name_does_not_open_what_its_module_imports(planted: pathlib.Path) -> None:
    """A loose name must lead to a class of that very module, not through it to another."""
    serde = Serializer(allowed_types=[("planted_module", "Path")])
    broken({"$object": "planted_module:pathlib.Path"}, serde)


def test_a_class_that_became_a_secret_is_not_rebuilt() -> None:
    """No secret object is made from a row, even on the list."""
    broken({"$object": "pydantic.types:SecretStr"}, Serializer(allowed_types=[SecretStr]))
    broken({"$object": "pydantic.types:SecretStr"}, Serializer(allowed_types="any"))


def test_data_that_looks_like_a_tag_comes_back_as_data() -> None:
    """Whatever a user stores under names like ours is escaped, however deep."""
    for tree in FORGED:
        if isinstance(tree, dict):
            for value in (tree, {"$$": tree}, SERDE.encode(tree)):
                assert SERDE.loads(SERDE.dumps(value)) == value


def test_depth_is_bounded() -> None:
    """Neither arrays nor objects nor tags in any number overflow the stack."""
    tree: Any = 1
    for _ in range(1000):
        tree = [tree]
    with pytest.raises(DeserialiseError):
        SERDE.decode(tree)
    for wrap in ({"$tuple": [0]}, {"a": 0}, {"$dict": [[1, 0]]}, {"$object": f"{HERE}:Plain"}):
        tree = 1
        for _ in range(400):
            outer: Any = copy.deepcopy(wrap)
            if "$tuple" in outer:
                outer["$tuple"] = [tree]
            elif "$dict" in outer:
                outer["$dict"] = [[1, tree]]
            else:
                outer["a"] = tree
            tree = outer
        with pytest.raises(DeserialiseError):
            SERDE.decode(tree)


def test_many_annotations_do_not_take_quadratic_time() -> None:
    """A hundred thousand unknown tags in one object are refused at once."""
    broken({f"${n}": 1 for n in range(100_000)})


def test_what_is_no_json_is_refused() -> None:
    """decode takes trees, not Python values."""
    for tree in ((1,), {1}, b"x", object(), {"a": (1,)}, 1j):
        with pytest.raises(DeserialiseError):
            SERDE.decode(tree)  # type: ignore[arg-type]


def test_a_foreign_type_name_is_refused() -> None:
    """Bytes of another serializer, pickle above all, are not guessed at."""
    for kind in ("pickle", "msgpack", "json", "null", ""):
        with pytest.raises(DeserialiseError):
            SERDE.loads_typed((kind, b"1"))


def test_decode_leaves_the_tree_alone() -> None:
    """The caller's tree is evidence."""
    tree = SERDE.encode({"b": [(1,), {"$x": {2}}], "a": Part(a=1)})
    before = copy.deepcopy(tree)
    SERDE.decode(tree)
    assert tree == before


SAMPLES: list[Any] = [
    SERDE.encode(value)
    for value in (
        {"b": [1, (2, {3})], "a": Part(a=1), "$x": {"$y": 1.0}},
        [Holder(Row(Level.LOW)), Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC)],
        {1: OrderedDict(b=1, a=2), (2,): Counter("ab"), "x\x00": deque([1], 3)},
        AIMessage("x", tool_calls=[{"name": "f", "args": {"q": 2**70}, "id": "1"}]),
        [Send("n", {"b": b"x", "a": 1}), Command(goto="x"), np.arange(3), ValueError("x")],
    )
]


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    steps = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if type(tree) is list else ()
    )
    for step, child in steps:
        found += _places(child, (*path, step))
    return found


def _put(tree: Any, path: tuple[Any, ...], make: Any) -> Any:
    if not path:
        return make(tree)
    tree = copy.deepcopy(tree)
    at = tree
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = make(at[path[-1]])
    return tree


SMALL = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(["", "a", "$tuple", "1", "nan", "x\\u0000", f"{HERE}:Part", f"{HERE}:Level"])
)
NAMES = st.sampled_from(
    ["a", "x", "name", "value", "$x", "$$x", *SERDE._tags.known, "$keys", "$ref"]
)
NOISE = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)


@given(NOISE)
def test_noise_is_a_value_or_a_typed_error(tree: Any) -> None:
    """And what is accepted is written back as it was: no second form of one value."""
    _value_or_error(tree)


@given(st.data())
def test_a_row_changed_in_one_place_is_a_value_or_a_typed_error(data: st.DataObject) -> None:
    """One member replaced, renamed, added or removed."""
    tree = data.draw(st.sampled_from(SAMPLES))
    path = data.draw(st.sampled_from(_places(tree)))

    def change(node: Any) -> Any:
        how = data.draw(st.sampled_from(["replace", "rename", "add", "remove"]))
        if how == "replace" or not isinstance(node, dict) or not node:
            return data.draw(NOISE)
        node = dict(node)
        name = data.draw(st.sampled_from(sorted(node)))
        if how == "rename":
            node[data.draw(NAMES)] = node.pop(name)
        elif how == "add":
            node[data.draw(NAMES)] = data.draw(NOISE)
        else:
            del node[name]
        return node

    _value_or_error(_put(tree, path, change))


def _value_or_error(tree: Any) -> None:
    try:
        value = SERDE.decode(tree)
    except CheckpointError:
        return
    again = SERDE.encode(value)
    assert canonical_bytes(SERDE.encode(SERDE.decode(again))) == canonical_bytes(again)
    if "$" not in json.dumps(tree):
        assert canonical_bytes(again) == canonical_bytes(tree)
