"""Whether the service lives, can serve, and what it counted."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter
from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from cuo_checkpoint.models import RunIndex
from cuo_checkpoint.runs import RunReader
from cuo_checkpoint.sessions import reading
from cuo_supervisor.http.auth import TheService
from cuo_supervisor.http.metrics import MEDIA_TYPE, Metrics
from cuo_supervisor.http.options import is_loopback
from cuo_supervisor.http.problems import problem_of
from cuo_supervisor.http.schemas import Readiness
from cuo_supervisor.identity import LOCAL_IDENTITY

__all__ = ["router"]

router = APIRouter(tags=["health"])

_FRESH_SECONDS = 1.0
"""A readiness found this recently is told again: anybody may ask, and each look costs a query."""


@router.get("/healthz", response_class=Response, summary="The process lives")
async def healthz() -> Response:
    """Says nothing of the database: restarting this process would not mend that."""
    return Response('{"ok":true}', media_type="application/json")


@router.get("/readyz", response_model=Readiness, summary="Requests can be served")
async def readyz(request: Request, service: TheService) -> Response:
    """200 when the log can be read, else 503. The model client may still be loading: until it is
    there, unclear requests are asked back."""
    known = request.app.state.readiness
    now = time.monotonic()
    if known is None or now - known[0] > _FRESH_SECONDS:
        try:
            await service.read(LOCAL_IDENTITY, _look)
            checks = {"log": "ok"}
        except Exception as error:
            found = problem_of(error)
            checks = {"log": found.error if found else "internal_error"}
        known = request.app.state.readiness = (now, checks)
    ready = known[1]["log"] == "ok"
    body = orjson.dumps({"ready": ready, "checks": known[1]})
    return Response(body, 200 if ready else 503, media_type="application/json")


@router.get("/metrics", response_class=Response, summary="Counters, as Prometheus reads them")
async def metrics(request: Request, service: TheService) -> Response:
    """Of all tenants together, and so for this machine only unless a token is shown.

    A proxy's request counts as remote, though its socket is local.
    """
    peer = request.client.host if request.client else ""
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via"))
    if forwarded or not is_loopback(peer):
        from cuo_supervisor.http.auth import caller

        await caller(request)
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type=MEDIA_TYPE)


def _look(reader: RunReader) -> None:
    with reading(reader.engine, reader.tenant_id) as conn:
        conn.execute(select(RunIndex.run_id).limit(1)).all()
