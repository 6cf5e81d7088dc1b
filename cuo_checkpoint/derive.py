"""What LangGraph's saver calls say about the graph's path. Pure.

A saver sees only `put` and `put_writes`. These functions read from their arguments which tasks a
checkpoint schedules, where a task's writes lead, and what a task's path names. The rules were
measured on langgraph 1.2 and are pinned by a canary test; see docs/log-semantics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

__all__ = [
    "HIDDEN_ENTRY",
    "PREFIX_BRANCH",
    "PREFIX_JOIN",
    "SENDS",
    "TaskRef",
    "WriteSummary",
    "in_force",
    "is_hidden_channel",
    "is_raw_pregel",
    "scheduled",
    "summarise_writes",
    "task_of_path",
]

HIDDEN_ENTRY: Final = "__start__"
SENDS: Final = "__pregel_tasks"
PREFIX_BRANCH: Final = "branch:to:"
PREFIX_JOIN: Final = "join:"

_ERROR: Final = "__error__"
_ERROR_SOURCE: Final = "__error_source_node__"
_INTERRUPT: Final = "__interrupt__"
_RESUME: Final = "__resume__"
_SCHEDULED: Final = "__scheduled__"
_NOT_RESULTS: Final = frozenset({_ERROR, _ERROR_SOURCE, _INTERRUPT, _RESUME, _SCHEDULED})

_PATH_PULL: Final = "~__pregel_pull, "
_PATH_PUSH: Final = "~__pregel_push, "


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task of a superstep. `key` identifies it there: a pulled node by name, a Send by position."""

    name: str
    key: tuple[str, str]


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """What one put_writes call says about its task."""

    finished: bool
    failed: bool
    handled: bool
    interrupted: bool
    targets: tuple[str, ...]
    error: Any = None
    interrupts: tuple[Any, ...] = ()


def is_hidden_channel(name: str) -> bool:
    """Whether a channel is LangGraph's own, not part of the state a node sees."""
    return name.startswith((PREFIX_BRANCH, PREFIX_JOIN, "__"))


def is_raw_pregel(channel_versions: Mapping[str, Any]) -> bool:
    """Whether the checkpoint comes from a hand-built Pregel, whose edges calls do not show."""
    return not any(n == HIDDEN_ENTRY or n.startswith(PREFIX_BRANCH) for n in channel_versions)


def scheduled(checkpoint: Mapping[str, Any]) -> list[TaskRef]:
    """The tasks the next superstep runs, Sends first, the hidden entry task included.

    `updated_channels` lists exactly what triggers next; None (after update_state and forks) means
    that it has to be read from versions: a trigger is due when its node has not seen its version.
    """
    values: Mapping[str, Any] = checkpoint["channel_values"]
    sends: Sequence[Any] = values.get(SENDS) or ()
    tasks = [
        TaskRef(str(send.node), ("push", str(i)))
        for i, send in enumerate(sends)
        if hasattr(send, "node")
    ]
    updated = checkpoint.get("updated_channels")
    triggers = list(updated) if updated is not None else sorted(_due(checkpoint))
    names: list[str] = []
    for channel in triggers:
        name = _triggered(channel)
        if name is not None and name not in names and channel in values:
            names.append(name)
    return tasks + [TaskRef(name, ("pull", name)) for name in names]


def summarise_writes(writes: Iterable[tuple[str, Any]]) -> WriteSummary:
    """Whether the task finished, failed or paused, and which nodes its writes lead to.

    A branch that leads to END writes nothing, so it does not appear among the targets.
    """
    finished = failed = handled = False
    targets: list[str] = []
    error: Any = None
    interrupts: list[Any] = []
    for channel, value in writes:
        if channel == _ERROR:
            failed, error = True, value
        elif channel == _ERROR_SOURCE:
            handled = True
        elif channel == _INTERRUPT:
            interrupts.extend(value if isinstance(value, (list, tuple)) else [value])
        elif channel not in _NOT_RESULTS:
            finished = True
            target = _target(channel, value)
            if target is not None:
                targets.append(target)
    paused = bool(interrupts)
    return WriteSummary(
        finished=finished and not failed and not paused,
        failed=failed,
        handled=handled,
        interrupted=paused,
        targets=tuple(targets),
        error=error,
        interrupts=tuple(interrupts),
    )


def in_force(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Of all that was stored for a task, what counts: once it has results, only they do.

    The pause or the failure of an earlier try stays among a task's writes when it was resumed.
    """
    results = [write for write in writes if write[0] not in _NOT_RESULTS]
    return results or writes


def task_of_path(path: str, sends: Sequence[str] = ()) -> TaskRef | None:
    """The task a `task_path` names; None for input, updates and functional `@task` calls.

    `sends` are the node names of the checkpoint's pending Sends, in order.
    """
    if path.startswith(_PATH_PULL):
        name = path[len(_PATH_PULL) :].split(", ", 1)[0]
        return TaskRef(name, ("pull", name))
    if path.startswith(_PATH_PUSH):
        parts = path[len(_PATH_PUSH) :].split(", ")
        if parts[-2:-1] and parts[-2] == "node_error_handler":
            return None
        if parts[0].isdigit():
            index = int(parts[0])
            if index < len(sends):
                return TaskRef(sends[index], ("push", str(index)))
    return None


@lru_cache(maxsize=4096)
def _triggered(channel: str) -> str | None:
    if channel.startswith(PREFIX_BRANCH):
        return channel[len(PREFIX_BRANCH) :]
    if channel.startswith(PREFIX_JOIN):
        return channel.rpartition(":")[2]
    return HIDDEN_ENTRY if channel == HIDDEN_ENTRY else None


def _target(channel: str, value: Any) -> str | None:
    if channel == SENDS:
        node = getattr(value, "node", None)
        return str(node) if node is not None else None
    name = _triggered(channel)
    return None if name == HIDDEN_ENTRY else name


def _due(checkpoint: Mapping[str, Any]) -> Iterable[str]:
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    seen: Mapping[str, Mapping[str, Any]] = checkpoint.get("versions_seen") or {}
    for channel, value in checkpoint["channel_values"].items():
        name = _triggered(channel)
        if name is None or not _available(channel, value):
            continue
        version = versions.get(channel)
        known = seen.get(name, {}).get(channel)
        if version is not None and (known is None or version > known):
            yield channel


def _available(channel: str, value: Any) -> bool:
    """A join is due once all its sources wrote; a deferred one stores (value, finished)."""
    if not channel.startswith(PREFIX_JOIN):
        return True
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], bool):
        return value[1]
    sources = channel[len(PREFIX_JOIN) :].rpartition(":")[0]
    return isinstance(value, (set, frozenset)) and len("+".join(value)) == len(sources)
