"""The rows of the log: kinds, phases, the size cap, and how a step becomes JSON. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import orjson

from cuo_checkpoint import derive
from cuo_checkpoint.canonical import (
    MAX_SAFE_INTEGER,
    JsonValue,
    canonical_bytes,
    encoded_bytes,
    sha256_hex,
)
from cuo_checkpoint.errors import StateTooLarge
from cuo_checkpoint.serde import Serializer, tree_to_text
from cuo_checkpoint.serde.tags import layout

__all__ = [
    "MAX_STATE_BYTES",
    "SHARE_ABOVE_BYTES",
    "AuditKind",
    "ChainKind",
    "CheckpointKind",
    "Encoded",
    "Event",
    "Phase",
    "WriteSet",
    "encode_langgraph",
    "encode_state",
    "encode_tree",
    "encode_value",
    "rows_json",
    "split_channels",
    "write_sets_json",
]

MAX_STATE_BYTES: Final = 5 * 1024 * 1024
"""Cap on one encoded state: 5 MB = 5 * 1024 * 1024 bytes."""

SHARE_ABOVE_BYTES: Final = 8 * 1024
"""Above this size the rows of one superstep hold the state once and refer to it."""


class CheckpointKind(StrEnum):
    """The six kinds of log row; a closed set."""

    NODE_ENTERED = "node_entered"
    NODE_COMPLETED = "node_completed"
    EDGE_TRAVERSED = "edge_traversed"
    RUN_STARTED = "run_started"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"


class AuditKind(StrEnum):
    """The three kinds of audit row the store writes about itself; a closed set."""

    CHECKPOINT_WRITTEN = "cuo.checkpoint_written"
    CHECKPOINT_REPLAYED = "cuo.checkpoint_replayed"
    CHECKPOINT_ARCHIVE_FAILED = "cuo.checkpoint_archive_failed"


class ChainKind(StrEnum):
    """Rows by which a chain speaks of itself; a closed set."""

    OPEN = "open"
    CLOSE = "close"
    WAITING = "waiting"
    APPROVAL = "approval"
    WRITE_SET = "write_set"
    TOMBSTONE = "tombstone"
    REFUSED_OVERWRITE = "refused_overwrite"
    MONTH_DROPPED = "month_dropped"
    HOLD = "hold"


class Phase:
    """Causal order inside one step; `ordinal` orders rows of the same phase."""

    STARTED: Final = 0
    COMPLETED: Final = 1
    EDGE: Final = 2
    ENTERED: Final = 3
    DURING: Final = 4
    ENDED: Final = 5


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value in canonical JSON, which serves as jsonb parameter too, and the digest of its bytes."""

    text: str
    sha256: str
    size: int

    @classmethod
    def of(cls, canonical: bytes) -> Encoded:
        """From RFC 8785 bytes."""
        return cls(canonical.decode(), sha256_hex(canonical), len(canonical))


