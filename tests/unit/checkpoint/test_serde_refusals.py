"""What is never written, and how the error says so."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import re
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, PrivateAttr, Secret, SecretBytes, SecretStr
from pydantic import v1 as pydantic_v1

from cuo_checkpoint.errors import UnserialisableValue
from cuo_checkpoint.serde import Serializer

MARKER = "hunter2"


class Login(BaseModel):
    user: str = "u"
    password: SecretStr = SecretStr(MARKER)
    _token: Any = PrivateAttr(default=None)


class Loose(BaseModel):
    x: Any = None
    _token: Any = PrivateAttr(default=None)


@dataclasses.dataclass
class Holder:
    inner: Any = None


class OldLogin(pydantic_v1.BaseModel):
    password: pydantic_v1.SecretStr = pydantic_v1.SecretStr(MARKER)


class Vault:
    def get_secret_value(self) -> str:
        return MARKER


class Mood(enum.Enum):
    SAFE = SecretStr(MARKER)
    ODD = object()


class Name(str):
    pass


class Row(NamedTuple):
    x: Any


class Failure(Exception):
    pass


@dataclasses.dataclass
class FailureRecord(Failure):
    x: int = 1


class Zone(dt.tzinfo):
    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> str:
        return ""


class Moment(dt.datetime):
    pass


class Stranger:
    pass


ALLOWED = Serializer(
    allowed_types=[Login, Loose, Holder, OldLogin, Vault, Mood, Row, FailureRecord, Zone]
)


def refused(value: Any, serde: Serializer = ALLOWED) -> UnserialisableValue:
    """The error, after checking that both ways of writing raise it and it holds no value."""
    with pytest.raises(UnserialisableValue) as caught:
        serde.encode(value)
    with pytest.raises(UnserialisableValue) as again:
        serde.dumps(value)
    assert str(again.value) == str(caught.value)
    assert MARKER not in repr(caught.value)
    assert caught.value.__context__ is None or MARKER not in repr(caught.value.__context__)
    return caught.value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (complex(1, 2), "complex"),
        (range(3), "range"),
        (lambda: None, "function"),
        (len, "builtin_function_or_method"),
        (int, "type"),
        (Stranger, "type"),
        (..., "ellipsis"),
        (slice(1), "slice"),
        (iter([]), "list_iterator"),
        (memoryview(b"x"), "memoryview"),
        (re.match("a", "a"), "re.Match"),
        (partial(int), "functools.partial"),
        (io.BytesIO(), "_io.BytesIO"),
        ({}.keys(), "dict_keys"),
        (np.array([object()]), "numpy.ndarray"),
        (np.array([(1, 2.0)], "i4,f8"), "numpy.ndarray"),
        (np.str_("a"), "numpy.str_"),
        (np.ma.masked_array([1]), "numpy.ma.MaskedArray"),
    ],
)
def test_types_without_an_exact_form_are_named_with_their_path(value: Any, kind: str) -> None:
    """The error gives path and type, in a list, under keys and at the root."""
    assert refused({"a": [{"b": value}]}).path == "a[0].b"
    error = refused(value, Serializer(allowed_types="any"))
    assert (error.path, error.type_name.removesuffix(".Match")) == ("", kind.removesuffix(".Match"))
    assert kind.rpartition(".")[2] in str(error)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ((1, 2j), "[1]"),
        ([[0], [1, 2j]], "[1][1]"),
        ({2j}, "{}"),
        ({2j: 1}, "[0].key"),
        ({1: 2j}, "[0]"),
        ({"a b": 2j}, "[#0]"),
        ({"x": 1, "a b": [2j]}, "[#1][0]"),
        (deque([1, 2j]), "[1]"),
        (OrderedDict(a=2j), "[0]"),
        (defaultdict(None, a=2j), "[0]"),
        (Holder(Holder(2j)), "inner.inner"),
        (Loose(x=[2j]), "x[0]"),
        (Row(2j), "x"),
        (HumanMessage("x", additional_kwargs={"k": 2j}), "additional_kwargs.k"),
        (dt.datetime(2026, 1, 1, tzinfo=Zone()), "tzinfo"),
    ],
)
def test_the_path_leads_through_every_container(value: Any, path: str) -> None:
    """Positions, keys that are names, fields; other keys by number, so no data is shown."""
    assert refused(value, Serializer(allowed_types=[Holder, Loose, Row])).path == path


def test_a_given_prefix_stands_before_the_path() -> None:
    """The store names the channel."""
    with pytest.raises(UnserialisableValue, match=r"cannot store messages\[0\]\.x: complex"):
        ALLOWED.encode([{"x": 2j}], path="messages")


def _with_token(model: Any) -> Any:
    model._token = SecretStr(MARKER)
    return model


@pytest.mark.parametrize(
    "value",
    [
        SecretStr(MARKER),
        SecretBytes(MARKER.encode()),
        Secret[str](MARKER),
        pydantic_v1.SecretStr(MARKER),
        pydantic_v1.SecretBytes(MARKER.encode()),
        Login(),
        OldLogin(),
        _with_token(Loose()),
        Loose(x={"y": (SecretStr(MARKER),)}),
        Holder(SecretStr(MARKER)),
        Row(SecretStr(MARKER)),
        Vault(),
        {SecretStr(MARKER): 1},
        {SecretStr(MARKER)},
        deque([SecretStr(MARKER)]),
        defaultdict(None, x=SecretStr(MARKER)),
        HumanMessage("x", additional_kwargs={"k": SecretStr(MARKER)}),
    ],
)
@pytest.mark.parametrize("serde", [ALLOWED, Serializer(allowed_types="any")])
def test_secrets_are_never_stored(value: Any, serde: Serializer) -> None:
    """Anywhere in a value, allow-listed or not, a secret refuses the whole."""
    refused({"state": [value]}, serde)


def test_a_secret_behind_an_enum_member_stays_there() -> None:
    """A member is stored by name when its value cannot be."""
    tree = ALLOWED.encode([Mood.SAFE, Mood.ODD])
    assert MARKER not in repr(tree)
    assert ALLOWED.decode(tree) == [Mood.SAFE, Mood.ODD]


def test_an_exceptions_secrets_stay_masked() -> None:
    """The record of an exception holds the secret's mask."""
    assert MARKER not in ALLOWED.dumps(ValueError(SecretStr(MARKER)))


