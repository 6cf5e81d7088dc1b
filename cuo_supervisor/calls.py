"""What a program passes to the library: refused here when it is of a kind that no type checker lets by."""

from __future__ import annotations

from cuo_supervisor.core.envelope import check_query
from cuo_supervisor.errors import UsageError
from cuo_supervisor.identity import Identity

__all__ = ["check_call", "check_kind"]


def check_call(
    query: object, persona_key: object, identity: object, traceparent: object, **flags: object
) -> str:
    """The query as given. Raises UsageError for one that cannot be routed, and for wrong kinds."""
    text = check_query(query)
    check_kind("persona_key", persona_key, str, "text")
    check_kind("identity", identity, Identity, "an Identity")
    if traceparent is not None:
        check_kind("traceparent", traceparent, str, "text")
    for name, value in flags.items():
        # "no" and "false" are true to Python, and would invoke.
        check_kind(name, value, bool, "True or False")
    return text


def check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    """Raises UsageError unless `value` is of that kind; never repeats it."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be {wanted}, not {type(value).__name__}")
