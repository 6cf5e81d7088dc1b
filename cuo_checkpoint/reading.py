"""The store's reads, as plans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from cuo_checkpoint import ids
from cuo_checkpoint.configs import CallConfig
from cuo_checkpoint.db import Call, Plan
from cuo_checkpoint.errors import DurabilityRefused, SchemaNotReady
from cuo_checkpoint.rebuild import Pending, rebuild_tuple
from cuo_checkpoint.serde import tree_to_text
from cuo_checkpoint.shared import Shared
from cuo_checkpoint.telemetry import RESUME

__all__ = ["Cursor", "Page", "ReadPlans", "limit_of"]

Cursor = tuple[int, dt.datetime]
"""Where a page ended: the last row's seq, and its time, which says in which month to go on."""

_NOTHING: Final = [(None,) * 10]
"""What a thread answers that is not there."""

_PAGE: Final = 100
"""Checkpoints per round trip of a listing: bounds memory at a few hundred full states."""


@dataclass(slots=True)
class Page:
    """Some checkpoints, and where the next page starts (None: there is none)."""

    tuples: list[CheckpointTuple]
    pending: list[list[Pending]]
    next: Cursor | None


def limit_of(value: Any) -> int | None:
    """A listing's limit: a whole number, or None for no limit. Raises ValueError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"limit is a whole number or None, not {type(value).__name__}")
    return value


class ReadPlans(Shared):
    """Reading: one checkpoint, many, and a delta channel's history."""

    def setup(self) -> Plan[None]:
        rows = yield Call(self.statements.ready, ())
        if not rows:
            raise SchemaNotReady(
                "the database has no CUO schema.",
                remedy="Run: alembic upgrade head, as the owner role.",
            )
        yield Call(self.statements.ensure_partitions, ())

    def get_tuple(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        call = self.config(config)
        if call.durability == "exit" and not self.allow_exit:
            raise DurabilityRefused(
                'durability="exit" would skip steps of the log; use "sync", or pass allow_exit=True'
            )
        control = call.control
        fresh = call.new_thread and control is not None and not call.ns and not call.checkpoint_id
        rows = yield Call(
            self.statements.get,
            (
                call.tenant_id,
                call.thread_id,
                call.ns,
                call.checkpoint_id,
                control is not None,
                call.run_id,
            ),
            about=RESUME if control is not None else None,
            known=_NOTHING if fresh else None,
        )
        lg_id, lg_parent, _, state, langgraph, writes, events, open_run, _, _ = rows[0]
        if control is not None:
            self.runs.note(control, open_run)
        if lg_id is None:
            return None
        found, pending, step = rebuild_tuple(
            self.serializer, call, lg_id, lg_parent, state, langgraph, writes
        )
        if control is not None:
            self.runs.note(
                control, open_run, call.ns, (found.checkpoint, step, pending, events or [], state)
            )
        return found

    def list_page(
        self,
        config: RunnableConfig | None,
        wanted_metadata: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
        after: Cursor | None,
    ) -> Plan[Page]:
        call = CallConfig.read(config or {}, self.tenant_id, self.trace_id, needs_thread=False)
        wanted = None
        if wanted_metadata:
            encoded = self.serializer.encode(dict(wanted_metadata), path="filter")
            if not isinstance(encoded, dict):
                return Page([], [], None)
            wanted = tree_to_text({k: v for k, v in encoded.items() if k != "$keys"})
        # Pages follow one thread's order; across threads there is none, so that is one page.
        paged = call.thread is not None
        size = min(limit, _PAGE) if limit is not None and paged else (_PAGE if paged else limit)
        before_id = ids.checkpoint_id_of(
            ((before or {}).get("configurable") or {}).get("checkpoint_id")
        )
        rows = yield Call(
            self.statements.list,
            (
                call.tenant_id,
                call.thread,
                call.ns_given,
                call.checkpoint_id,
                wanted,
                before_id,
                size,
                *(after or (None, None)),
            ),
        )
        tuples: list[CheckpointTuple] = []
        pending: list[list[Pending]] = []
        for thread_id, ns, lg_id, lg_parent, state, langgraph, writes, *_ in rows:
            place = call.at(thread_id, ns)
            found, its_writes, _ = rebuild_tuple(
                self.serializer, place, lg_id, lg_parent, state, langgraph, writes
            )
            tuples.append(found)
            pending.append(its_writes)
        more = paged and size is not None and len(rows) == size
        return Page(tuples, pending, rows[-1][7:9] if more else None)

    def delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Plan[Mapping[str, DeltaChannelHistory]]:
        if not channels:
            return {}
        writes: dict[str, list[PendingWrite]] = {name: [] for name in channels}
        seeds: dict[str, Any] = {}
        remaining = set(channels)
        target = yield from self._plain_get(config)
        cursor = target.parent_config if target else None
        while cursor is not None and remaining:
            found = yield from self._plain_get(cursor)
            if found is None:
                break
            for write in reversed(found.pending_writes or []):
                if write[1] in remaining:
                    writes[write[1]].append(write)
            for name in sorted(remaining):
                if name in found.checkpoint["channel_values"]:
                    seeds[name] = found.checkpoint["channel_values"][name]
                    remaining.discard(name)
            cursor = found.parent_config
        result: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            entry: DeltaChannelHistory = {"writes": writes[name][::-1]}
            if name in seeds:
                entry["seed"] = seeds[name]
            result[name] = entry
        return result

    def _plain_get(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        call = self.config(config)
        rows = yield Call(
            self.statements.get_any,
            (call.tenant_id, call.thread_id, call.ns, call.checkpoint_id, False),
        )
        lg_id, lg_parent, _, state, langgraph, writes, _, _, _, _ = rows[0]
        if lg_id is None:
            return None
        return rebuild_tuple(self.serializer, call, lg_id, lg_parent, state, langgraph, writes)[0]
