"""The gateway client against a real HTTP server on loopback. Needs no Postgres, no network."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from loopback_gateway import LoopbackGateway, Recorded, Step

from cuo_supervisor.cascade import GatewayFailure, GatewayReply
from cuo_supervisor.errors import ConfigError
from cuo_supervisor.gateway import Gateway

MESSAGES = [{"role": "system", "content": "rules"}, {"role": "user", "content": "nợ \ud800 \x00"}]
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DECISION = "01HG7V8B0K8M4Z8Z8M8M8M8M8M"


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Load LiteLLM once; its import warns about its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gateway = Gateway()
        gateway.warm_up()
        assert gateway.wait_ready(120)


@pytest.fixture
def server() -> Iterator[LoopbackGateway]:
    with LoopbackGateway() as running:
        yield running


async def ask(
    url: str, *, timeout_s: float = 3.0, traceparent: str = TRACEPARENT, **options: Any
) -> GatewayReply | GatewayFailure:
    gateway = Gateway(base_url=url, **options)
    try:
        return await gateway.complete(
            MESSAGES,
            tenant_id="5e8f1d2a-0000-4000-8000-000000000001",
            decision_id=DECISION,
            traceparent=traceparent,
            timeout_s=timeout_s,
        )
    finally:
        await gateway.aclose()


@pytest.mark.clause("101-11")
@pytest.mark.criterion("101-AC31")
async def test_wire_format(server: LoopbackGateway) -> None:
    """One POST to /v1/ai/chat with exactly the agreed fields and headers, verbatim."""
    server.script(Step("answer", answer="hello"))
    reply = await ask(server.url, token=SecretStr("tok-123"))
    assert reply == GatewayReply("hello", 200)
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/v1/ai/chat")
    assert request.body == {
        "tenant_id": "5e8f1d2a-0000-4000-8000-000000000001",
        "model": "haiku@cuo-supervisor",
        "messages": MESSAGES,
        "response_format": {"type": "json_object"},
        "temperature": 0.0,
        "max_tokens": 500,
    }
    assert request.header("X-Cuo-Decision-Id") == DECISION
    assert request.header("traceparent") == TRACEPARENT
    assert request.header("Authorization") == "Bearer tok-123"
    assert {name.lower() for name, _ in request.headers} == {
        "host",
        "connection",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "user-agent",
        "x-cuo-decision-id",
        "traceparent",
        "authorization",
    }


async def test_no_token_no_traceparent(server: LoopbackGateway) -> None:
    """Neither header is invented, not even from a provider key in the environment."""
    await ask(server.url, traceparent="")
    assert server.requests[0].header("authorization") is None
    assert server.requests[0].header("traceparent") is None


async def test_path_prefix(server: LoopbackGateway) -> None:
    """A base URL may carry a path prefix and a trailing slash."""
    await ask(server.url + "/edge/")
    assert server.requests[0].target == "/edge/v1/ai/chat"


FAILURES: list[tuple[Step, str, int | None]] = [
    (Step("status", status=400), "gateway_error", 400),
    (Step("status", status=401), "gateway_error", 401),
    (Step("status", status=402), "budget_exceeded", 402),
    (Step("status", status=404), "gateway_error", 404),
    (Step("status", status=408), "gateway_error", 408),
    (Step("status", status=422), "gateway_error", 422),
    (Step("status", status=429), "budget_exceeded", 429),
    (Step("status", status=451), "residency_denied", 451),
    (Step("status", status=500), "gateway_error", 500),
    (Step("status", status=503), "gateway_error", 503),
    (Step("status", status=504), "gateway_error", 504),
    (Step("reset"), "gateway_unreachable", None),
    (Step("reset_mid_body"), "gateway_unreachable", 200),
    (Step("error_object"), "gateway_error", 200),
    (Step("malformed"), "unusable_reply", 200),
    (Step("truncated"), "unusable_reply", 200),
    (Step("empty"), "unusable_reply", 200),
    (Step("html"), "unusable_reply", 200),
    (Step("no_choices"), "unusable_reply", 200),
    (Step("null_content"), "unusable_reply", 200),
    (Step("not_an_object"), "unusable_reply", 200),
    (Step("oversize"), "unusable_reply", 200),
    (Step("compressed"), "unusable_reply", 200),
]


@pytest.mark.parametrize(("step", "outcome", "status"), FAILURES, ids=lambda v: str(v)[:60])
async def test_real_cause(
    server: LoopbackGateway,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    step: Step,
    outcome: str,
    status: int | None,
) -> None:
    """Each fault is named by its real status and kind, is asked once, and prints nothing."""
    server.script(step)
    failure = await ask(server.url)
    assert isinstance(failure, GatewayFailure)
    assert (failure.outcome, failure.status) == (outcome, status)
    assert len(server.requests) == 1
    assert "SECRET" not in failure.detail
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert not [record for record in caplog.records if "LiteLLM" in record.name]


@pytest.mark.parametrize("mode", ["hang", "hang_mid_body", "delay"])
async def test_deadline(server: LoopbackGateway, mode: str) -> None:
    """Silence, a stalled body and a slow answer all end at the limit, with no task left over."""
    server.script(Step(mode, delay_s=2.0))
    before = asyncio.all_tasks()
    started = time.monotonic()
    failure = await ask(server.url, timeout_s=0.3)
    assert time.monotonic() - started < 0.6
    assert isinstance(failure, GatewayFailure)
    assert failure.outcome == "timeout"
    left = [t for t in asyncio.all_tasks() - before if "LoggingWorker" not in repr(t.get_coro())]
    assert left == []


async def test_refused_and_unresolvable() -> None:
    """A closed port and a name that cannot resolve are gateway_unreachable."""
    for url in ("http://127.0.0.1:9", "http://gateway.invalid:8080"):
        failure = await ask(url)
        assert isinstance(failure, GatewayFailure)
        assert failure.outcome == "gateway_unreachable"


async def test_redirect_not_followed(server: LoopbackGateway) -> None:
    """A 307 would carry the prompt elsewhere: it is an error and its target hears nothing."""
    with LoopbackGateway() as other:
        server.script(Step("redirect", location=other.url + "/v1/ai/chat"))
        failure = await ask(server.url)
        assert isinstance(failure, GatewayFailure)
        assert (failure.outcome, failure.status) == ("gateway_error", 307)
        assert other.connections == 0


async def test_proxy_variables_ignored(
    server: LoopbackGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY and friends are not obeyed: the prompt goes to the gateway or nowhere."""
    with LoopbackGateway() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert isinstance(await ask(server.url), GatewayReply)
        assert proxy.connections == 0


