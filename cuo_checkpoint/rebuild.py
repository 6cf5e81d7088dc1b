"""Stored rows back into LangGraph's values, exactly or not at all. Pure."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from cuo_checkpoint.configs import CallConfig, tuple_config
from cuo_checkpoint.errors import DeserialiseError
from cuo_checkpoint.serde import Serializer, text_to_tree

__all__ = ["Pending", "rebuild_tuple"]

Pending = tuple[str, str, Any, str, int]
"""task_id, channel, value, task_path, index."""


def rebuild_tuple(
    serializer: Serializer,
    call: CallConfig,
    lg_id: str,
    lg_parent: str | None,
    state: str,
    langgraph: str,
    writes: str | None,
) -> tuple[CheckpointTuple, list[Pending], int | None]:
    """The checkpoint tuple, its writes with task paths, and its step.

    Raises DeserialiseError naming thread, checkpoint, path and type.
    """
    try:
        document = _object(text_to_tree(langgraph))
        values = serializer.decode(text_to_tree(state))
        hidden = serializer.decode(document["hidden"])
        metadata = serializer.decode(document["metadata"])
        pending = [
            (task_id, channel, serializer.decode(value, path=channel), path, index)
            for task_id, channel, value, path, index in cast(
                "list[Any]", text_to_tree(writes) if writes else []
            )
        ]
        checkpoint = {
            "v": document["v"],
            "id": document["id"],
            "ts": document["ts"],
            "channel_values": {**values, **hidden},
            "channel_versions": serializer.decode(document["channel_versions"]),
            "versions_seen": serializer.decode(document["versions_seen"]),
            "updated_channels": serializer.decode(document["updated_channels"]),
        }
    except DeserialiseError as error:
        raise DeserialiseError(
            f"thread {call.thread_id}, checkpoint {lg_id}: {error.path}",
            error.type_name,
            error.reason,
        ) from error
    parent: RunnableConfig | None = tuple_config(call, lg_parent) if lg_parent else None
    found = CheckpointTuple(
        config=tuple_config(call, lg_id),
        checkpoint=cast("Checkpoint", checkpoint),
        metadata=cast("CheckpointMetadata", metadata),
        parent_config=parent,
        pending_writes=[(task_id, channel, value) for task_id, channel, value, _, _ in pending],
    )
    return found, pending, metadata.get("step")


def _object(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise DeserialiseError("langgraph", type(tree).__name__, "is not an object")
    return tree
