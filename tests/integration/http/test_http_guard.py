"""What every request must satisfy and every response carries."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from cuo_checkpoint import CheckpointWriter

ROUTE = "/v1/cuo/supervisor/route"


def test_every_response_is_guarded(client: httpx.Client) -> None:
    """Answers and problems alike: strict policy, no sniffing, no framing, nothing stored."""
    for path in ("/v1/cuo/runs", "/v1/cuo/runs/x/verify", "/nowhere", "/healthz"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "script-src" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] in ("no-store", "private, no-cache")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_addresses_and_methods_that_are_not_there(client: httpx.Client) -> None:
    """Also these are problem documents."""
    assert client.get("/v1/cuo/other").json()["error"] == "not_found"
    refused = client.request("DELETE", "/v1/cuo/runs", headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["error"]) == (405, "method_not_allowed")


def test_a_body_is_bounded(client: httpx.Client) -> None:
    """Whether it tells its size or is sent in pieces."""
    headers = {"Content-Type": "application/json"}
    told = client.post(ROUTE, content=b"x" * 70_000, headers=headers)
    assert (told.status_code, told.json()["error"]) == (413, "body_too_large")
    pieces = client.post(ROUTE, content=iter([b"x" * 10_000] * 7), headers=headers)
    assert pieces.status_code == 413


def test_a_body_that_does_not_arrive(
    serve_on: Callable[..., Any], shared_place: Any, tenant_id: str, token: Any
) -> None:
    """Is waited for only so long."""
    api = serve_on(shared_place.app, body_seconds=0.3)
    where = urlsplit(api.url)
    started = time.monotonic()
    with socket.create_connection((where.hostname or "", where.port or 0)) as conn:
        conn.sendall(
            f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token(tenant_id)}\r\nContent-Length: 20\r\n\r\n{{".encode()
        )
        conn.settimeout(10)
        assert conn.recv(100).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - started < 5


def test_a_long_address_is_refused(client: httpx.Client) -> None:
    """Query strings and paths are bounded."""
    assert client.get("/v1/cuo/runs?before=" + "a" * 41_000).status_code == 414
    assert client.get("/v1/cuo/runs/" + "a" * 1100 + "/verify").status_code == 414


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_taken(client: httpx.Client, kind: str) -> None:
    """What a foreign page can send without asking is refused by its type."""
    answer = client.post(ROUTE, content=b'{"query":"x"}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_calls_from_foreign_pages_are_refused(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    """Browsers say where a call comes from."""
    answer = client.post(ROUTE, json={"query": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "cross_site")


def test_no_cors(client: httpx.Client) -> None:
    """A preflight is answered without leave."""
    asked = client.options(
        ROUTE,
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert "access-control-allow-origin" not in asked.headers


def test_the_api_describes_itself(api: Any) -> None:
    """OpenAPI with examples, readable without a token: it says nothing of anybody's data."""
    with api.client() as client:
        document = client.get("/v1/cuo/openapi.json").json()
    assert set(document["paths"]) >= {
        "/v1/cuo/runs",
        "/v1/cuo/runs/{run_id}/checkpoints",
        "/v1/cuo/runs/{run_id}/verify",
        "/v1/cuo/runs/{run_id}/resume",
        ROUTE,
        "/healthz",
        "/readyz",
        "/metrics",
    }
    schemas = document["components"]["schemas"]
    assert schemas["RouteRequest"]["examples"]
    assert schemas["CheckpointPage"]["examples"]
    found = document["paths"]["/v1/cuo/runs/{run_id}/checkpoints"]["get"]["responses"]
    assert "application/x-ndjson" in found["200"]["content"]
    assert "application/problem+json" in found["404"]["content"]


