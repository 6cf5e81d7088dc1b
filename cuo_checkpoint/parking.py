"""Calls of one run that are not over yet, and which of them waits for which. No I/O."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future

from cuo_checkpoint.records import Event, WriteSet

__all__ = ["CallsUnderWay", "Parked"]


class Parked:
    """Writes that wait for a put to carry them. `future` ends when they are durable, or failed."""

    __slots__ = ("future", "writes")

    def __init__(self, writes: WriteSet) -> None:
        self.writes = writes
        self.future: Future[None] = Future()

    def settle(self, error: BaseException | None) -> None:
        """Tells the waiting call how the carrying put went."""
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class CallsUnderWay:
    """LangGraph's calls on a saver race; rows that hang under others wait for them here.

    `lock` also guards what a subclass keeps of the run.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.in_flight: dict[str, dict[int, Future[None]]] = {}
        self.parked: dict[str, list[Parked]] = {}
        self.unstored: dict[uuid.UUID, Future[None]] = {}

    def under_way(self, ns: str, writes: WriteSet) -> None:
        """Notes writes that are being stored; their superstep's put waits for them."""
        self.in_flight.setdefault(ns, {})[id(writes)] = Future()

    def landed(self, ns: str, writes: WriteSet) -> None:
        """Notes that they are stored, or failed."""
        with self.lock:
            done = self.in_flight.get(ns, {}).pop(id(writes), None)
        if done is not None:
            done.set_result(None)

    def storing(self, events: Sequence[Event]) -> tuple[Future[None], list[Future[None]]]:
        """Notes rows about to be stored; returns what `stored` will end, and what to await first.

        A subgraph's first row hangs under a row of the outer graph, which another call stores; only
        under durability "sync" is that one always there first. Call it holding the lock.
        """
        first = [self.unstored[e.parent] for e in events if e.parent in self.unstored]
        done: Future[None] = Future()
        self.unstored.update((event.id, done) for event in events)
        return done, first

    def stored(self, events: Sequence[Event], done: Future[None]) -> None:
        """Notes that they are stored, or failed."""
        with self.lock:
            for event in events:
                self.unstored.pop(event.id, None)
        done.set_result(None)

    def park(self, ns: str, writes: WriteSet) -> Parked:
        """Leaves writes for the next put of their namespace."""
        parked = Parked(writes)
        with self.lock:
            self.parked.setdefault(ns, []).append(parked)
        return parked

    def unpark(self, ns: str, parked: Parked) -> bool:
        """Takes them back to store them alone; False when a put has taken them."""
        with self.lock:
            waiting = self.parked.get(ns, [])
            if parked not in waiting:
                return False
            waiting.remove(parked)
            self.under_way(ns, parked.writes)
            return True

    def take_parked(self, ns: str) -> list[Parked]:
        """All that wait in a namespace. Call it holding the lock."""
        return self.parked.pop(ns, [])