async def test_cancellation_passes(server: LoopbackGateway) -> None:
    """Cancelling the caller cancels the call at once."""
    server.script(Step("hang"))
    task = asyncio.create_task(ask(server.url))
    await asyncio.sleep(0.5)
    assert len(server.requests) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1.0)


async def test_concurrent_calls_keep_apart(server: LoopbackGateway) -> None:
    """Sixteen calls at once each get their own answer or failure."""
    gateway = Gateway(base_url=server.url)

    async def one(number: int) -> bool:
        offer = json.dumps({"candidates": [{"skill_name": f"s{number}@1.0"}]})
        text = f"[DATA {'0' * 32}]\n{offer}\n[END {'0' * 32}]"
        messages = [{"role": "user", "content": text}]
        reply = await gateway.complete(
            messages, tenant_id="t", decision_id=str(number), traceparent="", timeout_s=5.0
        )
        return isinstance(reply, GatewayReply) and f'"s{number}@1.0"' in reply.text

    assert all(await asyncio.gather(*(one(n) for n in range(16))))
    await gateway.aclose()


def test_several_event_loops(server: LoopbackGateway) -> None:
    """One gateway serves one loop after another, each with its own connections."""
    gateway = Gateway(base_url=server.url)

    async def once() -> GatewayReply | GatewayFailure:
        reply = await gateway.complete(
            MESSAGES, tenant_id="t", decision_id="d", traceparent="", timeout_s=3.0
        )
        await gateway.aclose()
        return reply

    for _ in range(2):
        assert isinstance(asyncio.run(once()), GatewayReply)


async def test_tls_is_verified(tmp_path: Path) -> None:
    """An untrusted certificate is gateway_unreachable; the CA named in `verify` is accepted."""
    certificate, key = _self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with LoopbackGateway(tls=context) as secure:
        failure = await ask(secure.url)
        assert isinstance(failure, GatewayFailure)
        assert failure.outcome == "gateway_unreachable"
        assert secure.requests == []
        assert isinstance(await ask(secure.url, verify=str(certificate)), GatewayReply)


