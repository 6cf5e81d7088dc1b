"""The OpenAPI document as it is published.

The framework leaves out every null when it writes the document, also in examples, where a member
that may be null must still be there. So they are put back as they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from cuo_supervisor.http import schemas
from cuo_supervisor.http.examples import DECISION, WAITING

__all__ = ["with_examples"]


def with_examples(app: FastAPI, made: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """What stands for `app.openapi`: the same document, its examples whole."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            _restore(made())
        found: dict[str, Any] = app.openapi_schema or {}
        return found

    return document


def _restore(document: dict[str, Any]) -> None:
    known = document["components"]["schemas"]
    for name in schemas.__all__:
        model = getattr(schemas, name)
        if isinstance(model, type) and issubclass(model, BaseModel) and name in known:
            extra = model.model_config.get("json_schema_extra")
            if isinstance(extra, dict):
                known[name] |= extra
    for path in document["paths"].values():
        for operation in path.values():
            for code, answer in operation["responses"].items():
                content = answer.get("content", {}).get("application/json", {})
                if "example" in content:
                    content["example"] = WAITING if code == "202" else DECISION
