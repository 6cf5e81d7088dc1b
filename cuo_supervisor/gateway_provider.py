"""The only module that imports LiteLLM, and only inside functions.

LiteLLM is given one custom provider, `cuo_gateway`, whose handler posts to the AI gateway with
our own HTTP client; so LiteLLM contributes its call shape and never opens a connection itself.

Loading takes 2.5-4 s with bytecode and 7-12 s without. `start_warm_up` does it in a daemon
thread. That thread is the one place that touches process-wide state: three `LITELLM_*`
variables (read by LiteLLM at import), the garbage collector, and LiteLLM's own globals. Only
entry points may start it; importing this module changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import httpx

from .cascade import GatewayFailure, GatewayReply
from .gateway_wire import WireCall, exchange

__all__ = [
    "ENVIRONMENT",
    "MODEL_ALIAS",
    "PROVIDER",
    "call_litellm",
    "is_ready",
    "start_warm_up",
    "wait_ready",
    "warm_up_problem",
]

PROVIDER: Final = "cuo_gateway"

MODEL_ALIAS: Final = "haiku@cuo-supervisor"
"""The gateway's alias (resolved by TASK-AI-006); no provider's model name appears anywhere."""

MAX_TOKENS: Final = 500
"""A pick needs about 200 tokens plus a rationale of at most 500 characters (§11)."""

ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no cost map download at import
    "LITELLM_OFFLINE_MODE": "true",  # no catalogue, check or tokenizer download later
    "LITELLM_MODE": "PRODUCTION",  # otherwise importing loads a .env file into os.environ
    "LITELLM_LOG": "CRITICAL",  # an inherited DEBUG would print prompts
}
"""Set before LiteLLM is imported, whatever the caller's environment says."""

_GLOBALS: Final = {
    "suppress_debug_info": True,  # each error would print a banner to stdout
    "set_verbose": False,
    "num_retries": 0,
    "cache": None,
    "drop_params": False,
}
_HOOKS: Final = (
    "callbacks",
    "input_callback",
    "success_callback",
    "failure_callback",
    "service_callback",
    "_async_success_callback",
    "_async_failure_callback",
)

_READY: Final = threading.Event()
_FINISHED: Final = threading.Event()
_LOCK: Final = threading.Lock()
_thread: threading.Thread | None = None
_problem: str | None = None


def is_ready() -> bool:
    """Whether LiteLLM is loaded and has carried a call. Never waits."""
    return _READY.is_set()


def wait_ready(timeout_s: float) -> bool:
    """Wait for a warm-up that was started; False at once when it failed or never was."""
    if _thread is None:
        return False
    _FINISHED.wait(timeout_s)
    return _READY.is_set()


def is_loading() -> bool:
    """Whether the warm-up's thread is at work."""
    return _thread is not None and _thread.is_alive()


def warm_up_problem() -> str | None:
    """The class name of what stopped the warm-up, for `doctor`; None while all is well."""
    return _problem


def start_warm_up() -> None:
    """Start loading in the background; once per process, however often it is called."""
    global _thread
    with _LOCK:
        if _thread is None:
            _thread = threading.Thread(target=_warm_up, name="cuo-litellm-warm-up", daemon=True)
            _thread.start()


async def call_litellm(
    call: WireCall,
    url: str,
    messages: Sequence[Mapping[str, str]],
    *,
    tenant_id: str,
    headers: Mapping[str, str],
) -> GatewayReply | GatewayFailure:
    """Carry one call through `litellm.acompletion`. Call only when `is_ready()`.

    The outcome is what the handler recorded on `call`; LiteLLM's result and exceptions are not
    consulted, and its exception text (it quotes bodies and tracebacks) is dropped unseen.
    """
    import litellm

    with contextlib.suppress(Exception):  # any class may come; the truth is on `call`
        await litellm.acompletion(
            model=f"{PROVIDER}/{MODEL_ALIAS}",
            messages=[dict(message) for message in messages],
            api_base=url,
            extra_body={"tenant_id": tenant_id},
            extra_headers=dict(headers),
            response_format={"type": "json_object"},
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            client=call,
            timeout=call.timeout_s,
            # Both zero: with either left out LiteLLM repeats calls, even after a 422.
            num_retries=0,
            max_retries=0,
            caching=False,
        )
    return call.outcome or GatewayFailure("gateway_error", None, "client failed before the call")


def _warm_up() -> None:
    global _problem
    collecting = gc.isenabled()
    # Stop-the-world collections over 200 MB of fresh modules stall the service for up to 250 ms;
    # freezing afterwards keeps every later collection from walking them again.
    gc.disable()
    try:
        os.environ.update(ENVIRONMENT)
        _register()
        asyncio.run(_rehearse())
        gc.freeze()
        _READY.set()
    except BaseException as problem:  # a thread has nobody to raise to
        _problem = type(problem).__name__
    finally:
        if collecting:
            gc.enable()
        _FINISHED.set()


def _register() -> None:
    import litellm
    from litellm.llms.custom_llm import CustomLLM, CustomLLMError

    class Handler(CustomLLM):  # type: ignore[misc,unused-ignore]  # untyped where stubs are skipped
        async def acompletion(self, *args: Any, **given: Any) -> Any:
            call = given["client"]
            options = given["optional_params"]
            body = {
                "tenant_id": options["extra_body"]["tenant_id"],
                "model": given["model"],
                "messages": given["messages"],
                "response_format": options["response_format"],
                "temperature": options["temperature"],
                "max_tokens": options["max_tokens"],
            }
            outcome = await exchange(call, given["api_base"], body, given["headers"])
            call.outcome = outcome
            if isinstance(outcome, GatewayFailure):
                status = outcome.status or 500
                raise CustomLLMError(status, outcome.outcome)  # type: ignore[no-untyped-call,unused-ignore]
            answer = given["model_response"]
            answer.choices[0].message.content = outcome.text
            answer.model = given["model"]
            return answer

    for name, value in _GLOBALS.items():
        setattr(litellm, name, value)
    for name in _HOOKS:
        setattr(litellm, name, [])
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Its error records quote request and response bodies.
        logging.getLogger(name).disabled = True
    others = [entry for entry in litellm.custom_provider_map if entry["provider"] != PROVIDER]
    litellm.custom_provider_map = [*others, {"provider": PROVIDER, "custom_handler": Handler()}]


async def _rehearsal_body() -> AsyncIterator[bytes]:
    # A generator, because httpx reads bytes given to Response at once and streams them no more.
    yield b'{"choices": [{"message": {"role": "assistant", "content": "{}"}}]}'


async def _rehearse() -> None:
    """One success and one failure against a transport in memory: loads LiteLLM's lazy parts."""
    answers = iter((200, 503))

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers), content=_rehearsal_body(), request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond), trust_env=False) as http:
        for expected in (GatewayReply, GatewayFailure):
            outcome = await call_litellm(
                WireCall(http, {}, 30.0),
                "http://rehearsal.invalid/v1/ai/chat",
                [{"role": "user", "content": "rehearsal"}],
                tenant_id="rehearsal",
                headers={},
            )
            if type(outcome) is not expected:
                raise RuntimeError("LiteLLM did not carry the rehearsal call")
        await asyncio.sleep(0)  # let LiteLLM's logging worker settle before its loop ends
