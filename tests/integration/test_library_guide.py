"""docs/library.md says what is so: its code runs as it stands, and what it makes is a sound record."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cuo_supervisor.core.personas import get_persona

GUIDE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()


def test_every_block_of_code_runs_in_order(
    shared_place: Any, tenant_id: str, lens: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one namespace, as a reader would type them; the clock handed in is the record's."""
    monkeypatch.setenv("CUO_DATA_DIR", str(tmp_path))
    names: dict[str, Any] = {"conninfo": shared_place.app, "tenant": tenant_id}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(compile(block, "docs/library.md", "exec"), names)
    assert names["caller"].persona_claim == get_persona("cfo").claim
    assert names["dry"].dry_run
    routed, asked = asyncio.run(names["two_requests"]())
    assert routed.skill_chosen == "vietnam-mst-validate@1.0"
    assert (routed.path_taken, routed.invocation_result) == ("auto", None)
    assert asked.path_taken == "ask"
    assert {one.ts_ns_start for one in (routed, asked)} == {1_700_000_000_000_000_000}
    decided = [json.loads(row["body"]) for row in lens.audit("cuo.routing_decision")]
    assert {row["request_id"] for row in decided} == {routed.request_id, asked.request_id}
