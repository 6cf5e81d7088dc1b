"""Reads and writes stay inside the months they need, on a store with 88 of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from cuo_checkpoint import PostgresCheckpointer, migrate
from cuo_checkpoint.db import Call
from cuo_checkpoint.local import LocalServer

log = logging.getLogger(__name__)

MONTHS = 88
PARENTS = ("cuo_langgraph_checkpoints", "cuo_langgraph_writes", "cuo_memory_audit")
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
LOCKS = """
    SELECT count(*),
           count(DISTINCT i.inhrelid) FILTER (WHERE i.inhparent = 'cuo_langgraph_checkpoints'::regclass),
           count(DISTINCT i.inhrelid) FILTER (WHERE i.inhparent = 'cuo_langgraph_writes'::regclass),
           count(DISTINCT i.inhrelid) FILTER (WHERE i.inhparent = 'cuo_memory_audit'::regclass)
    FROM pg_locks l LEFT JOIN pg_inherits i ON i.inhrelid = l.relation
    WHERE l.pid = pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Locks:
    """What one call locked: everything, and how many months of each table."""

    total: int
    log: int
    writes: int
    audit: int


@dataclass(frozen=True, slots=True)
class Aged:
    """A store 88 months old with a thread that lived through all of them."""

    server: LocalServer
    store: PostgresCheckpointer
    tenant: str
    ids: list[str]
    """The thread's checkpoints, one a month, oldest first."""

    @property
    def admin(self) -> str:
        return self.server.dsn("postgres")

    def where(self, checkpoint_id: str | None = None, thread: str = "old") -> Any:
        values = {"thread_id": thread, "checkpoint_ns": ""}
        if checkpoint_id is not None:
            values["checkpoint_id"] = checkpoint_id
        return {"configurable": values}

    def run(self, conn: psycopg.Connection[Any], plan: Any) -> Any:
        """Drives one of the store's plans on a connection in a transaction, and keeps its locks."""
        try:
            call = next(plan)
            while True:
                assert isinstance(call, Call)
                rows = conn.execute(call.query, call.params, prepare=False).fetchall()
                call = plan.send(rows)
        except StopIteration as stop:
            return stop.value

    def locks(self, plan: Any) -> Locks:
        with psycopg.connect(self.server.app_dsn) as conn:
            self.run(conn, plan)
            row = conn.execute(LOCKS).fetchone()
        assert row is not None
        return Locks(*row)


def month(back: int) -> dt.datetime:
    """Noon on the 15th of the month `back` months ago."""
    now = dt.datetime.now(dt.UTC)
    years, index = divmod(now.year * 12 + now.month - 1 - back, 12)
    return dt.datetime(years, index + 1, 15, 12, tzinfo=dt.UTC)


def id_at(at: dt.datetime) -> str:
    """An id as LangGraph makes them (UUID version 6), made at `at`."""
    ticks = int((at - dt.datetime(1582, 10, 15, tzinfo=dt.UTC)).total_seconds()) * 10_000_000
    high, mid, low = ticks >> 28, (ticks >> 12) & 0xFFFF, ticks & 0xFFF
    tail = uuid.uuid4().hex
    return f"{high:08x}-{mid:04x}-6{low:03x}-8{tail[:3]}-{tail[3:15]}"


def checkpoint(checkpoint_id: str, value: Any) -> Any:
    made = empty_checkpoint()
    made["id"] = checkpoint_id
    made["channel_values"] = {"a": value}
    made["channel_versions"] = {"a": 1}
    return made


def put(store: PostgresCheckpointer, config: Any, checkpoint_id: str, value: Any = 0) -> Any:
    return store.put(config, checkpoint(checkpoint_id, value), {"source": "loop", "step": 1}, {})


def move(admin: str, thread: str, checkpoint_id: str, at: dt.datetime) -> None:
    """Makes a checkpoint and its writes as old as if they had been written then."""
    with psycopg.connect(admin) as conn:
        conn.execute("SET session_replication_role = replica")
        for table in PARENTS[:2]:
            conn.execute(
                f"UPDATE {table} SET created_at = %s WHERE thread_id = %s AND lg_checkpoint_id = %s",
                (at, thread, checkpoint_id),
            )
        conn.execute(
            "UPDATE cuo_threads SET first_at = least(first_at, %s) WHERE thread_id = %s",
            (at, thread),
        )


