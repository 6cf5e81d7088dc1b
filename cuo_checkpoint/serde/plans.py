"""Objects of classes: how each kind is written and rebuilt, and which kind a class is.

A class's own constructor is never called: the object is made empty and its attributes are set, so
`field(init=False)`, frozen, slots and `__post_init__` need no care and validators cannot alter
what was stored. Rows live longer than classes: a field the class has gained since takes its
default; one it has lost is an error that asks for an upcaster.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.tags import Broken, Refused, natural_names, type_name

__all__ = [
    "BASES",
    "DataclassPlan",
    "EnumPlan",
    "NamedTuplePlan",
    "ObjectPlan",
    "Plan",
    "gained",
    "lost",
    "only_bases",
    "slots_of",
]

_COMPILED = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
"""What a class written in C holds; one written in Python holds functions instead."""

_MISSING = "$missing"
_set = object.__setattr__


class Plan(Protocol):
    """How objects of one class are written under `tag`, and rebuilt."""

    tag: str
    also: frozenset[str]

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        """The tagged object for `value`; raises Refused."""
        ...

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        """The object; raises Broken."""
        ...


class DataclassPlan:
    """Every field, also `init=False` ones; those not set at all are named in `$missing`."""

    tag = "$dataclass"
    also = frozenset({_MISSING})

    def __init__(self, kind: type, name: str) -> None:
        only_bases(kind, ())
        self.kind = kind
        self.name = name
        self.fields = {field.name: field for field in dataclasses.fields(kind)}
        self.natural = natural_names(self.fields)
        self.others = tuple(slot for slot in slots_of(kind) if slot not in self.fields)

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        members: dict[str, Any] = {}
        missing: list[JsonValue] = []
        for name in self.fields:
            try:
                members[name] = getattr(value, name)
            except AttributeError:
                missing.append(name)
        for name in getattr(value, "__dict__", {}).keys() - self.fields.keys():
            _allow_extra(self.kind, name)
        for name in self.others:
            if hasattr(value, name):
                _allow_extra(self.kind, name)
        head: dict[str, JsonValue] = {self.tag: self.name}
        if missing:
            head[_MISSING] = missing
        return enc.members(head, members, depth, self.natural)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        members = dec.members(tree, depth, self.natural)
        value: Any = object.__new__(self.kind)
        for name in members:
            if name not in self.fields:
                raise lost(self.name, name)
        absent = tree.get(_MISSING, [])
        for name, field in self.fields.items():
            if name in members:
                _set(value, name, members[name])
            elif name not in expect(absent, list):
                _set(value, name, _default(field, self.name))
        return value


class NamedTuplePlan:
    """The fields by name; the tuple is filled directly."""

    tag = "$namedtuple"
    also: frozenset[str] = frozenset()

    def __init__(self, kind: Any, name: str) -> None:
        only_bases(kind, (tuple,))
        self.kind = kind
        self.name = name
        self.natural: tuple[str, ...] = kind._fields
        self.defaults: Mapping[str, Any] = kind._field_defaults

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        if getattr(value, "__dict__", None):
            raise Refused(type_name(self.kind), "carries attributes besides its items")
        members = dict(zip(self.natural, tuple.__iter__(value), strict=True))
        return enc.members({self.tag: self.name}, members, depth, self.natural)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        members = {**self.defaults, **dec.members(tree, depth, self.natural)}
        if len(members) != len(self.natural):
            raise Broken(self.name, "its fields have changed; register an upcaster")
        return tuple.__new__(self.kind, [members[name] for name in self.natural])


class EnumPlan:
    """Name and value, which must still agree; combined flags by value alone."""

    tag = "$enum"
    also: frozenset[str] = frozenset()

    def __init__(self, kind: type[enum.Enum], name: str) -> None:
        self.kind = kind
        self.name = name

    def encode(self, enc: Encoder, value: enum.Enum, depth: int) -> JsonValue:
        members: dict[str, Any] = {}
        if self.kind.__members__.get(value._name_ or "") is value:
            members["name"] = value._name_
        try:
            return enc.members({self.tag: self.name}, members | {"value": value._value_}, depth)
        except Refused:
            if not members:
                raise
            return enc.members({self.tag: self.name}, members, depth)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> enum.Enum:
        members = dec.members(tree, depth)
        if members.keys() - {"name", "value"} or not members:
            raise Broken(self.name, "an enum member has name and value only")
        if "name" not in members:
            if not issubclass(self.kind, enum.Flag):
                raise Broken(self.name, "a member without a name")
            return self.kind(members["value"])
        found = self.kind.__members__.get(expect(members["name"], str))
        if found is None or found.name != members["name"]:
            raise Broken(self.name, "no such member any more; register an upcaster")
        if "value" in members and not _same(found.value, members["value"]):
            raise Broken(self.name, "the member's value has changed; register an upcaster")
        return found


BASES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes(memoryview(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""Built-in class -> the plain value inside an object of a subclass."""


