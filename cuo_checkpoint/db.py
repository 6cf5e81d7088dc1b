"""Connections: pools for sync and async use, one round trip per call, errors translated once.

A store method is written once, as a generator that yields `Call`s and receives their rows; the
two drivers here run it, one blocking, one awaiting. Each call is one statement and one transaction
(connections are in autocommit; of a pool that is not, the pool commits), and the functions it names
set the tenant for that transaction only. Nothing is set on a session, so a transaction pooler may
sit between; results come in binary, which no session's DateStyle or bytea_output changes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from cuo_checkpoint import errors
from cuo_checkpoint._sql import ROLE
from cuo_checkpoint.looping import refuse_proactor, settled
from cuo_checkpoint.translating import (
    admitted,
    is_connection_loss,
    is_missing_month,
    translated,
    unreachable,
    without_conninfo,
)

__all__ = ["AsyncDriver", "Call", "Plan", "SyncDriver", "Wait"]

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Call:
    """One statement. `retried_params` replace `params` when an earlier try may have committed.

    `more` repeats it with further parameters in the same transaction; the rows are the last one's.
    A repeated try of those must find its own rows by itself.
    """

    query: bytes
    params: Sequence[Any]
    retried_params: Sequence[Any] | None = None
    more: Sequence[Sequence[Any]] = ()
    known: Rows | None = None
    """The rows, where they are known without asking."""
    about: Any = None
    """What telemetry may count once this is committed; see `telemetry.Watch`."""


@dataclass(slots=True)
class Wait:
    """Not a statement: waits until the futures are done, or `seconds` have passed."""

    futures: Sequence[Future[None]]
    seconds: float


Plan = Generator[Call | Wait, Rows, T]

_RETRY_DELAYS: Final = (0.0, 0.1, 0.3, 0.8, 1.5)
"""Seconds before each repeat after a lost connection: about three seconds in all, enough for a
fail-over of the pool's connections, short enough that a run stops rather than hangs."""

_POOL_WAIT: Final = 30.0
"""Seconds a call waits for a connection, longer than a server takes to restart. Waited once."""

_FIRST_WAIT: Final = 10.0
"""Seconds the first connection may take: a server that is not there should be said so soon."""


def _is_transient(error: psycopg.Error) -> bool:
    return isinstance(error, (pg.SerializationFailure, pg.DeadlockDetected))


class _Attempts:
    """Decides, for both drivers, what to do after a failed try. Holds no connection."""

    def __init__(self) -> None:
        self.lost = 0
        self.months = False
        self.transient = 0

    def next_delay(self, error: BaseException) -> float | None:
        """Seconds to wait before the repeat; None when the error stands."""
        if isinstance(error, PoolTimeout):
            return None
        if is_connection_loss(error):
            if self.lost >= len(_RETRY_DELAYS):
                return None
            self.lost += 1
            return _RETRY_DELAYS[self.lost - 1]
        if isinstance(error, psycopg.Error) and _is_transient(error) and self.transient < 5:
            self.transient += 1
            return 0.01 * self.transient
        return None


class SyncDriver:
    """Runs plans on a blocking pool, opened on first use and again after a fork."""

    def __init__(
        self,
        conninfo: str,
        pool: ConnectionPool[Any] | None,
        *,
        max_size: int,
        connect_args: dict[str, Any],
    ) -> None:
        self._conninfo = conninfo
        self._given = pool
        self._max_size = max_size
        self._connect_args = connect_args
        self._pool: ConnectionPool[Any] | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._admitted = False

    def pool(self) -> ConnectionPool[Any]:
        if self._given is not None:
            return self._given
        if self._pid != os.getpid():
            # A pool inherited over fork shares its sockets with the parent, and the lock may have
            # been held by a thread that does not exist here: leave both alone.
            self._pid, self._pool, self._lock = os.getpid(), None, threading.Lock()
        with self._lock:
            if self._pool is None:
                pool = ConnectionPool(
                    self._conninfo,
                    min_size=1,
                    max_size=self._max_size,
                    open=False,
                    timeout=_POOL_WAIT,
                    kwargs=self._connect_args,
                    name="cuo-sync",
                )
                try:
                    pool.open(wait=True, timeout=_FIRST_WAIT)
                except PoolTimeout:
                    pool.close()
                    raise unreachable(self._conninfo, self._connect_args) from None
                except BaseException:
                    pool.close()
                    raise
                self._pool = pool
            return self._pool

    def run(self, plan: Plan[T], months: bytes) -> T:
        """Drives a plan to its result. Raises our errors only."""
        try:
            call = next(plan)
            while True:
                if isinstance(call, Wait):
                    wait_for_futures(call.futures, timeout=call.seconds)
                    if not call.futures:
                        time.sleep(call.seconds)
                    call = plan.send([])
                    continue
                try:
                    rows = call.known or self._execute(call, months)
                except errors.CheckpointError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            # A cancelled call never resumes its plan: what the plan holds is let go here and now.
            plan.close()

    def _execute(self, call: Call, months: bytes) -> Rows:
        attempts = _Attempts()
        params = call.params
        while True:
            try:
                pool = self.pool()
                conn = pool.getconn()
                try:
                    # In autocommit there is nothing left to commit, nor to roll back.
                    if conn.autocommit:
                        return self._sent(conn, call, params)
                    with conn:
                        return self._sent(conn, call, params)
                finally:
                    pool.putconn(conn)
            except psycopg.Error as error:
                if is_missing_month(error) and not attempts.months:
                    attempts.months = True
                    self._execute(Call(months, ()), months)
                    continue
                delay = attempts.next_delay(error)
                if delay is None:
                    raise translated(error) from without_conninfo(error)
                if is_connection_loss(error):
                    params = call.retried_params or call.params
                    self._weed()
                time.sleep(delay)

    def _sent(self, conn: psycopg.Connection[Any], call: Call, params: Sequence[Any]) -> Rows:
        cursor = conn.cursor(row_factory=tuple_row)
        if not self._admitted:
            found = cursor.execute(ROLE, prepare=False, binary=True).fetchone()
            self._admitted = admitted(found, conn.info.encoding)
        if not call.more:
            cursor.execute(call.query, params, prepare=False, binary=True)
            return cursor.fetchall()
        with conn.transaction():
            for each in (params, *call.more):
                cursor.execute(call.query, each, prepare=False, binary=True)
                rows = cursor.fetchall()
        return rows

    def pools(self) -> list[ConnectionPool[Any]]:
        """The pool in use, if one is; opens none."""
        pool = self._given or self._pool
        return [pool] if pool is not None and self._pid == os.getpid() else []

    def _weed(self) -> None:
        """Drops dead idle connections, so that the repeat does not draw another one."""
        try:
            self.pool().check()
        except (psycopg.Error, errors.StoreUnavailable):
            return

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()


