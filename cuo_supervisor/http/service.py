"""What the routes share: the supervisor, the readers and their threads, who is asking.

The store's read side blocks, so it runs in threads of its own: few, so that the database is not
flooded, with a bounded queue, so that a flood is turned away and not piled up.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from cuo_checkpoint.event_pages import RunHead, read_head, stream_rows
from cuo_checkpoint.ids import run_id_from_ulid
from cuo_checkpoint.runs import RunReader
from cuo_supervisor.compose import Place, make_supervisor
from cuo_supervisor.core.scrub import scrub
from cuo_supervisor.errors import IdentityRejected
from cuo_supervisor.http.options import Options
from cuo_supervisor.http.problems import Problem, run_unknown
from cuo_supervisor.http.sessions import Session, Sessions
from cuo_supervisor.identity import (
    LOCAL_IDENTITY,
    LOCAL_TENANT_ID,
    ROLE_AGENT_PERSONA,
    ROLE_APPROVER,
    Identity,
    TokenVerifier,
)
from cuo_supervisor.settings import Settings
from cuo_supervisor.supervisor import Supervisor

__all__ = ["Service", "run_uuid"]

T = TypeVar("T")

ACCEPTED_ROLES: Final = frozenset({ROLE_AGENT_PERSONA, ROLE_APPROVER})

_SEGMENT_SECONDS: Final = 20.0
"""How long one transaction of a stream may last before the stream goes on in a new one."""

_STREAM_ENDS_SECONDS: Final = 3.0
"""How long a stream that is cut at the end of the process may take to give back its connection."""

_DONE: Final = object()


class Service:
    """One process's service. Made before the event loop runs; closed by `aclose`."""

    def __init__(
        self,
        settings: Settings,
        place: Place,
        options: Options,
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.settings = settings
        self.options = options
        self.local = settings.mode == "local"
        self.supervisor = supervisor or make_supervisor(
            settings, place, max_connections=options.connections
        )
        self.sessions = Sessions()
        self._reader = RunReader(
            place.conninfo,
            tenant_id=LOCAL_TENANT_ID,  # replaced per request; nobody's but the local operator's
            schema=place.schema,
            connections=options.readers + options.streams,
            scrub=scrub,
        )
        self._threads = ThreadPoolExecutor(options.readers, thread_name_prefix="cuo-read")
        self._stream_threads = ThreadPoolExecutor(options.streams, thread_name_prefix="cuo-stream")
        self._key_threads = ThreadPoolExecutor(2, thread_name_prefix="cuo-keys")
        self._waiting = 0
        self._streams: list[asyncio.Task[Any] | None] = []
        self._runs: set[asyncio.Task[Any]] = set()
        self._ends: float | None = None
        self._stopped = False
        self._verifier = (
            None
            if self.local
            else TokenVerifier(
                jwks=settings.jwks or "",
                issuer=settings.jwt_issuer or "",
                audience=settings.jwt_audience or "",
            )
        )
        # Forms need a key in local mode too, though nobody logs in there.
        self._local_session = Session(LOCAL_IDENTITY, secrets.token_bytes(32), float("inf"), 0.0)

    # -- who asks ------------------------------------------------------------------------------

    async def identity_of_token(self, token: str) -> Identity:
        """Whom a bearer token proves; the local operator in local mode. Raises IdentityRejected."""
        if self._verifier is None:
            return LOCAL_IDENTITY
        verify = self._verifier.verify
        loop = asyncio.get_running_loop()
        # In a thread: keys that are not known yet are fetched.
        return await loop.run_in_executor(
            self._key_threads, lambda: verify(token, accept=ACCEPTED_ROLES)
        )

    def session_of(self, cookie: str | None) -> Session | None:
        """The browser's session; in local mode there is always the operator's."""
        return self._local_session if self.local else self.sessions.find(cookie)

    async def log_in(self, token: str) -> tuple[str, int]:
        """A session for a token that holds: the cookie's value and its seconds.

        Raises IdentityRejected.
        """
        import jwt

        identity = await self.identity_of_token(token)
        claims = jwt.decode(token, options={"verify_signature": False})
        expires = float(claims["exp"])
        if expires <= time.time():
            raise IdentityRejected("expired", "the token has expired; obtain a new one")
        return self.sessions.start(identity, token_expires=expires)

    # -- reading -------------------------------------------------------------------------------

    async def read(self, identity: Identity, call: Callable[[RunReader], T]) -> T:
        """Runs one read as the caller's tenant, in a thread, within the time limit.

        Raises Problem 503 when too many reads wait, TimeoutError when this one takes too long
        (the thread finishes it, and only then takes another).
        """
        if self._waiting >= self.options.queue:
            raise _overloaded("reads")
        reader = self._reader.for_tenant(identity.tenant_id)
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, call, reader)
        future.add_done_callback(self._one_less)
        async with asyncio.timeout(self.options.request_seconds):
            return await asyncio.shield(future)

    def _one_less(self, future: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # looked at, though the request may be gone

    async def head(self, identity: Identity, run_id: uuid.UUID) -> RunHead:
        """The run's entry in the index. Raises Problem 404."""
        found = await self.read(
            identity, lambda reader: read_head(reader.engine, reader.tenant_id, run_id)
        )
        if found is None:
            raise run_unknown()
        return found

    async def stream(
        self, identity: Identity, run_id: uuid.UUID, after: dict[str, int], kinds: Any
    ) -> AsyncGenerator[bytes]:
        """A run's rows as NDJSON, in few rows' memory whatever the run's length.

        A reader that is slow does not hold one transaction for long: after some seconds the
        stream goes on in a new one, behind the last row sent.
        """
        if len(self._streams) >= self.options.streams:
            raise _overloaded("streams")
        mine = asyncio.current_task()
        self._streams.append(mine)
        loop = asyncio.get_running_loop()
        reader = self._reader.for_tenant(identity.tenant_id)

        def advance(rows: Iterator[Any]) -> Any:
            return next(rows, _DONE)

        try:
            whole = False
            while not whole:
                rows = stream_rows(
                    reader.engine, reader.tenant_id, run_id, after=dict(after), kinds=kinds
                )
                until = time.monotonic() + _SEGMENT_SECONDS
                try:
                    while time.monotonic() < until:
                        chunk = await loop.run_in_executor(self._stream_threads, advance, rows)
                        if chunk is _DONE:
                            whole = True
                            break
                        after.update(chunk.places)
                        yield b"\n".join(chunk.rows) + b"\n"
                finally:
                    await asyncio.shield(loop.run_in_executor(self._stream_threads, rows.close))
        finally:
            self._streams.remove(mine)

    # -- running -------------------------------------------------------------------------------

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carries a run to its end, whether or not the caller stays to hear of it.

        Raises TimeoutError when it takes longer than a request may; the run goes on. Raises
        Problem 503 when the process ends first: the run stands in the log up to its last step.
        """
        if self._stopped:
            work.close()
            raise _stopping("the service is stopping; nothing was begun")
        task = asyncio.get_running_loop().create_task(work)
        self._runs.add(task)
        task.add_done_callback(self._ran)
        try:
            async with asyncio.timeout(self.options.route_seconds):
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if not task.cancelled() or (asking is not None and asking.cancelling()):
                raise
            raise _stopping(
                "the service stopped before the run had ended; it stands in the log up to its last"
                " step, and cyberos-cuo supervisor continue goes on with it"
            ) from None

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._runs.discard(task)
        if not task.cancelled():
            task.exception()

    def stop(self) -> None:
        """From now on runs in flight have `shutdown_seconds` to end; called in the event loop."""
        if self._ends is None:
            loop = asyncio.get_running_loop()
            self._ends = loop.time() + self.options.shutdown_seconds
            loop.call_at(self._ends, self._cancel_late)

    def _cancel_late(self) -> None:
        self._stopped = True
        for task in self._runs:
            task.cancel()

    async def aclose(self) -> None:
        """Lets runs in flight end, cancels those that do not in time, closes what was opened.

        The time counts from `stop`, if that was called. A cancelled run stands in the log up to
        its last step and can be continued.
        """
        self.stop()
        if self._runs and self._ends is not None:
            left = self._ends - asyncio.get_running_loop().time()
            await asyncio.wait(self._runs, timeout=max(0.0, left))
        late = list(self._runs)
        self._cancel_late()
        await asyncio.gather(*late, return_exceptions=True)
        # Before their threads go: a stream that is cut gives back its connection in one of them.
        streams = [task for task in self._streams if task is not None]
        for task in streams:
            task.cancel()
        if streams:
            await asyncio.wait(streams, timeout=_STREAM_ENDS_SECONDS)
        await self.supervisor.aclose_loop()
        for pool in (self._threads, self._stream_threads, self._key_threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._reader.close()


def run_uuid(text: str) -> uuid.UUID:
    """A run named by UUID or ULID. Anything else names no run: the same answer as for an unknown."""
    from cuo_checkpoint.errors import InvalidIdentifier

    try:
        return run_id_from_ulid(text)
    except InvalidIdentifier:
        raise run_unknown() from None


def _overloaded(what: str) -> Problem:
    return Problem(
        503, "overloaded", f"too many {what} at once; try again", headers={"Retry-After": "1"}
    )


def _stopping(detail: str) -> Problem:
    return Problem(503, "stopping", detail, headers={"Retry-After": "5"})
