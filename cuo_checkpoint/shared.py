"""What every plan needs: settings, statements, the serialiser, the runs in progress."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Self

from langchain_core.runnables import RunnableConfig

from cuo_checkpoint._sql import Statements
from cuo_checkpoint.configs import CallConfig
from cuo_checkpoint.live import LiveRuns
from cuo_checkpoint.serde import Serializer

__all__ = ["Shared"]


class Shared:
    """Settings of one saver. Thread-safe, opens nothing."""

    def __init__(
        self,
        *,
        serializer: Serializer,
        schema: str,
        tenant_id: uuid.UUID | None,
        trace_id: str | None,
        strict_parent: bool,
        allow_exit: bool,
        metadata_keys: frozenset[str],
        scrub: Callable[[str], str] | None,
    ) -> None:
        self.serializer = serializer
        self.statements = Statements(schema)
        self.tenant_id = tenant_id
        self.trace_id = trace_id
        self.strict_parent = strict_parent
        self.allow_exit = allow_exit
        self.metadata_keys = metadata_keys
        self.scrub = scrub
        self.runs = LiveRuns()

    def with_serializer(self, serializer: Serializer) -> Self:
        """The same runs and settings with another serialiser."""
        clone = copy.copy(self)
        clone.serializer = serializer
        return clone

    def config(self, config: RunnableConfig | None) -> CallConfig:
        """What a call's config says, checked. Raises TenantRequired and InvalidIdentifier."""
        return CallConfig.read(config or {}, self.tenant_id, self.trace_id)
