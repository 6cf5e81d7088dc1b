"""Follows runs through the saver's calls and says which rows each call appends. No I/O.

One `RunTracker` lives as long as LangGraph's own object for a run; namespaces (subgraphs) hang
under it. What a tracker knows it learnt from calls and, at a resume, from the rows about the
checkpoint the run resumes from. Ids come from the caller, so the same calls give the same rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuo_checkpoint import derive
from cuo_checkpoint.derive import HIDDEN_ENTRY, TaskRef, WriteSummary
from cuo_checkpoint.parking import CallsUnderWay
from cuo_checkpoint.records import CheckpointKind, Encoded, Event, Phase
from cuo_checkpoint.supersteps import (
    NamespaceTracker,
    add_event,
    outer_entry,
    visible_names,
)

__all__ = ["RunTracker"]

_NewId = Callable[[], uuid.UUID]


class RunTracker(CallsUnderWay):
    """One run: its ids, whether its first row is due, and its namespaces."""

    def __init__(
        self, run_id: uuid.UUID, trace_id: str, *, started: bool, last: uuid.UUID | None
    ) -> None:
        super().__init__()
        self.run_id = run_id
        self.trace_id = trace_id
        self.started = started
        self.ended = False
        self.wake = started
        """A continued run that waited is open again from its first write on."""
        self.first_step: int | None = None
        self.limit: int | None = None
        self.last = last
        self.namespaces: dict[str, NamespaceTracker] = {}
        self.failure: BaseException | None = None

    def namespace(self, ns: str) -> NamespaceTracker:
        found = self.namespaces.get(ns)
        if found is None:
            found = self.namespaces[ns] = NamespaceTracker()
        return found

    def load(
        self,
        ns: str,
        checkpoint: Mapping[str, Any],
        step: int | None,
        pending: Sequence[tuple[str, str, Any, str, int]],
        events: Sequence[Mapping[str, Any]],
        state: str,
    ) -> None:
        """Takes up a stored checkpoint: what it schedules, who had finished, who had been entered.

        `pending` holds (task_id, channel, value, task_path, index); `events` the rows about it.
        """
        space = self.namespaces[ns] = NamespaceTracker.of(checkpoint, step)
        space.state = state
        by_task: dict[tuple[str, str], list[tuple[str, Any]]] = {}
        for task_id, channel, value, path, _ in pending:
            by_task.setdefault((task_id, path), []).append((channel, value))
        for (_, path), writes in by_task.items():
            ref = derive.task_of_path(path, space.sends)
            if ref is not None:
                track = space.track(ref)
                track.summary = derive.summarise_writes(derive.in_force(writes))
        for event in events:
            kind, node = event["kind"], event["node"]
            row = uuid.UUID(event["id"])
            if kind == CheckpointKind.RUN_STARTED or node == HIDDEN_ENTRY:
                space.entry = row
            for track in space.tasks.values():
                if track.ref.name != node or track.ordinal != event["ordinal"]:
                    continue
                if kind == CheckpointKind.NODE_ENTERED:
                    track.entered = row
                    track.attempt_open = not (
                        track.summary and (track.summary.failed or track.summary.interrupted)
                    )
                elif kind == CheckpointKind.NODE_COMPLETED and event["phase"] == Phase.DURING:
                    track.completed = row

    def on_put(
        self,
        ns: str,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        recursion_limit: int | None,
        state: Encoded,
        new_id: _NewId,
    ) -> list[Event]:
        """The rows of one put; never empty, because a row has to carry the checkpoint."""
        step = metadata.get("step")
        source = metadata.get("source")
        events: list[Event] = []
        before = self.namespace(ns)
        if not self.started:
            self._start(events, before, step, new_id)
        if ns == "" and self.first_step is None and isinstance(step, int):
            self.first_step = step
            self.limit = recursion_limit
        edges: dict[str, list[uuid.UUID]] = {}
        raw = derive.is_raw_pregel(checkpoint["channel_versions"])
        if source == "loop":
            self._complete(events, before, checkpoint, step, edges, raw, new_id)
        entry = before.entry
        space = self.namespaces[ns] = NamespaceTracker.of(checkpoint, step)
        space.entry = entry
        space.state = state
        if source != "loop" and not events:
            self._entry_row(events, space, ns, step, source, new_id)
        if not raw:
            self._enter(events, space, ns, step, edges, new_id)
        if ns == "":
            self._end(events, space, step, raw, new_id)
        if not events:
            events.append(
                Event(
                    new_id(),
                    CheckpointKind.NODE_COMPLETED,
                    self.last,
                    step,
                    Phase.COMPLETED,
                    0,
                    node=f"__{source or 'put'}__",
                )
            )
        self.last = events[-1].id
        if self.ended:
            self.namespaces.clear()
        return events

    def on_put_writes(
        self,
        ns: str,
        summary: WriteSummary,
        ref: TaskRef | None,
        is_task_call: bool,
        new_id: _NewId,
    ) -> list[Event]:
        """The rows of one put_writes: a new attempt, a failed run, or nothing."""
        events: list[Event] = []
        space = self.namespace(ns)
        step = space.step
        if not self.started:
            self._start(events, space, step, new_id)
        track = None
        if ref is not None:
            track = space.track(ref)
            if ref.name != HIDDEN_ENTRY and not track.attempt_open and not track.done:
                track.entered = add_event(
                    events,
                    CheckpointKind.NODE_ENTERED,
                    track.entered or space.entry or self.last,
                    step,
                    Phase.DURING,
                    track.ordinal,
                    new_id,
                    node=ref.name,
                )
            track.summary = summary
            track.attempt_open = summary.finished
        failed_run = (
            ns == ""
            and summary.failed
            and not summary.handled
            and not is_task_call
            and not self.ended
        )
        if failed_run:
            self._siblings(events, space, step, new_id)
            parent = track.entered if track is not None and track.entered else self.last
            row = add_event(events, CheckpointKind.RUN_FAILED, parent, step, Phase.ENDED, 0, new_id)
            events[-1].extra = {"error": _described(summary.error)}
            self.ended = True
            self.last = row
        elif self.ended and track is not None and track.done:
            self._siblings(events, space, step, new_id)
        if events:
            self.last = events[-1].id
        return events

    def fail(self, error_type: str, message: str, new_id: _NewId) -> list[Event]:
        """The row that ends the run because something outside the graph's calls failed it."""
        if self.ended or not self.started:
            return []
        space = self.namespace("")
        events: list[Event] = []
        self._siblings(events, space, space.step, new_id)
        row = add_event(
            events, CheckpointKind.RUN_FAILED, self.last, space.step, Phase.ENDED, 0, new_id
        )
        events[-1].extra = {"error": {"type": error_type, "message": message}}
        self.ended, self.last = True, row
        return events

    def pauses(self) -> bool:
        """Whether the root still has tasks that nobody said are waiting: a static breakpoint."""
        tasks = self.namespace("").tasks.values()
        told = any(track.summary is not None and track.summary.interrupted for track in tasks)
        return bool(tasks) and not told

    # -- parts ---------------------------------------------------------------------------------

    def _start(
        self, events: list[Event], space: NamespaceTracker, step: int | None, new_id: _NewId
    ) -> None:
        self.started = True
        row = add_event(events, CheckpointKind.RUN_STARTED, None, step, Phase.STARTED, 0, new_id)
        self.last = row
        space.entry = row

    def _entry_row(
        self,
        events: list[Event],
        space: NamespaceTracker,
        ns: str,
        step: int | None,
        source: Any,
        new_id: _NewId,
    ) -> None:
        """An input or fork put that starts no run still needs a row to stand on."""
        name = HIDDEN_ENTRY if source == "input" else f"__{source or 'put'}__"
        space.entry = add_event(
            events,
            CheckpointKind.NODE_ENTERED,
            outer_entry(self.namespaces, ns) or self.last,
            step,
            Phase.ENTERED,
            0,
            new_id,
            node=name,
        )

    def _complete(
        self,
        events: list[Event],
        space: NamespaceTracker,
        checkpoint: Mapping[str, Any],
        step: int | None,
        edges: dict[str, list[uuid.UUID]],
        raw: bool,
        new_id: _NewId,
    ) -> None:
        """A put of source "loop" proves that the superstep's tasks completed."""
        finished = [t for t in space.tasks.values() if t.done or (t.expected and t.summary is None)]
        known = visible_names(checkpoint)
        for track in finished:
            if track.ref.name == HIDDEN_ENTRY or track.completed is not None:
                continue
            track.completed = add_event(
                events,
                CheckpointKind.NODE_COMPLETED,
                track.entered or space.entry or self.last,
                step,
                Phase.COMPLETED,
                track.ordinal,
                new_id,
                node=track.ref.name,
            )
        if raw:
            return
        ordinal = 0
        for track in finished:
            if track.summary is not None:
                targets: Sequence[str] = track.summary.targets
            elif len(finished) == 1:
                # Its writes have not reached us, but with one task in the step they cannot differ
                # from what the checkpoint schedules.
                targets = sorted(known)
            else:
                continue
            hidden = track.ref.name == HIDDEN_ENTRY
            if not targets and not hidden:
                targets = ("__end__",)
            parent = (space.entry or self.last) if hidden else track.completed
            for target in targets:
                row = add_event(
                    events,
                    CheckpointKind.EDGE_TRAVERSED,
                    parent,
                    step,
                    Phase.EDGE,
                    ordinal,
                    new_id,
                    edge_from=track.ref.name,
                    edge_to=target,
                )
                edges.setdefault(target, []).append(row)
                ordinal += 1

    def _enter(
        self,
        events: list[Event],
        space: NamespaceTracker,
        ns: str,
        step: int | None,
        edges: dict[str, list[uuid.UUID]],
        new_id: _NewId,
    ) -> None:
        taken: dict[str, int] = {}
        for track in space.tasks.values():
            name = track.ref.name
            if name == HIDDEN_ENTRY:
                continue
            incoming = edges.get(name, [])
            others: list[str] = []
            if track.ref.key[0] == "push":
                index = taken.get(name, 0)
                taken[name] = index + 1
                parent = incoming[index] if index < len(incoming) else None
            else:
                parent = incoming[0] if incoming else None
                others = [str(e) for e in incoming[1:]]
            track.entered = add_event(
                events,
                CheckpointKind.NODE_ENTERED,
                parent or space.entry or outer_entry(self.namespaces, ns) or self.last,
                step,
                Phase.ENTERED,
                track.ordinal,
                new_id,
                node=name,
            )
            track.attempt_open = True
            if others:
                events[-1].extra = {"also": others}

    def _end(
        self,
        events: list[Event],
        space: NamespaceTracker,
        step: int | None,
        raw: bool,
        new_id: _NewId,
    ) -> None:
        """The root put that schedules nothing ends the run, unless the step limit was reached."""
        over = (
            isinstance(step, int)
            and self.limit is not None
            and self.first_step is not None
            and step >= self.first_step + self.limit + 1
        )
        idle = not space.tasks
        if self.ended or not (over or (idle and not raw)):
            return
        parent = events[-1].id if events else self.last
        kind = CheckpointKind.RUN_FAILED if over else CheckpointKind.RUN_COMPLETED
        add_event(events, kind, parent, step, Phase.ENDED, 0, new_id)
        if over:
            events[-1].extra = {
                "error": {"type": "GraphRecursionError", "message": "step limit reached"}
            }
        self.ended = True

    def _siblings(
        self, events: list[Event], space: NamespaceTracker, step: int | None, new_id: _NewId
    ) -> None:
        """A failed superstep has no put: tasks that did finish are said to have, here."""
        for track in space.tasks.values():
            if track.done and track.completed is None and track.ref.name != HIDDEN_ENTRY:
                track.completed = add_event(
                    events,
                    CheckpointKind.NODE_COMPLETED,
                    track.entered or space.entry or self.last,
                    step,
                    Phase.DURING,
                    track.ordinal,
                    new_id,
                    node=track.ref.name,
                )


def _described(error: Any) -> dict[str, str]:
    """An error by type only: its message may quote state, which a log row must not repeat."""
    name = type(error).__name__ if isinstance(error, BaseException) else "Error"
    return {"type": name, "message": "see the pending write of the failed task"}
