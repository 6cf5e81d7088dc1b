"""The runs in progress in this process: LangGraph's own object for each, and our tracker. No I/O."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from cuo_checkpoint import ids
from cuo_checkpoint.configs import CallConfig
from cuo_checkpoint.tracker import RunTracker

__all__ = ["LiveRun", "LiveRuns"]

_TRACKED_RUNS: Final = 4096
"""Oldest runs are forgotten beyond this; a forgotten one is taken up again from the database."""


@dataclass(slots=True)
class LiveRun:
    """`control` is kept so that its address, our key, cannot be reused while we know it."""

    control: Any
    open_run: Mapping[str, Any] | None
    tracker: RunTracker | None = None
    call: CallConfig | None = None
    loads: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    puts: dict[str, tuple[str, Future[None]]] = field(default_factory=dict)
    """The newest put of each namespace: its checkpoint id, and whether it is committed yet."""

    def awaited_put(self, ns: str, checkpoint_id: str) -> Future[None] | None:
        """The put that has to be committed before writes to `checkpoint_id`; None if none has.

        Raises LookupError while no put or load of that checkpoint, or of a later one, was seen:
        LangGraph submits a checkpoint and its first writes together, and either may arrive first.
        """
        put = self.puts.get(ns)
        if put is not None and put[0] >= checkpoint_id:
            return put[1] if put[0] == checkpoint_id and not put[1].done() else None
        loaded = self.loads.get(ns)
        if loaded is not None and loaded[0]["id"] >= checkpoint_id:
            return None
        space = self.tracker.namespaces.get(ns) if self.tracker is not None else None
        if (
            space is not None
            and space.checkpoint_id is not None
            and space.checkpoint_id >= checkpoint_id
        ):
            return None
        raise LookupError(checkpoint_id)


class LiveRuns:
    """A bounded registry, shared by a saver and its clones. Thread-safe."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, LiveRun] = OrderedDict()
        self._lock = threading.Lock()

    def note(
        self,
        control: Any,
        open_run: Mapping[str, Any] | None,
        ns: str = "",
        loaded: tuple[Any, ...] | None = None,
    ) -> None:
        """Remembers what a run's first read found: the thread's unfinished run, its checkpoint."""
        with self._lock:
            live = self._runs.get(id(control))
            if live is None:
                live = self._runs[id(control)] = LiveRun(control, open_run)
                while len(self._runs) > _TRACKED_RUNS:
                    self._runs.popitem(last=False)
            if loaded is not None:
                live.loads[ns] = loaded

    def find(self, control: Any) -> LiveRun | None:
        """The run a call belongs to; None for a call outside runs."""
        if control is None:
            return None
        with self._lock:
            live = self._runs.get(id(control))
            if live is None:
                live = self._runs[id(control)] = LiveRun(control, None)
            return live

    def of_thread(self, thread_id: str) -> list[LiveRun]:
        """The runs in progress on a thread, whatever their tenant."""
        with self._lock:
            return [
                live
                for live in self._runs.values()
                if live.call is not None
                and live.call.thread == thread_id
                and live.tracker is not None
                and not live.tracker.ended
            ]

    def tracker(
        self, call: CallConfig, live: LiveRun, *, fresh_input: bool
    ) -> tuple[RunTracker, Mapping[str, Any] | None]:
        """The run's tracker, made at its first write call, and the run it gives up on, if any."""
        abandoned: Mapping[str, Any] | None = None
        with self._lock:
            live.call = call
            if live.tracker is None:
                live.tracker, abandoned = _decide_run(call, live, fresh_input)
            for ns, loaded in live.loads.items():
                live.tracker.load(ns, *loaded)
            live.loads.clear()
            return live.tracker, abandoned


def _decide_run(
    call: CallConfig, live: LiveRun, fresh_input: bool
) -> tuple[RunTracker, Mapping[str, Any] | None]:
    held = live.open_run
    held_id = uuid.UUID(held["run_id"]) if held else None
    continues = held is not None and (
        call.run_id == held_id if call.run_id is not None else not fresh_input
    )
    if continues and held is not None and held_id is not None:
        last = uuid.UUID(held["last"]) if held.get("last") else None
        trace = call.trace_id or held["trace_id"]
        # A run that only claims or an update's writes have opened has no first row yet.
        return RunTracker(held_id, trace, started=last is not None, last=last), None
    run_id = call.run_id or ids.new_id()
    stale = held if held is not None and held["state"] == "open" and held["stale"] else None
    return RunTracker(run_id, call.trace_id or ids.ZERO_TRACE, started=False, last=None), stale
