"""Routing and answering over HTTP, and who may."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "doubles"))
from skill_catalog import catalog_running

from cuo_supervisor.core.personas import get_persona

MST = {"query": "validate MST 0301479073", "persona": "cfo"}
TRANSFER = {"query": "transfer 5M VND to ACME account 0123456789", "persona": "coo"}


@pytest.fixture
def coo(api: Any, tenant_id: str, token: Any) -> Any:
    """A caller who speaks for the COO."""
    with api.client(token(tenant_id, agent_persona=get_persona("coo").claim)) as made:
        yield made


def test_a_request_is_routed_invoked_and_logged(client: httpx.Client) -> None:
    """The answer is the decision, under the id of its run, which is closed and holds."""
    answer = client.post("/v1/cuo/supervisor/route", json=MST)
    assert answer.status_code == 200
    decision = answer.json()
    assert decision["routed"] is True
    assert decision["skill_chosen"] == "vietnam-mst-validate@1.0"
    assert decision["invocation_result"]["exit_code"] == 0
    assert answer.headers["x-cuo-decision-id"] == decision["request_id"]
    (run,) = client.get("/v1/cuo/runs").json()["runs"]
    assert (run["ulid"], run["state"]) == (decision["request_id"], "closed")
    assert client.get(f"/v1/cuo/runs/{run['ulid']}/verify").json()["ok"] is True


def test_a_dry_run_leaves_nothing(client: httpx.Client) -> None:
    """record=false decides without a row and without running anything."""
    answer = client.post("/v1/cuo/supervisor/route", json={**MST, "record": False})
    assert answer.json()["dry_run"] is True
    assert answer.json()["invocation_result"] is None
    assert client.get("/v1/cuo/runs").json()["runs"] == []


def test_invoking_without_record_is_refused(client: httpx.Client) -> None:
    """invoke=true with record=false would run a skill without a trace."""
    body = {**MST, "record": False, "invoke": True}
    answer = client.post("/v1/cuo/supervisor/route", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument")


@pytest.mark.clause("101-15")
def test_the_callers_trace_goes_on(client: httpx.Client) -> None:
    """A traceparent is taken over by the run; a malformed one starts a fresh trace."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    client.post("/v1/cuo/supervisor/route", json=MST, headers=headers)
    client.post("/v1/cuo/supervisor/route", json=MST, headers={"traceparent": "nonsense"})
    newest, first = client.get("/v1/cuo/runs").json()["runs"]
    assert first["trace_id"] == trace
    assert newest["trace_id"] not in (trace, "0" * 32)


@pytest.mark.clause("101-10")
@pytest.mark.criterion("101-AC13")
def test_a_persona_the_token_does_not_speak_for(client: httpx.Client) -> None:
    """403 with the members error, claimed and requested, as a problem document."""
    answer = client.post("/v1/cuo/supervisor/route", json={**MST, "persona": "cto"})
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert said["error"] == "persona_mismatch"
    assert said["claimed"] == get_persona("cfo").claim
    assert said["requested"] == get_persona("cto").claim
    assert said["type"] == "urn:cuo:problem:persona_mismatch"


def test_another_version_of_the_persona(api: Any, tenant_id: str, token: Any) -> None:
    """403 persona_version_mismatch."""
    with api.client(token(tenant_id, agent_persona="cuo-cfo@99.0.0")) as client:
        answer = client.post("/v1/cuo/supervisor/route", json=MST)
    assert (answer.status_code, answer.json()["error"]) == (403, "persona_version_mismatch")


