"""An append-only, tenant-isolated, hash-chained PostgreSQL store for LangGraph.

    from cuo_checkpoint import PostgresCheckpointer

Names are imported on first use, so that `import cuo_checkpoint` stays cheap for commands that
need only an error class.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from cuo_checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from cuo_checkpoint import models, runs
    from cuo_checkpoint.configs import NEW_THREAD
    from cuo_checkpoint.records import AuditKind, ChainKind, CheckpointKind
    from cuo_checkpoint.saver import PostgresCheckpointer
    from cuo_checkpoint.serde import Serializer
    from cuo_checkpoint.writer import CheckpointWriter

__all__ = [
    "NEW_THREAD",
    "AuditKind",
    "ChainKind",
    "CheckpointError",
    "CheckpointKind",
    "CheckpointWriter",
    "PostgresCheckpointer",
    "Serializer",
    "models",
    "runs",
]

_HOMES: Final = {
    "NEW_THREAD": "cuo_checkpoint.configs",
    "AuditKind": "cuo_checkpoint.records",
    "ChainKind": "cuo_checkpoint.records",
    "CheckpointKind": "cuo_checkpoint.records",
    "CheckpointWriter": "cuo_checkpoint.writer",
    "PostgresCheckpointer": "cuo_checkpoint.saver",
    "Serializer": "cuo_checkpoint.serde",
}


def __getattr__(name: str) -> Any:
    if name in ("models", "runs"):
        return importlib.import_module(f"cuo_checkpoint.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