async def test_bad_header_value_is_a_failure() -> None:
    """A decision id that cannot be a header never raises and never reaches the wire."""
    with LoopbackGateway() as server:
        gateway = Gateway(base_url=server.url)
        for bad in ("a\r\nX-Evil: 1", "ñ\u2603"):
            failure = await gateway.complete(
                MESSAGES, tenant_id="t", decision_id=bad, traceparent="", timeout_s=3.0
            )
            assert isinstance(failure, GatewayFailure)
            assert failure.outcome == "gateway_error"
        await gateway.aclose()
        assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://host",
        "http://",
        "http://user:hunter2@host",
        "http://host?x=1",
        "http://host/#f",
        "http://host:0",
        "http://host:99999",
        "http://ho st",
        "http://host\n",
        "http://[::1",
    ],
)
def test_url_is_validated(url: str) -> None:
    """A wrong base URL is refused at once, without repeating it (it may hold a password)."""
    with pytest.raises(ConfigError) as refused:
        Gateway(base_url=url)
    assert "CYBEROS_AI_GATEWAY_URL" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("verify", [False, ssl._create_unverified_context()])
def test_verification_cannot_be_turned_off(verify: Any) -> None:
    """TLS verification has no off switch."""
    with pytest.raises(ConfigError):
        Gateway(verify=verify)


def test_token_is_masked() -> None:
    """The token shows in no repr, and a malformed one is refused without being repeated."""
    gateway = Gateway(token=SecretStr("tok-123"))
    assert "tok-123" not in repr(gateway)
    for bad in ("", "a b", "a\nb", "ñandu"):
        with pytest.raises(ConfigError) as refused:
            Gateway(token=SecretStr(bad))
        assert not bad or bad not in str(refused.value)


_IMPORT_ONLY = """
import gc, os, sys
before = dict(os.environ), gc.get_freeze_count(), gc.isenabled()
import asyncio
import cuo_supervisor.gateway as g
assert (dict(os.environ), gc.get_freeze_count(), gc.isenabled()) == before
assert not [m for m in sys.modules if m.split(".")[0] in ("litellm", "openai")]
gateway = g.Gateway()
call = gateway.complete([], tenant_id="t", decision_id="d", traceparent="", timeout_s=1)
reply = asyncio.run(call)
assert reply.outcome == "not_ready", reply
assert gateway.wait_ready(5.0) is False
assert not [m for m in sys.modules if m.split(".")[0] in ("litellm", "openai")]
"""

_WARM = """
import gc, os, sys
os.environ["LITELLM_LOG"] = "DEBUG"
os.environ["OPENAI_API_KEY"] = "sk-do-not-send"
import cuo_supervisor.gateway as g
gateway = g.Gateway()
gateway.warm_up(); gateway.warm_up()
assert gateway.wait_ready(120), g.gateway_provider.warm_up_problem()
assert gc.isenabled() and gc.get_freeze_count() > 0
for name, value in g.gateway_provider.ENVIRONMENT.items():
    assert os.environ[name] == value, name
import litellm
assert litellm.suppress_debug_info and litellm.cache is None and litellm.num_retries == 0
assert not (litellm.callbacks or litellm.success_callback or litellm.failure_callback)
"""


def _child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=Path(__file__).parents[2],
        check=False,
    )


def test_import_changes_nothing() -> None:
    """Importing the gateway loads no LiteLLM and touches neither environment nor collector."""
    done = _child(_IMPORT_ONLY)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_warm_up_is_silent_and_shut_in() -> None:
    """The warm-up sets LiteLLM's flags over an inherited environment and prints nothing."""
    done = _child(_WARM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_double_runs_by_hand() -> None:
    """The loopback gateway starts as a command and prints where it listens."""
    script = Path(__file__).parents[1] / "doubles" / "loopback_gateway.py"
    with subprocess.Popen(
        [sys.executable, str(script), "--port", "0", "--mode", "ok"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        reply = asyncio.run(ask(url))
        process.terminate()
    assert isinstance(reply, GatewayReply)


def _self_signed(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "cert.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_file, key_file


def test_recorded_header_lookup() -> None:
    """The double finds headers whatever their case."""
    assert Recorded("POST", "/", (("X-A", "1"),), b"{}").header("x-a") == "1"
