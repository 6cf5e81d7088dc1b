"""The rows of the log: kinds, phases, the size cap, and how a step becomes JSON. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cuo_checkpoint import derive
from cuo_checkpoint.canonical import JsonValue, canonical_bytes, sha256_hex
from cuo_checkpoint.errors import StateTooLarge
from cuo_checkpoint.serde import Serializer, tree_to_text

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
    "encode_state",
    "encode_tree",
    "encode_value",
    "langgraph_tree",
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


def langgraph_tree(
    serializer: Serializer,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    hidden: Mapping[str, Any],
) -> dict[str, JsonValue]:
    """What LangGraph needs besides the state to resume: versions, hidden channels, metadata."""
    seen = checkpoint.get("versions_seen") or {}
    tree: dict[str, JsonValue] = {
        "v": checkpoint["v"],
        "id": checkpoint["id"],
        "ts": checkpoint["ts"],
        "channel_versions": serializer.encode(_sorted(checkpoint["channel_versions"])),
        "versions_seen": serializer.encode(_sorted({k: _sorted(v) for k, v in seen.items()})),
        "updated_channels": serializer.encode(checkpoint.get("updated_channels")),
        "hidden": serializer.encode(dict(hidden), path="hidden"),
        "metadata": serializer.encode(dict(metadata), path="metadata"),
    }
    return tree


def rows_json(events: Sequence[Event], carrier: Mapping[str, JsonValue] | None) -> str:
    """The rows as one JSON array, the first one carrying the LangGraph checkpoint if there is one."""
    rows: list[str] = []
    for index, event in enumerate(events):
        row: dict[str, JsonValue] = {
            "id": str(event.id),
            "parent": None if event.parent is None else str(event.parent),
            "kind": event.kind.value,
            "node": event.node,
            "from": event.edge_from,
            "to": event.edge_to,
            "step": event.step,
            "phase": event.phase,
            "ordinal": event.ordinal,
        }
        head = tree_to_text(row)[:-1]
        base = carrier if index == 0 and carrier is not None else {}
        if base or event.extra:
            document = encode_tree({**base, **event.extra})
            head += f',"lg":{document.text},"lg_sha":"{document.sha256}"'
        if event.state is not None:
            head += f',"state":{event.state.text},"state_sha":"{event.state.sha256}"'
        rows.append(head + "}")
    return f"[{','.join(rows)}]"


@dataclass(frozen=True, slots=True)
class WriteSet:
    """The pending writes of one task: (index, channel, value) each."""

    checkpoint_id: str
    task_id: str
    task_path: str
    items: Sequence[tuple[int, str, Encoded]]


def write_sets_json(sets: Sequence[WriteSet]) -> str:
    """Pending writes as one JSON array, an object per task."""
    parts = []
    for one in sets:
        head = tree_to_text({"lg": one.checkpoint_id, "task": one.task_id, "path": one.task_path})[
            :-1
        ]
        writes = ",".join(
            tree_to_text({"idx": idx, "channel": channel, "sha": value.sha256})[:-1]
            + f',"value":{value.text}}}'
            for idx, channel, value in one.items
        )
        parts.append(f'{head},"writes":[{writes}]}}')
    return f"[{','.join(parts)}]"


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """In the order jsonb keeps (length, then bytes), so that no order note is needed."""
    return dict(sorted(mapping.items(), key=lambda kv: (len(str(kv[0]).encode()), str(kv[0]))))
