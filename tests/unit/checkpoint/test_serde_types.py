"""Allow-lists, and classes that change while rows stay."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from collections.abc import Iterator
from typing import Any, Generic, TypedDict, TypeVar

import pytest
from langgraph._internal import _serde
from pydantic import BaseModel, ConfigDict, PrivateAttr

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.errors import DeserialiseError, UnserialisableValue
from cuo_checkpoint.serde import SAFE_TYPES, Serializer

T = TypeVar("T")


class Item(BaseModel):
    a: int = 1


class Box(BaseModel, Generic[T]):
    inner: T


@dataclasses.dataclass
class Invoice:
    number: str

    @dataclasses.dataclass
    class Line:
        text: str


class Mood(enum.Enum):
    GOOD = 1


class State(TypedDict):
    invoice: Invoice
    lines: list[Invoice.Line]
    box: Box[Item]
    item: Item
    mood: Mood


@pytest.fixture
def module() -> Iterator[Any]:
    """A module of the user's whose classes a test may change, as a new release would."""
    made = types.ModuleType("users_module")
    sys.modules["users_module"] = made
    yield made
    del sys.modules["users_module"]


def define(module: Any, name: str, *bases: Any, **members: Any) -> Any:
    """A class `name` in `module`; annotated fields as field=(type, default) or field=(type,)."""
    body: dict[str, Any] = {"__module__": "users_module", "__qualname__": name}
    body["__annotations__"] = {}
    for field, value in members.items():
        if isinstance(value, tuple):
            body["__annotations__"][field] = value[0]
            body.update(zip([field], value[1:], strict=False))
        else:
            body[field] = value
    made = types.new_class(name, bases, exec_body=lambda namespace: namespace.update(body))
    setattr(module, name, made)
    return made


def allowing(*names: str, **settings: Any) -> Serializer:
    return Serializer(allowed_types=[("users_module", name) for name in names], **settings)


def test_nothing_of_the_users_is_allowed_by_itself() -> None:
    """The remedy is in the message."""
    for value in (Item(), Box[int](inner=1), Invoice("1"), Mood.GOOD):
        with pytest.raises(UnserialisableValue, match="add it to allowed_types"):
            Serializer().encode(value)


@pytest.mark.parametrize("form", ["class", "name"])
def test_types_are_allowed_one_by_one(form: str) -> None:
    """Allowing one leaves the others refused, not turned into dicts."""
    entry: Any = Invoice if form == "class" else (__name__, "Invoice")
    serde = Serializer(allowed_types=[entry])
    assert serde.loads(serde.dumps(Invoice("1"))) == Invoice("1")
    stored = Serializer(allowed_types=[Invoice, Item]).dumps([Invoice("1"), Item()])
    with pytest.raises(DeserialiseError) as caught:
        serde.loads(stored)
    assert (caught.value.path, caught.value.type_name) == ("[1]", f"{__name__}:Item")
    with pytest.raises(UnserialisableValue):
        serde.encode([Invoice("1"), Item()])


def test_the_stored_form_stays_readable_when_its_class_is_refused() -> None:
    """An audit needs no class: tag and members are JSON."""
    tree = Serializer(allowed_types=[Invoice]).encode({"i": Invoice("7")})
    assert tree == {"i": {"$dataclass": f"{__name__}:Invoice", "number": "7"}}


def test_the_list_langgraph_makes_of_a_schema_is_enough() -> None:
    """Nested classes and generics arrive by __name__ and are found. A generic's argument counts
    only when the schema names it elsewhere too: LangGraph does not look inside the brackets."""
    entries = _serde.build_serde_allowlist(schemas=[State], channels={})
    serde = Serializer().with_allowlist(entries)
    state = {
        "invoice": Invoice("1"),
        "lines": [Invoice.Line("x")],
        "box": Box[Item](inner=Item()),
        "item": Item(),
        "mood": Mood.GOOD,
    }
    back = serde.loads(serde.dumps(state))
    assert back == state
    assert list(map(type, back.values())) == list(map(type, state.values()))


def test_with_allowlist_adds_and_keeps() -> None:
    """The first serializer is unchanged, the second knows both, settings included."""
    first = Serializer(allowed_types=[Invoice], max_depth=30)
    second = first.with_allowlist([Item])
    assert second.loads(second.dumps([Invoice("1"), Item()])) == [Invoice("1"), Item()]
    with pytest.raises(UnserialisableValue):
        first.encode(Item())
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    with pytest.raises(UnserialisableValue, match="30 levels"):
        second.encode(deep)


