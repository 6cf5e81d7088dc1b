"""Who asks, per request: a bearer token, else a browser's session; the operator in local mode."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cuo_supervisor.errors import IdentityRejected
from cuo_supervisor.http.service import Service
from cuo_supervisor.identity import Identity

__all__ = ["COOKIE", "Caller", "TheService", "the_service"]

COOKIE: Final = "__Host-cuo-session"
"""The prefix makes browsers insist on Secure, on this host alone and on the whole of it."""


async def the_service(request: Request) -> Service:
    """The process's service. A coroutine: a plain function would be called in a thread."""
    return _service(request)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


_BEARER: Final = HTTPBearer(
    auto_error=False, bearerFormat="JWT", description="Server mode. Local mode needs none."
)


async def caller(
    request: Request,
    _bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)] = None,
) -> Identity:
    """The caller of an API route. Raises IdentityRejected.

    A session's cookie is no way into the API: what rides along by itself could be made to ride
    along from a foreign page, and programs have tokens.
    """
    service = _service(request)
    if service.local:
        return await service.identity_of_token("")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() != "bearer" or not token.strip():
        raise IdentityRejected("missing", "send the header Authorization: Bearer TOKEN")
    return await service.identity_of_token(token.strip())


TheService: TypeAlias = Annotated[Service, Depends(the_service)]
Caller: TypeAlias = Annotated[Identity, Depends(caller)]