class ObjectPlan:
    """Attributes from `__dict__` and slots, and in `$base` the plain value of a built-in base."""

    tag = "$object"
    also = frozenset({"$base"})

    def __init__(self, kind: type, name: str) -> None:
        self.base = next((base for base in BASES if issubclass(kind, base)), None)
        only_bases(kind, (self.base,) if self.base else ())
        self.kind = kind
        self.name = name
        self.slots = natural_names(slots_of(kind))

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        members = {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        members |= getattr(value, "__dict__", {})
        for name in [name for name in members if _left_behind(self.kind, name)]:
            del members[name]
        if any(map(_is_special, members)):
            raise Refused(type_name(self.kind), "an attribute has a special name")
        head: dict[str, JsonValue] = {self.tag: self.name}
        if self.base is not None:
            head["$base"] = enc.value(BASES[self.base](value), depth + 1)
        return enc.members(head, members, depth, self.slots)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        members = dec.members(tree, depth, self.slots)
        base: Any = self.base
        if (base is None) is not ("$base" not in tree):
            raise Broken(self.name, "its built-in base has changed; register an upcaster")
        value: Any
        if base is None:
            value = object.__new__(self.kind)
        else:
            plain = expect(dec.value(tree["$base"], depth + 1), base)
            if base in (list, dict, set):
                value = base.__new__(self.kind)
                (base.extend if base is list else base.update)(value, plain)
            else:
                value = base.__new__(self.kind, plain)
        for name, attribute in members.items():
            if _is_special(name):
                raise Broken(self.name, "an attribute has a special name")
            _set(value, name, attribute)
        return value


def lost(name: str, field: str) -> Broken:
    """The error for a stored field the class no longer has."""
    return Broken(name, f"the class has no field {field} any more; register an upcaster")


def gained(name: str, field: str) -> Broken:
    """The error for a field without default that the stored form does not have."""
    return Broken(name, f"field {field} is not stored and has no default; register an upcaster")


def slots_of(kind: type) -> tuple[str, ...]:
    """The attribute names of all `__slots__` of `kind` and its bases, bases first."""
    names: dict[str, None] = {}
    for owner in reversed(kind.__mro__):
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{owner.__name__.lstrip('_')}{name}"
            names[name] = None
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _default(field: dataclasses.Field[Any], owner: str) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise gained(owner, field.name)


def only_bases(kind: type, allowed: tuple[type, ...]) -> None:
    """Refuse a class with a built-in base whose inner state nobody here knows how to keep."""
    for owner in kind.__mro__:
        if owner is not object and owner not in allowed and _is_compiled(owner):
            reason = f"inherits from {type_name(owner)}, whose inner state cannot be kept"
            raise Refused(type_name(kind), reason)


def _is_compiled(owner: type) -> bool:
    slots = {"__dict__", "__weakref__", *slots_of(owner)}
    return any(
        isinstance(member, _COMPILED) and member.__objclass__ is owner and name not in slots
        for name, member in owner.__dict__.items()
    )


def _left_behind(kind: type, name: str) -> bool:
    """Whether `name` is a cached property, or what typing leaves behind on Box[int](...)."""
    return name == "__orig_class__" or isinstance(getattr(kind, name, None), cached_property)


def _allow_extra(kind: type, name: str) -> None:
    if not _left_behind(kind, name):
        raise Refused(type_name(kind), f"attribute {name[:64]} is not a field")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))