def test_any_allows_every_class_both_ways() -> None:
    """For development only."""
    serde = Serializer(allowed_types="any")
    for value in (Item(), Box[Item](inner=Item()), Invoice.Line("x"), Mood.GOOD):
        assert serde.loads(serde.dumps(value)) == value


def test_a_subclass_of_an_allowed_class_is_not_allowed() -> None:
    """The list names classes, not families."""

    class Special(Item):
        pass

    with pytest.raises(UnserialisableValue):
        Serializer(allowed_types=[Item]).encode(Special())


def test_a_generics_arguments_must_be_allowed_too() -> None:
    """Box is allowed, its argument is not."""
    with pytest.raises(UnserialisableValue):
        Serializer(allowed_types=[Box]).encode(Box[Item](inner=Item()))
    stored = Serializer(allowed_types=[Box, Item]).dumps(Box[Item].model_construct(inner=1))
    with pytest.raises(DeserialiseError):
        Serializer(allowed_types=[Box]).loads(stored)


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_types": "some"},
        {"allowed_types": ["module:Name"]},
        {"allowed_types": [("module",)]},
        {"allowed_types": [Invoice("1")]},
        {"aliases": {"a": "b:C"}},
        {"aliases": {"a:B": "not a name"}},
        {"aliases": {"a:B": "c:D", "c:D": "a:B"}},
        {"upcasters": {"nothing": dict}},
    ],
)
def test_settings_are_checked_at_once(settings: Any) -> None:
    """A misspelt list must not wait for the first row."""
    with pytest.raises((TypeError, ValueError)):
        Serializer(**settings)


def test_two_classes_of_one_name_are_refused() -> None:
    """The stored name would not say which."""
    twin = dataclasses.make_dataclass("Invoice", ["number"])
    twin.__module__, twin.__qualname__ = __name__, "Invoice"
    with pytest.raises(ValueError, match="two different classes"):
        Serializer(allowed_types=[Invoice, twin])


def test_the_safe_list_holds_names_that_exist() -> None:
    """A class LangChain or LangGraph moves shows here first."""
    for name in SAFE_TYPES:
        module, _, qualname = name.partition(":")
        __import__(module)
        assert isinstance(getattr(sys.modules[module], qualname), type), name


def test_a_class_that_is_gone_is_a_typed_error(module: Any) -> None:
    """Neither None nor the raw payload comes back."""
    serde = allowing("Gone")
    define(module, "Gone", BaseModel, a=(int,))
    text = serde.dumps([module.Gone(a=1)])
    del module.Gone
    with pytest.raises(DeserialiseError, match=r"\[0\]: users_module:Gone: no such class"):
        allowing("Gone").loads(text)


def test_a_module_that_is_gone_is_a_typed_error() -> None:
    """Also when it fails on import."""
    serde = Serializer(allowed_types=[("no_such_module", "X")])
    with pytest.raises(DeserialiseError, match="fails to import"):
        serde.decode({"$object": "no_such_module:X"})


def test_an_alias_finds_a_moved_class() -> None:
    """Through several moves; writing uses today's name."""
    old: JsonValue = {"$dataclass": "old.place:Bill", "number": "7"}
    aliases = {"old.place:Bill": "newer.place:Bill", "newer.place:Bill": f"{__name__}:Invoice"}
    serde = Serializer(allowed_types=[Invoice], aliases=aliases)
    assert serde.decode(old) == Invoice("7")
    assert "old.place" not in serde.dumps(serde.decode(old))
    with pytest.raises(DeserialiseError, match="not an allowed type"):
        Serializer(aliases=aliases).decode(old)


def test_an_upcaster_gets_the_members_and_returns_the_object() -> None:
    """Also for a class that no longer exists; it survives with_allowlist."""

    def bill(members: dict[str, Any]) -> Invoice:
        return Invoice(number=f"{members['year']}-{members['n']}")

    serde = Serializer(upcasters={"old.place:Bill": bill}).with_allowlist([Invoice])
    bill_tree: JsonValue = {"$model": "old.place:Bill", "n": 7, "year": {"$tuple": [1]}}
    old: JsonValue = {"x": bill_tree}
    assert serde.decode(old) == {"x": Invoice("(1,)-7")}


def test_an_upcaster_that_fails_is_a_typed_error() -> None:
    """Its exception is the cause; the message shows no data."""
    serde = Serializer(upcasters={"old:Bill": lambda members: members["secret"]})
    with pytest.raises(DeserialiseError, match="malformed") as caught:
        serde.decode({"$object": "old:Bill", "other": 1})
    assert isinstance(caught.value.__cause__, KeyError)


