"""schemathesis against a real service: what it answers is what its OpenAPI document says."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

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
    return schemathesis.openapi.from_url(f"{api.url}/v1/cuo/openapi.json")


def test_every_operation_is_tried(document: Any) -> None:
    """The list above is the document's."""
    found = [result.ok() for result in document.get_all_operations()]
    assert sorted((op.method.upper(), op.path) for op in found) == sorted(OPERATIONS)


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
