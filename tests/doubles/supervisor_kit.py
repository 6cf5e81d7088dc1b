"""A supervisor for tests: real graph, gates and store; a skill that counts, a model that recites.

Every place where a process may die is a numbered point. `Points(die_at=n)` kills the process at
the n-th one with SIGKILL, so nothing can be tidied up; `die_at=None` only counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.trace import Span
from ulid import ULID

from cuo_checkpoint import PostgresCheckpointer
from cuo_supervisor.cascade import GatewayFailure, GatewayReply
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.models import InvocationResult, RoutingDecision
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.identity import ROLE_AGENT_PERSONA, ROLE_APPROVER, Identity
from cuo_supervisor.ports import Clock
from cuo_supervisor.supervisor import SYSTEM_CLOCK, Supervisor
from cuo_supervisor.telemetry import Telemetry

__all__ = [
    "AUTO", "CASCADE", "DESTRUCTIVE", "DUNNING", "MATRIX", "CountingRunner", "Points", "Reciter",
    "Stopwatch",
    "bodies", "clock_with", "identity", "make", "run_of",
]  # fmt: skip

AUTO = "validate MST 0301479073"
CASCADE = "what should we do about the unpaid Q4 contract from ACME"
MATRIX = "emit hoa don for ACME 4M VND"
DESTRUCTIVE = "chuyển khoản 5.000.000 VND cho công ty ACME stk 0123456789"
DUNNING = (
    '{"skill_name": "inv-dunning-draft@1.2", "arguments": {}, "rationale": "unpaid contract",'
    ' "confidence": 0.85}'
)


class Points:
    """Numbers the places where a process may die, and dies at one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.die_at = die_at
        self.names: list[str] = []

    def hit(self, name: str) -> None:
        self.names.append(name)
        if self.die_at == len(self.names):
            os.kill(os.getpid(), signal.SIGKILL)


