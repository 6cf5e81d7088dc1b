"""Reads a LangGraph config: whose call this is, about which thread, in which run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from cuo_checkpoint import ids
from cuo_checkpoint.errors import InvalidIdentifier

__all__ = ["NEW_THREAD", "CallConfig", "metadata_of", "tuple_config"]

NEW_THREAD: Final = "__cuo_new_thread"
"""In `configurable`: the caller has just minted the thread's id, so its run need not read it first."""

_RUNTIME: Final = "__pregel_runtime"
_DURABILITY: Final = "__pregel_durability"
_NOT_METADATA: Final = frozenset(
    {
        "thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "tenant_id", "trace_id",
        "langgraph_step", "langgraph_node", "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns",
        "writes",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallConfig:
    """A call's identity. `control` is LangGraph's object for the run, absent outside runs."""

    tenant_id: uuid.UUID
    tenant_given: Any
    thread: str | None
    ns: str
    ns_given: str | None
    checkpoint_id: str | None
    run_id: uuid.UUID | None
    trace_id: str | None
    control: Any
    durability: str | None
    recursion_limit: int | None
    new_thread: bool
    outer: tuple[str, str] | None = None
    """Of a subgraph: its parent's namespace, and the checkpoint there that scheduled it."""

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        tenant_id: uuid.UUID | None,
        trace_id: str | None,
        *,
        needs_thread: bool = True,
    ) -> CallConfig:
        """Checks everything a call may name. Raises TenantRequired and InvalidIdentifier."""
        values: Mapping[str, Any] = config.get("configurable") or {}
        given = values.get("tenant_id")
        thread = values.get("thread_id")
        if thread is None and needs_thread:
            raise InvalidIdentifier("thread_id", "is missing from config['configurable']")
        runtime = values.get(_RUNTIME)
        checkpoint_id = values.get("checkpoint_id")
        return cls(
            tenant_id=ids.tenant_of(given if given is not None else tenant_id),
            tenant_given=given,
            thread=None if thread is None else ids.thread_id_of(thread),
            ns=ids.namespace_of(values.get("checkpoint_ns")),
            ns_given=None
            if values.get("checkpoint_ns") is None
            else ids.namespace_of(values["checkpoint_ns"]),
            checkpoint_id=ids.checkpoint_id_of(checkpoint_id),
            run_id=ids.run_id_of(values.get("run_id")),
            trace_id=ids.trace_id_of(values.get("trace_id")) or trace_id or _current_trace(),
            control=getattr(runtime, "control", None),
            durability=values.get(_DURABILITY),
            recursion_limit=config.get("recursion_limit"),
            new_thread=values.get(NEW_THREAD) is True,
            outer=_outer(values),
        )

    @property
    def thread_id(self) -> str:
        """The thread, which calls that reach this property have named."""
        if self.thread is None:
            raise InvalidIdentifier("thread_id", "is missing from config['configurable']")
        return self.thread

    def at(self, thread_id: str, ns: str) -> CallConfig:
        """The same caller, elsewhere."""
        return replace(self, thread=thread_id, ns=ns)


def _outer(values: Mapping[str, Any]) -> tuple[str, str] | None:
    ns = values.get("checkpoint_ns")
    if not ns or not isinstance(ns, str):
        return None
    outer = ns.rpartition("|")[0]
    scheduled_by = (values.get("checkpoint_map") or {}).get(outer)
    return (outer, str(scheduled_by)) if scheduled_by else None


def metadata_of(
    config: RunnableConfig, metadata: Mapping[str, Any], allowed: frozenset[str]
) -> dict[str, Any]:
    """Checkpoint metadata with the run's own added.

    LangChain copies every primitive `configurable` value into the run's metadata; of those, only
    allow-listed keys pass, because a log that never forgets is no place for an api_key.
    """
    merged = {k: v for k, v in metadata.items() if k != "writes"}
    values: Mapping[str, Any] = config.get("configurable") or {}
    for source in (config.get("metadata") or {}, values):
        for key, value in source.items():
            if key in merged or key in _NOT_METADATA or key.startswith("__"):
                continue
            if key in values and key not in allowed:
                continue
            if isinstance(value, (str, int, float, bool)) or (
                isinstance(value, uuid.UUID) and key in allowed
            ):
                merged[key] = str(value) if isinstance(value, uuid.UUID) else value
    return merged


def tuple_config(call: CallConfig, checkpoint_id: str) -> RunnableConfig:
    """The config that names a checkpoint, the tenant in it if the caller's had one."""
    values: dict[str, Any] = {
        "thread_id": call.thread_id,
        "checkpoint_ns": call.ns,
        "checkpoint_id": checkpoint_id,
    }
    if call.tenant_given is not None:
        values["tenant_id"] = call.tenant_given
    return {"configurable": values}


def _current_trace() -> str | None:
    """The trace of the caller's OpenTelemetry span, when there is one."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None
