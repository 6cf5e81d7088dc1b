"""The store's primitive: everything that belongs together, in one statement. As plans."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from cuo_checkpoint import ids
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.configs import CallConfig
from cuo_checkpoint.db import Call, Plan, Wait
from cuo_checkpoint.errors import InvalidIdentifier, SerialiseError
from cuo_checkpoint.live import LiveRun
from cuo_checkpoint.reading import ReadPlans
from cuo_checkpoint.records import (
    SHARE_ABOVE_BYTES,
    ChainKind,
    CheckpointKind,
    Encoded,
    Event,
    Phase,
    WriteSet,
    encode_state,
    encode_tree,
    encode_value,
    rows_json,
    write_sets_json,
)
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.tracker import RunTracker

__all__ = ["Append", "AppendPlans"]

_ARRIVAL_SECONDS: Final = 15.0
"""How long a call waits for another that LangGraph has submitted but not begun: milliseconds on a
machine that breathes, seconds on a starved one. Beyond it the row or edge is given up, not the run."""


@dataclass(slots=True)
class Append:
    """Everything that goes into one append. `run` is (run_id, trace_id)."""

    call: CallConfig
    run: tuple[uuid.UUID, str]
    checkpoint_id: str = ""
    parent_id: str | None = None
    events: Sequence[Event] = ()
    document: Encoded | None = None
    state: Encoded | None = None
    writes: Sequence[WriteSet] = ()
    outbox: Sequence[tuple[str, str]] = ()
    run_state: str | None = None
    adopt: bool = False
    chain_parent: bool = False
    deliberate: bool = False
    """A fork that was asked for, which strict_parent is not about."""

    def writes_only(self) -> Append:
        """The same without its rows: for a checkpoint that is there, whose writes may not be."""
        return replace(self, events=(), document=None, state=None, outbox=(), chain_parent=False)


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
        run = (call.run_id, call.trace_id or ids.ZERO_TRACE)
        yield self._append(Append(call, run, events=[event], state=encoded, chain_parent=True))

    def claim(
        self,
        config: RunnableConfig,
        name: str,
        value: Any,
        approval: Mapping[str, Any] | None = None,
    ) -> Plan[bool]:
        call = self.config(config)
        live = self.runs.find(call.control)
        run_id = live.tracker.run_id if live and live.tracker else call.run_id
        if run_id is None:
            raise InvalidIdentifier("run_id", "is missing from config['configurable']")
        trace = (
            live.tracker.trace_id if live and live.tracker else (call.trace_id or ids.ZERO_TRACE)
        )
        claimed = (name, encode_value(self.serializer, value))
        told = [
            canonical_bytes({**approval, "counted": counted}).decode()
            for counted in (True, False)
            if approval is not None
        ]
        rows = yield self._claim(call, (run_id, trace), claimed, told or None)
        return bool(rows[0][0])

    def _claim(
        self,
        call: CallConfig,
        run: tuple[uuid.UUID, str],
        claimed: tuple[str, Encoded],
        told: list[str] | None = None,
    ) -> Call:
        name, value = claimed
        attempt = str(ids.new_id())
        params = [
            call.tenant_id,
            call.thread_id,
            *run,
            name,
            value.text,
            value.sha256,
            told,
            attempt,
        ]
        return Call(self.statements.claim, [*params, False], [*params, True])

    def _append_all(self, all_of_it: Sequence[Append]) -> Call:
        """Several appends in one transaction: all of them or none."""
        first, *rest = (self._append(each) for each in all_of_it)
        more = [c.retried_params or c.params for c in rest]
        return Call(first.query, first.params, first.retried_params, more, about=all_of_it)

    def _append(self, what: Append) -> Call:
        """The statement for one append. Repeated after a lost connection, it finds its own rows."""
        state = what.state
        params = [
            what.call.tenant_id,
            what.call.thread_id,
            what.call.ns,
            *what.run,
            what.checkpoint_id,
            what.parent_id,
            rows_json(what.events, what.document),
            state.text if state is not None else None,
            state.sha256 if state is not None else None,
            state is not None and len(state.text) > SHARE_ABOVE_BYTES,
            write_sets_json(what.writes),
            _text_array([kind for kind, _ in what.outbox]),
            _text_array([body for _, body in what.outbox]),
            what.run_state,
            self.strict_parent and not what.deliberate,
            what.adopt,
            what.chain_parent,
        ]
        return Call(self.statements.append, [*params, False], [*params, True], about=what)

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
        run = (run_id, str(held["trace_id"]))
        rows = yield self._claim(call, run, ("abandon", encode_tree({"by": "new run"})))
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
            yield from self._lone_events(call, run, [event])

    def _fail_run(self, call: CallConfig, error: SerialiseError) -> Plan[None]:
        """A state that cannot be stored ends its run; the row carries the last persisted state."""
        live = self.runs.find(call.control)
        tracker = live.tracker if live else None
        if tracker is None:
            return
        with tracker.lock:
            # What follows must not be stored as if this had been: the run stops here.
            tracker.failure = tracker.failure or error
            events = tracker.fail(type(error).__name__, str(error), ids.new_id)
        if events:
            yield from self._last_events(call, tracker, events)

    def _last_events(
        self, call: CallConfig, tracker: RunTracker, events: list[Event]
    ) -> Plan[None]:
        """Rows that end a run: after every row of it that is under way."""
        with tracker.lock:
            under_way = list(tracker.unstored.values())
        if under_way:
            yield Wait(under_way, 60.0)
        yield from self._lone_events(call, (tracker.run_id, tracker.trace_id), events)

    def _lone_events(
        self, call: CallConfig, run: tuple[uuid.UUID, str], events: list[Event]
    ) -> Plan[None]:
        rows = yield Call(
            self.statements.get, (call.tenant_id, call.thread_id, "", None, False, None)
        )
        stored, lg_id = rows[0][3], rows[0][0]
        state = encode_tree(text_to_tree(stored)) if stored else encode_tree({})
        root = call.at(call.thread_id, "")
        yield self._append(Append(root, run, lg_id or "", events=events, state=state))

    def run_ended(self, live: LiveRun, error: BaseException | None) -> Plan[None]:
        """What the end of a graph's run says that its calls did not: a failure outside any task
        (time-out, cancellation, a merge error), or a pause at a static breakpoint."""
        tracker, call = live.tracker, live.call
        if tracker is None or call is None or tracker.ended or tracker.failure is not None:
            return
        run = (tracker.run_id, tracker.trace_id)
        root = call.at(call.thread_id, "")
        if error is not None:
            with tracker.lock:
                events = tracker.fail(type(error).__name__, self._said(error), ids.new_id)
            if events:
                yield from self._last_events(root, tracker, events)
        elif tracker.pauses() and call.durability == "sync":
            body = canonical_bytes({"interrupts": [], "task_id": None}).decode()
            outbox = [(ChainKind.WAITING.value, body)]
            yield self._append(Append(root, run, outbox=outbox, run_state="waiting"))

    def _said(self, error: BaseException) -> str:
        """An error's text if it can be scrubbed, else nothing: it may quote state."""
        return self.scrub(str(error))[:500] if self.scrub is not None else ""

    def _after_its_put(
        self, call: CallConfig, live: LiveRun, ns: str, checkpoint_id: str
    ) -> Plan[None]:
        """Lets the put of a checkpoint commit before what hangs under its rows: writes to it, and the
        subgraphs it scheduled.

        It is no condition: writes that belong to a checkpoint nobody here puts are stored too, and
        under durability "exit" most checkpoints are never put.
        """
        waited = 0.0
        while waited < _ARRIVAL_SECONDS and call.durability != "exit":
            try:
                put = live.awaited_put(ns, checkpoint_id)
            except LookupError:
                waited += 0.002
                yield Wait([], 0.002)
                continue
            if put is not None:
                yield Wait([put], 60.0)
            return

    def _arrivals(self, call: CallConfig, tracker: RunTracker, source: Any) -> Plan[None]:
        """Waits for the superstep's own put_writes, which race with its put even under "sync".

        Those under way are awaited, so that a failed one fails the step; those LangGraph has
        submitted but not begun are given a moment, since only they know where a task's edges lead.
        Under durability "exit" there are none to come.
        """
        waited = 0.0
        ns = call.ns
        told = source == "loop" and call.durability != "exit"
        while True:
            with tracker.lock:
                under_way = list(tracker.in_flight.get(ns, {}).values())
                missing = tracker.namespace(ns).awaits_writes()
            if under_way:
                yield Wait(under_way, 60.0)
            elif told and missing and waited < _ARRIVAL_SECONDS:
                waited += 0.002
                yield Wait([], 0.002)
            else:
                break
        if tracker.failure is not None:
            raise tracker.failure


def _text_array(items: Sequence[str]) -> str:
    """An array of texts as PostgreSQL reads it; the driver's own way looks at each value's type."""
    quoted = (item.replace("\\", "\\\\").replace('"', '\\"') for item in items)
    return "{" + ",".join(f'"{item}"' for item in quoted) + "}"
