"""JSON Schemas (draft 2020-12) of the store's audit rows: the body of each kind, and the row.

For readers of the rows outside this code base; `load` is how tests and tools get them. The
supervisor's own kinds have theirs in `cuo_supervisor.schemas`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

__all__ = ["load"]


def load(kind: str) -> dict[str, Any]:
    """The schema of a body by its kind, or of the whole row by "row"; FileNotFoundError if unknown."""
    name = kind.removeprefix("cuo.")
    text = files(__name__).joinpath(f"{name}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