@pytest.mark.parametrize(
    "value", [Name("x"), Moment(2026, 1, 1), Stranger(), FailureRecord, Name, {Name("k"): 1}]
)
def test_subclasses_and_strangers_are_refused_not_flattened(value: Any) -> None:
    """A str subclass is not a str, also as a key; nothing is stored by its looks."""
    assert "allowed_types" in refused(value).reason or isinstance(value, type)


def test_a_container_with_attributes_of_its_own_is_refused() -> None:
    """An attribute on a Counter would be lost."""
    value = Counter("a")
    value.note = 1  # type: ignore[attr-defined]
    assert "attributes" in refused(value).reason


def test_an_attribute_that_is_no_field_is_refused() -> None:
    """What a dataclass or model carries beside its fields would be lost."""
    holder, model = Holder(), Loose()
    holder.stray = 1  # type: ignore[attr-defined]
    model.__dict__["stray"] = 1
    assert "stray" in refused(holder).reason
    assert "stray" in refused(model).reason


def test_a_dataclass_with_a_builtin_base_is_refused() -> None:
    """Its inner state cannot be kept; a plain exception is recorded instead."""
    assert ALLOWED.loads(ALLOWED.dumps(FailureRecord())).startswith("FailureRecord")

    @dataclasses.dataclass
    class Mixed(io.StringIO):
        x: int = 1

    assert "inner state" in refused(Mixed(), Serializer(allowed_types=[Mixed])).reason


def test_a_class_defined_in_a_function_is_refused() -> None:
    """Its name does not lead back to it after a restart, whatever is allowed."""

    @dataclasses.dataclass
    class Local:
        x: int = 1

    assert "function" in refused(Local(), Serializer(allowed_types="any")).reason


