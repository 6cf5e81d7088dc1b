"""`Supervisor`: one process's compiled graph with its ports, and the requests that go through it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes
from types import TracebackType
from typing import Any, Final, Self

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.types import Command, Interrupt
from ulid import ULID
from uuid_utils.compat import uuid7

from cuo_supervisor.calls import check_call
from cuo_supervisor.cascade import Model
from cuo_supervisor.core import audit
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.decision import decision_of, outcome_of
from cuo_supervisor.core.models import CUO_STATE_V, RoutingDecision
from cuo_supervisor.core.replay import check_state_version
from cuo_supervisor.errors import DataError, PermissionDenied, SupervisorError, UsageError
from cuo_supervisor.expiry import (
    APPROVAL_SECONDS,
    Answer,
    answer_value,
    asked_with,
    check_reason,
    expired_value,
    expirer,
    has_run_out,
)
from cuo_supervisor.graph import build_supervisor_graph
from cuo_supervisor.identity import ROLE_APPROVER, Identity
from cuo_supervisor.ports import Answered, Clock, NodeContext, Runner, Store
from cuo_supervisor.rerun import check_continuer, check_rerun, word_of
from cuo_supervisor.run_config import answered, config_of, gate_of_interrupt, rejection_error
from cuo_supervisor.snapshots import SnapshotKeeper
from cuo_supervisor.state import GraphState
from cuo_supervisor.telemetry import RouteSpan, Telemetry
from cuo_supervisor.trace_context import current_traceparent, parse_traceparent

__all__ = ["APPROVAL_SECONDS", "SYSTEM_CLOCK", "Answer", "Supervisor"]

SYSTEM_CLOCK: Final = Clock(
    time_ns=time.time_ns, monotonic=time.monotonic, new_id=uuid7, random_bytes=token_bytes
)


class Supervisor:
    """Routes requests. Thread-safe; serves any number of requests and event loops at once.

    `catalog` may be replaced at any time: each request keeps the one it began with.
    `store`, `model` and `runner` may be missing: without a store only dry runs are possible,
    without a model the cascade falls through to ask, without a runner nothing is invoked.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: Store | None,
        model: Model | None,
        runner: Runner | None,
        telemetry: Telemetry | None = None,
        clock: Clock = SYSTEM_CLOCK,
        prepare_model: Callable[[], Awaitable[None]] | None = None,
        closers: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._model = model
        self._runner = runner
        self._telemetry = telemetry or Telemetry()
        self._clock = clock
        self._prepare_model = prepare_model
        self._snapshots = SnapshotKeeper(store) if store is not None else None
        self._closers = tuple(closers)
        graph = build_supervisor_graph()
        self._dry = graph.compile(name="cuo-supervisor")
        self._durable = (
            graph.compile(checkpointer=store.saver, name="cuo-supervisor") if store else None
        )

    async def __aenter__(self) -> Self:
        return self

    async def aclose_loop(self) -> None:
        """Closes what the running event loop opened; the supervisor stays usable in others."""
        if self._store is not None:
            await self._store.aclose()
        for close in self._closers:
            await close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose_loop()

    async def route(
        self,
        query: str,
        *,
        persona_key: str = "genie",
        identity: Identity,
        do_invoke: bool = True,
        do_record: bool = True,
        traceparent: str | None = None,
    ) -> RoutingDecision:
        """Decides one request, and carries it out where the gates allow.

        `do_record=False` is a dry run: nothing is invoked, no row is written. Raises UsageError
        for a query that cannot be routed, PersonaUnknown, PersonaMismatch,
        PersonaVersionMismatch, StoreDown and AuditWriteFailed.
        """
        text = check_call(
            query, persona_key, identity, traceparent, do_invoke=do_invoke, do_record=do_record
        )
        durable = self._durable
        if do_record and durable is None:
            raise UsageError("this supervisor has no store; pass do_record=False for a dry run")
        run_id: uuid.UUID = self._clock.new_id()
        request_id = str(ULID.from_uuid(run_id))
        trace = parse_traceparent(traceparent, random=self._clock.random_bytes)
        started = self._clock.time_ns()
        state: GraphState = {
            "query": text,
            "tenant_id": identity.tenant_id,
            "subject_id": identity.subject_id,
            "subject_issuer": identity.issuer,
            "persona_key": persona_key,
            "request_id": request_id,
            "trace_id": trace.trace_id,
            "ts_ns_start": started,
            "cuo_state_v": CUO_STATE_V,
            "do_invoke": do_invoke and do_record,
        }
        with self._telemetry.route_span(
            trace,
            request_id=request_id,
            tenant_id=identity.tenant_id,
            subject_id_hash16=subject_hash16(identity.subject_id),
            persona_key=persona_key,
            query=text,
            dry_run=not do_record,
        ) as span:
            context = self._context(identity, span, dry_run=not do_record)
            if not do_record or durable is None:
                final = await self._dry.ainvoke(state, context=context)
            else:
                config = config_of(identity, run_id, trace.trace_id)
                if self._store is not None:
                    config["configurable"].update(self._store.new_run)
                if self._snapshots is not None:
                    kept = self._snapshots.keep(context.catalog, identity.tenant_id, at_ns=started)
                    await self._guard(kept)
                final = await self._guarded(durable, state, config, context)
            return self._finish(final, span, dry_run=not do_record)

    async def resume(
        self, run_id: uuid.UUID, answer: Answer, *, identity: Identity
    ) -> RoutingDecision:
        """Gives a waiting run its answer, once, and carries the run to its end.

        Raises PermissionDenied unless the approver holds the role and is not the requester (the
        local operator may be both), DataError when the run does not wait or was answered before.
        """
        check_reason(answer.reason)
        if ROLE_APPROVER not in identity.roles:
            raise PermissionDenied(f"answering needs the role {ROLE_APPROVER}")
        durable, store = self._durable, self._store
        if durable is None or store is None:
            raise UsageError("this supervisor has no store, so no run waits in it")
        config, state, waiting = await self._stored(durable, run_id, identity)
        if not waiting:
            raise DataError("the run does not wait for an approval")
        if not identity.local and identity.subject_id == state["subject_id"]:
            raise PermissionDenied("the requester may not approve their own request")
        value = answer_value(
            state,
            approved=answer.approved,
            reason=answer.reason,
            identity=identity,
            interrupt_id=waiting.id,
            now_ns=self._clock.time_ns(),
            age_s=await self._guard(store.age(config)),
        )
        told = audit.approval(value)
        if not await self._guard(store.claim(config, f"answer/{waiting.id}", value, approval=told)):
            raise DataError(
                "this approval was answered before, and an answer counts once; if its process "
                "went away, cyberos-cuo supervisor continue finishes the run"
            )
        return await self._carry_on(durable, config, state, answered(waiting, value), identity)

    async def expire(self, run_id: uuid.UUID, *, tenant_id: str) -> RoutingDecision:
        """Ends a waiting run whose approval has run out, as an answer given now would: with no.

        Whoever may connect may call it: it approves nothing, and refuses before the time is over.
        An answer given meanwhile wins or loses by the same claim; one that expired and whose
        process went away is carried to its end. Raises DataError when the run does not wait, was
        answered in time, or has time left.
        """
        durable, store = self._durable, self._store
        if durable is None or store is None:
            raise UsageError("this supervisor has no store, so no run waits in it")
        identity = expirer(tenant_id)
        config, state, waiting = await self._stored(durable, run_id, identity)
        if not waiting:
            raise DataError("the run does not wait for an approval")
        now, age = self._clock.time_ns(), await self._guard(store.age(config))
        if not has_run_out(state, now, age):
            raise DataError("the run may still be answered; its approval has not run out")
        value = expired_value(state, identity, interrupt_id=waiting.id, now_ns=now, age_s=age)
        told = audit.approval(value)
        if not await self._guard(store.claim(config, f"answer/{waiting.id}", value, approval=told)):
            value = await self._answer_given(config, waiting)
            if not (value or {}).get("expired"):
                raise DataError("the run was answered in time: cyberos-cuo supervisor continue")
        asked = await self._guard(asked_with(store, state))
        return await self._carry_on(
            durable, config, state, answered(waiting, value), identity, catalog=asked
        )

    async def carry_on(
        self, run_id: uuid.UUID, *, identity: Identity, rerun_idempotent: bool = False
    ) -> RoutingDecision:
        """Continues a run whose process went away. A skill that may have run is not run again.

        `rerun_idempotent` is an operator's word that it may be, which counts only for a skill
        whose manifest says `idempotent = true` and whose act is not destructive; DataError
        otherwise, and for a run that has ended without knowing. PersonaMismatch: `check_continuer`.
        """
        durable = self._durable
        if durable is None:
            raise UsageError("this supervisor has no store, so there is no run to continue")
        config, state, waiting = await self._stored(durable, run_id, identity)
        if rerun_idempotent and "decision" not in state:
            check_rerun(state, self.catalog)
        if waiting:
            # The answer may have been given by a process that died before it could act on it.
            given = await self._answer_given(config, waiting)
            if given is None:
                raise DataError("the run waits for an approval: cyberos-cuo supervisor resume")
            word = await self._word(config, state, identity)
            told = answered(waiting, given)
            return await self._carry_on(durable, config, state, told, identity, word=word)
        if "decision" in state:
            if rerun_idempotent and state["decision"].get("reason") == "invocation_unknown":
                raise DataError(
                    "the run has ended with invocation_unknown and takes no second decision; "
                    "route the request again, as a run of its own"
                )
            return RoutingDecision.model_validate(state["decision"])
        word = await self._word(config, state, identity)
        return await self._carry_on(
            durable, config, state, None, identity, rerun_idempotent=rerun_idempotent, word=word
        )

    async def _word(
        self, config: RunnableConfig, state: Mapping[str, Any], identity: Identity
    ) -> Mapping[str, Any]:
        """Whose word carries the run on: in the log before anything is done on it."""
        check_continuer(identity, state)
        word = word_of(identity, self._clock.time_ns())
        if self._store is not None and state.get("rejection") is None:
            # One claim each, under a name nobody else takes: this process may die as well.
            await self._guard(self._store.claim(config, f"continue/{self._clock.new_id()}", word))
        return word

    async def _answer_given(self, config: RunnableConfig, waiting: Interrupt) -> Any:
        if self._store is None:
            return None
        return await self._guard(self._store.claimed(config, f"answer/{waiting.id}"))

    # -- parts ---------------------------------------------------------------------------------

    async def _carry_on(
        self,
        durable: Any,
        config: RunnableConfig,
        state: Mapping[str, Any],
        given: Answered | None,
        identity: Identity,
        *,
        rerun_idempotent: bool = False,
        catalog: Catalog | None = None,
        word: Mapping[str, Any] | None = None,
    ) -> RoutingDecision:
        trace = parse_traceparent(
            f"00-{state['trace_id']}-{self._clock.random_bytes(8).hex()}-01",
            random=self._clock.random_bytes,
        )
        with self._telemetry.route_span(
            trace,
            request_id=state["request_id"],
            tenant_id=identity.tenant_id,
            subject_id_hash16=subject_hash16(state["subject_id"]),
            persona_key=state["persona_key"],
        ) as span:
            late = False
            if word is not None and self._store is not None:
                age = await self._guard(self._store.age(config))
                late = has_run_out(state, self._clock.time_ns(), age)
            context = replace(
                self._context(identity, span, dry_run=False),
                catalog=catalog or self.catalog,
                rerun_idempotent=rerun_idempotent,
                answered=given,
                continued=word,
                late=late,
            )
            told: Any = (
                None if given is None else Command(resume={given.interrupt_id: given.answer})
            )
            final = await self._guarded(durable, told, config, context)
            return self._finish(final, span, dry_run=False)

    async def _stored(
        self, durable: Any, run_id: uuid.UUID, identity: Identity
    ) -> tuple[RunnableConfig, Mapping[str, Any], Interrupt | None]:
        """A run's config, its state, and the interrupt it waits on, if it does."""
        config = config_of(identity, run_id, None)
        snapshot = await self._guard(durable.aget_state(config))
        state: Mapping[str, Any] = snapshot.values
        if "request_id" not in state and self._store is not None:
            # Killed right after its first row: the input is stored and no node has taken it up.
            found = await self._guard(self._store.saver.aget_tuple(config))
            state = found.checkpoint["channel_values"].get(START, {}) if found else {}
        if "request_id" not in state:
            raise DataError("there is no such run")
        with self._telemetry.failing():
            check_state_version(state)
        config["configurable"]["trace_id"] = state["trace_id"]
        return config, state, next(iter(snapshot.interrupts), None)

    def _context(self, identity: Identity, span: RouteSpan, *, dry_run: bool) -> NodeContext:
        return NodeContext(
            catalog=self.catalog,
            identity=identity,
            model=self._model,
            runner=self._runner,
            store=self._store,
            clock=self._clock,
            telemetry=self._telemetry,
            traceparent=lambda: current_traceparent() or span.traceparent,
            dry_run=dry_run,
            prepare_model=self._prepare_model,
        )

    async def _guarded(
        self, durable: Any, given: Any, config: RunnableConfig, context: NodeContext
    ) -> Mapping[str, Any]:
        result: Mapping[str, Any] = await self._guard(
            durable.ainvoke(given, config, context=context, durability="sync")
        )
        return result

    async def _guard(self, call: Any) -> Any:
        """Awaits a call into the store and speaks its errors in the supervisor's words."""
        try:
            return await call
        except SupervisorError:
            raise
        except Exception as error:
            known = self._store.translate(error) if self._store is not None else None
            if known is None:
                raise
            raise known from error

    def _finish(
        self, state: Mapping[str, Any], span: RouteSpan, *, dry_run: bool
    ) -> RoutingDecision:
        rejection = state.get("rejection")
        if rejection is not None:
            raise rejection_error(rejection)
        if "decision" in state:
            decision = RoutingDecision.model_validate(state["decision"])
        else:
            # The run waits: there is no decision row yet, but the caller gets told.
            waiting = dict(state) | {"gate": gate_of_interrupt(state)}
            decision = decision_of(waiting, ts_ns_end=self._clock.time_ns(), dry_run=dry_run)
        span.outcome = outcome_of(decision)
        span.path_taken = decision.path_taken
        span.confidence = decision.confidence
        span.llm_used = decision.llm_used
        span.reason = decision.reason
        span.cascade_outcome = decision.cascade_outcome
        return decision
