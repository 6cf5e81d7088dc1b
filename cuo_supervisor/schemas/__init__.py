"""JSON Schemas (draft 2020-12) of the supervisor's audit rows, one file a kind.

For readers of the rows outside this code base; `load` is how tests and tools get them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

__all__ = ["load"]


def load(kind: str) -> dict[str, Any]:
    """The schema of an audit kind such as `cuo.routing_decision`; FileNotFoundError if unknown."""
    name = kind.removeprefix("cuo.")
    text = files(__name__).joinpath(f"{name}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
