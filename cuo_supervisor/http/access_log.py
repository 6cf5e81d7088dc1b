"""One log event per response: method, route, status, time. Never the path, which a caller writes."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from starlette.types import Scope

from cuo_supervisor.trace_context import parse_traceparent

__all__ = ["tell_response"]

_log: Final = logging.getLogger("cuo_supervisor.http")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_RUN: Final = re.compile(r"[0-9A-Za-z]{26}|[0-9a-fA-F-]{36}")


def tell_response(scope: Scope, status: int, elapsed_ms: float) -> None:
    """Logs a response that was sent; status 0 when the caller went away before."""
    route = getattr(scope.get("route"), "path", None) or "other"
    level = logging.INFO
    if status >= 500:
        level = logging.ERROR
    elif route in _PROBES:
        level = logging.DEBUG  # every few seconds, and nothing to learn from
    if not _log.isEnabledFor(level):
        return
    method = scope["method"] if scope["method"] in _METHODS else "other"
    fields: dict[str, Any] = {
        "method": method,
        "route": route,
        "status": status,
        "duration_ms": round(elapsed_ms, 1),
    }
    run = (scope.get("path_params") or {}).get("run_id")
    if isinstance(run, str) and _RUN.fullmatch(run):
        fields["run_id"] = run
    header = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
    caller = parse_traceparent(header.decode("latin-1"), random=bytes)
    if caller.remote:
        fields["trace_id"] = caller.trace_id
    _log.log(level, "http.request", extra={"event": "http.request", "fields": fields})
