"""The Serializer: allow-list, plans of classes, and the calls the store and LangGraph make."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel

from cuo_checkpoint.canonical import JsonValue, encoded_bytes
from cuo_checkpoint.errors import DeserialiseError, UnserialisableValue
from cuo_checkpoint.serde import arrays, containers, failures, stdlib
from cuo_checkpoint.serde.arrays import ArrayPlan
from cuo_checkpoint.serde.decode import Decoder, Tag, TagTable, Tree, expect
from cuo_checkpoint.serde.encode import Encoder
from cuo_checkpoint.serde.encode import Plan as WritePlan
from cuo_checkpoint.serde.failures import ErrorPlan, StoredError
from cuo_checkpoint.serde.models import (
    ModelPlan,
    ModelV1Plan,
    is_model_v1,
    origin_of,
    parametrised,
)
from cuo_checkpoint.serde.plans import (
    BASES,
    DataclassPlan,
    EnumPlan,
    NamedTuplePlan,
    ObjectPlan,
    Plan,
)
from cuo_checkpoint.serde.registry import Registry
from cuo_checkpoint.serde.tags import Broken, Refused, type_name
from cuo_checkpoint.serde.text import text_to_tree, trusted_text

__all__ = ["MAX_DEPTH", "TYPED_NAME", "Serializer"]

TYPED_NAME = "cuo+json"
"""The type LangGraph stores beside the bytes of `dumps_typed`."""

MAX_DEPTH = 200
"""Levels of JSON, an object of a class counting twice. orjson's limit is 254; reading takes at most
2.5 frames a level, so half of Python's 1000 are left to the caller."""

_MOST_PLANS = 4096
_SHORT = 4096
_LITERALS: dict[object, bytes] = {None: b"null", True: b"true", False: b"false"}
_CODECS = {**stdlib.CODECS, **containers.CODECS}
_VALUE_TAGS = {**stdlib.TAGS, **containers.TAGS, **arrays.TAGS, **failures.TAGS}
_CLASS_TAGS = (DataclassPlan, NamedTuplePlan, EnumPlan, ObjectPlan, ModelPlan, ModelV1Plan)


