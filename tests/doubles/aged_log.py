"""Databases with years behind them, and graphs to fill them with."""

from __future__ import annotations

import datetime as dt
import uuid
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from database_clock import DatabaseClock
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from cuo_checkpoint import PostgresCheckpointer

__all__ = ["MARCH", "NOW", "AgedLog", "chat_graph", "graph", "utc"]


def utc(*parts: int) -> dt.datetime:
    """An instant in UTC."""
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


MARCH = utc(2018, 3, 10, 12)
"""In a month that is past keeping at NOW."""

NOW = utc(2026, 11, 20, 12)


class State(TypedDict, total=False):
    """What the graph carries."""

    ask: bool
    text: str
    answer: str


class AgedLog:
    """One database: its addresses, its clock, and runs on demand."""

    def __init__(self, cluster: Any, database: str) -> None:
        self.admin = cluster.dsn(database)
        self.app = cluster.dsn(database, "cyberos_app")
        self.archiver = cluster.dsn(database, "cyberos_archiver")
        self.auditor = cluster.dsn(database, "cyberos_auditor")
        self.owner = cluster.dsn(database, "cyberos_owner")
        self.clock = DatabaseClock.on(self.admin)

    def at(self, when: dt.datetime) -> None:
        """From now on it is then."""
        self.clock.set(when)

    def store(self, tenant: Any, **options: Any) -> PostgresCheckpointer:
        """A store for a tenant; close it."""
        return PostgresCheckpointer(self.app, tenant_id=tenant, **options)

    def run(self, tenant: Any, thread: str, *, ask: bool = False, answer: bool = True) -> uuid.UUID:
        """One run of two nodes, through a question and its answer if asked to."""
        run_id = uuid.uuid4()
        config: Any = {"configurable": {"thread_id": thread, "run_id": run_id}}
        with self.store(tenant) as store:
            made = graph(store)
            made.invoke({"ask": ask}, config, durability="sync")
            if ask and answer:
                made.invoke(Command(resume="yes"), config, durability="sync")
        return run_id


def graph(store: PostgresCheckpointer) -> Any:
    """Two nodes; the second asks if told to. The state is large enough to be shared by rows."""
    made = StateGraph(State)
    made.add_node("a", lambda state: {"text": "x" * 9_000})
    made.add_node("b", lambda state: {"answer": interrupt("sure?")} if state.get("ask") else {})
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    made.add_edge("b", END)
    return made.compile(store)


def chat_graph(store: PostgresCheckpointer, snapshot_every: int) -> Any:
    """A chat whose messages stand in a delta channel: stored as writes, with a snapshot now and then."""

    def joined(value: list[str], updates: Sequence[list[str]]) -> list[str]:
        return [*value, *(one for update in updates for one in update)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        channel = DeltaChannel(joined, snapshot_frequency=snapshot_every)
        chat: Any = TypedDict(  # type: ignore[operator]
            "chat", {"messages": Annotated[list[str], channel]}, total=False
        )
        made = StateGraph(chat)
        made.add_node("answer", lambda state: {"messages": [f"re:{state['messages'][-1]}"]})
        made.add_edge(START, "answer")
        return made.compile(store)
