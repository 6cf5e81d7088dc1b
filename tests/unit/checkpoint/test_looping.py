"""Waiting on an event loop for what other calls, tasks or threads finish."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future

from cuo_checkpoint.looping import settled


def _futures(n: int) -> list[Future[None]]:
    return [Future() for _ in range(n)]


async def test_all_are_awaited_and_none_of_their_errors_raised() -> None:
    """It ends with the last of them, whichever way they end; one is done before."""
    first, second, third = _futures(3)
    first.set_result(None)
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, second.set_exception, ValueError("told elsewhere"))
    loop.call_later(0.03, third.set_result, None)
    await asyncio.wait_for(settled([first, second, third], 30.0), 10)
    assert third.done()


async def test_another_thread_may_settle_them() -> None:
    """The loop is woken although it sleeps."""
    futures = _futures(2)

    def settle() -> None:
        time.sleep(0.02)
        for future in futures:
            future.set_result(None)

    worker = threading.Thread(target=settle)
    worker.start()
    await asyncio.wait_for(settled(futures, 30.0), 10)
    worker.join()
    assert all(future.done() for future in futures)


async def test_the_time_ends_it() -> None:
    """What is not done by then stays undone, and may still be settled afterwards."""
    (late,) = _futures(1)
    await asyncio.wait_for(settled([late], 0.01), 10)
    assert not late.done()
    late.set_result(None)
    await asyncio.sleep(0)


async def test_a_cancelled_wait_leaves_the_future_to_others() -> None:
    """Nobody's cancellation reaches the future, and its end reaches nobody who left."""
    (future,) = _futures(1)
    task = asyncio.create_task(settled([future], 30.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not future.cancelled()
    future.set_result(None)


def test_a_closed_loop_is_no_error() -> None:
    """A future that is settled after its waiter's loop has gone troubles neither thread."""
    (future,) = _futures(1)
    asyncio.run(settled([future], 0.001))
    worker = threading.Thread(target=future.set_result, args=(None,))
    worker.start()
    worker.join()
    assert future.done()
