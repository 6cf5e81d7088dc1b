"""Identifiers: how ours are minted and spelled, and which of the caller's are accepted.

Ids minted here are UUIDv7. The same 128 bits written in Crockford's base 32 are a ULID, so
request_id (ULID), run_id (UUID) and X-Cuo-Decision-Id name one thing.
"""

from __future__ import annotations

import re
import uuid
from functools import lru_cache
from typing import Any, Final

from ulid import ULID
from uuid_utils.compat import uuid7

from cuo_checkpoint.errors import InvalidIdentifier, TenantRequired

__all__ = [
    "MAX_NAMESPACE",
    "MAX_THREAD_ID",
    "ZERO_TRACE",
    "checkpoint_id_of",
    "namespace_of",
    "new_id",
    "run_id_from_ulid",
    "run_id_of",
    "storable",
    "tenant_of",
    "thread_id_of",
    "trace_id_of",
    "ulid_of",
]

MAX_THREAD_ID: Final = 512
MAX_NAMESPACE: Final = 2048
ZERO_TRACE: Final = "0" * 32
_TRACE: Final = re.compile("[0-9a-f]{32}")
_RUN_NAMESPACE: Final = uuid.UUID("5b0f2f1e-6a0e-5d0c-9f0e-6d6f6b1c7a51")


def new_id() -> uuid.UUID:
    """A fresh UUIDv7: time-ordered, 74 random bits."""
    return uuid7()


def ulid_of(run_id: uuid.UUID) -> str:
    """The same 128 bits as a 26-character ULID."""
    return str(ULID.from_uuid(run_id))


def run_id_from_ulid(text: str) -> uuid.UUID:
    """The UUID behind a ULID or a UUID in any usual spelling. Raises InvalidIdentifier."""
    try:
        return ULID.from_str(text.upper()).to_uuid() if len(text) == 26 else uuid.UUID(text)
    except ValueError:
        raise InvalidIdentifier("run id", "is neither a UUID nor a 26-character ULID") from None


def tenant_of(value: Any) -> uuid.UUID:
    """A tenant id as a UUID. Raises TenantRequired when missing, InvalidIdentifier when malformed."""
    if value is None or value == "":
        raise TenantRequired(
            "no tenant: pass config['configurable']['tenant_id'] or tenant_id= to the constructor"
        )
    if isinstance(value, uuid.UUID):
        return value
    try:
        return _uuid(value) if type(value) is str else uuid.UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidIdentifier("tenant_id", "is not a UUID") from None


def thread_id_of(value: Any) -> str:
    """A thread id as text: `str` as it is, `int` and `UUID` in their usual spelling.

    Raises InvalidIdentifier for anything else, for "", for NUL and lone surrogates (text in
    PostgreSQL can hold neither) and beyond 512 characters.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, uuid.UUID)):
        raise InvalidIdentifier(
            "thread_id", f"must be str, int or UUID, not {type(value).__name__}"
        )
    text = str(value)
    if not text:
        raise InvalidIdentifier("thread_id", "must not be empty")
    return storable("thread_id", text, MAX_THREAD_ID)


def namespace_of(value: Any) -> str:
    """A checkpoint namespace; missing means the root, "". Raises InvalidIdentifier."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidIdentifier("checkpoint_ns", f"must be str, not {type(value).__name__}")
    return storable("checkpoint_ns", value, MAX_NAMESPACE)


def checkpoint_id_of(value: Any) -> str | None:
    """A LangGraph checkpoint id as text, nothing as None. Raises InvalidIdentifier."""
    if value is None or value == "":
        return None
    return storable("checkpoint_id", str(value), MAX_NAMESPACE)


def run_id_of(value: Any) -> uuid.UUID | None:
    """A run id: a UUID as it is, any other text by uuid5 of it, nothing as None.

    Raises InvalidIdentifier for text with lone surrogates, which has no bytes to derive from.
    """
    if value is None or value == "":
        return None
    if isinstance(value, uuid.UUID):
        return value
    try:
        return _uuid(str(value))
    except ValueError:
        return uuid.uuid5(_RUN_NAMESPACE, storable("run_id", str(value), None))


def trace_id_of(value: Any) -> str | None:
    """A W3C trace id (32 lower-case hex digits, not all zero), else None. Never fails."""
    well_formed = (
        isinstance(value, str) and value != ZERO_TRACE and _TRACE.fullmatch(value) is not None
    )
    return value if well_formed else None


@lru_cache(maxsize=4096)
def _uuid(text: str) -> uuid.UUID:
    """A run's calls all name the same few."""
    return uuid.UUID(text)


def storable(field: str, text: str, limit: int | None) -> str:
    """The text, if PostgreSQL can hold it and it is no longer. Raises InvalidIdentifier."""
    if "\x00" in text:
        raise InvalidIdentifier(field, "must not contain NUL")
    if limit is not None and len(text) > limit:
        raise InvalidIdentifier(field, f"must not be longer than {limit} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidIdentifier(field, "must not contain lone surrogates") from None
    return text