def test_a_class_whose_name_leads_elsewhere_is_refused() -> None:
    """A class replaced in its module could not be found again."""
    twin = dataclasses.make_dataclass("Holder", ["inner"], namespace={"__module__": __name__})
    twin.__module__ = __name__
    assert "lead back" in refused(twin(1), Serializer(allowed_types="any")).reason


def test_a_factory_that_is_not_a_builtin_is_refused() -> None:
    """A defaultdict's factory is code."""
    assert "default_factory" in refused(defaultdict(lambda: 1)).reason
    assert "default_factory" in refused(defaultdict(Stranger)).reason


@pytest.mark.parametrize("serde", [ALLOWED, Serializer(allowed_types=[Holder], max_depth=20)])
def test_a_value_that_holds_itself_is_refused_where_it_does(serde: Serializer) -> None:
    """Lists, dicts, models and mixtures; the path ends where the circle closes."""
    one: list[Any] = []
    one.append(one)
    two: dict[str, Any] = {"a": [1]}
    two["a"].append((two,))
    three = Holder()
    three.inner = {"x": three}
    for value, path in ((one, "top[0]"), (two, "top.a[1][0]"), (three, "top.inner.x")):
        error = refused({"top": value}, serde)
        assert (error.path, error.reason) == (path, "refers to itself")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    """200 levels are stored and read, 201 refused, and 100000 are no RecursionError."""
    assert ALLOWED.loads(ALLOWED.dumps(nested(200))) == nested(200)
    assert "deeper" in refused(nested(201)).reason
    assert "deeper" in refused(nested(100_000)).reason
    chain: Any = None
    for _ in range(100):
        chain = Holder(chain)
    assert ALLOWED.dumps(ALLOWED.loads(ALLOWED.dumps(chain))) == ALLOWED.dumps(chain)


def test_every_kind_of_nesting_up_to_the_limit_is_readable() -> None:
    """Whatever can be written can be read: the reader's limit is never the lower one."""
    wraps: list[Any] = [
        lambda inner: (inner,),
        lambda inner: {1: inner},
        lambda inner: {"b": inner, "a": 1, "aa": 2},
        lambda inner: OrderedDict(a=inner),
        Row,
        Holder,
        lambda inner: Loose(x=inner),
    ]
    for wrap in wraps:
        for leaf in (1, 2**70, dt.datetime.max.replace(tzinfo=dt.UTC), (), {1: 2}):
            value, text = leaf, ""
            try:
                while True:
                    text = ALLOWED.dumps(value)
                    value = wrap(value)
            except UnserialisableValue:
                pass
            assert ALLOWED.dumps(ALLOWED.loads(text)) == text


def test_work_on_shared_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty lists, each twice the one before, would be a billion items."""
    monkeypatch.setattr("cuo_checkpoint.serde.encode.MAX_ITEMS", 50_000)
    value: Any = [1]
    for _ in range(30):
        value = [value, value]
    with pytest.raises(UnserialisableValue, match="values in all"):
        ALLOWED.encode(value)
    long = "x" * 1_000_000
    with pytest.raises(UnserialisableValue, match="characters in all"):
        ALLOWED.encode([long] * 100)


def test_a_huge_integer_is_refused_in_time() -> None:
    """Beyond a mebibyte no number is written."""
    assert "bits" in refused(1 << 9_000_000).reason


def test_the_pattern_that_prints_is_refused() -> None:
    """re.DEBUG would write to stdout whenever a row is read."""
    assert "DEBUG" in refused(_debug_pattern()).reason


def _debug_pattern() -> re.Pattern[str]:
    import contextlib

    with contextlib.redirect_stdout(io.StringIO()):
        return re.compile("a", re.DEBUG)


def test_a_serializer_stays_usable_after_a_refusal() -> None:
    """Nothing of the refused value is remembered."""
    refused({"a": [2j]})
    assert ALLOWED.loads(ALLOWED.dumps({"a": [2]})) == {"a": [2]}


@pytest.mark.parametrize("depth", [0, 201, -1])
def test_the_depth_setting_is_checked_at_once(depth: int) -> None:
    """A limit the text layer could not honour is refused."""
    with pytest.raises(ValueError, match="max_depth"):
        Serializer(max_depth=depth)