class AsyncDriver:
    """Runs plans on awaiting pools, one per event loop."""

    def __init__(
        self,
        conninfo: str,
        pool: AsyncConnectionPool[Any] | None,
        *,
        max_size: int,
        connect_args: dict[str, Any],
    ) -> None:
        self._conninfo = conninfo
        self._given = pool
        self._max_size = max_size
        self._connect_args = connect_args
        self._pools: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Task[AsyncConnectionPool[Any]]
        ] = weakref.WeakKeyDictionary()
        self._pid = os.getpid()
        self._admitted = False

    async def pool(self) -> AsyncConnectionPool[Any]:
        if self._given is not None:
            return self._given
        if self._pid != os.getpid():
            self._pools = weakref.WeakKeyDictionary()
            self._pid = os.getpid()
        loop = asyncio.get_running_loop()
        opening = self._pools.get(loop)
        if opening is None:
            refuse_proactor(loop)
            opening = self._pools[loop] = loop.create_task(self._opened())
        try:
            if opening.done():
                return opening.result()
            # One caller's cancellation must not close what the others wait for.
            return await asyncio.shield(opening)
        except (psycopg.Error, errors.StoreUnavailable):
            if self._pools.get(loop) is opening:
                del self._pools[loop]
            raise

    def pools(self) -> list[AsyncConnectionPool[Any]]:
        """The pools in use, of all loops; opens none. From any thread."""
        if self._given is not None:
            return [self._given]
        if self._pid != os.getpid():
            return []
        done = [task for task in self._pools.copy().values() if task.done()]
        return [t.result() for t in done if not t.cancelled() and t.exception() is None]

    async def _opened(self) -> AsyncConnectionPool[Any]:
        pool = AsyncConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=self._max_size,
            open=False,
            timeout=_POOL_WAIT,
            kwargs=self._connect_args,
            name="cuo-async",
        )
        try:
            await pool.open(wait=True, timeout=_FIRST_WAIT)
        except PoolTimeout:
            await pool.close()
            found = await asyncio.to_thread(unreachable, self._conninfo, self._connect_args)
            raise found from None
        except BaseException:
            await pool.close()
            raise
        return pool

    async def run(self, plan: Plan[T], months: bytes) -> T:
        """Drives a plan to its result. Raises our errors only; cancellation leaves nothing behind."""
        try:
            call = next(plan)
            while True:
                if isinstance(call, Wait):
                    if call.futures:
                        await settled(call.futures, call.seconds)
                    else:
                        await asyncio.sleep(call.seconds)
                    call = plan.send([])
                    continue
                try:
                    rows = call.known or await self._execute(call, months)
                except errors.CheckpointError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            # A cancelled call never resumes its plan: what the plan holds is let go here and now.
            plan.close()

    async def _execute(self, call: Call, months: bytes) -> Rows:
        attempts = _Attempts()
        params = call.params
        while True:
            try:
                pool = await self.pool()
                conn = await pool.getconn()
                try:
                    if conn.autocommit:
                        return await self._asent(conn, call, params)
                    async with conn:
                        return await self._asent(conn, call, params)
                finally:
                    await pool.putconn(conn)
            except psycopg.Error as error:
                if is_missing_month(error) and not attempts.months:
                    attempts.months = True
                    await self._execute(Call(months, ()), months)
                    continue
                delay = attempts.next_delay(error)
                if delay is None:
                    raise translated(error) from without_conninfo(error)
                if is_connection_loss(error):
                    params = call.retried_params or call.params
                    await self._weed()
                await asyncio.sleep(delay)

    async def _asent(
        self, conn: psycopg.AsyncConnection[Any], call: Call, params: Sequence[Any]
    ) -> Rows:
        cursor = conn.cursor(row_factory=tuple_row)
        if not self._admitted:
            await cursor.execute(ROLE, prepare=False, binary=True)
            self._admitted = admitted(await cursor.fetchone(), conn.info.encoding)
        if not call.more:
            await cursor.execute(call.query, params, prepare=False, binary=True)
            return await cursor.fetchall()
        async with conn.transaction():
            for each in (params, *call.more):
                await cursor.execute(call.query, each, prepare=False, binary=True)
                rows = await cursor.fetchall()
        return rows

    async def _weed(self) -> None:
        try:
            await (await self.pool()).check()
        except (psycopg.Error, errors.StoreUnavailable):
            return

    async def close(self) -> None:
        opening = self._pools.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return
        # A server that is not there is waited for by nobody any more: Ctrl-C must not take as long.
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()
