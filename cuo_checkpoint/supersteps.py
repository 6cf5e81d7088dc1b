"""The superstep in progress in one checkpoint namespace. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuo_checkpoint import derive
from cuo_checkpoint.derive import HIDDEN_ENTRY, TaskRef, WriteSummary
from cuo_checkpoint.records import CheckpointKind, Encoded, Event

__all__ = ["NamespaceTracker", "TaskTrack", "add_event", "outer_entry", "visible_names"]


@dataclass(slots=True)
class TaskTrack:
    """One task of the superstep in progress."""

    ref: TaskRef
    ordinal: int
    entered: uuid.UUID | None = None
    attempt_open: bool = False
    summary: WriteSummary | None = None
    completed: uuid.UUID | None = None
    expected: bool = True

    @property
    def done(self) -> bool:
        return self.summary is not None and self.summary.finished


@dataclass(slots=True)
class NamespaceTracker:
    """The superstep in progress in one checkpoint namespace."""

    checkpoint_id: str | None = None
    step: int | None = None
    tasks: dict[tuple[str, str], TaskTrack] = field(default_factory=dict)
    sends: tuple[str, ...] = ()
    entry: uuid.UUID | None = None
    state: Encoded | str | None = None
    """What the checkpoint holds: encoded, or the stored text of a loaded one."""

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any], step: int | None) -> NamespaceTracker:
        """What a checkpoint schedules, nothing of it entered yet."""
        refs = derive.scheduled(checkpoint)
        return cls(
            checkpoint_id=checkpoint["id"],
            step=step,
            tasks={ref.key: TaskTrack(ref, i) for i, ref in enumerate(refs)},
            sends=tuple(ref.name for ref in refs if ref.key[0] == "push"),
        )

    def track(self, ref: TaskRef) -> TaskTrack:
        """The task, taken up now if the checkpoint did not announce it."""
        found = self.tasks.get(ref.key)
        if found is None:
            found = self.tasks[ref.key] = TaskTrack(ref, len(self.tasks), expected=False)
        return found

    def awaits_writes(self) -> bool:
        """Whether a task of the superstep has not been heard of.

        A functional graph has no hidden entry task: its entrypoint runs, unannounced, in its place.
        """
        silent = [
            t
            for t in self.tasks.values()
            if t.expected and t.summary is None and t.completed is None
        ]
        if [t.ref.name for t in silent] == [HIDDEN_ENTRY]:
            return not any(t.done and not t.expected for t in self.tasks.values())
        return bool(silent)


def visible_names(checkpoint: Mapping[str, Any]) -> set[str]:
    """The nodes a checkpoint schedules, the hidden entry left out."""
    return {ref.name for ref in derive.scheduled(checkpoint) if ref.name != HIDDEN_ENTRY}


def outer_entry(namespaces: Mapping[str, NamespaceTracker], ns: str) -> uuid.UUID | None:
    """The row that entered the node whose subgraph `ns` is; None at the root."""
    if not ns:
        return None
    outer, _, leaf = ns.rpartition("|")
    name = leaf.split(":", 1)[0]
    space = namespaces.get(outer)
    for track in space.tasks.values() if space else ():
        if track.ref.name == name and track.entered is not None:
            return track.entered
    return None


def add_event(
    events: list[Event],
    kind: CheckpointKind,
    parent: uuid.UUID | None,
    step: int | None,
    phase: int,
    ordinal: int,
    new_id: Callable[[], uuid.UUID],
    *,
    node: str | None = None,
    edge_from: str | None = None,
    edge_to: str | None = None,
) -> uuid.UUID:
    """Appends an event with a fresh id, and returns the id."""
    row = new_id()
    events.append(
        Event(
            row,
            kind,
            parent,
            step,
            phase,
            ordinal,
            node=node,
            edge_from=edge_from,
            edge_to=edge_to,
        )
    )
    return row
