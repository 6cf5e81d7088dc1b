"""A real LiteLLM proxy as the gateway, a local server as the model behind it. Opt-in.

    scripts/litellm-proxy

makes an environment for the proxy (once) and runs this file. By hand: LITELLM_PROXY names a
`litellm` command with its proxy extra, and pytest runs this file. Without it everything is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from loopback_gateway import LoopbackGateway, Step

PROXY = os.environ.get("LITELLM_PROXY", "")
TOKEN = "sk-loopback-only"
QUERY = "what should we do about the unpaid Q4 contract from ACME"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PICK = {
    "skill_name": "inv-dunning-draft@1.2",
    "arguments": {"customer": "ACME"},
    "rationale": "An unpaid contract calls for a reminder.",
    "confidence": 0.85,
}
CONFIG = """\
model_list:
- model_name: "haiku@cuo-supervisor"
  litellm_params: {{model: openai/stand-in, api_key: none, api_base: "{model}/v1", max_retries: 0}}
general_settings:
  master_key: {token}
  allow_client_side_credentials: true  # or it refuses the body's tenant_id
  pass_through_endpoints:
  - path: /v1/ai/chat
    target: {own}/v1/chat/completions
    headers: {{Authorization: "Bearer {token}", content-type: application/json}}
    forward_headers: true
litellm_settings: {{num_retries: 0}}
"""

pytestmark = [
    pytest.mark.slow,
    # On a crowded machine the proxy takes two minutes to come alive, and a command one to load LiteLLM.
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PROXY, reason="LITELLM_PROXY names no proxy; scripts/litellm-proxy"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[LoopbackGateway]:
    """The provider the proxy believes in."""
    with LoopbackGateway() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(model: LoopbackGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The proxy's base URL, once it is alive and has carried a call."""
    folder = tmp_path_factory.mktemp("proxy")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = f"http://127.0.0.1:{port}"
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(model=model.url, token=TOKEN, own=own))
    log = folder / "log"
    with log.open("wb") as said:
        running = subprocess.Popen(
            [PROXY, "--config", config, "--host", "127.0.0.1", "--port", str(port)],
            env={
                "PATH": f"{Path(PROXY).parent}:/usr/bin:/bin",
                "HOME": str(folder),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_MODE": "PRODUCTION",
            },
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 400
        while not _alive(own):
            assert running.poll() is None, log.read_text("utf-8", "replace")[-2000:]
            assert time.monotonic() < until, "the proxy did not come alive"
            time.sleep(0.5)
        # Its first call takes longer than the cascade's whole budget: parts of it load lazily.
        warm = urllib.request.Request(
            f"{own}/v1/ai/chat",
            data=json.dumps({"model": "haiku@cuo-supervisor", "messages": []}).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(warm, timeout=60):
            pass
        yield own
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(10)


@pytest.fixture(autouse=True)
def forgotten(model: LoopbackGateway) -> None:
    """Each test sees its own calls only, and gets its own answers."""
    model.forget()


def _alive(own: str) -> bool:
    try:
        with urllib.request.urlopen(f"{own}/health/liveliness", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def route(proxy: str, *, token: str = TOKEN) -> tuple[int, dict[str, Any], str]:
    """Exit code, answer and remarks of the installed command, dry: the gateway is what is tried."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("cyberos-cuo"),
            *("supervisor", "route", "--no-record", "--json"),
            *("--traceparent", f"00-{TRACE}-00f067aa0ba902b7-01", "--query", QUERY),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "CYBEROS_AI_GATEWAY_URL": proxy,
            "CYBEROS_AI_GATEWAY_TOKEN": token,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def in_time(proxy: str, model: LoopbackGateway) -> tuple[int, dict[str, Any]]:
    """As `route`, again when the proxy itself did not get through in the cascade's three seconds:
    its first calls take longer, and on a crowded machine some later ones."""
    for _ in range(4):
        model.requests.clear()
        code, answer, _ = route(proxy)
        if answer["cascade_outcome"] != "timeout":
            break
    return code, answer


def test_a_pick_comes_through_the_proxy(proxy: str, model: LoopbackGateway) -> None:
    """The proxy hands the prompt on whole, under its own name for the model, and the pick counts."""
    model.script(Step("answer", PICK))
    code, answer, said = route(proxy)
    assert (answer["path_taken"], answer["cascade_outcome"]) == ("cascade_then_auto", "success")
    assert answer["skill_chosen"] == PICK["skill_name"]
    assert (code, answer["llm_used"]) == (0, True)
    assert "Warning" not in said
    (asked,) = model.requests
    assert asked.target == "/v1/chat/completions"
    assert asked.body["model"] == "stand-in"
    assert asked.body["response_format"] == {"type": "json_object"}
    assert (asked.body["temperature"], asked.body["max_tokens"]) == (0.0, 500)
    assert QUERY in asked.body["messages"][1]["content"]
    assert asked.header("authorization") == "Bearer none"  # the gateway's token stays with it


def test_a_wrong_token_is_no_model(proxy: str, model: LoopbackGateway) -> None:
    """The proxy's 401 falls through to ask; the model is not reached."""
    code, answer, _ = route(proxy, token="sk-wrong")
    assert (code, answer["path_taken"], answer["cascade_outcome"]) == (1, "ask", "gateway_error")
    assert model.requests == []


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, "budget_exceeded"), (500, "gateway_error")], ids=str
)
def test_a_providers_refusal_is_the_gateways(
    proxy: str, model: LoopbackGateway, status: int, outcome: str
) -> None:
    """What the provider refuses comes through with its status, asked once."""
    # As a mode, not a step: a call of the test before may arrive as late as now.
    model.mode, model.status = "status", status
    code, answer = in_time(proxy, model)
    assert (code, answer["path_taken"], answer["cascade_outcome"]) == (1, "ask", outcome)
    assert len(model.requests) == 1


def test_a_slow_provider_is_a_time_out(proxy: str, model: LoopbackGateway) -> None:
    """The budget is ours: a provider that takes a minute costs three seconds, and 75.

    Measured from when the provider was asked: before that the command loads its client.
    """
    model.mode, model.delay_s = "delay", 60.0
    code, answer, _ = route(proxy)
    ended = time.monotonic()
    assert (code, answer["path_taken"], answer["cascade_outcome"]) == (75, "ask", "timeout")
    assert model.requests
    assert ended - model.requests[-1].at < 20


def test_prose_is_asked_again(proxy: str, model: LoopbackGateway) -> None:
    """An answer that is no pick earns its second, stricter question through the proxy."""
    model.script(Step("answer", "I would remind them."), Step("answer", PICK))
    code, answer, _ = route(proxy)
    assert (code, answer["cascade_outcome"]) == (0, "success")
    assert len(model.requests) == 2
