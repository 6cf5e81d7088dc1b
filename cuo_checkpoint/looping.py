"""What the awaiting driver needs of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from cuo_checkpoint import errors

__all__ = ["refuse_proactor", "settled"]


async def settled(futures: Sequence[Future[None]], seconds: float) -> None:
    """Until all are done or the time is over. How they ended is told where it is asked for.

    One future of this loop and one timer: `asyncio.wait` would wrap each of them and wake the loop
    through its socket, although nearly always it is this very thread that settles them.
    """
    loop = asyncio.get_running_loop()
    home = threading.get_ident()
    waiter = loop.create_future()
    left = len(futures)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not waiter.done():
            waiter.set_result(None)

    def told(_: Future[None]) -> None:
        if threading.get_ident() == home:
            count()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(count)

    def expired() -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(seconds, expired)
    try:
        for future in futures:
            future.add_done_callback(told)
        await waiter
    finally:
        timer.cancel()


def refuse_proactor(loop: asyncio.AbstractEventLoop) -> None:
    if type(loop).__name__ == "ProactorEventLoop":
        raise errors.SchemaNotReady(
            "psycopg cannot run on Windows' default event loop.",
            remedy="Use asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop), or the sync methods.",
        )
