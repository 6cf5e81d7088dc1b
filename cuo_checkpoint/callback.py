"""Hears how graph runs end, with no wiring by whoever runs them.

A saver is not told of time-outs, cancellation, merge errors or static breakpoints: LangGraph makes
no call then. LangChain's configure hook puts one handler into every run of the process, by way of
a context variable's default, so no graph and no environment variable is touched. The handler only
passes on how root runs end, to the stores that are open.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any, Final, Protocol
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

__all__ = ["watch_runs"]

_REMEMBERED: Final = 10_000
"""Runs whose end is awaited; the oldest are given up beyond this."""


class _Watcher(Protocol):
    def on_graph_end(self, thread_id: str, error: BaseException | None) -> None: ...


class _RunEnds(BaseCallbackHandler):
    """Only chains matter; the rest is switched off, so that LangChain skips us early."""

    run_inline = True
    raise_error = False
    ignore_llm = ignore_chat_model = ignore_retriever = ignore_agent = True
    ignore_custom_event = ignore_retry = True

    def __init__(self) -> None:
        self._threads: OrderedDict[UUID, str] = OrderedDict()
        self._lock = threading.Lock()

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Notes a graph's root run: it knows its thread and is not inside a node."""
        if not metadata or "langgraph_node" in metadata:
            return
        thread = metadata.get("thread_id")
        if thread is None or not _stores:
            return
        with self._lock:
            self._threads[run_id] = str(thread)
            while len(self._threads) > _REMEMBERED:
                self._threads.popitem(last=False)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not isinstance(error, GraphBubbleUp):
            self._tell(run_id, error)

    def _tell(self, run_id: UUID, error: BaseException | None) -> None:
        with self._lock:
            thread = self._threads.pop(run_id, None)
        if thread is not None:
            for store in list(_stores):
                store.on_graph_end(thread, error)


_stores: weakref.WeakSet[_Watcher] = weakref.WeakSet()
_handler: Final[ContextVar[BaseCallbackHandler | None]] = ContextVar(
    "cuo_run_ends",
    default=_RunEnds(),  # noqa: B039 - one handler for all contexts is the point
)
register_configure_hook(_handler, inheritable=False)


def watch_runs(store: _Watcher) -> None:
    """Tells `store` how graph runs end, for as long as it lives."""
    _stores.add(store)
