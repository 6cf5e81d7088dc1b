"""Deciding a stored run again: same query, persona and catalogue, the model's recorded answer.

The graph that decided is the graph that decides again (a dry run of it: nothing is invoked, no
decision row is written), so a replay cannot drift from routing. One audit row says that somebody
replayed the run and what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from cuo_supervisor.cascade import FailureOutcome, GatewayFailure, GatewayReply
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.replay import (
    Difference,
    Recorded,
    compare,
    facts_of,
    recorded_of,
    replayed_body,
)
from cuo_supervisor.errors import DataError, SupervisorError
from cuo_supervisor.graph import build_supervisor_graph
from cuo_supervisor.identity import Identity, local_identity
from cuo_supervisor.ports import Clock, NodeContext, Store
from cuo_supervisor.snapshots import find_catalog
from cuo_supervisor.telemetry import Telemetry

__all__ = ["RecordedModel", "Replay", "catalog_of_run", "replay_run"]

_NO_TELEMETRY: Final = Telemetry(
    tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider()
)
"""A replay is no request: it must not count as one."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay showed. `recorded` and `replayed` hold the compared facts of each decision."""

    run_id: str
    request_id: str
    catalog_snapshot_hash: str
    cuo_state_v: int
    same_prompt: bool | None
    """Whether the model would be asked the same words; None where no single question was asked."""
    recorded: Mapping[str, Any]
    replayed: Mapping[str, Any]
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"identical": self.identical, **asdict(self)}


class RecordedModel:
    """A `Model` that says what the real one said, or fails as it failed."""

    def __init__(self, recorded: Recorded) -> None:
        self._reply = recorded.reply
        self._failure = recorded.failure

    async def complete(
        self,
        messages: list[Any],
        *,
        tenant_id: str,
        decision_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> GatewayReply | GatewayFailure:
        if self._reply is not None:
            return GatewayReply(self._reply, 200)
        return GatewayFailure(_failure(self._failure), None, "as recorded")


async def replay_run(store: Store, run_id: Any, *, identity: Identity) -> Replay:
    """Decides a run of the identity's tenant again and chains a `cuo.checkpoint_replayed` row.

    `run_id` is a UUID. Raises DataError for a run that is unknown, waits, has not ended, was
    refused, or whose catalogue snapshot is not stored; StateVersionUnsupported; StoreDown; and
    AuditWriteFailed when the row cannot be written. A difference is a result, not an error.
    """
    try:
        recorded = await _load(store, run_id, identity)
        catalog = await find_catalog(
            store,
            identity.tenant_id,
            recorded.catalog_snapshot_hash,
            around_ns=recorded.ts_ns_start,
        )
        final = await _decide(recorded, catalog)
        facts = facts_of(final)
        differences = compare(recorded.facts, facts)
        body = replayed_body(
            recorded,
            differences,
            by_hash16=subject_hash16(identity.subject_id),
            by_issuer=identity.issuer,
        )
        await store.note_replay(identity.tenant_id, run_id, body)
    except SupervisorError:
        raise
    except Exception as error:
        known = store.translate(error)
        if known is None:
            raise
        raise known from error
    return Replay(
        run_id=str(run_id),
        request_id=recorded.request_id,
        catalog_snapshot_hash=recorded.catalog_snapshot_hash,
        cuo_state_v=recorded.cuo_state_v,
        same_prompt=None
        if recorded.prompt_sha256 is None
        else recorded.prompt_sha256 == final.get("llm_prompt_sha256"),
        recorded=recorded.facts,
        replayed=facts,
        differences=tuple(differences),
    )


async def catalog_of_run(store: Store, run_id: Any, *, identity: Identity) -> Catalog:
    """The catalogue a run of the identity's tenant was decided with, ended or not.

    Raises DataError for a run that is unknown or whose snapshot is not stored, and StoreDown.
    """
    try:
        state, _ = await _state(store, run_id, identity)
        named, began = state.get("catalog_snapshot_hash", "(none yet)"), state["ts_ns_start"]
        return await find_catalog(store, identity.tenant_id, named, around_ns=began)
    except SupervisorError:
        raise
    except Exception as error:
        known = store.translate(error)
        if known is None:
            raise
        raise known from error


async def _load(store: Store, run_id: Any, identity: Identity) -> Recorded:
    state, waiting = await _state(store, run_id, identity)
    return recorded_of(state, waiting=waiting)


async def _state(store: Store, run_id: Any, identity: Identity) -> tuple[Mapping[str, Any], bool]:
    """A run's newest state, and whether it waits for an answer."""
    config: RunnableConfig = {
        "configurable": {"thread_id": str(run_id), "tenant_id": identity.tenant_id}
    }
    found = await store.saver.aget_tuple(config)
    state = found.checkpoint["channel_values"] if found is not None else {}
    if found is None or "request_id" not in state:
        raise DataError("there is no such run; cyberos-cuo runs list shows them")
    return state, any(channel == "__interrupt__" for _, channel, _ in found.pending_writes or [])


async def _decide(recorded: Recorded, catalog: Catalog) -> Mapping[str, Any]:
    """Runs the supervisor's graph dry over the recorded request."""
    context = NodeContext(
        catalog=catalog,
        # Who may ask as which persona was settled then; a replay answers what was decided.
        identity=local_identity("replay"),
        model=RecordedModel(recorded),
        runner=None,
        store=None,
        clock=Clock(
            time_ns=lambda: recorded.ts_ns_start,
            monotonic=lambda: 0.0,
            new_id=lambda: recorded.request_id,
            random_bytes=bytes,
        ),
        telemetry=_NO_TELEMETRY,
        traceparent=lambda: "",
        dry_run=True,
    )
    final: Mapping[str, Any] = await _graph().ainvoke(
        {
            "query": recorded.query,
            "tenant_id": recorded.tenant_id,
            "subject_id": "replay",
            "persona_key": recorded.persona_key,
            "request_id": recorded.request_id,
            "trace_id": recorded.trace_id,
            "ts_ns_start": recorded.ts_ns_start,
            "do_invoke": False,
        },
        {"recursion_limit": 12},
        context=context,
    )
    if "decision" not in final:
        raise DataError("this version has no persona of that name, so the run cannot be replayed")
    return final


def _graph() -> Any:
    global _compiled
    if _compiled is None:
        _compiled = build_supervisor_graph().compile(name="cuo-supervisor-replay")
    return _compiled


_compiled: Any = None


def _failure(word: str | None) -> FailureOutcome:
    known: dict[str | None, FailureOutcome] = {
        "timeout": "timeout",
        "gateway_unreachable": "gateway_unreachable",
        "gateway_error": "gateway_error",
        "residency_denied": "residency_denied",
        "budget_exceeded": "budget_exceeded",
        "not_ready": "not_ready",
        "unusable_reply": "unusable_reply",
    }
    # A recorded failure this version has no word for is a gateway's, and shows as a difference.
    return known.get(word, "gateway_error")