@pytest.fixture(scope="module")
def aged() -> Iterator[Aged]:
    """Its own server with PostgreSQL's default of 64 locks a transaction, which is what counts."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuo-months-")))
        folder.chmod(0o711)
        server = stack.enter_context(
            LocalServer(
                folder / "data",
                bin_dir=DEBIAN_15 if os.environ.get("CUO_TEST_PG") == "15" else None,
                settings={"fsync": "off", "max_locks_per_transaction": "64"},
            )
        )
        migrate.upgrade(server.owner_dsn)
        with psycopg.connect(server.owner_dsn, autocommit=True) as conn:
            for back in range(1, MONTHS):
                first, after = month(back).replace(day=1), month(back - 1).replace(day=1)
                for parent in PARENTS:
                    conn.execute(
                        f"CREATE TABLE {parent}_{first:%Y_%m} PARTITION OF {parent}"
                        f" FOR VALUES FROM ('{first:%Y-%m-01} 00:00Z') TO ('{after:%Y-%m-01} 00:00Z')"
                    )
                    conn.execute(
                        f"SELECT cuo_protect('{parent}_{first:%Y_%m}'::regclass, true, true)"
                    )
        tenant = str(uuid.uuid4())
        store = stack.enter_context(PostgresCheckpointer(server.app_dsn, tenant_id=tenant))
        config: Any = {"configurable": {"thread_id": "old", "checkpoint_ns": ""}}
        ids = [id_at(month(back)) for back in reversed(range(1, MONTHS))] + [
            id_at(dt.datetime.now(dt.UTC))
        ]
        for index, name in enumerate(ids):
            config = put(store, config, name, index)
            store.put_writes(config, [("a", index)], str(uuid.uuid4()))
        for back, name in zip(reversed(range(1, MONTHS)), ids, strict=False):
            move(server.dsn("postgres"), "old", name, month(back))
        yield Aged(server, store, tenant, ids)


CALLS: dict[str, tuple[Callable[[Aged], Any], int]] = {
    # name: the call, and how many months of the log it may touch
    "put": (
        lambda a: a.store.plans.put(
            a.where(a.ids[-1]),
            checkpoint(id_at(dt.datetime.now(dt.UTC)), 1),
            {"source": "loop"},
            {},
        ),
        1,
    ),
    "put_writes": (
        lambda a: a.store.plans.put_writes(a.where(a.ids[-1]), [("a", 1)], str(uuid.uuid4()), ""),
        1,
    ),
    "get newest": (lambda a: a.store.plans.get_tuple(a.where()), 1),
    "get newest by id": (lambda a: a.store.plans.get_tuple(a.where(a.ids[-1])), 2),
    "get oldest by id": (lambda a: a.store.plans.get_tuple(a.where(a.ids[0])), 2),
    "list newest": (lambda a: a.store.plans.list_page(a.where(), None, None, 1, None), 3),
    "list one by id": (
        lambda a: a.store.plans.list_page(a.where(a.ids[5]), None, None, None, None),
        2,
    ),
    "list before an old one": (
        lambda a: a.store.plans.list_page(a.where(), None, a.where(a.ids[3]), 1, None),
        4,
    ),
    "list all threads": (lambda a: a.store.plans.list_page(None, None, None, 1, None), 3),
}


@pytest.mark.criterion("102-AC16")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_touches_the_months_it_needs(aged: Aged, name: str) -> None:
    """Of 88 months a call locks those that can hold what it asks for."""
    call, months = CALLS[name]
    found = aged.locks(call(aged))
    log.info("%s: %s", name, found)
    # A checkpoint that is not the newest is looked for from a day before its id's time, a list ends a day
    # after the newest row: on the first and the last day of a month that is one month more.
    today, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    first, last = (today - day).month != today.month, (today + day).month != today.month
    slack = (name == "put_writes" and first) or (name.startswith("list") and last)
    assert found.log <= months + slack, found
    assert found.audit <= 1
    # An old checkpoint's writes may have come in any month since; nothing else looks that far.
    reads_an_old_one = name in ("get oldest by id", "list one by id", "list before an old one")
    assert reads_an_old_one or found.writes <= 2
    assert reads_an_old_one or found.total < 64


def test_the_first_writes_of_an_old_checkpoint_win(aged: Aged) -> None:
    """A repeated task is found where its checkpoint is, however long ago that was."""
    old = aged.ids[20]
    found = aged.store.get_tuple(aged.where(old))
    assert found is not None
    assert found.pending_writes is not None
    task = found.pending_writes[0][0]
    aged.store.put_writes(aged.where(old), [("a", "changed")], task)
    again = aged.store.get_tuple(aged.where(old))
    assert again is not None
    assert again.pending_writes == found.pending_writes


def test_writes_of_an_old_checkpoint_may_be_anywhere_since(aged: Aged) -> None:
    """A late write is found: an old checkpoint's writes are looked for up to the newest write."""
    late = aged.ids[10]
    aged.store.put_writes(aged.where(late), [("__resume__", "late")], "~ after every UUID")
    found = aged.store.get_tuple(aged.where(late))
    assert found is not None
    assert [w[2] for w in found.pending_writes or []] == [10, "late"]


