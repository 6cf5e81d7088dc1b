"""Who may carry on a run and does, and running a skill again that may have run: by an operator's
explicit word, and only where harmless.

A run whose process died between the durable intent and the result ends as `invocation_unknown`.
For a skill whose manifest says `idempotent = true`, whose act is not destructive, an operator may
say that it shall run again. Each such word is an intent of its own in the log, with who gave it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.catalog import Catalog, SkillManifest
from cuo_supervisor.core.decision import chosen_of
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.errors import DataError, PersonaUnknown
from cuo_supervisor.identity import ROLE_APPROVER, Identity, check_persona
from cuo_supervisor.ports import NodeContext

__all__ = ["MAX_RERUNS", "check_continuer", "check_rerun", "claim_rerun", "may_rerun", "word_of"]

MAX_RERUNS: Final = 5
"""Reruns of one run: a skill that kills its process five times will do so again."""


def check_continuer(identity: Identity, state: Mapping[str, Any]) -> None:
    """Refuses whoever may not carry on a run that its own process left.

    What is left of it may run a skill in the persona's name, so that takes the persona's token, or
    an approver's once the request was accepted (an approver's own process may have died). Raises
    PersonaMismatch and PersonaVersionMismatch; a persona nobody knows is left to the run to refuse.
    """
    if ROLE_APPROVER in identity.roles and "persona_version" in state:
        return
    with contextlib.suppress(PersonaUnknown):
        check_persona(identity, get_persona(state["persona_key"]))


def word_of(identity: Identity, at_ns: int) -> dict[str, Any]:
    """Whose word carries a run on, and when: what the log and the decision row keep of it."""
    return {
        "by_hash16": subject_hash16(identity.subject_id),
        "by_issuer": identity.issuer,
        "at_ns": at_ns,
    }


def may_rerun(manifest: SkillManifest) -> bool:
    """True if running the skill twice is declared harmless and its act is not destructive."""
    return manifest.idempotent and not manifest.is_destructive


def check_rerun(state: Mapping[str, Any], catalog: Catalog) -> None:
    """Raises DataError, saying why, if the skill a run would invoke must not be run again."""
    chosen = chosen_of(state)
    if chosen is None:
        return
    manifest = catalog.get(chosen[0])
    if manifest is None or not may_rerun(manifest):
        why = "is destructive" if manifest and manifest.is_destructive else "is not idempotent"
        raise DataError(
            f"{chosen[0]} {why}, so it is never run twice; continue without --rerun-idempotent"
        )


async def claim_rerun(
    context: NodeContext, config: RunnableConfig, skill_name: str
) -> dict[str, Any] | None:
    """Durably takes the next right to run again; None when all are used."""
    assert context.store is not None  # noqa: S101 - the caller has claimed through it already
    for number in range(1, MAX_RERUNS + 1):
        who = {"number": number} | word_of(context.identity, context.clock.time_ns())
        if await context.store.claim(config, f"invoke/rerun/{number}", {"skill": skill_name} | who):
            return who
    return None
