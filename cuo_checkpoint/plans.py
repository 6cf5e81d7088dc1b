"""What each store method does, written once as generators that yield statements.

Serialisation happens before the first yield, so values are taken before the first await. See
`db` for how a plan is driven and `tracker` for how calls become rows.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from cuo_checkpoint import derive, ids
from cuo_checkpoint.appending import Append, AppendPlans
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.configs import metadata_of, tuple_config
from cuo_checkpoint.db import Call, Plan, Wait
from cuo_checkpoint.errors import CheckpointConflict, InvalidIdentifier, SerialiseError
from cuo_checkpoint.parking import Parked
from cuo_checkpoint.reading import Cursor, Page
from cuo_checkpoint.rebuild import Pending
from cuo_checkpoint.records import (
    ChainKind,
    CheckpointKind,
    Encoded,
    Event,
    Phase,
    WriteSet,
    encode_langgraph,
    encode_state,
    encode_tree,
    encode_value,
    split_channels,
)
from cuo_checkpoint.serde import text_to_tree
from cuo_checkpoint.tracker import RunTracker

__all__ = ["OUTBOX_CHANNEL", "Page", "Plans"]

OUTBOX_CHANNEL: Final = "cuo_audit_outbox"
"""Reserved channel: audit rows a node hands to the store, [{"kind": ..., "body": {...}}]. They are
chained in the transaction of the superstep that wrote the channel."""

_HOLD_SECONDS: Final = 0.01
"""How long writes wait to be carried by the put that follows them."""

_WRITE_INDEX: Final = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}


class Plans(AppendPlans):
    """LangGraph's writes, and what hides and copies threads."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> Plan[RunnableConfig]:
        call = self.config(config)
        try:
            merged = metadata_of(config, metadata, self.metadata_keys)
            state, document = self._encoded(checkpoint, merged)
            outbox = self._outbox(checkpoint, new_versions)
        except SerialiseError as unfit:
            named = unfit.in_thread(call.thread_id)
            yield from self._fail_run(call, named)
            raise named from unfit
        tracker: RunTracker | None = None
        committed: Future[None] | None = None
        first: list[Future[None]] = []
        parked: list[Parked] = []
        live = self.runs.find(call.control)
        if live is None:
            events = [_outside_runs(metadata)]
            run_id = call.run_id or ids.run_id_of(merged.get("run_id")) or ids.new_id()
            adopt = call.run_id is None and merged.get("run_id") is None
            run = (run_id, call.trace_id or ids.ZERO_TRACE)
            run_state: str | None = "direct"
        else:
            fresh_input = metadata.get("source") == "input" and call.ns == ""
            if call.outer is not None and call.ns not in live.puts:
                yield from self._after_its_put(call, live, *call.outer)
            tracker = yield from self._tracker(call, live, fresh_input=fresh_input)
            yield from self._arrivals(call, tracker, metadata.get("source"))
            with tracker.lock:
                events = tracker.on_put(
                    call.ns, checkpoint, metadata, call.recursion_limit, state, ids.new_id
                )
                run = (tracker.run_id, tracker.trace_id)
                run_state = "open" if tracker.wake else None
                tracker.wake = False
                parked = tracker.take_parked(call.ns)
                committed, first = tracker.storing(events)
            adopt = False
            live.puts[call.ns] = (checkpoint["id"], committed)
        append = Append(
            call,
            run,
            checkpoint["id"],
            call.checkpoint_id,
            events,
            document,
            state,
            [one.writes for one in parked],
            outbox,
            run_state,
            adopt,
            chain_parent=live is None,
            deliberate=metadata.get("source") == "fork",
        )
        ended: BaseException | None = None
        try:
            if first:
                yield Wait(first, 60.0)
            rows = yield self._append(append)
            if parked and rows[0][0] == "duplicate":
                # The checkpoint was there already; the writes it was to carry may not be.
                yield self._append(append.writes_only())
        except CheckpointConflict as refused:
            ended = refused
            yield Call(
                self.statements.record_refused,
                (
                    call.tenant_id,
                    call.thread_id,
                    call.ns,
                    checkpoint["id"],
                    run[0],
                    run[1],
                    state.sha256,
                ),
            )
            raise
        except BaseException as failed:
            ended = failed
            if tracker is not None and isinstance(failed, Exception):
                tracker.failure = failed
            raise
        finally:
            for one in parked:
                one.settle(ended)
            if tracker is not None and committed is not None:
                tracker.stored(events, committed)
        return tuple_config(call, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Plan[None]:
        call = self.config(config)
        if call.checkpoint_id is None:
            raise InvalidIdentifier("checkpoint_id", "is missing from config['configurable']")
        writes = list(writes)
        # A special channel has one place a task; of several values in one call the last one counts.
        places = {
            _WRITE_INDEX.get(channel, index): (channel, value)
            for index, (channel, value) in enumerate(writes)
        }
        try:
            items = [
                (index, channel, self._encode_write(channel, value))
                for index, (channel, value) in places.items()
            ]
        except SerialiseError as unfit:
            named = unfit.in_thread(call.thread_id)
            yield from self._fail_run(call, named)
            raise named from unfit
        write_set = WriteSet(call.checkpoint_id, task_id, task_path, items)
        live = self.runs.find(call.control)
        kinds: list[tuple[str, str]] = []
        events: list[Event] = []
        run_state: str | None = None
        state: Encoded | None = None
        tracker: RunTracker | None = None
        committed: Future[None] | None = None
        first: list[Future[None]] = []
        if live is None:
            meant = ids.run_id_of((config.get("metadata") or {}).get("run_id"))
            run = (call.run_id or meant or ids.new_id(), call.trace_id or ids.ZERO_TRACE)
            updates = _of_an_update(call.checkpoint_id, task_id, task_path)
            run_state = "update" if updates else "direct"
        else:
            yield from self._after_its_put(call, live, call.ns, call.checkpoint_id)
            tracker = yield from self._tracker(call, live, fresh_input=False)
            with tracker.lock:
                space = tracker.namespace(call.ns)
                summary = derive.summarise_writes(writes)
                if space.checkpoint_id == call.checkpoint_id:
                    ref = derive.task_of_path(task_path, space.sends)
                    is_task_call = ref is None and task_path.startswith("~__pregel_push")
                    events = tracker.on_put_writes(call.ns, summary, ref, is_task_call, ids.new_id)
                if events:
                    state = _stored_state(space.state)
                run = (tracker.run_id, tracker.trace_id)
                if summary.interrupted:
                    run_state = "waiting"
                    kinds.append((ChainKind.WAITING, _waiting_body(summary, task_id)))
                elif tracker.wake:
                    run_state = "open"
                tracker.wake = False
                committed, first = tracker.storing(events)
                if events or kinds or run_state:
                    tracker.under_way(call.ns, write_set)
            # Nothing but writes: the put that follows at once takes them along, so that a
            # superstep is one commit. Nobody is told they are stored before they are.
            alone = bool(events or kinds or run_state)
            if not alone and (yield from self._carried(tracker, call.ns, write_set)):
                return
        append = Append(
            call,
            run,
            call.checkpoint_id,
            events=events,
            state=state,
            writes=[write_set],
            outbox=kinds,
            run_state=run_state,
            adopt=live is None,
        )
        try:
            if first:
                yield Wait(first, 60.0)
            yield self._append(append)
        except Exception as error:
            if tracker is not None:
                tracker.failure = error
            raise
        finally:
            if tracker is not None and committed is not None:
                tracker.stored(events, committed)
                tracker.landed(call.ns, write_set)

    def _carried(self, tracker: RunTracker, ns: str, writes: WriteSet) -> Plan[bool]:
        """Waits a moment for a put to carry the writes; False when none came."""
        parked = tracker.park(ns, writes)
        yield Wait([parked.future], _HOLD_SECONDS)
        if tracker.unpark(ns, parked):
            return False
        if not parked.future.done():
            yield Wait([parked.future], 60.0)
        parked.future.result()
        return True

    def tombstone(self, kind: str, names: Sequence[str]) -> Plan[None]:
        tenant = ids.tenant_of(self.tenant_id)
        for name in names:
            thread = None if kind == "delete_run" else ids.thread_id_of(name)
            hidden = ids.run_id_of(name) if kind == "delete_run" else None
            yield Call(
                self.statements.tombstone,
                (tenant, kind, thread, hidden, ids.new_id(), self.trace_id or ids.ZERO_TRACE),
            )

    def copy_thread(self, source: str, target: str) -> Plan[None]:
        page: Cursor | None = None
        found: list[tuple[CheckpointTuple, list[Pending]]] = []
        config: RunnableConfig = {"configurable": {"thread_id": source}}
        while True:
            part = yield from self.list_page(config, None, None, None, page)
            found.extend(zip(part.tuples, part.pending, strict=True))
            if part.next is None:
                break
            page = part.next
        run = ids.new_id()
        copies = []
        for item, pending in reversed(found):
            place = item.config["configurable"]
            parent = (item.parent_config or {}).get("configurable") or {}
            where: RunnableConfig = {
                "configurable": {
                    "thread_id": target,
                    "checkpoint_ns": place["checkpoint_ns"],
                    "checkpoint_id": parent.get("checkpoint_id"),
                    "run_id": run,
                }
            }
            copies.append(self.copied(where, item.checkpoint, item.metadata, pending))
        if copies:
            yield self._append_all(copies)

    def copied(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        pending: Sequence[Pending],
    ) -> Append:
        """A checkpoint of another thread or store, with its writes, as one append.

        `config` names thread, namespace, parent and run; the metadata stay as they are, so that
        copying again finds the same bytes. Raises UnserialisableValue and
        StateTooLarge.
        """
        call = self.config(config)
        state, document = self._encoded(checkpoint, metadata)
        tasks: OrderedDict[tuple[str, str], list[tuple[int, str, Encoded]]] = OrderedDict()
        for task_id, channel, value, path, index in pending:
            items = tasks.setdefault((task_id, path), [])
            items.append((index, channel, self._encode_write(channel, value)))
        return Append(
            call,
            (call.run_id or ids.new_id(), call.trace_id or ids.ZERO_TRACE),
            checkpoint["id"],
            call.checkpoint_id,
            [_outside_runs(metadata)],
            document,
            state,
            [WriteSet(checkpoint["id"], *task, items) for task, items in tasks.items()],
            run_state="direct",
            chain_parent=True,
        )

    def _encoded(
        self, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> tuple[Encoded, Encoded]:
        """A checkpoint's state, and what LangGraph needs beside it, as stored."""
        visible, hidden = split_channels(checkpoint["channel_values"])
        state = encode_state(self.serializer, visible)
        return state, encode_langgraph(self.serializer, checkpoint, metadata, hidden)

    def _encode_write(self, channel: str, value: Any) -> Encoded:
        return encode_value(self.serializer, value, path=channel)

    def _outbox(
        self, checkpoint: Mapping[str, Any], new_versions: Mapping[str, Any]
    ) -> list[tuple[str, str]]:
        if OUTBOX_CHANNEL not in new_versions:
            return []
        rows = checkpoint["channel_values"].get(OUTBOX_CHANNEL) or []
        return [(row["kind"], canonical_bytes(row["body"]).decode()) for row in rows]


def _outside_runs(metadata: Mapping[str, Any]) -> Event:
    """The row that carries a checkpoint put outside any run."""
    return Event(
        ids.new_id(),
        CheckpointKind.NODE_COMPLETED,
        None,
        metadata.get("step"),
        Phase.COMPLETED,
        0,
        node=f"__{metadata.get('source') or 'put'}__",
    )


def _of_an_update(checkpoint_id: str, task_id: str, task_path: str) -> bool:
    """Whether a graph's `update_state` makes these writes: then the put of what they lead to follows.

    Its tasks have a path of their own, or, of an update that acts as input, an id.
    """
    if task_path:
        return task_path.startswith("~__interrupt__,")
    try:
        return task_id == str(uuid.uuid5(uuid.UUID(checkpoint_id), "__input__"))
    except ValueError:
        return False


def _stored_state(held: Encoded | str | None) -> Encoded:
    """The state a row made between two puts shows: that of the checkpoint in progress."""
    if isinstance(held, Encoded):
        return held
    return encode_tree(text_to_tree(held) if held else {})


def _waiting_body(summary: derive.WriteSummary, task_id: str) -> str:
    found = [str(getattr(item, "id", "")) for item in summary.interrupts]
    return canonical_bytes({"interrupts": list(found), "task_id": task_id}).decode()