class CountingRunner:
    """Adds a line to a ledger that survives the process, then answers."""

    def __init__(self, ledger: Path, points: Points | None = None, *, seconds: float = 0.0) -> None:
        self.ledger = ledger
        self.points = points or Points()
        self.seconds = seconds

    async def run(
        self,
        manifest: Any,
        arguments: Mapping[str, Any],
        *,
        request_id: str,
        traceparent: str,
        **options: Any,
    ) -> InvocationResult:
        self.points.hit("skill:before")
        with self.ledger.open("a") as file:
            file.write(f"{manifest.skill_name} {request_id} {traceparent}\n")
        self.points.hit("skill:effect")
        await asyncio.sleep(self.seconds)
        self.points.hit("skill:after")
        return InvocationResult(
            skill_name=manifest.skill_name, exit_code=0, stdout="{}", stderr="", duration_ms=1.0
        )

    def runs(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0


class Reciter:
    """A model that gives the answers it was given, one a call, then the last one again."""

    def __init__(self, *answers: str | GatewayFailure) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def complete(self, messages: Sequence[Any], **options: Any) -> Any:
        self.asked.append({"messages": messages, **options})
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return given if isinstance(given, GatewayFailure) else GatewayReply(given, 200)


class _PointedSaver(PostgresCheckpointer):
    points: Points

    async def aget_tuple(self, config: Any) -> Any:
        self.points.hit("get:before")
        return await super().aget_tuple(config)

    async def aput(self, *args: Any) -> Any:
        self.points.hit("put:before")
        result = await super().aput(*args)
        self.points.hit("put:after")
        return result

    # LangGraph looks at the parameters' names before it passes a path.
    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        self.points.hit("writes:before")
        await super().aput_writes(config, writes, task_id, task_path)
        self.points.hit("writes:after")

    async def aclaim(self, config: Any, name: str, value: Any, **options: Any) -> bool:
        kind = name.partition("/")[0]
        self.points.hit(f"claim {kind}:before")
        result = await super().aclaim(config, name, value, **options)
        self.points.hit(f"claim {kind}:after")
        return result


class PointedStore(CuoStore):
    """The real store, with a point before and after everything it writes."""

    def __init__(self, dsn: str, points: Points | None = None, **options: Any) -> None:
        super().__init__(Place(dsn, "public"), **options)
        saver = self.saver
        saver.__class__ = _PointedSaver
        assert isinstance(saver, _PointedSaver)
        saver.points = points or Points()


class PointedTelemetry(Telemetry):
    """A point at each node's first and last moment."""

    def __init__(self, points: Points, **options: Any) -> None:
        super().__init__(**options)
        self.points = points

    @contextlib.contextmanager
    def node_span(self, node: str, attributes: Any = None) -> Iterator[Span]:
        self.points.hit(f"{node}:in")
        with super().node_span(node, attributes) as span:
            yield span
        self.points.hit(f"{node}:out")


def identity(
    tenant_id: str,
    subject_id: str = "subject-1",
    *,
    persona: str | None = "genie",
    approver: bool = False,
    local: bool = False,
) -> Identity:
    """A verified caller of a tenant, for one persona; `local` makes the operator at the machine."""
    claim = get_persona(persona).claim if persona is not None else None
    roles = {ROLE_AGENT_PERSONA} | ({ROLE_APPROVER} if approver or local else set())
    return Identity(tenant_id, subject_id, "https://issuer.example", claim, frozenset(roles), local)


def clock_with(run_id: uuid.UUID | None = None, *, ahead_s: float = 0.0) -> Clock:
    """The system's clock, set ahead; with a fixed next run id."""
    return Clock(
        time_ns=lambda: time.time_ns() + int(ahead_s * 1e9),
        monotonic=time.monotonic,
        new_id=SYSTEM_CLOCK.new_id if run_id is None else lambda: run_id,
        random_bytes=os.urandom,
    )


class Stopwatch:
    """Wall and processor time of many like requests, in milliseconds.

    An absolute limit on wall time says something only where the processors are ours; on a crowded
    machine the time this process itself computed is held to it instead.
    """

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.computed: list[float] = []

    @contextlib.contextmanager
    def lap(self) -> Iterator[None]:
        began, computed = time.perf_counter(), time.process_time()
        yield
        self.wall.append((time.perf_counter() - began) * 1000)
        self.computed.append((time.process_time() - computed) * 1000)

    def told(self) -> str:
        parts = []
        for name, spent in (("wall", self.wall), ("computed", self.computed)):
            parts += [f"{name} p{q} {_quantile(spent, q):.1f} ms" for q in (50, 95)]
        return ", ".join(parts)

    def own(self, percent: int) -> float:
        """Milliseconds of the process's own time that this share of the laps stayed within."""
        return _quantile(self.computed, percent)

    def holds(self, limit_ms: float) -> bool:
        """Whether 95 of 100 stayed below the limit."""
        crowded = os.getloadavg()[0] > (os.cpu_count() or 1)
        return _quantile(self.computed if crowded else self.wall, 95) < limit_ms


def _quantile(spent: list[float], percent: int) -> float:
    return sorted(spent)[len(spent) * percent // 100 - 1]


def run_of(decision: RoutingDecision) -> uuid.UUID:
    """The run a decision ended or left waiting."""
    return ULID.from_str(decision.request_id).to_uuid()


def bodies(lens: Any, kind: str) -> list[dict[str, Any]]:
    """What the tenant's audit rows of a kind say."""
    return [json.loads(row["body"]) for row in lens.audit(kind)]


def make(
    dsn: str | None,
    *,
    ledger: Path,
    points: Points | None = None,
    model: Any = None,
    catalog: Catalog | None = None,
    clock: Clock = SYSTEM_CLOCK,
    seconds: float = 0.0,
    **options: Any,
) -> Supervisor:
    """A supervisor on the database at `dsn`, or without a store."""
    points = points or Points()
    options.setdefault("telemetry", PointedTelemetry(points))
    return Supervisor(
        catalog=catalog or load_catalog(),
        store=None if dsn is None else PointedStore(dsn, points, max_connections=3),
        model=model or Reciter(DUNNING),
        runner=CountingRunner(ledger, points, seconds=seconds),
        clock=clock,
        **options,
    )
