"""What somebody who means harm would try."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import socket
import threading
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.exceptions import HTTPException

from cuo_checkpoint import CheckpointWriter
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.http.problems import problem_of

ROUTE = "/v1/cuo/supervisor/route"
TRANSFER = {"query": "transfer 5M VND to ACME account 0123456789", "persona": "coo"}


def waiting_run(api: Any, token: str) -> str:
    """A transfer that waits, asked for with the token."""
    with api.client(token) as client:
        run: str = client.post(ROUTE, json=TRANSFER).json()["request_id"]
    return run


def raw(api: Any, request: bytes) -> bytes:
    """What the service answers to bytes that no client library would send."""
    where = urlsplit(api.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=20) as conn:
        found = b""
        with contextlib.suppress(ConnectionError):  # it may hang up before it has heard all
            conn.sendall(request)
            while chunk := conn.recv(65536):
                found += chunk
    return found


def test_of_many_approvals_at_once_one_counts(api: Any, tenant_id: str, token: Any) -> None:
    """Five approvers in the same moment: one answer, four 409, one payment."""
    run = waiting_run(api, token(tenant_id, agent_persona=get_persona("coo").claim))
    start = threading.Barrier(5)

    def approve(number: int) -> httpx.Response:
        with api.client(token(tenant_id, f"boss-{number}", roles=["cuo-approver"])) as client:
            start.wait()
            return client.post(
                f"/v1/cuo/runs/{run}/resume", json={"answer": "approve", "reason": str(number)}
            )

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(approve, range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]


def test_who_asked_cannot_answer_whatever_the_way(api: Any, tenant_id: str, token: Any) -> None:
    """403 with both roles, 404 from another tenant, 400 for an answer or a bearer that is said twice,
    and the run still waits."""
    mine = token(
        tenant_id, roles=["agent-persona", "cuo-approver"], agent_persona=get_persona("coo").claim
    )
    run = waiting_run(api, mine)
    body = {"answer": "approve", "reason": "x"}
    boss = token(tenant_id, "boss", roles=["cuo-approver"])
    twice = b'{"answer":"deny","reason":"x","answer":"approve"}'
    with api.client(boss) as client:
        for content in (twice, json.dumps(body).encode("utf-16")):
            said = client.post(
                f"/v1/cuo/runs/{run}/resume",
                content=content,
                headers={"Content-Type": "application/json"},
            )
            assert (said.status_code, said.json()["error"]) == (400, "invalid_argument")
        both = [("Authorization", f"Bearer {mine}"), ("Authorization", f"Bearer {boss}")]
        assert client.get("/v1/cuo/runs", headers=both).status_code == 400
    with api.client(mine) as client:
        refused = client.post(f"/v1/cuo/runs/{run}/resume", json=body)
        assert (refused.status_code, refused.json()["error"]) == (403, "permission_denied")
        with api.client(token(str(uuid.uuid4()), "boss", roles=["cuo-approver"])) as far:
            assert far.post(f"/v1/cuo/runs/{run}/resume", json=body).status_code == 404
        waiting = client.get("/v1/cuo/runs", params={"state": "waiting"}).json()["runs"]
    assert [found["ulid"] for found in waiting] == [run]


def test_a_session_is_never_the_one_somebody_chose(api: Any, tenant_id: str, token: Any) -> None:
    """Logging in gives a new name and ends the one that was sent; a made-up one opens nothing."""
    with api.client() as client:
        client.cookies.clear()
        form = {"token": token(tenant_id), "next": "/runs"}
        mine = {"Origin": api.url}
        planted = {**mine, "Cookie": "__Host-cuo-session=planted"}
        first = client.post("/login", data=form, headers=planted).headers["set-cookie"]
        name = first.partition(";")[0]
        assert "planted" not in name
        second = client.post("/login", data=form, headers={**mine, "Cookie": name})
        renewed = second.headers["set-cookie"].partition(";")[0]
        assert renewed != name
        client.cookies.clear()
        for cookie, code in ((name, 303), ("__Host-cuo-session=planted", 303), (renewed, 200)):
            assert client.get("/runs", headers={"Cookie": cookie}).status_code == code


def test_a_session_is_no_way_into_the_api(api: Any, tenant_id: str, token: Any) -> None:
    """What rides along by itself proves nothing there, for reading or writing."""
    with api.client() as client:
        form = {"token": token(tenant_id), "next": "/runs"}
        cookie = client.post("/login", data=form, headers={"Origin": api.url}).headers["set-cookie"]
        headers = {"Cookie": cookie.partition(";")[0]}
        assert client.get("/v1/cuo/runs", headers=headers).status_code == 401
        assert client.post(ROUTE, json={"query": "x"}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../../../../etc/passwd", "/assets/..%2f..%2fsettings.py", "/assets/style.css",
        "/runs/..%2f..%2fetc%2fpasswd", "/runs/%00", "/runs/%0d%0aSet-Cookie:%20a=b",
        "/v1/cuo/runs/..%2f..%2f/checkpoints", "//evil.example/runs", "/runs/%ff%fe",
        "/v1/cuo/runs/%E2%80%AE/verify",
    ],
)  # fmt: skip
def test_no_path_leads_out(api: Any, tenant_id: str, token: Any, path: str) -> None:
    """Neither files nor headers nor faults come of a crafted address."""
    bearer = token(tenant_id)
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\nConnection: close\r\n\r\n"
    head, _, body = raw(api, request.encode("latin-1")).partition(b"\r\n\r\n")
    assert head.split()[1] in (b"404", b"400", b"303")
    assert b"root:" not in body
    assert b"a=b" not in head.replace(b"%20a%3Db", b"").replace(b"%20a=b", b"")
    if b"303" in head.split()[1]:
        (place,) = [h for h in head.split(b"\r\n") if h.lower().startswith(b"location:")]
        assert place.split(b": ", 1)[1].startswith(b"/login?next=%2F")


@pytest.mark.parametrize(
    "smuggled",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /runs HTTP/1.1\r\nHost: x\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
        b"Content-Length: -1\r\n\r\n",
        b"X: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
    ids=["both lengths", "two lengths", "negative", "huge header"],
)
def test_malformed_requests_get_one_answer_and_no_more(api: Any, smuggled: bytes) -> None:
    """Nothing after the first request is taken for a second one."""
    said = raw(api, b"POST " + ROUTE.encode() + b" HTTP/1.1\r\nHost: x\r\n" + smuggled)
    assert said.count(b"HTTP/1.1 ") <= 1
    assert not said.startswith((b"HTTP/1.1 2", b"HTTP/1.1 500"))


@pytest.mark.parametrize(
    "sent",
    [
        b'\xef\xbb\xbf{"query": "a", "query": "b", "persona": "cfo"}',
        b"[" * 60_000,
        b'{"query": "\xff"}',
        b'{"query": ' + b"1" * 60_000 + b"}",
    ],
    ids=["named twice behind a mark", "deep", "not UTF-8", "long number"],
)
def test_bodies_that_no_reader_should_take(client: httpx.Client, sent: bytes) -> None:
    """400 by its fixed word, and nothing is routed."""
    answer = client.post(ROUTE, content=sent, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument")
    assert client.get("/v1/cuo/runs").json()["runs"] == []


def test_whatever_the_framework_refuses_has_a_documented_word() -> None:
    """Callers switch on the table of docs/http.md; no status has a word that is not in it."""
    table = Path(__file__).parents[3].joinpath("docs", "http.md").read_text("utf-8")
    for status in range(400, 600):
        problem = problem_of(HTTPException(status))
        assert problem is not None
        assert f"`{problem.error}`" in table, status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://x:99999999"}, 403),
        ({"Host": "[::1", "Origin": "http://[::1"}, 403),
    ],
)
def test_odd_origins_are_no_fault_of_ours(
    client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    """Nobody can fill the log with reports of faults."""
    answer = client.post(ROUTE, json={"query": "a"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, "cross_site")


@pytest.mark.parametrize("name", ["outcome", "persona", "path", "skill", "before", "state"])
def test_filters_of_what_no_database_holds(client: httpx.Client, name: str) -> None:
    """Nothing fits, or the call is malformed; never a failed step of the log."""
    assert client.get(f"/v1/cuo/runs?{name}=%00").status_code in (200, 400, 422)


def test_a_traceparent_cannot_forge_a_log_line(client: httpx.Client) -> None:
    """Whatever is sent as one, the trace is 32 hexadecimal digits."""
    body = {"query": "asdfghjkl", "persona": "cfo"}
    headers = {"traceparent": "00-" + "<script>" * 8 + "-01"}
    run = client.post(ROUTE, json=body, headers=headers).json()["request_id"]
    (found,) = [r for r in client.get("/v1/cuo/runs").json()["runs"] if r["ulid"] == run]
    assert len(found["trace_id"]) == 32
    assert set(found["trace_id"]) <= set("0123456789abcdef")


def test_no_cache_may_give_one_caller_anothers_answer(
    client: httpx.Client, stranger: httpx.Client, store: Any
) -> None:
    """Answers are private and vary by who asks; an ETag of one tenant is none of another's."""
    run_id = uuid.uuid4()
    CheckpointWriter(store).write(run_id, "run_started", {})
    url = f"/v1/cuo/runs/{run_id}/checkpoints"
    mine = client.get(url)
    assert "private" in mine.headers["cache-control"]
    assert "Authorization" in mine.headers["vary"]
    for tag in (mine.headers["etag"], "*"):
        theirs = stranger.get(url, headers={"If-None-Match": tag})
        assert theirs.status_code == 404
        assert "etag" not in theirs.headers
    assert client.get("/runs").headers["cache-control"] == "no-store"
    assert client.get("/login").headers["cache-control"] == "no-store"


def test_a_listings_cursor_of_another_tenant_shows_nothing(
    client: httpx.Client, stranger: httpx.Client, store: Any
) -> None:
    """A cursor is a place, not a right."""
    writer = CheckpointWriter(store)
    for _ in range(3):
        writer.write(uuid.uuid4(), "run_started", {})
    cursor = client.get("/v1/cuo/runs", params={"limit": 1}).json()["next"]
    taken = stranger.get("/v1/cuo/runs", params={"before": cursor})
    assert taken.json() == {"runs": [], "next": None}
    for bad in (cursor[:-2], cursor + "AA", "ÿ", "A" * 250):
        assert client.get("/v1/cuo/runs", params={"before": bad}).status_code == 400
