"""How the OpenAPI document describes problems, once for all routes."""

from __future__ import annotations

from typing import Any, Final

from cuo_supervisor.http.problems import MEDIA_TYPE
from cuo_supervisor.http.schemas import ProblemDocument

__all__ = ["PROBLEMS", "problem"]


def problem(description: str) -> dict[str, Any]:
    """One response that is a problem document."""
    return {
        "description": description,
        "model": ProblemDocument,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    400: problem("The call is malformed."),
    401: problem("No token, or one that does not hold."),
    403: problem("Not allowed, or the token speaks for another persona."),
    404: problem("No such run in this tenant."),
    405: problem("This address has no such method."),
    408: problem("The body did not arrive in time."),
    413: problem("The body is too large."),
    414: problem("The address is too long."),
    415: problem("The body is not application/json."),
    421: problem("Local mode answers under loopback names only."),
    422: problem("The request does not have the documented form, or cannot be used."),
    500: problem("A step could not be recorded (audit_failed), or a fault of the service."),
    503: problem("The log cannot be reached, too many requests at once, or the service stops."),
    504: problem("The request took too long."),
}
