"""`PostgresCheckpointer`: LangGraph's saver interface over the append-only log.

Every method exists twice by LangGraph's contract and once in truth: `plans` holds the work as
generators, and each pair of methods here drives one of them, blocking or awaiting.
"""

from __future__ import annotations

import copy
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from cuo_checkpoint import ids
from cuo_checkpoint.callback import watch_runs
from cuo_checkpoint.db import AsyncDriver, SyncDriver
from cuo_checkpoint.driving import Driven
from cuo_checkpoint.plans import Plans
from cuo_checkpoint.reading import Cursor, limit_of
from cuo_checkpoint.serde import Serializer
from cuo_checkpoint.telemetry import watch_pools
from cuo_checkpoint.translating import checked_conninfo

__all__ = ["PostgresCheckpointer"]


class PostgresCheckpointer(Driven, BaseCheckpointSaver[Any]):
    """A LangGraph checkpointer that appends and never changes a row.

    `conninfo_or_pool` is a libpq conninfo string or URL, a `psycopg_pool.ConnectionPool` or an
    `AsyncConnectionPool` (quicker in autocommit). Use it as `with`, as `async with`, or call
    `close()` / `aclose()`; pools open on first use. One instance serves threads, several event
    loops and forked children.

    - `tenant_id`: used where `config["configurable"]["tenant_id"]` is missing. Without either,
      every call raises TenantRequired.
    - `allowed_types`: classes (or ("module", "QualName") pairs) that may be stored and rebuilt
      beside the built-in safe ones. "any" rebuilds whatever a row names: trusted development only.
    - `strict_parent`: a put whose parent is no longer the newest raises StaleParent; otherwise
      both are kept and the fork is visible.
    - `allow_exit`: accept durability="exit", which skips steps; rows then say so.
    - `metadata_keys`: which `configurable` keys may enter a checkpoint's metadata.
    - `scrub`: applied to error messages before they enter a row; without it only types do.

    Raises the tree of `cuo_checkpoint.errors`. Sync methods inside a running event loop raise
    WrongColour at once. A value that the caller changes before `put` is called is beyond any
    saver; `put` takes its bytes before its first await.
    """

    def __init__(
        self,
        conninfo_or_pool: str | ConnectionPool[Any] | AsyncConnectionPool[Any],
        *,
        tenant_id: Any = None,
        schema: str | None = None,
        trace_id: str | None = None,
        allowed_types: Iterable[type | tuple[str, str]] | Literal["any"] = (),
        serializer: Serializer | None = None,
        strict_parent: bool = False,
        allow_exit: bool = False,
        metadata_keys: Collection[str] = ("run_id",),
        scrub: Callable[[str], str] | None = None,
        max_connections: int = 8,
        connect_args: Mapping[str, Any] | None = None,
    ) -> None:
        codec = serializer or Serializer(allowed_types=allowed_types)
        super().__init__(serde=codec)
        self.plans = Plans(
            serializer=codec,
            schema=schema or "public",
            tenant_id=None if tenant_id is None else ids.tenant_of(tenant_id),
            trace_id=ids.trace_id_of(trace_id),
            strict_parent=strict_parent,
            allow_exit=allow_exit,
            metadata_keys=frozenset(metadata_keys),
            scrub=scrub,
        )
        conninfo = conninfo_or_pool if isinstance(conninfo_or_pool, str) else ""
        checked_conninfo(conninfo)
        # A role or database may have another encoding as its default; ids and states are any text.
        args = {
            "autocommit": True,
            "prepare_threshold": None,
            "client_encoding": "utf8",
            **(connect_args or {}),
        }
        self._sync = SyncDriver(
            conninfo,
            conninfo_or_pool if isinstance(conninfo_or_pool, ConnectionPool) else None,
            max_size=max_connections,
            connect_args=args,
        )
        self._async = AsyncDriver(
            conninfo,
            conninfo_or_pool if isinstance(conninfo_or_pool, AsyncConnectionPool) else None,
            max_size=max_connections,
            connect_args=args,
        )

        watch_runs(self)
        watch_pools(self._sync, self._async)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """As the stock savers spell it: use the result as `with` or `async with`."""
        return cls(conn_string, **options)

    def setup(self) -> None:
        """Checks that the schema is there and this month's tables exist. Issues no DDL of its own:
        migrations are `alembic upgrade head`, run by the owner role. Raises SchemaNotReady."""
        self.run_plan(self.plans.setup(), "asetup")

    async def asetup(self) -> None:
        """As `setup`."""
        await self.arun_plan(self.plans.setup())

    # -- reads ---------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The named checkpoint, or the thread's newest by arrival; None when there is none."""
        return self.run_plan(self.plans.get_tuple(config), "aget_tuple")

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self.arun_plan(self.plans.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints newest first. `filter` compares metadata for equality, key by key."""
        self._refuse_in_loop("alist")
        return self._pages(config, filter, before, limit)

    def _pages(
        self,
        config: RunnableConfig | None,
        wanted: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        cursor: Cursor | None = None
        remaining = limit_of(limit)
        while remaining is None or remaining > 0:
            page = self.run_plan(
                self.plans.list_page(config, wanted, before, remaining, cursor), "alist"
            )
            yield from page.tuples
            if page.next is None:
                return
            cursor = page.next
            remaining = None if remaining is None else remaining - len(page.tuples)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        cursor: Cursor | None = None
        remaining = limit_of(limit)
        while remaining is None or remaining > 0:
            page = await self.arun_plan(
                self.plans.list_page(config, filter, before, remaining, cursor)
            )
            for found in page.tuples:
                yield found
            if page.next is None:
                return
            cursor = page.next
            remaining = None if remaining is None else remaining - len(page.tuples)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Walks the parent chain, pruned ancestors included: the log still has them."""
        return self.run_plan(
            self.plans.delta_history(config, channels), "aget_delta_channel_history"
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await self.arun_plan(self.plans.delta_history(config, channels))

    # -- writes --------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Appends a checkpoint and the events it proves, in one transaction.

        The same id with the same bytes again is a no-op; with other bytes CheckpointConflict.
        """
        return self.run_plan(self.plans.put(config, checkpoint, metadata, new_versions), "aput")

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await self.arun_plan(self.plans.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Appends a task's pending writes; returns after their commit. The first set wins."""
        self.run_plan(self.plans.put_writes(config, writes, task_id, task_path), "aput_writes")

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As `put_writes`."""
        await self.arun_plan(self.plans.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Hides a thread behind a tombstone. Later writes to it raise ThreadDeleted."""
        self.run_plan(self.plans.tombstone("delete_thread", [thread_id]), "adelete_thread")

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self.arun_plan(self.plans.tombstone("delete_thread", [thread_id]))

    def get_next_version(self, current: int | str | None, channel: None) -> int | str:
        """The version after `current`: whole numbers, or text as the stock Postgres saver has it.

        A thread that began with textual versions (an imported one) keeps them, since LangGraph
        compares a thread's versions with one another.
        """
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
        return 1 if current is None else current + 1

    def reopen_thread(self, thread_id: str) -> None:
        """Allows a deleted thread's id again. What was deleted stays hidden."""
        self.run_plan(self.plans.tombstone("reopen", [thread_id]), "areopen_thread")

    async def areopen_thread(self, thread_id: str) -> None:
        """As `reopen_thread`."""
        await self.arun_plan(self.plans.tombstone("reopen", [thread_id]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hides what the given runs wrote."""
        self.run_plan(self.plans.tombstone("delete_run", run_ids), "adelete_for_runs")

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await self.arun_plan(self.plans.tombstone("delete_run", run_ids))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hides all but the newest checkpoint of each namespace, or ("delete") all of them.

        Delta channels keep working: their history is read from the log, hidden or not.
        """
        self.run_plan(self.plans.tombstone(_prune_kind(strategy), thread_ids), "aprune")

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await self.arun_plan(self.plans.tombstone(_prune_kind(strategy), thread_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Appends copies of a thread's visible checkpoints and writes under another id."""
        self.run_plan(self.plans.copy_thread(source_thread_id, target_thread_id), "acopy_thread")

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await self.arun_plan(self.plans.copy_thread(source_thread_id, target_thread_id))

    # -- beyond LangGraph ----------------------------------------------------------------------

    async def aclaim(
        self,
        config: RunnableConfig,
        name: str,
        value: Any,
        *,
        approval: Mapping[str, Any] | None = None,
    ) -> bool:
        """Durably claims the one right to run effect `name` of this run; False if it was taken.

        `approval` is what an `approval` row of the run's chain says of it, in the same
        transaction; an answer that came second leaves such a row too ("counted": false).
        """
        return await self.arun_plan(self.plans.claim(config, name, value, approval))

    def claim(
        self,
        config: RunnableConfig,
        name: str,
        value: Any,
        *,
        approval: Mapping[str, Any] | None = None,
    ) -> bool:
        """As `aclaim`."""
        return self.run_plan(self.plans.claim(config, name, value, approval), "aclaim")

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A clone that shares pools and runs and also accepts the given types."""
        clone = copy.copy(self)
        serde = self.plans.serializer.with_allowlist(extra_allowlist)
        clone.serde = serde
        clone.plans = self.plans.with_serializer(serde)
        return clone


def _prune_kind(strategy: str) -> str:
    kinds = {"keep_latest": "prune", "delete": "delete_thread"}
    if strategy not in kinds:
        raise ValueError(f"unknown prune strategy {strategy!r}; known: {', '.join(kinds)}")
    return kinds[strategy]
