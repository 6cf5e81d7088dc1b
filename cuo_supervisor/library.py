"""`run_supervisor` for programs that import it: settings read once, one supervisor per process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from typing import Any

from cuo_supervisor.calls import check_kind
from cuo_supervisor.compose import Place, identity_of, make_supervisor, open_place
from cuo_supervisor.core.models import RoutingDecision
from cuo_supervisor.errors import UsageError
from cuo_supervisor.identity import LOCAL_IDENTITY, Identity
from cuo_supervisor.settings import Settings
from cuo_supervisor.supervisor import Supervisor

__all__ = ["run_supervisor", "run_supervisor_sync"]

_lock = threading.Lock()
_resources = contextlib.ExitStack()
_made: dict[bool, tuple[Settings, Supervisor]] = {}


async def run_supervisor(
    query: str,
    persona_key: str = "genie",
    *,
    tenant_id: str | None = None,
    subject_id: str | None = None,
    identity: Identity | None = None,
    do_invoke: bool = True,
    do_record: bool = True,
    traceparent: str | None = None,
    supervisor: Supervisor | None = None,
) -> RoutingDecision:
    """Routes one request, with the process's own supervisor unless one is passed.

    Settings come from the environment, read at the first call. Without CUO_DATABASE_URL that is
    local mode: an embedded PostgreSQL is started (blocking, about a second, once) and identity
    has defaults, in which `tenant_id` and `subject_id` may replace the local ones. In server mode
    `identity` is a verified one, or CUO_JWT is verified; tenant and subject come from it alone.

    `do_record=False` is a dry run and implies `do_invoke=False`: no database is needed then.
    Raises the tree of `cuo_supervisor.errors`.
    """
    if supervisor is not None:
        check_kind("supervisor", supervisor, Supervisor, "a Supervisor")
    check_kind("do_record", do_record, bool, "True or False")
    settings, chosen = (None, supervisor) if supervisor else _own(durable=do_record)
    who = identity
    if who is not None:
        check_kind("identity", who, Identity, "an Identity")
    else:
        who = identity_of(settings) if settings is not None else LOCAL_IDENTITY
    if tenant_id is not None or subject_id is not None:
        if not who.local:
            raise UsageError(
                "tenant and subject come from the verified identity, not from arguments"
            )
        who = Identity(
            tenant_id=tenant_id or who.tenant_id,
            subject_id=subject_id or who.subject_id,
            issuer=who.issuer,
            persona_claim=None,
            roles=who.roles,
            local=True,
        )
    assert chosen is not None  # noqa: S101 - one of the two branches above made it
    return await chosen.route(
        query,
        persona_key=persona_key,
        identity=who,
        do_invoke=do_invoke,
        do_record=do_record,
        traceparent=traceparent,
    )


def run_supervisor_sync(query: str, persona_key: str = "genie", **options: Any) -> RoutingDecision:
    """As `run_supervisor`, for code without an event loop. Raises UsageError inside a running one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_once(query, persona_key, options))
    raise UsageError("an event loop is running here: await run_supervisor(...) instead")


async def _once(query: str, persona_key: str, options: dict[str, Any]) -> RoutingDecision:
    try:
        return await run_supervisor(query, persona_key, **options)
    finally:
        # This loop ends with the call; its connections must not outlive it.
        for used in (options.get("supervisor"), *(own for _, own in _made.values())):
            if isinstance(used, Supervisor):
                await used.aclose_loop()


def _silent(_: str) -> None:
    """A library prints nothing."""


def _own(*, durable: bool) -> tuple[Settings, Supervisor]:
    with _lock:
        if durable not in _made:
            settings = Settings.load()
            place: Place | None = None
            if durable:
                atexit.register(_resources.close)
                place = _resources.enter_context(open_place(settings))
            # The model client is loaded by the first request that needs it, before its clock.
            _made[durable] = (settings, make_supervisor(settings, place, say=_silent))
        return _made[durable]