def test_an_unknown_persona(client: httpx.Client) -> None:
    """422 persona_unknown."""
    answer = client.post("/v1/cuo/supervisor/route", json={**MST, "persona": "cio"})
    assert (answer.status_code, answer.json()["error"]) == (422, "persona_unknown")


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"exp": int(time.time()) - 3600}, 401, "expired"),
        ({"aud": "other"}, 401, "audience"),
        ({"iss": "https://other"}, 401, "issuer"),
        ({"tenant_id": None}, 401, "claim_missing"),
        ({"tenant_id": "6c6f6361-6c00-8000-8000-000000000001"}, 401, "tenant"),
        ({"roles": ["reader"]}, 403, "role"),
    ],
)
def test_tokens_that_do_not_hold(
    api: Any, tenant_id: str, token: Any, changes: dict[str, Any], status: int, reason: str
) -> None:
    """Each fault is told by a fixed word, and nothing of the token comes back."""
    given = token(tenant_id, **changes)
    with api.client(given) as client:
        answer = client.get("/v1/cuo/runs")
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert given.split(".")[1] not in answer.text
    if status == 401:
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.parametrize("header", [None, "", "Basic eDp5", "Bearer"])
def test_without_a_token(api: Any, header: str | None) -> None:
    """401 that asks for one; a cookie is no way into the API."""
    headers = {} if header is None else {"Authorization": header}
    with api.client(cookies={"__Host-cuo-session": "x"}) as client:
        answer = client.get("/v1/cuo/runs", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_transfer_waits_and_is_approved(coo: httpx.Client, approver: httpx.Client) -> None:
    """202, then somebody else approves and the same run ends; an answer counts once. What was only
    to be decided waits for nobody: 200."""
    for only in ({"invoke": False}, {"record": False}):
        decided = coo.post("/v1/cuo/supervisor/route", json=TRANSFER | only)
        assert (decided.status_code, decided.json()["reason"]) == (200, "approval_required")
        assert "location" not in decided.headers
    waiting = coo.post("/v1/cuo/supervisor/route", json=TRANSFER)
    assert waiting.status_code == 202
    run = waiting.json()["request_id"]
    assert waiting.json()["reason"] == "approval_required"
    url = f"/v1/cuo/runs/{run}/resume"
    body = {"answer": "approve", "reason": "checked with ACME"}
    assert coo.post(url, json=body).status_code == 403
    done = approver.post(url, json=body)
    assert done.status_code == 200
    assert done.json()["request_id"] == run
    assert done.json()["routed"] is True
    again = approver.post(url, json=body)
    assert (again.status_code, again.json()["error"]) == (409, "invalid_data")
    assert approver.get(f"/v1/cuo/runs/{run}/verify").json()["ok"] is True


def test_the_requester_may_not_approve(api: Any, tenant_id: str, token: Any) -> None:
    """Not even with the role."""
    both = token(
        tenant_id,
        roles=["agent-persona", "cuo-approver"],
        agent_persona=get_persona("coo").claim,
    )
    with api.client(both) as client:
        run = client.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
        answer = client.post(
            f"/v1/cuo/runs/{run}/resume", json={"answer": "approve", "reason": "mine"}
        )
    assert (answer.status_code, answer.json()["error"]) == (403, "permission_denied")


def test_a_denied_transfer_does_not_run(coo: httpx.Client, approver: httpx.Client) -> None:
    """The decision says so and nothing was invoked."""
    run = coo.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
    body = {"answer": "deny", "reason": "wrong account"}
    decision = approver.post(f"/v1/cuo/runs/{run}/resume", json=body).json()
    assert decision["reason"] == "approval_denied"
    assert decision["invocation_result"] is None


def test_anothers_waiting_run_is_unknown(
    api: Any, coo: httpx.Client, other_tenant_id: str, token: Any
) -> None:
    """An approver of another tenant gets what an unknown run gets."""
    run = coo.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
    body = {"answer": "approve", "reason": "x"}
    with api.client(token(other_tenant_id, roles=["cuo-approver"])) as stranger:
        seen = stranger.post(f"/v1/cuo/runs/{run}/resume", json=body)
        none = stranger.post(f"/v1/cuo/runs/{uuid.uuid4()}/resume", json=body)
    assert seen.status_code == none.status_code == 404
    assert seen.content == none.content


def test_an_approver_alone_may_not_route(approver: httpx.Client) -> None:
    """Routing needs the role agent-persona."""
    assert approver.post("/v1/cuo/supervisor/route", json=MST).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"query": ""},
        {"query": " "},
        {"query": "a\u0000b"},
        {"query": "x" * 16385},
        {"query": "đ" * 16384},
        {"query": 7},
        {"query": "x", "persona": ""},
        {"query": "x", "tenant_id": "mine"},
        {"query": "x", "record": "perhaps"},
        {"query": "x", "record": "no"},
        {"query": "x", "invoke": 0},
        {},
        [],
        None,
    ],
)
def test_bodies_that_cannot_be_routed(client: httpx.Client, body: Any) -> None:
    """A problem that says which member is wrong, and does not repeat the query."""
    answer = client.post(
        "/v1/cuo/supervisor/route",
        content=json.dumps(body, ensure_ascii=False).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "xxxx" not in answer.text
    assert "đđđđ" not in answer.text


def test_lone_surrogates_are_refused(client: httpx.Client) -> None:
    """JSON can spell half a character; the log cannot hold it."""
    answer = client.post(
        "/v1/cuo/supervisor/route",
        content=b'{"query":"a\\ud800b"}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (400, 422)


def test_an_audit_row_that_cannot_be_written(
    serve_on: Callable[..., Any], app_dsn: str, admin_dsn: str, tenant_id: str, token: Any
) -> None:
    """500 with error=audit_failed; the step did not happen."""
    with psycopg.connect(admin_dsn) as conn:
        conn.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'CU009'; END $$"
        )
        conn.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON cuo_memory_audit"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    with serve_on(app_dsn).client(token(tenant_id)) as client:
        answer = client.post("/v1/cuo/supervisor/route", json=MST)
        assert (answer.status_code, answer.json()["error"]) == (500, "audit_failed")
        assert client.get("/v1/cuo/runs").json()["runs"] == []


def test_a_run_that_takes_too_long_goes_on(
    serve_on: Callable[..., Any], shared_place: Any, tenant_id: str, token: Any, tmp_path: Path
) -> None:
    """504 as a problem that names the trace; the run still ends, once, and holds."""
    folder = catalog_running(tmp_path / "slow", "import time; time.sleep(2); print('{}')")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    api = serve_on(shared_place.app, catalog=folder, route_seconds=0.8)
    with api.client(token(tenant_id)) as client:
        answer = client.post(
            "/v1/cuo/supervisor/route",
            json=MST,
            headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
        )
        assert answer.status_code == 504
        assert answer.headers["content-type"] == "application/problem+json"
        said = answer.json()
        assert (said["error"], said["trace_id"]) == ("timeout", trace)
        until = time.monotonic() + 30
        while (run := client.get("/v1/cuo/runs").json()["runs"][0])["state"] != "closed":
            assert time.monotonic() < until
            time.sleep(0.05)
        assert run["trace_id"] == trace
        assert run["outcome"] == "run_completed"
        assert run["decision"]["routed"] is True
        rows = client.get(f"/v1/cuo/runs/{run['ulid']}/checkpoints").json()["checkpoints"]
        assert rows[-1]["state_json"]["invocation_result"]["exit_code"] == 0
        assert client.get(f"/v1/cuo/runs/{run['ulid']}/verify").json()["ok"] is True


def test_an_answer_whose_run_takes_too_long_counts(
    serve_on: Callable[..., Any],
    shared_place: Any,
    coo: httpx.Client,
    approver: httpx.Client,
    tenant_id: str,
    token: Any,
) -> None:
    """504 and the approval stands: the run ends as approved, and a second answer is refused."""
    run = coo.post("/v1/cuo/supervisor/route", json=TRANSFER).json()["request_id"]
    api = serve_on(shared_place.app, route_seconds=0.001)
    body = {"answer": "approve", "reason": "checked"}
    with api.client(token(tenant_id, "boss", roles=["cuo-approver"])) as hurried:
        answer = hurried.post(f"/v1/cuo/runs/{run}/resume", json=body)
    assert (answer.status_code, answer.json()["error"]) == (504, "timeout")
    assert "goes on" in answer.json()["detail"]
    until = time.monotonic() + 30
    while (found := approver.get("/v1/cuo/runs").json()["runs"][0])["state"] != "closed":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert found["decision"]["routed"] is True
    assert approver.post(f"/v1/cuo/runs/{run}/resume", json=body).status_code == 409


def test_a_log_that_cannot_be_reached(
    serve_on: Callable[..., Any], tenant_id: str, token: Any
) -> None:
    """503 that says when to try again; alive, but not ready."""
    api = serve_on("postgresql://cyberos_app@127.0.0.1:1/none")
    with api.client(token(tenant_id)) as client:
        answer = client.get("/v1/cuo/runs")
        assert (answer.status_code, answer.json()["error"]) == (503, "store_unreachable")
        assert answer.headers["retry-after"]
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json() == {"ready": False, "checks": {"log": "store_unreachable"}}