@pytest.mark.criterion("102-AC19")
def test_sixty_four_sessions_at_the_default_lock_limit(aged: Aged) -> None:
    """64 open transactions that each made every hot call do not exhaust the lock table."""
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(psycopg.connect(aged.server.app_dsn)).execute(
            "SHOW max_locks_per_transaction"
        )
        assert shown.fetchone() == ("64",)
        for index in range(64):
            conn = stack.enter_context(psycopg.connect(aged.server.app_dsn))
            mine = f"session {index}"
            own = id_at(dt.datetime.now(dt.UTC))
            plans = aged.store.plans
            aged.run(conn, plans.put(aged.where(thread=mine), checkpoint(own, 1), {"step": 0}, {}))
            aged.run(
                conn, plans.put_writes(aged.where(own, mine), [("a", 1)], str(uuid.uuid4()), "")
            )
            aged.run(conn, plans.get_tuple(aged.where()))
            aged.run(conn, plans.get_tuple(aged.where(own, mine)))
            aged.run(conn, plans.list_page(aged.where(), None, None, 10, None))


def test_every_checkpoint_is_found_by_id(aged: Aged) -> None:
    """The time in an id is a hint only: each of 88 checkpoints is found, an unknown one is not."""
    for index, name in enumerate(aged.ids):
        found = aged.store.get_tuple(aged.where(name))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": index}
    assert aged.store.get_tuple(aged.where(id_at(month(40)))) is None
    assert aged.store.get_tuple(aged.where("no such id")) is None


@pytest.mark.parametrize("limit", [1, 7, None])
def test_listing_pages_through_all_months(aged: Aged, limit: int | None) -> None:
    """Pages of any size add up to the whole history, newest first."""
    found: list[str] = []
    after = None
    while True:
        with psycopg.connect(aged.server.app_dsn, autocommit=True) as conn:
            page = aged.run(
                conn, aged.store.plans.list_page(aged.where(), None, None, limit, after)
            )
        found += [t.config["configurable"]["checkpoint_id"] for t in page.tuples]
        after = page.next
        if after is None:
            break
    assert [name for name in found if name in aged.ids] == aged.ids[::-1]
    assert len(set(found)) == len(found)


def test_a_filter_that_matches_one_old_checkpoint_finds_it(aged: Aged) -> None:
    """A limited listing widens its span until it is filled or the thread's first month is read."""
    store, ids = aged.store, [id_at(month(70)), id_at(month(2))]
    for name, mark in zip(ids, ("rare", "common"), strict=True):
        store.put(
            aged.where(thread="filtered"), checkpoint(name, 1), {"source": "loop", "mark": mark}, {}
        )
    move(aged.admin, "filtered", ids[0], month(70))
    found = list(store.list(aged.where(thread="filtered"), filter={"mark": "rare"}, limit=5))
    assert [t.config["configurable"]["checkpoint_id"] for t in found] == ids[:1]


def test_order_of_arrival_holds_across_midnight_on_the_first(aged: Aged) -> None:
    """A row stamped before midnight but numbered after the next month's first keeps its place."""
    store = aged.store
    ids = [id_at(month(3)), id_at(month(3)), id_at(month(2)), id_at(month(2))]
    config = aged.where(thread="midnight")
    for name in ids:
        config = put(store, config, name)
    edge = month(2).replace(day=1, hour=0)
    second = dt.timedelta(seconds=1)
    admin = aged.admin
    # The third was numbered before the second's successor but began in the month before it.
    for name, at in zip(
        ids, (edge - 9 * second, edge + second, edge - second, edge + 2 * second), strict=True
    ):
        move(admin, "midnight", name, at)
    found: list[str] = []
    after = None
    while True:
        with psycopg.connect(aged.server.app_dsn, autocommit=True) as conn:
            page = aged.run(
                conn, store.plans.list_page(aged.where(thread="midnight"), None, None, 1, after)
            )
        found += [t.config["configurable"]["checkpoint_id"] for t in page.tuples]
        after = page.next
        if after is None:
            break
    assert found == ids[::-1]


def test_a_copied_checkpoint_is_found_though_its_id_names_another_month(aged: Aged) -> None:
    """copy_thread keeps LangGraph's ids, so their time says nothing about the copy."""
    store = aged.store
    name = id_at(month(30))
    put(store, aged.where(thread="source"), name, "copied")
    store.copy_thread("source", "target")
    found = store.get_tuple(aged.where(name, "target"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": "copied"}
