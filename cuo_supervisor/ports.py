"""What the graph needs from outside, as small protocols; composition roots pass the real things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from cuo_supervisor.cascade import Model
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.models import InvocationResult
from cuo_supervisor.identity import Identity
from cuo_supervisor.telemetry import Telemetry

__all__ = ["Answered", "Clock", "NodeContext", "Runner", "Store"]


class Runner(Protocol):
    """Executes a skill's own command line."""

    async def run(
        self,
        manifest: SkillManifest,
        arguments: Mapping[str, Any],
        *,
        tenant_id: str,
        request_id: str,
        approval_id: str,
        traceparent: str,
    ) -> InvocationResult:
        """`approval_id` is the interrupt a person said yes to; empty where none was needed."""
        ...


class Store(Protocol):
    """The durable log, as far as the supervisor is concerned."""

    @property
    def saver(self) -> BaseCheckpointSaver[Any]: ...

    @property
    def outbox_channel(self) -> str:
        """The state channel whose rows the store chains with the step that wrote them."""
        ...

    @property
    def new_run(self) -> Mapping[str, Any]:
        """What the config of a run says whose id has just been minted: the log has nothing of it."""
        ...

    async def claim(
        self,
        config: RunnableConfig,
        name: str,
        value: Any,
        *,
        approval: Mapping[str, Any] | None = None,
    ) -> bool:
        """Durably takes the one right to an effect of a run; False when it was taken before.

        `approval` is what the run's audit chain says about it, whether it counted or came second.
        """
        ...

    async def claimed(self, config: RunnableConfig, name: str) -> Any:
        """The value a claim was taken with; None when it was not taken."""
        ...

    async def age(self, config: RunnableConfig) -> float:
        """Seconds since the run's first row, by the clock of the log alone."""
        ...

    async def keep_catalog(
        self, tenant_id: str, snapshot_hash: str, month: str, snapshot: Mapping[str, Any]
    ) -> None:
        """Stores a catalogue snapshot; a no-op when it is there."""
        ...

    async def read_catalog(
        self, tenant_id: str, snapshot_hash: str, month: str
    ) -> Mapping[str, Any] | None:
        """The snapshot kept under that hash and month; None when there is none."""
        ...

    async def note_replay(self, tenant_id: str, run_id: Any, body: Mapping[str, Any]) -> None:
        """Chains a `cuo.checkpoint_replayed` row to a run."""
        ...

    def translate(self, error: BaseException) -> Exception | None:
        """The supervisor's error for one of the store's; None for what is not the store's."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and ids, handed in so that tests and replays can fix them."""

    time_ns: Callable[[], int]
    monotonic: Callable[[], float]
    new_id: Callable[[], Any]
    random_bytes: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer a waiting run is carried on with, and the operation it had asked about."""

    interrupt_id: str
    operation: str | None
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What a node may use besides its state. Never persisted."""

    catalog: Catalog
    identity: Identity
    model: Model | None
    runner: Runner | None
    store: Store | None
    clock: Clock
    telemetry: Telemetry
    traceparent: Callable[[], str]
    dry_run: bool
    prepare_model: Callable[[], Awaitable[None]] | None = None
    """Awaited before the cascade's clock starts: a one-shot command loads its model client here."""
    rerun_idempotent: bool = False
    """An operator's word that a skill whose manifest allows it may run although it may have run."""
    answered: Answered | None = None
    """Set while a run that waited is carried on."""
    continued: Mapping[str, Any] | None = None
    """Whose word carries on a run that another process left: `rerun.word_of`."""
    late: bool = False
    """It is carried on when an answer would come too late."""
