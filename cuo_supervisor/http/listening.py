"""The server's side of a connection: who connects must say what for, take the answer, and in time."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_SECONDS", "TAKE_SECONDS", "Impatient"]

HEAD_SECONDS: Final = 15.0
TAKE_SECONDS: Final = 30.0


class Impatient(H11Protocol):
    """Hangs up on whoever keeps a connection without use.

    The server waits without end for a request's head, for the rest of a body that was answered
    before it had come, and for an answer to be taken. A connection costs its sender nothing, and
    enough of them would take every descriptor, or all memory with answers that nobody reads.
    A body that is still wanted has its own limit, in the guard.
    """

    seconds = HEAD_SECONDS
    take_seconds = TAKE_SECONDS
    _owed: Literal["head", "rest"] | None = None
    _late: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        super().resume_writing()

    def _watch(self) -> None:
        """Starts the time when something begins to be owed; what comes in bits does not renew it."""
        owed = self._owes()
        if owed == self._owed:
            return
        self._owed = owed
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self.seconds, self._hang_up) if owed else None

    def _owes(self) -> Literal["head", "rest"] | None:
        if self.conn.their_state is h11.IDLE:
            return "head"
        answered = self.conn.our_state is h11.DONE
        return "rest" if answered and self.conn.their_state is h11.SEND_BODY else None

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _look_again(self, held: int) -> None:
        self._taking = self.loop.call_later(self.take_seconds, self._untaken, held)

    def _untaken(self, held: int) -> None:
        """Ends a connection whose reader took nothing; closing it would wait for the reader."""
        left = self.transport.get_write_buffer_size()
        if left < held:
            self._look_again(left)
        else:
            self.transport.abort()
