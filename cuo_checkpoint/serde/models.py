"""Pydantic models (v2, and v1 through `pydantic.v1`): fields, extras, private attributes, and
which fields were set.

Rebuilt without validation: a stored value is what the model held, also where an assignment had
bypassed its validators. A parametrised generic is stored as its origin and arguments.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from functools import cached_property
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from cuo_checkpoint.canonical import JsonValue
from cuo_checkpoint.serde.decode import Decoder, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.plans import gained, lost, only_bases
from cuo_checkpoint.serde.registry import Registry, full_name
from cuo_checkpoint.serde.tags import Broken, Refused, natural_names, type_name

__all__ = ["ModelPlan", "ModelV1Plan", "is_model_v1", "parametrised"]

_FIELDS_SET = "$fields_set"
_PRIVATE = "$private"
_MISSING = "$missing"
_ARGS = "$args"
_set = object.__setattr__

_PLAIN_ARGS: dict[str, Any] = {
    full_name(kind): kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, type(None))
} | {"typing:Any": Any}


class ModelPlan:
    """A v2 model class, plain or parametrised."""

    tag = "$model"
    also = frozenset({_FIELDS_SET, _PRIVATE, _MISSING, _ARGS})

    def __init__(self, kind: type[BaseModel], registry: Registry, name: str) -> None:
        only_bases(kind, ())
        self.kind = kind
        self.name = name
        self.fields = kind.model_fields
        self.natural = natural_names(self.fields)
        self.extra = kind.model_config.get("extra") == "allow"
        self.private = kind.__private_attributes__
        arguments = kind.__pydantic_generic_metadata__["args"]
        self.args: list[JsonValue] = [_write_arg(argument, registry) for argument in arguments]
        if arguments and parametrised(origin_of(kind), self.args, registry) is not kind:
            raise Refused(type_name(kind), "its parameters do not lead back to it")

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        head: dict[str, JsonValue] = {self.tag: self.name}
        if self.args:
            head[_ARGS] = list(self.args)
        members: dict[str, Any] = value.__dict__
        if members.keys() != self.fields.keys():
            members = self._fields_only(members, head)
        extra = value.__pydantic_extra__
        if extra:
            members = members | extra
        touched = value.__pydantic_fields_set__
        if touched != members.keys():
            head[_FIELDS_SET] = [enc.text(name) for name in sorted(touched)]
        private = value.__pydantic_private__
        if private:
            head[_PRIVATE] = enc.value(private, depth + 1)
        return enc.members(head, members, depth, self.natural)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        fields = dec.members(tree, depth, self.natural)
        members: dict[str, Any] = {}
        if fields.keys() != self.fields.keys():
            members = {name: fields.pop(name) for name in [*fields] if name not in self.fields}
        if members and not self.extra:
            raise lost(self.name, min(members))
        absent = expect(tree.get(_MISSING, []), list)
        if len(fields) != len(self.fields):
            fields = {
                name: fields[name] if name in fields else self._default(name)
                for name in self.fields
                if name in fields or name not in absent
            }
        touched = {*fields, *members}
        if _FIELDS_SET in tree:
            touched = _names(dec, tree[_FIELDS_SET], depth)
        value = self.kind.__new__(self.kind)
        _set(value, "__dict__", fields)
        _set(value, "__pydantic_fields_set__", touched)
        private = self._private(dec, tree, depth)
        if not self.kind.__pydantic_root_model__:
            # A root model's class holds these two itself; set here they would become attributes.
            _set(value, "__pydantic_extra__", members if self.extra else None)
            _set(value, "__pydantic_private__", private)
        return value

    def _fields_only(
        self, attributes: dict[str, Any], head: dict[str, JsonValue]
    ) -> dict[str, Any]:
        for name in attributes.keys() - self.fields.keys():
            if not isinstance(getattr(self.kind, name, None), cached_property):
                raise Refused(type_name(self.kind), f"attribute {name[:64]} is not a field")
        missing: list[JsonValue] = [name for name in self.fields if name not in attributes]
        if missing:
            head[_MISSING] = missing
        return {name: attributes[name] for name in attributes if name in self.fields}

    def _default(self, name: str) -> Any:
        field = self.fields[name]
        if field.is_required():
            raise gained(self.name, name)
        if field.default_factory_takes_validated_data:
            raise gained(self.name, name)
        return field.get_default(call_default_factory=True)

    def _private(self, dec: Decoder, tree: Tree, depth: int) -> dict[str, Any] | None:
        stored: dict[str, Any] = {}
        if _PRIVATE in tree:
            stored = expect(dec.value(tree[_PRIVATE], depth + 1), dict)
        if not self.private:
            if stored:
                raise lost(self.name, min(stored))
            return None
        if stored.keys() - self.private.keys():
            raise lost(self.name, min(stored.keys() - self.private.keys()))
        for name in self.private.keys() - stored.keys():
            default = self.private[name].get_default()
            if default is not PydanticUndefined:
                stored[name] = default
        return stored


class ModelV1Plan:
    """A `pydantic.v1` model class."""

    tag = "$model_v1"
    also = frozenset({_FIELDS_SET})

    def __init__(self, kind: Any, name: str) -> None:
        if kind.__private_attributes__:
            raise Refused(type_name(kind), "a pydantic v1 model with private attributes")
        if getattr(kind, "__concrete__", False):
            raise Refused(type_name(kind), "a parametrised pydantic v1 model")
        self.kind = kind
        self.name = name
        self.fields = kind.__fields__
        self.natural = natural_names(self.fields)
        self.extra = kind.__config__.extra.value == "allow"

    def encode(self, enc: Encoder, value: Any, depth: int) -> JsonValue:
        head: dict[str, JsonValue] = {self.tag: self.name}
        if value.__fields_set__ != value.__dict__.keys():
            head[_FIELDS_SET] = [enc.text(name) for name in sorted(value.__fields_set__)]
        return enc.members(head, value.__dict__, depth, self.natural)

    def decode(self, dec: Decoder, tree: Tree, depth: int) -> Any:
        members = dec.members(tree, depth, self.natural)
        if not self.extra and members.keys() - self.fields.keys():
            raise lost(self.name, min(members.keys() - self.fields.keys()))
        for name, field in self.fields.items():
            if name not in members:
                if field.required:
                    raise gained(self.name, name)
                members[name] = field.get_default()
        touched = set(members)
        if _FIELDS_SET in tree:
            touched = _names(dec, tree[_FIELDS_SET], depth)
        value = self.kind.__new__(self.kind)
        _set(value, "__dict__", members)
        _set(value, "__fields_set__", touched)
        return value


def _names(dec: Decoder, tree: JsonValue, depth: int) -> set[str]:
    return {expect(name, str) for name in dec.items(expect(tree, list), depth + 1)}


def is_model_v1(kind: type) -> bool:
    """Whether `kind` is a `pydantic.v1` model; looks at names, so it imports nothing."""
    return any(
        owner.__module__ == "pydantic.v1.main" and owner.__name__ == "BaseModel"
        for owner in kind.__mro__
    )


def origin_of(kind: type[BaseModel]) -> type[BaseModel]:
    """The class before `[...]`; the class itself when it has no parameters."""
    origin: type[BaseModel] | None = kind.__pydantic_generic_metadata__["origin"]
    return origin or kind


def parametrised(origin: Any, args: JsonValue, registry: Registry) -> Any:
    """`origin[args]` for stored `args`; Broken if an argument is not allowed."""
    found = tuple(_read_arg(argument, registry, 0) for argument in expect(args, list))
    return origin[found] if found else origin


def _write_arg(argument: Any, registry: Registry) -> JsonValue:
    origin, args = typing.get_origin(argument), typing.get_args(argument)
    if origin in (typing.Union, types.UnionType):
        # Pydantic makes Box[Optional[int]] and Box[int | None] two classes.
        spelling = "union" if origin is typing.Union else "or"
        return {spelling: [_write_arg(part, registry) for part in args]}
    if origin is not None:
        parts: list[JsonValue] = [_write_arg(part, registry) for part in args]
        return {"of": _write_arg(origin, registry), "args": parts}
    if argument is Any:
        return "typing:Any"
    if not isinstance(argument, type):
        raise Refused(type_name(type(argument)), "a type parameter that is not a class")
    if _PLAIN_ARGS.get(full_name(argument), ...) is argument:
        return full_name(argument)
    metadata = getattr(argument, "__pydantic_generic_metadata__", None)
    if metadata and metadata["args"]:
        parts = [_write_arg(part, registry) for part in metadata["args"]]
        return {"of": registry.name_of(metadata["origin"]), "args": parts}
    return registry.name_of(argument)


def _read_arg(tree: JsonValue, registry: Registry, depth: int) -> Any:
    if depth > 16:
        raise Broken(_ARGS, "nested deeper than 16 levels")
    if isinstance(tree, str):
        return _PLAIN_ARGS[tree] if tree in _PLAIN_ARGS else registry.resolve(tree)
    shape = expect(tree, dict)
    if shape.keys() == {"or"}:
        parts = [_read_arg(part, registry, depth + 1) for part in expect(shape["or"], list)]
        return functools.reduce(operator.or_, parts)
    if shape.keys() == {"union"}:
        return typing.Union[  # noqa: UP007 - its members are known at run time only
            tuple(_read_arg(part, registry, depth + 1) for part in expect(shape["union"], list))
        ]
    if shape.keys() != {"of", "args"}:
        raise Broken(_ARGS, "malformed")
    origin: Any = _read_arg(shape["of"], registry, depth + 1)
    return origin[tuple(_read_arg(a, registry, depth + 1) for a in expect(shape["args"], list))]
