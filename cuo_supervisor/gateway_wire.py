"""One HTTP exchange with the AI gateway: `POST {base}/v1/ai/chat`, judged by its real outcome.

Nothing raises: every refusal, broken connection and unusable body becomes a `GatewayFailure`
whose words are fixed, so neither the prompt nor a server's text can reach a log through it.
Only cancellation passes through (and closes the socket).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from .cascade import GatewayFailure, GatewayReply
from .core.strict_json import unique
from .errors import ConfigError

__all__ = ["CHAT_PATH", "MAX_REPLY_BYTES", "WireCall", "check_base_url", "exchange"]

CHAT_PATH: Final = "/v1/ai/chat"

MAX_REPLY_BYTES: Final = 256 * 1024
"""Cap on a reply's body. 500 tokens in an envelope need about 4 kB."""

_BUDGET_STATUS: Final = frozenset({402, 429})
_RESIDENCY_STATUS: Final = 451


@dataclass
class WireCall:
    """What one call needs and what became of it.

    Travels through LiteLLM as its `client` argument, so the token never enters LiteLLM's own
    records and the outcome comes back beside LiteLLM's exception classes, which differ between
    its versions (451 arrives as a 400 there, every transport fault as a 500).
    """

    http: httpx.AsyncClient
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float
    outcome: GatewayReply | GatewayFailure | None = None


def check_base_url(url: str) -> str:
    """Return the gateway's base URL without trailing slashes, or raise `ConfigError`.

    A path prefix is allowed. The message never repeats the value: a rejected one may hold a
    password.
    """
    name = "CYBEROS_AI_GATEWAY_URL"
    if any(ch.isspace() or not ch.isprintable() for ch in url):
        raise ConfigError(f"{name} contains white space or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{name} is not a URL") from None
    if parts.scheme not in {"http", "https"}:
        raise ConfigError(f"{name} must start with http:// or https://")
    if not parts.hostname or port == 0:
        raise ConfigError(f"{name} names no host, or port 0")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{name} must not hold a user or password; set CYBEROS_AI_GATEWAY_TOKEN")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ConfigError(f"{name} must not have a query or fragment")
    return url.rstrip("/")


async def exchange(
    call: WireCall, url: str, body: Mapping[str, Any], extra_headers: Mapping[str, str]
) -> GatewayReply | GatewayFailure:
    """Post `body` to `url` once. No retry, no redirect; the reply is read up to the cap."""
    try:
        # The state may hold lone surrogates; ASCII JSON carries them as escapes.
        content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
        request = call.http.build_request(
            "POST",
            url,
            content=content,
            headers={**call.headers, **extra_headers},
            timeout=call.timeout_s,
        )
    except (ValueError, TypeError):
        return GatewayFailure("gateway_error", None, "request could not be built")
    status: int | None = None
    try:
        response = await call.http.send(request, stream=True, follow_redirects=False)
        status = response.status_code
        try:
            failure = _refusal(status)
            if failure is not None:
                return failure
            # Never decode: a compressed reply could unfold past the cap in one step.
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                return GatewayFailure("unusable_reply", status, "reply is compressed")
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_REPLY_BYTES:
                    return GatewayFailure("unusable_reply", status, "reply is too large")
        finally:
            await response.aclose()
    except httpx.TimeoutException:
        return GatewayFailure("timeout", status, "budget spent")
    except httpx.RemoteProtocolError:
        if status is not None:
            return GatewayFailure("unusable_reply", status, "reply is cut off")
        return GatewayFailure("gateway_unreachable", None, "connection closed without a reply")
    except httpx.LocalProtocolError:
        return GatewayFailure("gateway_error", None, "request could not be sent")
    except (httpx.TransportError, OSError):
        detail = "connection lost" if status is not None else "no connection"
        return GatewayFailure("gateway_unreachable", status, detail)
    except Exception:  # a bug in the HTTP stack must not cost the user an answer
        return GatewayFailure("gateway_error", status, "client failed during the call")
    return _text_of(bytes(received), status)


def _refusal(status: int) -> GatewayFailure | None:
    if status == 200:
        return None
    if status == _RESIDENCY_STATUS:
        return GatewayFailure("residency_denied", status, "refused by residency policy")
    if status in _BUDGET_STATUS:
        return GatewayFailure("budget_exceeded", status, "refused by budget or rate limit")
    if 300 <= status < 400:
        return GatewayFailure("gateway_error", status, "redirect not followed")
    return GatewayFailure("gateway_error", status, "refused by status")


def _text_of(body: bytes, status: int) -> GatewayReply | GatewayFailure:
    """Take `choices[0].message.content` out of the envelope."""
    try:
        envelope = json.loads(body, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return GatewayFailure("unusable_reply", status, "reply is not JSON")
    if not isinstance(envelope, dict):
        return GatewayFailure("unusable_reply", status, "reply is not an object")
    if envelope.get("error"):
        return GatewayFailure("gateway_error", status, "error object in a 200 reply")
    try:
        text = envelope["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return GatewayFailure("unusable_reply", status, "reply has no choice")
    if not isinstance(text, str):
        return GatewayFailure("unusable_reply", status, "reply has no text")
    return GatewayReply(text, status)
