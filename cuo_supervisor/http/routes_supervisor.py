"""Routing a request, and answering a run that waits."""

from __future__ import annotations

from secrets import token_bytes
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header
from starlette.responses import Response

from cuo_supervisor.core.models import RoutingDecision
from cuo_supervisor.errors import DataError, PermissionDenied, StateVersionUnsupported, UsageError
from cuo_supervisor.http.auth import Caller, TheService
from cuo_supervisor.http.examples import DECISION, WAITING
from cuo_supervisor.http.problems import Problem
from cuo_supervisor.http.responses import PROBLEMS, problem
from cuo_supervisor.http.schemas import AnswerRequest, RouteRequest
from cuo_supervisor.http.service import Service, run_uuid
from cuo_supervisor.identity import ROLE_AGENT_PERSONA, Identity
from cuo_supervisor.supervisor import Answer
from cuo_supervisor.trace_context import parse_traceparent

__all__ = ["answer_run", "router"]

router = APIRouter(prefix="/v1/cuo", responses=PROBLEMS)

_MEANT: Final = "ask, defer, blocked and failed are answers too."


def _shown(description: str, example: Any) -> dict[str, Any]:
    return {
        "description": description,
        "model": RoutingDecision,
        "content": {"application/json": {"example": example}},
    }


@router.post(
    "/supervisor/route",
    response_model=RoutingDecision,
    tags=["supervisor"],
    responses={
        200: _shown("Decided: " + _MEANT, DECISION),
        202: _shown("The run waits for an approval.", WAITING),
    },
    summary="Decide one request, and carry it out where the gates allow",
)
async def route(
    body: RouteRequest,
    caller: Caller,
    service: TheService,
    traceparent: Annotated[str | None, Header(description="W3C trace context.")] = None,
) -> Response:
    """Every decision is an answer: ask, defer and blocked ones too. 202: it waits for a person.

    The run goes on if the caller goes away, and is in the log from its first step.
    """
    if ROLE_AGENT_PERSONA not in caller.roles:
        raise PermissionDenied(f"routing needs the role {ROLE_AGENT_PERSONA}")
    if not body.record and body.invoke:
        raise UsageError("invoke without record would run a skill without a trace; drop one")
    trace = parse_traceparent(traceparent, random=token_bytes)
    invoke = body.record if body.invoke is None else body.invoke
    work = service.supervisor.route(
        body.query,
        persona_key=body.persona,
        identity=caller,
        do_invoke=invoke,
        do_record=body.record,
        traceparent=trace.traceparent,
    )
    try:
        decision = await service.run(work)
    except TimeoutError:
        raise _too_slow(trace_id=trace.trace_id) from None
    return _decision(decision, waits=invoke and decision.reason == "approval_required")


@router.post(
    "/runs/{run_id}/resume",
    response_model=RoutingDecision,
    tags=["supervisor"],
    responses={
        200: _shown("The run's decision: " + _MEANT, DECISION),
        409: problem("The run does not wait, or was answered before."),
    },
    summary="Answer a run that waits for approval",
)
async def resume(run_id: str, body: AnswerRequest, caller: Caller, service: TheService) -> Response:
    """Needs the role cuo-approver, and not the requester. An answer counts once."""
    return _decision(
        await answer_run(
            service, caller, run_id, approve=body.answer == "approve", reason=body.reason
        )
    )


async def answer_run(
    service: Service, caller: Identity, run_id: str, *, approve: bool, reason: str
) -> RoutingDecision:
    """Answers a waiting run and carries it to its end.

    Raises Problem 404 for a run this tenant does not have, 409 for one that does not wait.
    """
    run = run_uuid(run_id)
    await service.head(caller, run)
    try:
        return await service.run(
            service.supervisor.resume(run, Answer(approve, reason), identity=caller)
        )
    except TimeoutError:
        raise _too_slow() from None
    except StateVersionUnsupported:
        raise
    except DataError as error:
        raise Problem(409, error.error, str(error)) from error


def _too_slow(**members: Any) -> Problem:
    """The run itself goes on: whoever asked finds it in the log."""
    said = "the request takes longer than this service waits; its run goes on and is in the log"
    return Problem(504, "timeout", said, **members)


def _decision(decision: RoutingDecision, *, waits: bool = False) -> Response:
    headers: dict[str, Any] = {"X-Cuo-Decision-Id": decision.request_id}
    status = 200
    if waits:
        status = 202
        headers["Location"] = f"/v1/cuo/runs/{decision.request_id}/checkpoints"
    return Response(
        decision.model_dump_json(), status, media_type="application/json", headers=headers
    )
