"""`CheckpointWriter`: one row of the log, for services that are not LangGraph graphs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from cuo_checkpoint import ids
from cuo_checkpoint.errors import InvalidIdentifier
from cuo_checkpoint.records import CheckpointKind, Event, Phase
from cuo_checkpoint.saver import PostgresCheckpointer

__all__ = ["CheckpointWriter"]

_PHASES = {
    CheckpointKind.RUN_STARTED: Phase.STARTED,
    CheckpointKind.NODE_COMPLETED: Phase.COMPLETED,
    CheckpointKind.EDGE_TRAVERSED: Phase.EDGE,
    CheckpointKind.NODE_ENTERED: Phase.ENTERED,
    CheckpointKind.RUN_COMPLETED: Phase.ENDED,
    CheckpointKind.RUN_FAILED: Phase.ENDED,
}


class CheckpointWriter:
    """Appends single rows with the store's guarantees: durable, chained, tenant-bound, capped.

    It borrows a `PostgresCheckpointer`'s connections, serialiser and defaults; close that one.
    """

    def __init__(self, store: PostgresCheckpointer) -> None:
        self._store = store

    def write(
        self,
        run_id: uuid.UUID | str,
        kind: CheckpointKind | str,
        state: Mapping[str, Any],
        *,
        tenant_id: uuid.UUID | str | None = None,
        thread_id: str | None = None,
        node_name: str | None = None,
        edge_from: str | None = None,
        edge_to: str | None = None,
        parent_checkpoint_id: uuid.UUID | None = None,
        trace_id: str | None = None,
        step: int | None = None,
    ) -> uuid.UUID:
        """Appends one row and returns its checkpoint_id, after the commit.

        Without `parent_checkpoint_id` the row hangs under the run's last one. The thread defaults
        to the run. Raises ValueError for a kind outside the six, and the errors of the store;
        nothing is ever written in part.
        """
        event = self._event(kind, node_name, edge_from, edge_to, parent_checkpoint_id, step)
        config = self._config(run_id, tenant_id, thread_id, trace_id)
        self._store.run_plan(self._store.plans.append_event(config, event, state), "awrite")
        return event.id

    async def awrite(
        self,
        run_id: uuid.UUID | str,
        kind: CheckpointKind | str,
        state: Mapping[str, Any],
        *,
        tenant_id: uuid.UUID | str | None = None,
        thread_id: str | None = None,
        node_name: str | None = None,
        edge_from: str | None = None,
        edge_to: str | None = None,
        parent_checkpoint_id: uuid.UUID | None = None,
        trace_id: str | None = None,
        step: int | None = None,
    ) -> uuid.UUID:
        """As `write`."""
        event = self._event(kind, node_name, edge_from, edge_to, parent_checkpoint_id, step)
        config = self._config(run_id, tenant_id, thread_id, trace_id)
        await self._store.arun_plan(self._store.plans.append_event(config, event, state))
        return event.id

    @staticmethod
    def _event(
        kind: CheckpointKind | str,
        node: str | None,
        edge_from: str | None,
        edge_to: str | None,
        parent: uuid.UUID | None,
        step: int | None,
    ) -> Event:
        named = CheckpointKind(kind)
        return Event(
            ids.new_id(),
            named,
            parent,
            step,
            _PHASES[named],
            0,
            node=node,
            edge_from=edge_from,
            edge_to=edge_to,
        )

    @staticmethod
    def _config(
        run_id: uuid.UUID | str,
        tenant_id: uuid.UUID | str | None,
        thread_id: str | None,
        trace_id: str | None,
    ) -> RunnableConfig:
        run = ids.run_id_of(run_id)
        if run is None:
            raise InvalidIdentifier("run_id", "must not be empty")
        values: dict[str, Any] = {
            "thread_id": thread_id or str(run),
            "run_id": run,
            "trace_id": trace_id,
        }
        if tenant_id is not None:
            values["tenant_id"] = tenant_id
        return {"configurable": values}
