"""Errors as RFC 9457 problem details, and the one table from our errors to statuses.

400 invalid_argument            the call itself is malformed
401 identity_rejected           no token, or one that does not hold
403 permission_denied, persona_mismatch, persona_version_mismatch
404 run_unknown                 no such run in this tenant: another tenant's looks the same
409 invalid_data                the run is not in the state the call needs
413, 414, 415, 421              too much, too long, not JSON, another host
422 persona_unknown, invalid_data, validation_failed
500 audit_failed, internal_error
503 store_unreachable, keys_unavailable, overloaded, stopping
504 timeout
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cuo_checkpoint import errors as store_errors
from cuo_supervisor.compose import translate
from cuo_supervisor.errors import (
    AuditWriteFailed,
    ConfigError,
    DataError,
    IdentityRejected,
    PermissionDenied,
    PersonaMismatch,
    PersonaVersionMismatch,
    StateVersionUnsupported,
    StoreDown,
    SupervisorError,
    UsageError,
)

__all__ = ["MEDIA_TYPE", "Problem", "problem_of", "problem_response", "run_unknown", "unexpected"]

_log: Final = logging.getLogger("cuo_supervisor.http")

MEDIA_TYPE: Final = "application/problem+json"

_STATUSES: Final[tuple[tuple[type[SupervisorError], int], ...]] = (
    (ConfigError, 500),
    (UsageError, 400),
    (StateVersionUnsupported, 409),
    (DataError, 422),
    (IdentityRejected, 401),
    (PermissionDenied, 403),
    (AuditWriteFailed, 500),
    (StoreDown, 503),
)

_TITLES: Final = {
    "audit_failed": "The step could not be recorded, so it did not happen",
    "identity_rejected": "The token was not accepted",
    "internal_error": "A fault of this service",
    "invalid_argument": "The call is malformed",
    "invalid_data": "The input cannot be used",
    "keys_unavailable": "Tokens cannot be verified now",
    "overloaded": "Too many requests at once",
    "permission_denied": "Not allowed",
    "persona_mismatch": "The token speaks for another persona",
    "persona_unknown": "No such persona",
    "persona_version_mismatch": "The token names another version of the persona",
    "run_unknown": "No such run",
    "state_version_unsupported": "The run was written by another version",
    "stopping": "The service is stopping",
    "store_unreachable": "The log cannot be reached",
    "timeout": "The request took too long",
    "validation_failed": "The request does not have the documented form",
}


_HTTP_NAMES: Final = {
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "body_too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    421: "misdirected",
}
"""The documented words for what the framework itself refuses."""


class Problem(Exception):
    """A problem to answer with. `members` are RFC 9457 extension members."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    @property
    def title(self) -> str:
        """The problem's kind in words, the same for each of its kind."""
        return _TITLES.get(self.error, self.error.replace("_", " ").capitalize())

    def body(self) -> dict[str, Any]:
        """The document."""
        return {
            "type": f"urn:cuo:problem:{self.error}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "error": self.error,
            **self.members,
        }


def problem_response(problem: Problem) -> Response:
    """The problem as a response that nobody stores."""
    return Response(
        orjson.dumps(problem.body()),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **problem.headers},
    )


def problem_of(error: BaseException) -> Problem | None:
    """The problem an error means; None for one nobody planned."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return _from_http(error)
    if isinstance(error, TimeoutError):
        return Problem(504, "timeout", "the request took longer than this service allows")
    if isinstance(error, store_errors.RunUnknown):
        return run_unknown()
    if isinstance(error, (store_errors.InvalidIdentifier, store_errors.TenantRequired)):
        return Problem(400, "invalid_argument", str(error))
    known = error if isinstance(error, SupervisorError) else translate(error)
    return None if known is None else _from_supervisor(known)


def run_unknown() -> Problem:
    """The one answer for a run that does not exist and for another tenant's."""
    return Problem(404, "run_unknown", "there is no such run")


def unexpected(error: BaseException) -> Problem:
    """A fault of ours: its place goes to the log, to the caller only a number to report.

    The exception's own words are left out: a driver or validator may quote what it was given.
    """
    ticket = secrets.token_hex(6)
    said = {"report": ticket, "failure": "internal_error", "severity": 2}
    _log.error("http.fault", exc_info=error, extra={"event": "http.fault", "fields": said})
    return Problem(
        500,
        "internal_error",
        f"this is a fault of the service; its log has more under report {ticket}",
        report_id=ticket,
    )


def _from_supervisor(error: SupervisorError) -> Problem:
    status = next((s for kind, s in _STATUSES if isinstance(error, kind)), 500)
    headers: dict[str, str] = {}
    members: dict[str, Any] = {}
    name = error.error
    if isinstance(error, (PersonaMismatch, PersonaVersionMismatch)):
        members = {"claimed": error.claimed, "requested": error.requested}
    elif isinstance(error, IdentityRejected):
        members = {"reason": error.reason}
        if error.reason == "role":
            status, name = 403, "permission_denied"
        elif error.reason == "keys_unavailable":
            status, name = 503, "keys_unavailable"
        else:
            given = error.reason not in ("missing", "token_missing")
            headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if given else "Bearer"
    if status == 503:
        headers["Retry-After"] = "5"
    return Problem(status, name, str(error), headers=headers, **members)


def _invalid(error: RequestValidationError) -> Problem:
    """Where and what, never the value: it may be a query."""
    found = [
        {"at": ".".join(str(part) for part in item["loc"]), "problem": item["msg"]}
        for item in error.errors()[:20]
    ]
    # A body that is no JSON at all is no document with a wrong member.
    broken = any(item["type"] == "json_invalid" for item in error.errors())
    if broken:
        return Problem(400, "invalid_argument", "the body is not JSON")
    return Problem(
        422,
        "validation_failed",
        "; ".join(f"{item['at']}: {item['problem']}" for item in found),
        errors=found,
    )


def _from_http(error: HTTPException) -> Problem:
    if error.status_code == 400:  # a body too deep, or with a number too long
        return Problem(400, "invalid_argument", "the body is not JSON")
    rest = "internal_error" if error.status_code >= 500 else "invalid_argument"
    return Problem(
        error.status_code,
        _HTTP_NAMES.get(error.status_code, rest),
        {404: "there is nothing at this address", 405: "this address has no such method"}.get(
            error.status_code, str(error.detail)
        ),
        headers=error.headers or {},
    )
