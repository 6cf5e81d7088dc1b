"""The client of the AI gateway, the single way from here to a model.

There is no other way on purpose: a gateway that fails means no model (the cascade falls through
to `ask`), never a direct call to a provider, because budgets, residency and the cost ledger are
the gateway's.

Importing this module loads no LiteLLM, opens nothing and changes nothing in the process.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from typing import Final

import httpx
from pydantic import SecretStr

from . import gateway_provider
from .cascade import (
    CASCADE_BUDGET_S,
    CascadeResult,
    GatewayFailure,
    GatewayReply,
    Model,
    run_cascade,
)
from .core.prompt import Message
from .errors import ConfigError
from .gateway_wire import CHAT_PATH, WireCall, check_base_url

__all__ = [
    "CASCADE_BUDGET_S",
    "DEFAULT_BASE_URL",
    "CascadeResult",
    "Gateway",
    "GatewayFailure",
    "GatewayReply",
    "Model",
    "run_cascade",
]

DEFAULT_BASE_URL: Final = "http://localhost:8080"

_MAX_CONNECTIONS: Final = 32
"""Concurrent cascades per event loop; more wait inside their own budget."""


class Gateway:
    """Chat completions through `{base_url}/v1/ai/chat`.

    One instance may serve several event loops; each gets its own HTTP client. Connections do not
    follow redirects and ignore proxy variables, since both could hand a prompt to someone else.
    TLS certificates are always verified; `verify` may name another CA file or be a context, never
    False. A wrong argument raises `ConfigError` here; `complete` itself never raises.
    """

    def __init__(
        self,
        *,
        base_url: str = DEFAULT_BASE_URL,
        token: SecretStr | None = None,
        verify: bool | str | ssl.SSLContext = True,
    ) -> None:
        self._url = check_base_url(base_url) + CHAT_PATH
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "cuo-supervisor",
        }
        if token is not None:
            value = token.get_secret_value()
            if not value or not value.isascii() or not value.isprintable() or " " in value:
                raise ConfigError("CYBEROS_AI_GATEWAY_TOKEN is empty or holds forbidden characters")
            self._headers["Authorization"] = f"Bearer {value}"
        self._verify = _tls(verify, secure=self._url.startswith("https:"))
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Gateway({self._url!r})"

    @property
    def url(self) -> str:
        """The full address calls go to."""
        return self._url

    @property
    def ready(self) -> bool:
        """Whether a call would be carried now. Never waits."""
        return gateway_provider.is_ready()

    def warm_up(self) -> None:
        """Start loading LiteLLM in a daemon thread; later calls do nothing.

        For entry points only: it sets `LITELLM_*` variables and pauses the garbage collector.
        """
        gateway_provider.start_warm_up()

    def wait_ready(self, timeout_s: float) -> bool:
        """Block until the warm-up is over; for a one-shot command, before it starts its clock.

        Never call it in a running event loop. False: not loaded in time, failed, or not started.
        """
        return gateway_provider.wait_ready(timeout_s)

    async def complete(
        self,
        messages: list[Message],
        *,
        tenant_id: str,
        decision_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> GatewayReply | GatewayFailure:
        """Ask the model once, within `timeout_s` seconds, and return its text or why there is none.

        Not warmed up: `not_ready` at once. `decision_id` and `traceparent` (if not empty) travel
        verbatim. One request at most, whatever happens to it.
        """
        if not self.ready:
            return GatewayFailure("not_ready", None, "model client is still loading")
        if timeout_s <= 0:
            return GatewayFailure("timeout", None, "budget spent")
        headers = {"X-Cuo-Decision-Id": decision_id}
        if traceparent:
            headers["traceparent"] = traceparent
        call = WireCall(self._client(), self._headers, timeout_s)
        try:
            return await asyncio.wait_for(
                gateway_provider.call_litellm(
                    call, self._url, messages, tenant_id=tenant_id, headers=headers
                ),
                timeout=timeout_s,
            )
        except TimeoutError:
            return GatewayFailure("timeout", None, "budget spent")

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Call once in each loop that asked."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = httpx.AsyncClient(
                verify=self._verify,
                trust_env=False,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
            )
            self._clients[loop] = client
        return client


def _tls(verify: bool | str | ssl.SSLContext, *, secure: bool) -> ssl.SSLContext | bool:
    if verify is True:
        # Plain http needs no list of authorities, and reading one costs 20 to 100 ms of the first
        # cascade. The empty context trusts nobody, should an https address ever reach it.
        return True if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(verify, str):
        try:
            return ssl.create_default_context(cafile=verify)
        except (OSError, ssl.SSLError):
            raise ConfigError("the gateway's CA file cannot be read") from None
    if isinstance(verify, ssl.SSLContext) and verify.verify_mode is ssl.CERT_REQUIRED:
        return verify
    raise ConfigError("the gateway's TLS certificate must be verified")
