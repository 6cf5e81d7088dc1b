"""A catalogue snapshot as a thread of the log, named by its content.

The thread `$catalog/<hash>/<month>` holds one checkpoint whose state is the snapshot and whose id
is fixed, so the store's own rule (same id and bytes: nothing happens; other bytes: refused) makes
keeping it idempotent under races, append-only, chained and tenant-bound, without a table for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata

__all__ = ["PREFIX", "keep", "read"]

PREFIX: Final = "$catalog/"
"""Threads that begin with $ are the system's own; `RunReader.list_runs` leaves them out."""

_ID: Final = "00000000-0000-6000-8000-000000000001"
"""The one checkpoint of such a thread. Fixed, like its time, so that its bytes are too."""

_EPOCH: Final = "1970-01-01T00:00:00+00:00"


async def keep(
    saver: BaseCheckpointSaver[Any],
    tenant_id: str,
    snapshot_hash: str,
    month: str,
    snapshot: Mapping[str, Any],
) -> None:
    """Appends the snapshot unless it is there. Raises as `aput` does."""
    checkpoint: Checkpoint = {
        "v": 4,
        "id": _ID,
        "ts": _EPOCH,
        "channel_values": dict(snapshot),
        "channel_versions": {},
        "versions_seen": {},
        "updated_channels": None,
    }
    metadata = cast("CheckpointMetadata", {"source": "catalog", "step": -1, "parents": {}})
    await saver.aput(_config(tenant_id, snapshot_hash, month), checkpoint, metadata, {})


async def read(
    saver: BaseCheckpointSaver[Any], tenant_id: str, snapshot_hash: str, month: str
) -> Mapping[str, Any] | None:
    """The snapshot's plain JSON; None when this tenant has none of that hash and month."""
    found = await saver.aget_tuple(_config(tenant_id, snapshot_hash, month))
    return None if found is None else found.checkpoint["channel_values"]


def _config(tenant_id: str, snapshot_hash: str, month: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": f"{PREFIX}{snapshot_hash}/{month}",
            "checkpoint_ns": "",
            "tenant_id": tenant_id,
        }
    }