class Serializer:
    """Turns Python values into readable JSON and back, exactly, or refuses.

    `allowed_types` holds the classes whose objects may be stored and rebuilt, as classes or as
    ("module", "QualName"); standard-library values and the data classes of LangChain and LangGraph
    need no mention. `"any"` allows every class at writing and reading: whoever can write a row
    then chooses what is imported, so it is for development on trusted data only. `aliases` maps
    stored names ("module:QualName") to today's; `upcasters` maps a stored name to a function that
    gets the stored members as a dict and returns the object (it is called for every object
    stored under that name).

    Immutable and safe to share between threads. `encode` and `decode` do no I/O, except that
    reading may import the module of an allowed class.
    """

    def __init__(
        self,
        *,
        allowed_types: Iterable[type | tuple[str, ...]] | Literal["any"] = (),
        aliases: Mapping[str, str] | None = None,
        upcasters: Mapping[str, Callable[[Any], Any]] | None = None,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        if not 1 <= max_depth <= MAX_DEPTH:
            raise ValueError(f"max_depth lies between 1 and {MAX_DEPTH}")
        self._registry = Registry(allowed_types, aliases, upcasters)
        self._max_depth = max_depth
        self._by_class: dict[type, WritePlan] = {}
        self._by_name: dict[tuple[str, str], Plan] = {}
        self._tags = TagTable(_VALUE_TAGS.copy())
        for plan in _CLASS_TAGS:
            self._tags.known[plan.tag] = Tag(_never, plan.also, members=True)

    def with_allowlist(self, extra: Iterable[type | tuple[str, ...]]) -> Serializer:
        """A serializer that allows `extra` as well: classes or (module, name), as LangGraph lists
        them from a graph's schemas. Types already allowed stay allowed."""
        clone = Serializer(max_depth=self._max_depth)
        clone._registry = self._registry.with_allowlist(extra)
        return clone

    def encode(self, value: object, *, path: str = "") -> JsonValue:
        """The JSON tree of `value`, sharing no container with it.

        Raises UnserialisableValue naming the path (such as `a[0].b`), type and reason, for what
        cannot be rebuilt exactly: types not allowed, secrets, cycles, too deep, too many parts.
        The tree holds nothing jsonb or RFC 8785 would alter, and equal values of equal types
        give equal canonical bytes in every process.
        """
        return self._encode(value, path, share=False)

    def encode_shared(self, value: object, *, path: str = "") -> JsonValue:
        """`encode`, for a tree that becomes text at once: it shares with `value` what needs no change."""
        return self._encode(value, path, share=True)

    def decode(self, tree: JsonValue, *, path: str = "") -> Any:
        """The value of `tree`, of the same types throughout; `tree` is left as it is.

        Raises DeserialiseError naming path and type for anything `encode` would not have written
        and for classes not allowed (nothing is imported then), gone, or changed.
        """
        return self._decode(tree, path, consume=False)

    def dumps(self, value: object, *, path: str = "") -> str:
        """JSON text of `encode(value)`, fit for a jsonb parameter."""
        return trusted_text(self._encode(value, path, share=True))

    def dumps_canonical(self, value: object, *, path: str = "") -> bytes:
        """The canonical bytes of `encode(value)`: what is hashed, and as fit for jsonb as `dumps`.

        Decoding does not depend on the order of members in a text, so one pass serves both.
        """
        if value is None or type(value) is bool:
            return _LITERALS[value]
        if type(value) is str and len(value) < _SHORT and value.isascii() and "\0" not in value:
            return encoded_bytes(value)
        return encoded_bytes(self._encode(value, path, share=True))

    def loads(self, text: str | bytes) -> Any:
        """The value of a text made by `dumps`, also as jsonb reprints it."""
        return self._decode(text_to_tree(text), "", consume=True)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """LangGraph's SerializerProtocol: type name and bytes."""
        return TYPED_NAME, self.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """LangGraph's SerializerProtocol; DeserialiseError for a type not ours."""
        kind, raw = data
        if kind != TYPED_NAME:
            raise DeserialiseError("", "bytes", f"not written by this serializer ({TYPED_NAME})")
        return self.loads(raw)

    def _encode(self, value: object, path: str, *, share: bool) -> JsonValue:
        encoder = Encoder(_CODECS, self._plan, self._max_depth, share=share)
        try:
            return encoder.value(value, 0)
        except Refused as refused:
            error = UnserialisableValue(refused.path(path), refused.type_name, refused.reason)
        except RecursionError:
            reason = "the caller's stack leaves no room to walk it"
            error = UnserialisableValue(path, type_name(type(value)), reason)
        raise error

    def _decode(self, tree: JsonValue, path: str, *, consume: bool) -> Any:
        # A tag and its payload may stand below the last container that was let in.
        decoder = Decoder(self._tags, self._build, self._max_depth + 3, consume=consume)
        try:
            return decoder.value(tree, 0)
        except Broken as broken:
            error = DeserialiseError(broken.path(path), broken.type_name, broken.reason)
            error.__cause__ = broken.__cause__
        except RecursionError:
            error = DeserialiseError(path, "object", "the caller's stack leaves no room")
        raise error

    def _plan(self, value: Any) -> WritePlan:
        kind = type(value)
        plan = self._by_class.get(kind)
        if plan is None:
            plan = self._plan_for(kind)
            if len(self._by_class) >= _MOST_PLANS:
                self._by_class.clear()
            self._by_class[kind] = plan
        return plan

    def _plan_for(self, kind: type) -> WritePlan:
        if _is_secret(kind):
            raise Refused(type_name(kind), "a secret is never stored")
        if issubclass(kind, BaseException) or kind is StoredError:
            return ErrorPlan()
        if arrays.is_numpy(kind):
            return ArrayPlan()
        if issubclass(kind, BaseModel):
            return ModelPlan(kind, self._registry, self._registry.name_of(origin_of(kind)))
        name = self._registry.name_of(kind)
        _refuse_library_insides(kind)
        return _kind_plan(kind, name)

    def _build(self, dec: Decoder, tag: str, tree: Tree, depth: int) -> Any:
        stored = tree[tag]
        upcaster = self._registry.upcasters.get(stored) if isinstance(stored, str) else None
        if upcaster is not None:
            members = dec.members(tree, depth)
            if "$base" in tree:
                members["$base"] = dec.value(tree["$base"], depth + 1)
            return upcaster(members)
        plan = None if "$args" in tree else self._by_name.get((tag, expect(stored, str)))
        if plan is None:
            plan = self._read_plan(tag, tree)
        return plan.decode(dec, tree, depth)

    def _read_plan(self, tag: str, tree: Tree) -> Plan:
        stored = expect(tree[tag], str)
        kind = self._registry.resolve(stored)
        if _is_secret(kind):
            raise Broken(stored, "a secret is never stored")
        plan: Plan
        try:
            if issubclass(kind, BaseModel):
                if "$args" in tree:
                    kind = parametrised(kind, tree["$args"], self._registry)
                plan = ModelPlan(kind, self._registry, stored)
            else:
                plan = _kind_plan(kind, stored)
        except Refused as refused:
            raise Broken(stored, refused.reason) from refused
        if plan.tag != tag:
            raise Broken(stored, f"stored as {tag}, but the class is now {plan.tag}")
        if "$args" not in tree and len(self._by_name) < _MOST_PLANS:
            self._by_name[tag, stored] = plan
        return plan


def _kind_plan(kind: type, name: str) -> Plan:
    if issubclass(kind, enum.Enum):
        return EnumPlan(kind, name)
    if is_model_v1(kind):
        return ModelV1Plan(kind, name)
    if dataclasses.is_dataclass(kind):
        return DataclassPlan(kind, name)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return NamedTuplePlan(kind, name)
    return ObjectPlan(kind, name)


def _refuse_library_insides(kind: type) -> None:
    """Refuse a subclass of a library class such as Path: what that keeps in its attributes is
    caches (two writes of one value differ) and another thing in another Python."""
    for owner in kind.__mro__:
        if owner in stdlib.CODECS and owner not in BASES and not issubclass(kind, enum.Enum):
            reason = f"inherits from {type_name(owner)}, whose inner state cannot be kept"
            raise Refused(type_name(kind), reason)


def _never(dec: Decoder, tree: Tree, depth: int) -> Any:
    raise Broken("$", "a class's tag is read by build")


def _is_secret(kind: type) -> bool:
    """Pydantic's secrets of both versions, and whatever behaves like one."""
    return callable(getattr(kind, "get_secret_value", None))
