"""Answers to waiting runs: what is written of one, how long it counts, and what when none came.

An approval runs out by the clock, not by a person's word, so ending such a run needs no approver:
it can only ever say no, and only once the time is over.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cuo_supervisor.calls import check_kind
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.errors import DataError, UsageError
from cuo_supervisor.identity import EXPIRY_ISSUER, Identity
from cuo_supervisor.ports import Store
from cuo_supervisor.snapshots import find_catalog

__all__ = [
    "APPROVAL_SECONDS",
    "EXPIRY_ISSUER",
    "Answer",
    "answer_until",
    "answer_value",
    "asked_with",
    "check_reason",
    "expired_value",
    "expirer",
    "has_run_out",
]

APPROVAL_SECONDS: Final = 24 * 3600
"""A waiting run's answer counts for 24 hours from the request."""

_REASON_MAX: Final = 2000
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to a run that waits. Raises UsageError for an `approved` such as "no"."""

    approved: bool
    reason: str

    def __post_init__(self) -> None:
        check_kind("approved", self.approved, bool, "True or False")
        check_kind("reason", self.reason, str, "text")


def has_run_out(state: Mapping[str, Any], now_ns: int, age_s: float) -> bool:
    """Whether an answer to a run with this state comes too late now.

    By the clocks of the hosts that asked and answer, or by the log's (`age_s`): either is enough, so
    a host whose clock is wrong, or set so, gives nobody more time.
    """
    return bool(now_ns - state["ts_ns_start"] > APPROVAL_SECONDS * _NS or age_s > APPROVAL_SECONDS)


def answer_until(state: Mapping[str, Any], first_at: dt.datetime) -> dt.datetime | None:
    """Up to when an answer counts, by the earlier of the two starts; None where no state says it."""
    started = state.get("ts_ns_start")
    if not isinstance(started, int):
        return None
    try:
        began = min(first_at, dt.datetime.fromtimestamp(started / _NS, dt.UTC))
        return began + dt.timedelta(seconds=APPROVAL_SECONDS)
    except (ValueError, OverflowError, OSError):
        return None


def check_reason(reason: str) -> None:
    """Raises UsageError unless an answer's reason says something, within 2,000 characters.

    Spaces, dots and characters that show nothing are no reason; an auditor would read an empty one.
    """
    if not any(character.isalnum() for character in reason):
        raise UsageError("an answer needs a reason: --reason TEXT")
    if len(reason) > _REASON_MAX:
        raise UsageError(f"the reason is longer than {_REASON_MAX} characters")


def answer_value(
    state: Mapping[str, Any],
    *,
    approved: bool,
    reason: str,
    identity: Identity,
    interrupt_id: str,
    now_ns: int,
    age_s: float,
) -> dict[str, Any]:
    """What a waiting run is given: a yes that comes too late is no yes."""
    expired = has_run_out(state, now_ns, age_s)
    return {
        "approved": approved and not expired,
        "expired": expired,
        "reason": reason,
        "by_hash16": subject_hash16(identity.subject_id),
        "by_issuer": identity.issuer,
        "at_ns": now_ns,
        "interrupt_id": interrupt_id,
    }


def expired_value(
    state: Mapping[str, Any], identity: Identity, *, interrupt_id: str, now_ns: int, age_s: float
) -> dict[str, Any]:
    """What a run is given whose time is over."""
    return answer_value(
        state,
        approved=False,
        reason="not answered in time",
        identity=identity,
        interrupt_id=interrupt_id,
        now_ns=now_ns,
        age_s=age_s,
    )


async def asked_with(store: Store, state: Mapping[str, Any]) -> Catalog | None:
    """The catalogue a run was asked with: a changed one must not give its end another reason.

    None when it is not stored or not what its hash says. The run ends all the same and as expired;
    its row then says `catalog_changed` beside it, where the one in service is another.
    """
    try:
        return await find_catalog(
            store,
            state["tenant_id"],
            state["catalog_snapshot_hash"],
            around_ns=state["ts_ns_start"],
        )
    except DataError:
        return None


def expirer(tenant_id: str) -> Identity:
    """Who ends a run that ran out: nobody's subject, without any role."""
    return Identity(
        tenant_id=tenant_id,
        subject_id="approval-expiry",
        issuer=EXPIRY_ISSUER,
        persona_claim=None,
        roles=frozenset(),
    )
