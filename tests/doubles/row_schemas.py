"""The shipped schemas held against rows that were really written, and against rows spoiled a little.

`fits` says whether a row's body and bytes are what their schemas describe; `spoiled` makes every
variant of a body that has one member more, one less, or one value of another type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import jsonschema

from cuo_checkpoint import schemas as store_schemas
from cuo_supervisor import schemas as supervisor_schemas
from cuo_supervisor.core.audit import SupervisorAuditKind

__all__ = ["check", "spoiled", "validator"]

_SUPERVISORS: Final = frozenset(kind.value for kind in SupervisorAuditKind)
_FREE: Final = frozenset({"arguments"})
"""Members whose content is a skill's own: nobody's schema can know it."""
_MAPS: Final = frozenset({"score_components"})
"""Members with names of the scorer's own; their values are figures."""


@cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    """The validator of a kind's body; of the whole row for "row"."""
    load = supervisor_schemas.load if kind in _SUPERVISORS else store_schemas.load
    return jsonschema.Draft202012Validator(load(kind))


def check(row: Mapping[str, Any]) -> None:
    """Raises jsonschema's ValidationError unless body and bytes of a row are as their schemas say."""
    body, whole = json.loads(row["body"]), json.loads(row["row_bytes"])
    validator(row["kind"]).validate(body)
    validator("row").validate(whole)
    assert whole["body"] == body
    assert whole["kind"] == row["kind"]


def spoiled(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every way to spoil a body once, in words, with the spoiled copy."""
    for path, value in _places(body, ()):
        where = ".".join(map(str, path)) or "the body"
        if isinstance(value, dict):
            yield f"a stranger in {where}", _changed(body, (*path, "stranger"), {"x": 1})
            for name in () if path and path[-1] in _MAPS else value:
                yield f"{where} without {name}", _removed(body, (*path, name))
        for other in _others(value):
            if path:
                yield f"{where} as {other!r}", _changed(body, path, other)


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path and path[-1] in _FREE:
        return
    yield path, value
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _places(below, (*path, name))
    elif isinstance(value, list):
        for at, below in enumerate(value[:2]):
            yield from _places(below, (*path, at))


def _others(value: Any) -> list[Any]:
    """Values of other types than this one's."""
    strange: list[Any] = [{"x": 1}, [{"x": 1}]]
    if isinstance(value, bool):
        return [*strange, 1, "true"]
    if isinstance(value, int):
        return [*strange, True, str(value)]
    if isinstance(value, float):
        return [*strange, True, str(value)]
    if isinstance(value, str):
        return [*strange, True, 7]
    if value is None:
        return [*strange, True, 7]
    return [True, 7, "x"]


def _changed(body: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> Any:
    out = copy.deepcopy(dict(body))
    at: Any = out
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return out


def _removed(body: Mapping[str, Any], path: tuple[Any, ...]) -> Any:
    out = copy.deepcopy(dict(body))
    at: Any = out
    for step in path[:-1]:
        at = at[step]
    del at[path[-1]]
    return out
