"""Exact, readable, safe storage of Python values as JSON. See docs/serialiser.md."""

from __future__ import annotations

from cuo_checkpoint.serde.failures import StoredError
from cuo_checkpoint.serde.registry import SAFE_TYPES
from cuo_checkpoint.serde.serializer import TYPED_NAME, Serializer
from cuo_checkpoint.serde.text import text_to_tree, tree_to_text

__all__ = [
    "SAFE_TYPES",
    "TYPED_NAME",
    "Serializer",
    "StoredError",
    "text_to_tree",
    "tree_to_text",
]
