"""`cyberos-cuo supervisor replay`: decide a stored run again and say what is the same."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import click

from cuo_supervisor.cli.common import (
    debug_option,
    deliver,
    emit_json,
    json_option,
    load_settings,
    one_line,
    place_of,
    run_uuid,
)
from cuo_supervisor.cli.exits import DATA

if TYPE_CHECKING:
    from cuo_supervisor.replay import Replay

__all__ = ["replay"]


_EPILOG: Final = """\b
Examples:
  cyberos-cuo supervisor replay 01M8PZMV75EB6AHSM2Y2NT99T7
  cyberos-cuo supervisor replay RUN --json | jq '.differences'
"""


@click.command(epilog=_EPILOG, short_help="Decide a stored run again and say what differs.")
@click.argument("run")
@json_option
@debug_option
def replay(run: str, as_json: bool) -> int:
    """Decide a run again from its stored inputs and the model's recorded answer.

    Exit 0 when path, pick, skill, confidence, alternatives and gate are identical; 65 with every
    difference by name when they are not, and when the run cannot be replayed. Nothing is invoked;
    one audit row says that the run was replayed.
    """
    from cuo_supervisor.compose import CuoStore, identity_of
    from cuo_supervisor.replay import replay_run

    run_id, settings = run_uuid(run), load_settings()
    identity = identity_of(settings, approver=True)

    async def work(place: Any) -> Replay:
        store = CuoStore(place, max_connections=2)
        try:
            return await replay_run(store, run_id, identity=identity)
        finally:
            await store.aclose()

    with place_of(settings) as place:
        result = asyncio.run(work(place))
    if as_json:
        emit_json(result.to_json())
    else:
        deliver(_text(result))
    return 0 if result.identical else DATA


def _text(result: Replay) -> str:
    facts = result.recorded
    skill = facts["skill"] or "no skill"
    catalog = result.catalog_snapshot_hash[:16]
    lines = [f"run {result.request_id} · catalogue {catalog} · state version {result.cuo_state_v}"]
    if result.same_prompt is not None:
        words = "the same words" if result.same_prompt else "other words; its recorded answer"
        lines.append(f"  the model would be asked {words}")
    if result.identical:
        told = f"{facts['path_taken']} · {skill} · {facts['confidence']:.2f}"
        return "\n".join([click.style(f"identical: {told}", fg="green", bold=True), *lines])
    head = click.style(f"different in {len(result.differences)} places", fg="red", bold=True)
    for difference in result.differences:
        recorded, replayed = _value(difference.recorded), _value(difference.replayed)
        lines.append(f"  {difference.field}: recorded {recorded}, replayed {replayed}")
    return "\n".join([head, *lines])


def _value(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False))
