"""Exact round trips, through a model of what jsonb does to a document."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import json
import math
import pathlib
import re
import struct
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, Union
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item as StoreItem
from langgraph.store.base import SearchItem
from langgraph.types import Command, GraphOutput, Interrupt, Overwrite, Send, StateSnapshot
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic import v1 as pydantic_v1

from cuo_checkpoint.canonical import canonical_bytes, encoded_bytes
from cuo_checkpoint.serde import Serializer, StoredError, text_to_tree, tree_to_text

# --- classes to store ---------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = (1, 2)


class Word(enum.StrEnum):
    YES = "yes"


class OldWord(str, enum.Enum):  # noqa: UP042 - the older spelling is a case of its own
    NO = "no"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 4


T = TypeVar("T")
EITHER: Any = Union[str, None]  # noqa: UP007 - the older spelling is a case of its own


class Part(BaseModel):
    a: int
    b: str = "x"


class Box(BaseModel, Generic[T]):
    inner: T


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1
    hidden: str = Field(default="h", exclude=True, alias="other")
    _seen: int = PrivateAttr(default=0)
    _unset: int = PrivateAttr()

    @cached_property
    def twice(self) -> int:
        return self.a * 2


class OldModel(pydantic_v1.BaseModel):
    a: int
    b: str = "x"


@dataclasses.dataclass
class Invoice:
    number: str
    lines: list[Any] = dataclasses.field(default_factory=list)
    total: Decimal = dataclasses.field(init=False)
    note: dataclasses.InitVar[str] = "n"

    def __post_init__(self, note: str) -> None:
        self.total = Decimal(len(self.lines))


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    unset: int = dataclasses.field(init=False)

    class Inner(BaseModel):
        z: int


@dataclasses.dataclass
class Pair(Generic[T]):
    left: T


class Row(NamedTuple):
    z: int
    a: str = "d"


class Name(str):
    lang: str


class Bag(dict[str, int]):
    pass


class Stack(list[int]):
    pass


class Plain:
    __slots__ = ("_hidden", "b")

    def __init__(self) -> None:
        self.b = 1
        self._hidden = (2,)


CLASSES: list[type] = [Colour, Word, OldWord, Level, Right, Bits, Part, Box, Loose, OldModel]
CLASSES += [Invoice, Point, Point.Inner, Pair, Row, Name, Bag, Stack, Plain]
SERDE = Serializer(allowed_types=CLASSES)


def _loose() -> Loose:
    value = Loose(a=3, zeta=(1,), alpha=2)  # type: ignore[call-arg]
    value._seen = 7
    value.hidden = "set"
    assert value.twice == 6
    return value


def _name() -> Name:
    value = Name("Lan")
    value.lang = "vi"
    return value


NOW = datetime(2026, 11, 30, 10, 11, 12, 345678)  # noqa: DTZ001
TABLE: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": 7,
    "edge": 2**53 - 1,
    "beyond": 2**53,
    "big": 2**70,
    "negative": -(2**63) - 1,
    "digest": int("f" * 64, 16),
    "huge": 7**9000,
    "float": 0.1,
    "whole": 1.0,
    "minus zero": -0.0,
    "large": 1.5e300,
    "small": 5e-324,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "odd nan": struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0],
    "text": 'Số "hoá đơn"\\ \u2028 😀 \x7f',
    "nul": "a\x00b",
    "lone": "\ud83d",
    "pair of halves": "\ud83d\ude00",
    "backslash": "\\u0000 stays",
    "backslash and nul": "\\\x00",
    "list": [1, [2, []], {}],
    "two keys out of order": {"bb": 1, "a": 2, "c": {"z": 1, "y": 2}},
    "in jsonb order": {"b": 1, "aa": 2},
    "key like a tag": {"$set": [1], "$keys": ["x"], "$$": 2, "$": 3, "$enc": {"$ref": "$"}},
    "keys of all kinds": {1: "a", True + 1: "b", None: "c", (1, "x"): "d", "1": "e", b"k": "f"},
    "odd string keys": {"\x00": 1, "\ud83d": 2, "": 3},
    "enum keys": {Word.YES: 1, Level.LOW: 2},
    "tuple": (1, (2,), []),
    "set": {1, "a", (1, 2), None},
    "frozenset": frozenset({(1, 2), frozenset({3})}),
    "deque": deque([1, (2,)], 5),
    "endless deque": deque([1]),
    "defaultdict": defaultdict(list, {"b": [1], "a": [2]}),
    "bare defaultdict": defaultdict(None, {1: 2}),
    "counter": Counter("abca"),
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"ab"),
    "naive": NOW,
    "utc": NOW.replace(tzinfo=UTC),
    "offset": NOW.replace(tzinfo=timezone(timedelta(hours=-3, minutes=-30, seconds=1))),
    "named offset": NOW.replace(tzinfo=timezone(timedelta(hours=7), "ICT")),
    "zone": NOW.replace(tzinfo=ZoneInfo("Asia/Ho_Chi_Minh")),
    "fold": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "year one": datetime.min,  # noqa: DTZ901
    "date": date(2026, 2, 28),
    "time": time(1, 2, 3, 4, tzinfo=ZoneInfo("UTC"), fold=1),
    "bare time": time(1, 2),
    "timedelta": timedelta(days=-1, microseconds=5),
    "timezone": UTC,
    "zoneinfo": ZoneInfo("America/New_York"),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "decimals": [Decimal(t) for t in ("0.10", "1E+5", "-0", "NaN", "sNaN12", "-Infinity")],
    "paths": [pathlib.Path("/a/b"), pathlib.PurePosixPath("."), pathlib.PureWindowsPath("c:\\x")],
    "ip": [
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_interface("10.0.0.1/8"),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_address("fe80::1%eth0"),
        ipaddress.ip_interface("::1/64"),
        ipaddress.ip_network("::/0"),
    ],
    "patterns": [re.compile("a+", re.IGNORECASE), re.compile(b"x", re.DOTALL)],
    "enums": [Colour.RED, Colour.BLUE, Word.YES, OldWord.NO, Level.LOW],
    "flags": [Right.READ, Right.READ | Right.WRITE, Right(0), Bits.A | Bits.B, Bits(0)],
    "model": Part(a=1),
    "all set": Part(a=1, b="y"),
    "constructed": Part.model_construct(b=(1,)),
    "extra and private": _loose(),
    "generic": Box[Part](inner=Part(a=1)),
    "generic of generic": Box[list[Box[int]]](inner=[Box[int](inner=1)]),
    "generic union": [Box[int | None](inner=None), Box[EITHER](inner="x")],
    "bare generic": Box(inner=(1,)),
    "old model": OldModel(a=1),
    "dataclass": Invoice("7", [(1,)]),
    "slots": Point(1.0, -0.0),
    "nested class": Point.Inner(z=1),
    "generic dataclass": Pair[int](1),
    "namedtuple": Row(1, "b"),
    "subclasses": [_name(), Bag(b=1, a=2), Stack([1, 2])],
    "messages": [
        HumanMessage("hi", id="1"),
        HumanMessage([{"type": "text", "text": "a"}], name="n", extra_field=(1,)),
        SystemMessage("s"),
        AIMessage(
            "",
            tool_calls=[{"name": "f", "args": {"z": 1, "a": (2,)}, "id": "c"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        AIMessageChunk(content="part"),
        ToolMessage("r", tool_call_id="c", artifact={"x": {1}}),
        ChatMessage(content="c", role="r"),
        FunctionMessage(content="f", name="n"),
        RemoveMessage(id="x"),
        HumanMessage("half \ud83d"),
    ],
    "document": Document("text", metadata={"b": 1, "a": (2,)}),
    "send": [Send("n", {"b": 1, "a": 2}), Send("n", None, timeout=2.5)],
    "command": Command(goto=[Send("n", 1), "m"], update={"b": 1, "a": (1,)}, resume={"i": 1}),
    "interrupt": Interrupt({"q": (1,)}, "id"),
    "overwrite": Overwrite([(1,)]),
    "output": GraphOutput({"b": 1, "a": 2}, (Interrupt(1, "i"),)),
    "item": StoreItem(
        value={"b": 1, "a": 2}, key="k", namespace=("n",), created_at=NOW, updated_at=NOW
    ),
    "search item": SearchItem(("n",), "k", {}, NOW, NOW, 0.5),
    "delta": _DeltaSnapshot([(1,)]),
    "snapshot": StateSnapshot({}, ("n",), {"configurable": {}}, None, None, None, (), ()),
    "arrays": [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array(1 + 2j),
        np.zeros((0, 3)),
        np.array(["a", "bé"]),
        np.array(["2026-01-01"], "datetime64[D]"),
    ],
    "scalars": [np.float64(1.5), np.float32(2), np.int8(-3), np.bool_(True), np.datetime64("2026")],
}

# --- what jsonb does ----------------------------------------------------------------------------


def jsonb(text: str) -> str:
    """`text` as PostgreSQL prints it after storing it in a jsonb column."""
    return _print(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _print(tree: Any) -> str:
    if isinstance(tree, Decimal):
        # numeric keeps the digits after the point and has neither an exponent nor a minus zero
        return format(abs(tree) if tree == 0 else tree, "f")
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_print(key)}: {_print(tree[key])}" for key in keys) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_print, tree)) + "]"
    assert not isinstance(tree, str) or "\x00" not in tree
    return json.dumps(tree, ensure_ascii=False)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types throughout, dicts in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float | np.floating) and one != one:
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, np.ndarray):
        facts = [(a.dtype, a.shape, a.tobytes(), a.flags.fnc) for a in (one, other)]
        return facts[0] == facts[1]
    if isinstance(one, datetime | time):
        return one == other and one.fold == other.fold and same(vars_of(one), vars_of(other))
    if isinstance(one, timezone):
        return repr(one) == repr(other)
    if isinstance(one, ZoneInfo):
        return one is other
    if isinstance(one, dict):
        extra = not isinstance(one, defaultdict) or one.default_factory is other.default_factory
        return extra and same([*one.items()], [*other.items()]) and attributes_same(one, other)
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, list | tuple | deque):
        return (
            len(one) == len(other)
            and all(map(same, one, other))
            and getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        )
    if isinstance(one, BaseModel):
        return (
            same(one.__dict__ | {"twice": 0}, other.__dict__ | {"twice": 0})
            and one.__pydantic_fields_set__ == other.__pydantic_fields_set__
            and same(one.__pydantic_extra__, other.__pydantic_extra__)
            and same(one.__pydantic_private__, other.__pydantic_private__)
        )
    if isinstance(one, enum.Enum):
        return one is other
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, n, ...), getattr(other, n, ...)) for n in names)
    return bool(one == other) and attributes_same(one, other)


def vars_of(moment: datetime | time) -> tuple[Any, ...]:
    return (moment.tzinfo, moment.microsecond)


def attributes_same(one: Any, other: Any) -> bool:
    return getattr(one, "__dict__", None) == getattr(other, "__dict__", None)


def through_jsonb(value: Any, serde: Serializer = SERDE) -> Any:
    """`value` written, stored, reprinted and read."""
    return serde.loads(jsonb(serde.dumps(value)))


def test_the_comparison_can_fail() -> None:
    """The helper tells apart what `==` does not."""
    for one, other in [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (Word.YES, "yes"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Decimal("1.0"), Decimal("1.00")),
        (deque([1], 2), deque([1])),
        (Part(a=1), Part(a=1, b="x")),
        ((1,), Row(1)),
    ]:
        assert not same(one, other), (one, other)


@pytest.mark.parametrize("name", TABLE)
def test_every_kind_of_value_comes_back_exactly(name: str) -> None:
    """At the root, in a list, under a key, in a tuple and in a model, the same type returns."""
    value = TABLE[name]
    for wrapped in (value, [value], {"zz": value, "a": value}, (value,), Box(inner=value)):
        assert same(through_jsonb(wrapped), wrapped)


@pytest.mark.parametrize("name", TABLE)
def test_every_encoded_tree_has_canonical_bytes_that_jsonb_keeps(name: str) -> None:
    """The hash of a state is the same before and after PostgreSQL has reprinted it."""
    tree = SERDE.encode({"v": TABLE[name], "a": 1})
    text = tree_to_text(tree)
    assert text_to_tree(text) == tree
    assert canonical_bytes(text_to_tree(jsonb(text))) == canonical_bytes(tree)


@pytest.mark.parametrize("name", TABLE)
def test_a_value_read_back_is_written_alike(name: str) -> None:
    """Writing what was read gives the same bytes, so a repeated put is recognised."""
    first = SERDE.encode(TABLE[name])
    again = SERDE.encode(through_jsonb(TABLE[name]))
    assert canonical_bytes(again) == canonical_bytes(first)


KEYS = [name for name, value in TABLE.items() if type(value).__hash__ is not None]


@pytest.mark.parametrize("name", KEYS)
def test_hashable_values_work_as_dict_keys_and_set_members(name: str) -> None:
    """A key keeps its type; order of keys is kept whatever they are."""
    key = TABLE[name]
    try:
        mapping, members = {"z": 0, key: 1, "a": 2}, {key}
    except (TypeError, AttributeError):
        pytest.skip("holds something unhashable")
    if key != key:
        ((_, back, _),) = [tuple(through_jsonb(mapping))]
        assert same(back, key)
        return
    assert same(through_jsonb(mapping), mapping)
    assert same(through_jsonb(members), members)


def test_state_stays_readable_at_the_top() -> None:
    """The keys of a state are the keys of the JSON document, its order one member beside them."""
    tree = SERDE.encode({"query": "hi", "n": 1, "at": date(2026, 1, 2)})
    assert tree == {
        "query": "hi",
        "n": 1,
        "at": {"$date": "2026-01-02"},
        "$keys": ["query", "n", "at"],
    }


def test_sets_are_written_in_one_order() -> None:
    """Two sets filled in different order give the same bytes."""
    words = [f"w{n}" for n in range(200)]
    backwards = words[::-1]
    assert SERDE.dumps(set(words)) == SERDE.dumps(set(backwards))


def test_encoding_shares_nothing_with_the_value() -> None:
    """A value changed after encode does not change the tree."""
    value: dict[str, Any] = {"a": [1, {"b": []}]}
    tree = SERDE.encode(value)
    value["a"][1]["b"].append(2)
    value["a"].append(3)
    assert tree == {"a": [1, {"b": []}]}


def test_an_exception_keeps_class_message_and_repr() -> None:
    """LangGraph gets the repr it expects; class and message are beside it; rewriting is stable."""
    back = through_jsonb(ValueError("no \x00 'good'"))
    assert back == repr(ValueError("no \x00 'good'"))
    assert (type(back), back.type_name) == (StoredError, "builtins:ValueError")
    assert back.message == "no \x00 'good'"
    assert same(SERDE.encode(back), SERDE.encode(ValueError("no \x00 'good'")))


def test_an_exception_that_cannot_be_shown_is_still_recorded() -> None:
    """A failing __repr__ does not keep a failure from being stored."""

    class Shy(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    assert "cannot be shown" in through_jsonb(Shy())


def test_langgraphs_protocol() -> None:
    """dumps_typed and loads_typed are inverse, and a foreign type is refused."""
    kind, raw = SERDE.dumps_typed({"b": (1,), "a": 2})
    assert same(SERDE.loads_typed((kind, raw)), {"b": (1,), "a": 2})


@pytest.mark.parametrize("name", TABLE)
def test_never_less_exact_than_langgraphs_serializer(name: str) -> None:
    """Whatever JsonPlusSerializer restores exactly, this one does, and more."""
    stock = JsonPlusSerializer(
        allowed_msgpack_modules=[(c.__module__, c.__name__) for c in CLASSES]
    )
    try:
        theirs = same(stock.loads_typed(stock.dumps_typed(TABLE[name])), TABLE[name])
    except Exception:
        theirs = False
    ours = same(through_jsonb(TABLE[name]), TABLE[name])
    assert ours >= theirs


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.datetimes()
    | st.timedeltas()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.uuids()
    | st.complex_numbers().map(lambda c: Decimal(repr(c.real)))
)
HASHABLE = SCALARS | st.tuples(SCALARS, SCALARS) | st.frozensets(st.integers() | st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.sampled_from("$ab\x00é😀\ud800"), max_size=4), inner)
        | st.dictionaries(st.text("$akeyscnrf_", max_size=6), inner)
        | st.dictionaries(HASHABLE, inner)
        | st.lists(inner).map(tuple)
        | st.frozensets(HASHABLE)
        | st.builds(Box, inner=inner)
        | st.builds(Row, inner, st.text())
        | st.builds(lambda v: OrderedDict(v), st.dictionaries(st.text(), inner))
    ),
    max_leaves=20,
)


@pytest.mark.criterion("102-AC4")
@given(VALUES)
def test_any_value_comes_back_exactly(value: Any) -> None:
    """Whatever is built of the supported kinds survives jsonb, types and key order included."""
    text = SERDE.dumps(value)
    assert same(SERDE.loads(text), value)
    assert same(SERDE.loads(jsonb(text)), value)


@given(VALUES)
def test_canonical_bytes_survive_jsonb(value: Any) -> None:
    """No encoded tree is changed by the database, down to the last byte of its canonical form."""
    tree = SERDE.encode(value)
    assert canonical_bytes(text_to_tree(jsonb(tree_to_text(tree)))) == canonical_bytes(tree)
    raw = SERDE.dumps_canonical(value)
    assert raw == encoded_bytes(tree) == canonical_bytes(tree) == rfc8785.dumps(tree)
    assert same(SERDE.loads(raw), value)