def test_metrics_are_for_this_machine(api: Any, tenant_id: str, token: Any) -> None:
    """Through a proxy they need a token."""
    with api.client() as client:
        assert client.get("/metrics").status_code == 200
        through = client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.9"})
        assert through.status_code == 401
    with api.client(token(tenant_id)) as client:
        shown = client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.9"})
        assert shown.status_code == 200


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_head_is_get_without_its_body(
    serve_on: Callable[..., Any], shared_place: Any, store: Any, tenant_id: str, token: Any,
    accept: str,
) -> None:  # fmt: skip
    """Same status and headers, on a connection that serves on; a stream is not read for it."""
    run_id = uuid.uuid4()
    CheckpointWriter(store).write(run_id, "run_started", {})
    api = serve_on(shared_place.app, streams=1)
    with api.client(token(tenant_id), headers={"Accept": accept}) as client:
        paths = [f"/v1/cuo/runs/{run_id}/checkpoints", "/v1/cuo/runs", "/healthz", "/login"]
        for path in [*paths, f"/v1/cuo/runs/{uuid.uuid4()}/checkpoints", "/runs", "/nowhere"]:
            got = client.get(path, follow_redirects=False)
            for _ in range(2):
                head = client.head(path, follow_redirects=False)
                assert (head.status_code, head.content) == (got.status_code, b"")
                moving = ("date", "content-length", "transfer-encoding")
                told = [
                    {k: v for k, v in answer.headers.items() if k not in moving}
                    for answer in (head, got)
                ]
                assert told[0] == told[1]


def test_other_methods_are_told_which_there_are(client: httpx.Client) -> None:
    """405 with Allow, also for OPTIONS and methods nobody knows."""
    for method in ("OPTIONS", "TRACE", "BREW", "PUT", "PATCH", "DELETE"):
        answer = client.request(method, "/v1/cuo/runs")
        assert (answer.status_code, answer.json()["error"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET"


BODY = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b""),
        (b"GET /healthz" + BODY, b"HTTP/1.1 200"),
        (b"POST /login" + BODY, b"HTTP/1.1 415"),
    ],
    ids=["nothing", "half a head", "a body nobody wants", "a body that was refused"],
)
def test_who_trickles_is_not_waited_for(hasty: Any, sent: bytes, answer: bytes) -> None:
    """Cut off after the time for a head or for the rest of a body, however busy they look."""
    api = hasty
    where = urlsplit(api.url)
    with socket.create_connection((where.hostname or "", where.port or 0)) as conn:
        conn.settimeout(0.1)
        conn.sendall(sent)
        began = time.monotonic()
        said, ended = b"", False
        while not ended:
            assert time.monotonic() - began < 20
            try:
                if sent:
                    conn.sendall(b"a")
                chunk = conn.recv(4096)
                said, ended = said + chunk, not chunk
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert said[: len(answer)] == answer
        assert bool(said) is bool(answer)
        assert time.monotonic() - began > 0.4


def test_a_kept_connection_is_no_late_head(hasty: Any) -> None:
    """Between two requests there is more time than for a head."""
    with hasty.client() as client:
        for _ in range(2):
            assert client.get("/healthz").status_code == 200
            time.sleep(0.8)  # longer than a head may take: a kept connection is no late head


def test_an_answer_that_nobody_takes_is_dropped(
    hasty: Any, store: Any, tenant_id: str, token: Any
) -> None:
    """It would lie in memory for as long as its reader likes."""
    run_id, writer = uuid.uuid4(), CheckpointWriter(store)
    writer.write(run_id, "run_started", {"large": "x" * 4_000_000})
    where = urlsplit(hasty.url)
    asked = f"GET /v1/cuo/runs/{run_id}/checkpoints HTTP/1.1\r\nHost: x\r\n"
    with socket.socket() as conn:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        conn.connect((where.hostname or "", where.port or 0))
        conn.settimeout(20)
        conn.sendall(f"{asked}Authorization: Bearer {token(tenant_id)}\r\n\r\n".encode())
        said = conn.recv(100)
        assert said.startswith(b"HTTP/1.1 200")
        time.sleep(1.5)
        with contextlib.suppress(ConnectionError):
            while chunk := conn.recv(1 << 16):
                said += chunk
    assert len(said) < 4_000_000
