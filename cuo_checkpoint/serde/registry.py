"""Which classes may be stored and rebuilt, and how a stored name finds its class.

A class is named `module:qualname`. Writing imports nothing: the class is at hand, and its name
must lead back to it. Reading imports a module only for a name on the list.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from cuo_checkpoint.serde.tags import Broken, Refused, type_name

__all__ = ["SAFE_TYPES", "AllowedTypes", "Registry", "full_name"]

AllowedTypes = Iterable[type | tuple[str, ...]] | Literal["any"]

_MESSAGES = {
    "base": ("BaseMessage", "BaseMessageChunk"),
    "human": ("HumanMessage", "HumanMessageChunk"),
    "ai": ("AIMessage", "AIMessageChunk"),
    "system": ("SystemMessage", "SystemMessageChunk"),
    "chat": ("ChatMessage", "ChatMessageChunk"),
    "tool": ("ToolMessage", "ToolMessageChunk"),
    "function": ("FunctionMessage", "FunctionMessageChunk"),
    "modifier": ("RemoveMessage",),
}
_LANGGRAPH = (
    "CacheKey",
    "Command",
    "GraphOutput",
    "Interrupt",
    "Overwrite",
    "PregelTask",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "TimeoutPolicy",
)

SAFE_TYPES: frozenset[str] = frozenset(
    {f"langchain_core.messages.{module}:{n}" for module, names in _MESSAGES.items() for n in names}
    | {f"langgraph.types:{name}" for name in _LANGGRAPH}
    | {f"langgraph.store.base:{name}" for name in ("Item", "SearchItem", "GetOp")}
    | {
        "langchain_core.documents.base:Document",
        "langgraph.checkpoint.serde.types:_DeltaSnapshot",
    }
)
"""Classes of LangChain and LangGraph that hold data and do nothing when rebuilt: always allowed.

The list of LangGraph's own serialiser, and the containers it lets through by other ways.
"""


def full_name(kind: type) -> str:
    """`module:qualname`, the name under which objects of `kind` are stored."""
    return f"{kind.__module__}:{kind.__qualname__}"


class Registry:
    """The allow-list, aliases and upcasters. Never changed after construction."""

    def __init__(
        self,
        allowed: AllowedTypes = (),
        aliases: Mapping[str, str] | None = None,
        upcasters: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.any = allowed == "any"
        self.classes: dict[str, type] = {}
        self.pairs: set[tuple[str, str]] = set()
        self.aliases = dict(aliases or {})
        self.upcasters = dict(upcasters or {})
        if isinstance(allowed, str):
            if allowed != "any":
                raise ValueError('allowed_types is a collection of types, or the word "any"')
        else:
            for entry in allowed:
                self._allow(entry)
        for name in (*self.aliases, *self.aliases.values(), *self.upcasters):
            if not _well_formed(name):
                raise ValueError(f'{name!r} is not of the form "module:QualName"')
        for name in self.aliases:
            self._current(name)

    def with_allowlist(self, extra: AllowedTypes) -> Registry:
        """A registry that allows `extra` as well."""
        if self.any or extra == "any":
            return Registry("any", self.aliases, self.upcasters)
        entries: list[type | tuple[str, ...]] = [*self.classes.values(), *self.pairs]
        entries += extra
        return Registry(entries, self.aliases, self.upcasters)

    def name_of(self, kind: type) -> str:
        """The name to store for `kind`; Refused if it is not allowed or would not lead back."""
        name = full_name(kind)
        if self.classes.get(name) is kind:
            return name
        if "<locals>" in name:
            raise Refused(
                type_name(kind),
                "defined inside a function, so its name does not lead back to it; "
                "move it to module level",
            )
        if kind.__module__ == "builtins":
            raise Refused(type_name(kind), "not a type that can be stored")
        if not self.allows(name):
            raise Refused(type_name(kind), "not an allowed type; add it to allowed_types")
        if _walk(sys.modules.get(kind.__module__), kind.__qualname__) is not kind:
            raise Refused(type_name(kind), "its name does not lead back to it")
        return name

    def resolve(self, stored: object) -> type:
        """The class a stored name means today; Broken if not allowed, gone, or not a class."""
        if not isinstance(stored, str) or not _well_formed(stored):
            raise Broken("(malformed name)", "not a name of the form module:QualName")
        name = self._current(stored)
        shown = stored if name == stored else f"{stored} (now {name})"
        if not self.allows(name):
            raise Broken(shown, "not an allowed type, so nothing was imported")
        if name in self.classes:
            return self.classes[name]
        module, _, qualname = name.partition(":")
        try:
            found = _walk(sys.modules.get(module) or importlib.import_module(module), qualname)
        except Exception as error:
            raise Broken(shown, f"its module fails to import ({type(error).__name__})") from error
        if not isinstance(found, type):
            raise Broken(shown, "no such class any more; name its successor in aliases")
        if not self._listed(name) and full_name(found) != name:
            raise Broken(shown, "the name leads to another class")
        return found

    def allows(self, name: str) -> bool:
        """Whether objects of the class `name` may be stored and rebuilt."""
        if self.any or name in self.classes or self._listed(name):
            return True
        # LangGraph lists classes by __name__, so a nested class arrives without its outer one.
        module, _, qualname = name.partition(":")
        return (module, qualname.rpartition(".")[2]) in self.pairs

    def _listed(self, name: str) -> bool:
        module, _, qualname = name.partition(":")
        return name in SAFE_TYPES or (module, qualname) in self.pairs

    def _allow(self, entry: object) -> None:
        if isinstance(entry, type):
            origin = getattr(entry, "__pydantic_generic_metadata__", {}).get("origin")
            kind = origin or entry
            name = full_name(kind)
            if self.classes.setdefault(name, kind) is not kind:
                raise ValueError(f"two different classes are named {name}")
        elif (
            isinstance(entry, tuple) and len(entry) >= 2 and all(isinstance(p, str) for p in entry)
        ):
            # Box[int] is allowed through Box; its arguments are looked up on their own.
            self.pairs.add((".".join(entry[:-1]), entry[-1].partition("[")[0]))
        else:
            raise TypeError("allowed_types holds classes and (module, name) tuples")

    def _current(self, name: str) -> str:
        seen = {name}
        while (after := self.aliases.get(name)) is not None:
            if after in seen:
                raise ValueError(f"aliases lead from {name} in a circle")
            seen.add(after)
            name = after
        return name


def _well_formed(name: str) -> bool:
    module, colon, qualname = name.partition(":")
    parts = [*module.split("."), *qualname.replace("<locals>", "locals").split(".")]
    return bool(colon) and len(name) <= 512 and all(part.isidentifier() for part in parts)


def _walk(module: object, qualname: str) -> object:
    first, *rest = qualname.split(".")
    found = getattr(module, first, None)
    for part in rest:
        # Through classes only: a module may hold other modules, and they are not on the list.
        found = getattr(found, part, None) if isinstance(found, type) else None
    return found