@dataclass(slots=True)
class Event:
    """One row to append. `extra` goes into the row's `langgraph` document."""

    id: uuid.UUID
    kind: CheckpointKind
    parent: uuid.UUID | None
    step: int | None
    phase: int
    ordinal: int
    node: str | None = None
    edge_from: str | None = None
    edge_to: str | None = None
    state: Encoded | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def split_channels(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state a node sees, and LangGraph's own channels (branch:, join:, dunder)."""
    state: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for name, value in values.items():
        (hidden if derive.is_hidden_channel(name) else state)[name] = value
    return state, hidden


def encode_tree(tree: JsonValue) -> Encoded:
    """A tree that is already JSON, from wherever it came."""
    return Encoded.of(canonical_bytes(tree))


def encode_value(serializer: Serializer, value: object, *, path: str = "") -> Encoded:
    """A value as stored. Raises UnserialisableValue, and StateTooLarge beyond 5 MB."""
    encoded = Encoded.of(serializer.dumps_canonical(value, path=path))
    if encoded.size > MAX_STATE_BYTES:
        raise StateTooLarge(encoded.size, MAX_STATE_BYTES, [(path, encoded.size)])
    return encoded


def encode_state(serializer: Serializer, state: Mapping[str, Any]) -> Encoded:
    """The state as stored, channels at top level.

    Raises UnserialisableValue, and StateTooLarge (naming the largest channels) beyond 5 MB.
    """
    encoded = Encoded.of(serializer.dumps_canonical(dict(state)))
    if encoded.size > MAX_STATE_BYTES:
        sizes = [
            (name, len(serializer.dumps_canonical(value, path=name)))
            for name, value in state.items()
        ]
        largest = sorted(sizes, key=lambda item: (-item[1], item[0]))[:3]
        raise StateTooLarge(encoded.size, MAX_STATE_BYTES, largest)
    return encoded


def encode_langgraph(
    serializer: Serializer,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    hidden: Mapping[str, Any],
) -> Encoded:
    """What LangGraph needs besides the state to resume: versions, hidden channels, metadata."""
    versions = _sorted(checkpoint["channel_versions"])
    seen = _sorted({k: _sorted(v) for k, v in (checkpoint.get("versions_seen") or {}).items()})
    encode = serializer.encode_shared
    tree: dict[str, JsonValue] = {
        "channel_versions": versions if _plain([versions]) else encode(versions),
        "versions_seen": seen if _plain([*seen.values()], seen) else encode(seen),
        "updated_channels": encode(checkpoint.get("updated_channels")),
        "hidden": encode(dict(hidden), path="hidden"),
        "metadata": encode(dict(metadata), path="metadata"),
    }
    own = {name: checkpoint[name] for name in ("v", "id", "ts")}
    # What the serialiser made needs no second look; these three did not pass through it.
    plain = type(own["v"]) is int and type(own["id"]) is str and type(own["ts"]) is str
    canonical = encoded_bytes if plain and abs(own["v"]) <= MAX_SAFE_INTEGER else canonical_bytes
    return Encoded.of(canonical(own | tree))


def rows_json(events: Sequence[Event], carrier: Encoded | None) -> str:
    """The rows as one JSON array, the first one carrying the LangGraph checkpoint if there is one."""
    rows: list[dict[str, Any]] = []
    for index, event in enumerate(events):
        row: dict[str, Any] = {
            "id": event.id,
            "parent": event.parent,
            "kind": event.kind.value,
            "node": event.node,
            "from": event.edge_from,
            "to": event.edge_to,
            "step": event.step,
            "phase": event.phase,
            "ordinal": event.ordinal,
        }
        document = carrier if index == 0 else None
        if event.extra:
            base = orjson.loads(document.text) if document is not None else {}
            document = encode_tree({**base, **event.extra})
        if document is not None:
            row |= {"lg": orjson.Fragment(document.text), "lg_sha": document.sha256}
        if event.state is not None:
            row |= {"state": orjson.Fragment(event.state.text), "state_sha": event.state.sha256}
        rows.append(row)
    names = [name for event in events for name in (event.node, event.edge_from, event.edge_to)]
    return _json(rows, names)


@dataclass(frozen=True, slots=True)
class WriteSet:
    """The pending writes of one task: (index, channel, value) each."""

    checkpoint_id: str
    task_id: str
    task_path: str
    items: Sequence[tuple[int, str, Encoded]]


def write_sets_json(sets: Sequence[WriteSet]) -> str:
    """Pending writes as one JSON array, an object per task."""
    return _json(
        [
            {
                "lg": one.checkpoint_id,
                "task": one.task_id,
                "path": one.task_path,
                "writes": [
                    {
                        "idx": idx,
                        "channel": channel,
                        "sha": value.sha256,
                        "value": orjson.Fragment(value.text),
                    }
                    for idx, channel, value in one.items
                ],
            }
            for one in sets
        ],
        [channel for one in sets for _, channel, _ in one.items],
    )


_NAMES: Final = frozenset({str, type(None)})
_STR: Final = frozenset({str})
_INT: Final = frozenset({int})
_NO_NODES: Final[Mapping[str, Any]] = {}


def _json(parts: list[dict[str, Any]], names: Sequence[object]) -> str:
    """JSON text of our own objects around documents that are JSON already.

    Raises UnserialisableValue for a name that jsonb refuses (NUL, lone surrogates) or that is not
    exactly a `str`, which would be read back as one.
    """
    if not _NAMES.issuperset(map(type, names)):
        _refuse_unstorable(parts)
    try:
        raw = orjson.dumps(parts, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except TypeError:
        _refuse_unstorable(parts)
        raise
    if b"\\u0000" in raw:
        _refuse_unstorable(parts)
    return raw.decode()


def _refuse_unstorable(node: Any) -> None:
    """Raises for the first string that jsonb does not take; documents were looked at before."""
    if isinstance(node, list):
        for item in node:
            _refuse_unstorable(item)
    elif isinstance(node, dict):
        for item in node.values():
            _refuse_unstorable(item)
    elif isinstance(node, str):
        tree_to_text(node)


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """In the order jsonb keeps (length, then bytes), so that no order note is needed."""
    names = tuple(mapping)
    return {names[i]: mapping[names[i]] for i in _jsonb_order(names)}


def _plain(versions: Sequence[Mapping[str, Any]], by_node: Mapping[str, Any] = _NO_NODES) -> bool:
    """Whether versions in jsonb's order are written as they stand: whole numbers, usual names."""
    for names in (by_node, *versions):
        if not _STR.issuperset(map(type, names)) or layout(tuple(names)) is not None:
            return False
    numbers = [number for one in versions for number in one.values()]
    return _INT.issuperset(map(type, numbers)) and (
        not numbers or (min(numbers) >= 0 and max(numbers) <= MAX_SAFE_INTEGER)
    )


@lru_cache(maxsize=4096)
def _jsonb_order(names: tuple[str, ...]) -> tuple[int, ...]:
    at = lambda i: (len(str(names[i]).encode()), str(names[i]))  # noqa: E731
    return tuple(sorted(range(len(names)), key=at))
