"""The server's side of a connection: who connects must say what for, and in time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_SECONDS", "Impatient"]

HEAD_SECONDS: Final = 15.0


class Impatient(H11Protocol):
    """Hangs up on whoever has not sent a whole request head within some seconds.

    The server waits for one without end. A connection costs its sender nothing, and enough of them
    would take every descriptor. Bodies have their own limit, in the guard.
    """

    seconds = HEAD_SECONDS
    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Starts the time when a head is awaited or has begun, ends it when it has come."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._head is None:
            self._head = self.loop.call_later(self.seconds, self._late)

    def _unwatch(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._head = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
