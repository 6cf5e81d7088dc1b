"""Puts the service together: routes, the guard around them, start and end of the process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cuo_supervisor.compose import Place
from cuo_supervisor.http import pages, routes_health, routes_runs, routes_supervisor
from cuo_supervisor.http.document import with_examples
from cuo_supervisor.http.guard import Guard
from cuo_supervisor.http.metrics import Metrics
from cuo_supervisor.http.options import Options
from cuo_supervisor.http.service import Service
from cuo_supervisor.settings import Settings
from cuo_supervisor.supervisor import Supervisor

__all__ = ["create_app"]

_DESCRIPTION = """\
Routes requests in words to governed skills, and reads the append-only log of what came of each.

The tenant is the verified token's. Another tenant's run is answered like one that does not exist.
Every error is an RFC 9457 problem whose `error` member is a fixed word.
"""


def create_app(
    settings: Settings,
    place: Place,
    *,
    options: Options | None = None,
    supervisor: Supervisor | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """The ASGI application. `place` is where the log is; nothing is opened before start-up.

    Raises ConfigError for settings that do not hold together.
    """
    chosen = options or Options()
    service = Service(settings, place, chosen, supervisor=supervisor)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await service.aclose()

    app = FastAPI(
        title="CUO",
        version=version("cuo"),
        description=_DESCRIPTION,
        openapi_url="/v1/cuo/openapi.json",
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        # Its spans would hold query strings and its logs validation messages; ours hold neither.
        telemetry={"tracing": False, "logs": False, "auto_configure": False},
        redirect_slashes=False,  # would answer with an address made from the Host header
        lifespan=lifespan,
    )
    app.openapi = with_examples(app, app.openapi)  # type: ignore[method-assign]
    app.state.service = service
    app.state.metrics = metrics or Metrics()
    app.state.readiness = None
    app.include_router(routes_runs.router)
    app.include_router(routes_supervisor.router)
    app.include_router(routes_health.router)
    app.include_router(pages.router)

    async def to_guard(request: Request, error: Exception) -> Response:
        raise error

    # The framework's own answers to these two would be no problem documents.
    app.add_exception_handler(RequestValidationError, to_guard)
    app.add_exception_handler(HTTPException, to_guard)
    app.add_middleware(Guard, options=chosen, local=service.local, render=pages.render_problem)
    return app
