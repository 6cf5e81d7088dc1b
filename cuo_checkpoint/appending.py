"""The store's primitive: everything that belongs together, in one statement. As plans."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from cuo_checkpoint import ids
from cuo_checkpoint.configs import CallConfig
from cuo_checkpoint.db import Call, Plan, Wait
from cuo_checkpoint.errors import InvalidIdentifier, SerialiseError
from cuo_checkpoint.live import LiveRun
from cuo_checkpoint.reading import ReadPlans
from cuo_checkpoint.records import (
    SHARE_ABOVE_BYTES,
    CheckpointKind,
    Encoded,
    Event,
    Phase,
    encode_state,
    encode_tree,
    rows_json,
    writes_json,
)
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.tracker import RunTracker

__all__ = ["AppendPlans"]

_ARRIVAL_SECONDS: Final = 2.0
"""How long a put waits for put_writes calls that LangGraph has submitted but not begun."""


class AppendPlans(ReadPlans):
    """Appending rows, and the bookkeeping around a run's first and last one."""

    def append_event(
        self, config: RunnableConfig, event: Event, state: Mapping[str, Any]
    ) -> Plan[None]:
        """One row by itself: the primitive under `CheckpointWriter`."""
        call = self.config(config)
        if call.run_id is None:
            raise InvalidIdentifier("run_id", "is missing from config['configurable']")
        encoded = encode_state(self.serializer, state)
        yield self._append(
            self._append_params(
                call,
                (call.run_id, call.trace_id or ids.ZERO_TRACE),
                "",
                None,
                [event],
                None,
                encoded,
                [],
                "",
                "",
                [],
                None,
                adopt=False,
                chain_parent=True,
            )
        )

    def claim(self, config: RunnableConfig, name: str, value: Any) -> Plan[bool]:
        call = self.config(config)
        live = self.runs.find(call.control)
        run_id = live.tracker.run_id if live and live.tracker else call.run_id
        if run_id is None:
            raise InvalidIdentifier("run_id", "is missing from config['configurable']")
        trace = (
            live.tracker.trace_id if live and live.tracker else (call.trace_id or ids.ZERO_TRACE)
        )
        encoded = encode_tree(self.serializer.encode(value))
        rows = yield Call(
            self.statements.claim,
            (call.tenant_id, call.thread_id, run_id, trace, name, encoded.text, encoded.sha256),
        )
        return bool(rows[0][0])

    def _append(self, params: list[Any]) -> Call:
        return Call(self.statements.append, params, [*params[:-1], True])

    def _append_params(
        self,
        call: CallConfig,
        run: tuple[uuid.UUID, str],
        lg_id: str,
        lg_parent: str | None,
        events: Sequence[Event],
        document: Encoded | None,
        state: Encoded | None,
        items: Sequence[tuple[int, str, Encoded]],
        task_id: str,
        task_path: str,
        outbox: Sequence[tuple[str, str]],
        run_state: str | None,
        *,
        adopt: bool,
        chain_parent: bool,
    ) -> list[Any]:
        text = state.text if state is not None else None
        return [
            call.tenant_id,
            call.thread_id,
            call.ns,
            run[0],
            run[1],
            lg_id,
            lg_parent,
            rows_json(events, document),
            text,
            state.sha256 if state is not None else None,
            text is not None and len(text) > SHARE_ABOVE_BYTES,
            writes_json(items) if items else None,
            task_id,
            task_path,
            [kind for kind, _ in outbox],
            [body for _, body in outbox],
            run_state,
            self.strict_parent,
            adopt,
            chain_parent,
            False,
        ]

    def _tracker(self, call: CallConfig, live: LiveRun, *, fresh_input: bool) -> Plan[RunTracker]:
        tracker, abandoned = self.runs.tracker(call, live, fresh_input=fresh_input)
        if abandoned is not None:
            yield from self._abandon(call, abandoned)
        if tracker.failure is not None:
            raise tracker.failure
        return tracker

    def _abandon(self, call: CallConfig, held: Mapping[str, Any]) -> Plan[None]:
        """Closes a run whose process went away and whose lease ran out; the claim decides who does."""
        run_id = uuid.UUID(held["run_id"])
        value = encode_tree({"by": "new run"})
        rows = yield Call(
            self.statements.claim,
            (
                call.tenant_id,
                call.thread_id,
                run_id,
                held["trace_id"],
                "abandon",
                value.text,
                value.sha256,
            ),
        )
        if rows[0][0]:
            last = uuid.UUID(held["last"]) if held.get("last") else None
            event = Event(
                ids.new_id(),
                CheckpointKind.RUN_FAILED,
                last,
                None,
                Phase.ENDED,
                0,
                extra={
                    "error": {
                        "type": "abandoned",
                        "message": "its process ended and its lease ran out",
                    }
                },
            )
            yield from self._lone_events(call, (run_id, held["trace_id"]), [event])

    def _fail_run(self, call: CallConfig, error: SerialiseError) -> Plan[None]:
        """A state that cannot be stored ends its run; the row carries the last persisted state."""
        live = self.runs.find(call.control)
        tracker = live.tracker if live else None
        if tracker is None:
            return
        with tracker.lock:
            events = tracker.fail(type(error).__name__, str(error), ids.new_id)
        if events:
            yield from self._lone_events(call, (tracker.run_id, tracker.trace_id), events)

    def _lone_events(
        self, call: CallConfig, run: tuple[uuid.UUID, str], events: list[Event]
    ) -> Plan[None]:
        rows = yield Call(self.statements.get, (call.tenant_id, call.thread_id, "", None, False))
        stored, lg_id = rows[0][3], rows[0][0]
        state = encode_tree(text_to_tree(stored)) if stored else encode_tree({})
        yield self._append(
            self._append_params(
                call.at(call.thread_id, ""),
                run,
                lg_id or "",
                None,
                events,
                None,
                state,
                [],
                "",
                "",
                [],
                None,
                adopt=False,
                chain_parent=False,
            )
        )

    def _after_its_put(self, live: LiveRun, ns: str, checkpoint_id: str) -> Plan[None]:
        """Lets the put of a checkpoint commit before writes to it: their rows hang under its rows.

        It is no condition: writes that belong to a checkpoint nobody here puts are stored too.
        """
        waited = 0.0
        while waited < _ARRIVAL_SECONDS:
            try:
                put = live.awaited_put(ns, checkpoint_id)
            except LookupError:
                waited += 0.002
                yield Wait([], 0.002)
                continue
            if put is not None:
                yield Wait([put], 60.0)
            return

    def _arrivals(self, tracker: RunTracker, ns: str, source: Any) -> Plan[None]:
        """Waits for the superstep's own put_writes, which race with its put even under "sync".

        Those under way are awaited, so that a failed one fails the step; those LangGraph has
        submitted but not begun are given a moment, since only they know where a task's edges lead.
        """
        waited = 0.0
        while True:
            with tracker.lock:
                under_way = list(tracker.in_flight.get(ns, {}).values())
                space = tracker.namespace(ns)
                missing = [
                    t
                    for t in space.tasks.values()
                    if t.expected and t.summary is None and t.completed is None
                ]
            if under_way:
                yield Wait(under_way, 60.0)
            elif source == "loop" and missing and waited < _ARRIVAL_SECONDS:
                waited += 0.002
                yield Wait([], 0.002)
            else:
                break
        if tracker.failure is not None:
            raise tracker.failure
