"""The outermost layer: what every request must satisfy, and what every response carries.

Written as plain ASGI: a streamed response must pass through it chunk by chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cuo_supervisor.core.strict_json import DuplicateName, unique
from cuo_supervisor.http.access_log import tell_response
from cuo_supervisor.http.options import Options, is_loopback
from cuo_supervisor.http.problems import Problem, problem_of, problem_response, unexpected

__all__ = ["CutOff", "Guard"]

_MAX_QUERY_STRING: Final = 40 * 1024
"""Bytes. A cursor of a run in 32 threads with long names is the longest thing asked for."""

_MAX_PATH: Final = 1024
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORM: Final = "application/x-www-form-urlencoded"

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Not no-referrer: browsers then send `Origin: null` with forms, and the check below needs it.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class CutOff(Exception):
    """A response that had begun could not be completed. For the server, which then hangs up."""


class _HeadSent(Exception):
    """HEAD is answered as GET would be, up to the body: none is made, and no stream is read."""


class Guard:
    """Checks host, origin, sizes and body of a request; adds security headers to the response.

    In local mode there is no login, so a page of somebody else's that a browser shows must not
    reach this service: only loopback host names are answered (a foreign name that resolves to
    127.0.0.1 is refused), and writing calls must not come from another site.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        options: Options,
        local: bool,
        render: Callable[[Scope, Problem], Response] | None = None,
    ) -> None:
        self._app = app
        self._options = options
        self._local = local
        self._render = render or (lambda _scope, problem: problem_response(problem))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        if head:
            scope = {**scope, "method": "GET"}
        started = False
        status, began = 0, time.perf_counter()

        async def out(message: Message) -> None:
            nonlocal started, status
            if message["type"] == "http.response.start":
                started, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)
            if head and message["type"] == "http.response.start":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise _HeadSent

        try:
            self._check(scope)
            await self._app(scope, await self._with_body(scope, receive), out)
        except _HeadSent:
            pass
        except Exception as error:
            problem = problem_of(error) or unexpected(error)
            if started:
                # Too late for a status: the connection must break, or a cut stream looks whole.
                raise CutOff(problem.error) from None
            with contextlib.suppress(_HeadSent):
                await self._render(scope, problem)(scope, receive, out)
        finally:
            tell_response(scope, status, (time.perf_counter() - began) * 1000.0)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if len(scope["query_string"]) > _MAX_QUERY_STRING or len(scope["path"]) > _MAX_PATH:
            raise Problem(414, "uri_too_long", "the address is longer than this service reads")
        host = headers.get("host", "")
        if self._local and not is_loopback(_hostname(host)):
            raise Problem(421, "misdirected", "local mode answers under loopback names only")
        if "content-length" in headers and "transfer-encoding" in headers:
            # Two lengths: a proxy that believes the other one sees other requests than we do.
            refused = {"Connection": "close"}
            raise Problem(400, "invalid_argument", "a body has one length", headers=refused)
        if len(headers.getlist("authorization")) > 1:
            raise Problem(400, "invalid_argument", "a call has one Authorization header")
        if scope["method"] in _UNSAFE:
            _check_origin(headers, host)
        if scope["method"] == "POST":  # no address takes another method that writes
            _check_type(headers, scope["path"])

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Reads the body now, within its limits of size and time, and gives it out again."""
        limit = self._options.max_body_bytes
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        if scope["method"] not in _UNSAFE:
            return receive
        body = b""
        try:
            async with asyncio.timeout(self._options.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Problem(408, "timeout", "the body did not arrive in time") from None
        if scope["path"].startswith("/v1/"):
            _check_json(body)
        given = False

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        return replay


def _check_origin(headers: Headers, host: str) -> None:
    """A writing call from another site's page is refused; one from no page at all is not.

    Browsers name the origin of every such call. A bearer token could not be sent along by a
    foreign page, but in local mode there is none, and forms ride on a cookie.
    """
    origin = headers.get("origin")
    if origin is not None:
        same = _netloc(origin).casefold() == host.casefold() != ""
    else:
        same = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if not same:
        raise Problem(403, "cross_site", "calls from another site's page are refused")


def _netloc(origin: str) -> str:
    """Its host and port; nothing for `null` and for what is no origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _check_type(headers: Headers, path: str) -> None:
    given = headers.get("content-type", "").partition(";")[0].strip().casefold()
    wanted = "application/json" if path.startswith("/v1/") else _FORM
    if given != wanted:
        raise Problem(415, "unsupported_media_type", f"send {wanted}")


def _check_json(body: bytes) -> None:
    """What a proxy or a filter read in a body is what counts here: each name once, in UTF-8.

    Anything else that is wrong with it is the routes' to say.
    """
    try:
        # A mark of the byte order may stand before it: the routes' reader takes it, too.
        json.loads(body.decode("utf-8-sig"), object_pairs_hook=unique)
    except DuplicateName:
        raise Problem(400, "invalid_argument", "the body names a member twice") from None
    except UnicodeDecodeError:
        raise Problem(400, "invalid_argument", "the body is not UTF-8") from None
    except (ValueError, RecursionError):
        return


def _too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"a body may have at most {limit} bytes")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
