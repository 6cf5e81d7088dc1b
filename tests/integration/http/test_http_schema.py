"""schemathesis against a real service: what it answers is what its OpenAPI document says."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from cuo_supervisor.core.personas import get_persona

OPERATIONS = [
    ("GET", "/v1/cuo/runs"),
    ("GET", "/v1/cuo/runs/{run_id}/checkpoints"),
    ("GET", "/v1/cuo/runs/{run_id}/verify"),
    ("POST", "/v1/cuo/runs/{run_id}/resume"),
    ("POST", "/v1/cuo/supervisor/route"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def document(api: Any) -> Any:
    """The document the service gives of itself."""
    import schemathesis  # heavy, and every worker imports this module

    return schemathesis.openapi.from_url(f"{api.url}/v1/cuo/openapi.json")


def test_every_operation_is_tried(document: Any) -> None:
    """The list above is the document's."""
    found = [result.ok() for result in document.get_all_operations()]
    assert sorted((op.method.upper(), op.path) for op in found) == sorted(OPERATIONS)


@pytest.fixture(scope="module")
def published(api: Any) -> dict[str, Any]:
    """The document as it is served."""
    found: dict[str, Any] = httpx.get(f"{api.url}/v1/cuo/openapi.json").json()
    return found


def within(published: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """The value is one of the schema's, which may name others of the document."""
    whole = {**schema, "components": published["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def test_the_published_examples_are_valid(published: dict[str, Any]) -> None:
    """Each of a schema or of an answer; every answer that is a document has one."""
    schemas = published["components"]["schemas"]
    tried = [(schemas[name], one) for name in schemas for one in schemas[name].get("examples", ())]
    for method, path in OPERATIONS:
        for code, answer in published["paths"][path][method.lower()]["responses"].items():
            for kind, content in answer.get("content", {}).items():
                shown = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                if "example" in content:
                    tried.append((content["schema"], content["example"]))
                elif kind.endswith("json") and shown:
                    assert schemas[shown].get("examples"), (path, code, kind)
    assert len(tried) >= 14
    for schema, example in tried:
        within(published, schema, example)


def test_the_published_requests_are_taken(
    published: dict[str, Any], api: Any, token: Any, tenant_id: str
) -> None:
    """As they stand: routed as an agent of any persona named, answered as an approver."""
    schemas = published["components"]["schemas"]
    for example in schemas["RouteRequest"]["examples"]:
        claim = get_persona(example.get("persona", "genie")).claim
        with api.client(token(tenant_id, agent_persona=claim)) as client:
            answer = client.post("/v1/cuo/supervisor/route", json=example)
        assert answer.status_code == 200, answer.text
        within(published, schemas["RoutingDecision"], answer.json())
    for example in schemas["AnswerRequest"]["examples"]:
        with api.client(token(tenant_id, agent_persona=get_persona("coo").claim)) as client:
            asked = {"query": "transfer 5M VND to ACME account 0123456789", "persona": "coo"}
            waiting = client.post("/v1/cuo/supervisor/route", json=asked)
        assert waiting.status_code == 202
        run = waiting.json()["request_id"]
        with api.client(token(tenant_id, "boss", roles=["cuo-approver"])) as client:
            answer = client.post(f"/v1/cuo/runs/{run}/resume", json=example)
        assert answer.status_code == 200, answer.text
        within(published, schemas["RoutingDecision"], answer.json())


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("bearer", [None, "Bearer x.y.z", "Basic eDp5"])
def test_what_needs_a_token_says_so_and_asks_for_it(
    published: dict[str, Any], api: Any, method: str, path: str, bearer: str | None
) -> None:
    """The document's `security` and the service agree, operation by operation."""
    guarded = "security" in published["paths"][path][method.lower()]
    assert guarded == path.startswith("/v1/")
    body = {"query": "x"} if path.endswith("route") else {"answer": "deny", "reason": "x"}
    headers = {} if bearer is None else {"Authorization": bearer}
    with api.client() as client:
        url = path.format(run_id=uuid.uuid4())
        sent = {"json": body} if method == "POST" else {}
        answer = client.request(method, url, headers=headers, **sent)
    assert answer.status_code == (401 if guarded else 200)
    if guarded:
        within(published, published["components"]["schemas"]["ProblemDocument"], answer.json())
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_service_keeps_to_its_document(
    document: Any, token: Any, method: str, path: str
) -> None:
    """No server error, no status, type or body that is not described, for any input."""
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    operation = document[path][method]

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        # A fresh tenant each time: what one call wrote must not explain the next one's answer.
        fresh = token(str(uuid.uuid4()))
        # A cursor is any text by its schema and only what a page returned in truth, so being
        # refused in spite of a fitting schema is no fault.
        case.call_and_validate(
            headers={"Authorization": f"Bearer {fresh}"},
            excluded_checks=[positive_data_acceptance],
        )

    check()