KINDS = ["model", "dataclass", "namedtuple"]


def build(module: Any, kind: str, **fields: Any) -> Any:
    """The class Thing with these fields, in the module, as one of the kinds."""
    made: Any
    if kind == "model":
        return define(module, "Thing", BaseModel, **fields)
    if kind == "dataclass":
        made = dataclasses.dataclass(define(module, "Thing", **fields))
    else:
        defaults = {name: spec[1] for name, spec in fields.items() if len(spec) > 1}
        factory: Any = collections.namedtuple
        made = factory("Thing", list(fields))
        made.__new__.__defaults__ = tuple(defaults.values())
        made._field_defaults = defaults
        made.__module__ = "users_module"
    module.Thing = made
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_gained_takes_its_default(module: Any, kind: str) -> None:
    """Rows written before it are read with it."""
    text = allowing("Thing").dumps(build(module, kind, a=(int,))(a=1))
    build(module, kind, a=(int,), b=(str, "new"))
    back = allowing("Thing").loads(text)
    assert (back.a, back.b) == (1, "new")


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_gained_without_default_asks_for_an_upcaster(module: Any, kind: str) -> None:
    """Nothing is made up."""
    text = allowing("Thing").dumps(build(module, kind, a=(int,))(a=1))
    build(module, kind, a=(int,), b=(str,))
    with pytest.raises(DeserialiseError, match=r"users_module:Thing: .*upcaster"):
        allowing("Thing").loads(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_lost_asks_for_an_upcaster(module: Any, kind: str) -> None:
    """Nothing is dropped."""
    text = allowing("Thing").dumps(build(module, kind, a=(int,), b=(str,))(a=1, b="x"))
    build(module, kind, a=(int,))
    with pytest.raises(DeserialiseError, match=r"users_module:Thing: .*upcaster"):
        allowing("Thing").loads(text)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_in_a_new_order_read_the_same_values(module: Any, kind: str) -> None:
    """The order of fields belongs to the class, the values to their names."""
    text = allowing("Thing").dumps(build(module, kind, zz=(int,), a=(int,))(zz=1, a=2))
    build(module, kind, a=(int,), zz=(int,))
    back = allowing("Thing").loads(text)
    assert (back.zz, back.a) == (1, 2)


def test_a_dataclass_that_became_a_model_asks_for_an_upcaster(module: Any) -> None:
    """The tag says which kind of class was stored."""
    text = allowing("Thing").dumps(build(module, "dataclass", a=(int,))(a=1))
    build(module, "model", a=(int,))
    with pytest.raises(DeserialiseError, match="the class is now"):
        allowing("Thing").loads(text)


def test_an_enum_member_renamed_or_revalued_is_a_typed_error(module: Any) -> None:
    """A member that means something else today is not taken for the old one."""
    serde = allowing("E")

    def member_of(**members: int) -> None:
        made = enum.Enum("E", members)  # type: ignore[misc]
        made.__module__, made.__qualname__ = "users_module", "E"
        module.E = made

    member_of(A=1, B=2)
    text = serde.dumps(module.E.A)
    for members in ({"A": 3}, {"C": 1}, {"B": 2, "A": 5}, {"C": 1, "A": 2}, {"C": 1, "A": 1}):
        member_of(**members)
        with pytest.raises(DeserialiseError, match="upcaster"):
            allowing("E").loads(text)


def test_validators_do_not_run_on_reading(module: Any) -> None:
    """A value that bypassed them comes back as it was, and a constructor is not called."""
    calls: list[str] = []

    class Strict(BaseModel):
        model_config = ConfigDict(frozen=True)
        a: int
        _note: list[int] = PrivateAttr(default_factory=list)

        def model_post_init(self, context: Any, /) -> None:
            calls.append("init")

    Strict.__qualname__ = "Strict"
    serde = Serializer(allowed_types=[Strict])
    value = Strict.model_construct(a="not a number")
    calls.clear()
    back = serde.loads(serde.dumps(value))
    assert (type(back), back.a, calls) == (Strict, "not a number", [])


def test_reading_and_writing_work_from_many_threads() -> None:
    """The caches are shared and hold no state of a call."""
    from concurrent.futures import ThreadPoolExecutor

    serde = Serializer(allowed_types=[Item, Invoice])
    values = [{f"k{n}": [Item(a=n), Invoice(str(n)), (n,)], "a": n} for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda value: serde.loads(serde.dumps(value)), values)) == values
