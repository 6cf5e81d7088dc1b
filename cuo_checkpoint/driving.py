"""What drives a saver's plans: its two pools, its life, and what it hears of a graph's end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self, TypeVar

from cuo_checkpoint.db import AsyncDriver, Plan, SyncDriver
from cuo_checkpoint.errors import CheckpointError, WrongColour
from cuo_checkpoint.plans import Plans
from cuo_checkpoint.telemetry import watch

__all__ = ["Driven"]

T = TypeVar("T")


class Driven:
    """Runs plans, blocking or awaiting, and opens and closes what they run on."""

    plans: Plans
    _sync: SyncDriver
    _async: AsyncDriver

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes the blocking pool. Pools given to the constructor are the giver's to close."""
        self._sync.close()

    async def aclose(self) -> None:
        """Closes this loop's pool, and the blocking one."""
        await self._async.close()
        self._sync.close()

    def run_plan(self, plan: Plan[T], twin: str) -> T:
        """Drives a plan here; `twin` is the method to name when this is the wrong colour."""
        try:
            self._refuse_in_loop(twin)
        except WrongColour:
            plan.close()
            raise
        with watch(plan) as call:
            return self._sync.run(call.over(plan), self.plans.statements.ensure_partitions)

    async def arun_plan(self, plan: Plan[T]) -> T:
        """Drives a plan on this loop's pool."""
        with watch(plan) as call:
            return await self._async.run(call.over(plan), self.plans.statements.ensure_partitions)

    def on_graph_end(self, thread_id: str, error: BaseException | None) -> None:
        """Told by LangChain's callbacks how a graph's run on this thread ended; see `callback`.

        Works on a thread of its own, because it may be told inside an event loop, and gives up
        after two seconds: a store that cannot be reached must not hold up the caller's error.
        """
        if isinstance(error, CheckpointError):
            return  # the store's own refusal: the run stopped where it was
        for live in self.plans.runs.of_thread(thread_id):
            plan = self.plans.run_ended(live, error)
            worker = threading.Thread(target=self._quietly, args=(plan,), daemon=True)
            worker.start()
            worker.join(timeout=2.0)

    def _quietly(self, plan: Plan[None]) -> None:
        with contextlib.suppress(CheckpointError), watch(plan) as call:
            self._sync.run(call.over(plan), self.plans.statements.ensure_partitions)

    def _refuse_in_loop(self, twin: str) -> None:
        """Raises WrongColour when the caller's thread runs an event loop, which would stand still."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise WrongColour(f"called inside a running event loop: await {twin}() instead")
