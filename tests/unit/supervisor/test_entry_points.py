"""Two ways in, one supervisor: the function to import and the command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuo_supervisor import Answer, RoutingDecision, run_supervisor, run_supervisor_sync
from cuo_supervisor.errors import UsageError

COMMAND = Path(sys.executable).with_name("cyberos-cuo")
VOLATILE = {"request_id", "ts_ns_start", "ts_ns_end"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours: local mode, as on a fresh machine."""
    for name in os.environ:
        if name.startswith(("CUO_", "CYBEROS_")):
            monkeypatch.delenv(name)


def fixed(decision: RoutingDecision) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(decision.model_dump_json(exclude=VOLATILE))
    return document


@pytest.mark.clause("101-2")
@pytest.mark.parametrize(
    ("query", "code"), [("validate MST 0301479073", 0), ("send invoice", 1), ("asdfghjkl", 2)]
)
async def test_the_command_and_the_function_decide_alike(query: str, code: int) -> None:
    """One dry run by each way in: the same document but for ids and times."""
    asked = ["supervisor", "route", "--query", query, "--persona", "cfo", "--no-record", "--json"]
    ran = await asyncio.to_thread(
        subprocess.run, [COMMAND, *asked], capture_output=True, text=True, check=False, timeout=60
    )
    said = json.loads(ran.stdout)
    decision = await run_supervisor(query, "cfo", do_record=False)
    assert ran.returncode == code
    assert {k: v for k, v in said.items() if k not in VOLATILE} == fixed(decision)


@pytest.mark.clause("101-2")
def test_threads_and_loops_share_one_supervisor() -> None:
    """Twenty threads, each with a loop of its own, and 200 calls in one loop get one answer."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(20) as pool:
        calls = [
            pool.submit(run_supervisor_sync, "send invoice", "cfo", do_record=False)
            for _ in range(20)
        ]
        answers = [fixed(call.result()) for call in calls]

    async def many() -> list[RoutingDecision]:
        routed = (run_supervisor("send invoice", "cfo", do_record=False) for _ in range(200))
        return list(await asyncio.gather(*routed))

    decisions = asyncio.run(many())
    assert len({decision.request_id for decision in decisions}) == 200
    answers += [fixed(decision) for decision in decisions]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query", None),
        ("persona_key", None),
        ("persona_key", 7),
        ("tenant_id", 7),
        ("subject_id", b"x"),
        ("identity", "clerk"),
        ("traceparent", 7),
        ("supervisor", "mine"),
        ("do_invoke", "no"),
        ("do_record", 0),
    ],
)
def test_an_argument_of_a_wrong_kind_is_a_usage_error(name: str, value: object) -> None:
    """The error is one of ours, names the argument and does not repeat it."""
    given: dict[str, Any] = {"query": "send invoice", "do_record": False} | {name: value}
    with pytest.raises(UsageError, match=rf"{name} must be .*, not {type(value).__name__}$"):
        run_supervisor_sync(**given)


@pytest.mark.parametrize("given", [("no", "checked"), (True, None)])
def test_an_answer_of_a_wrong_kind_approves_nothing(given: tuple[Any, Any]) -> None:
    """The word "no" is true to Python."""
    with pytest.raises(UsageError, match="must be"):
        Answer(*given)


async def test_the_blocking_twin_names_the_other_inside_a_loop() -> None:
    """It would block the loop it is called from, so it refuses."""
    with pytest.raises(UsageError, match=r"await run_supervisor"):
        run_supervisor_sync("send invoice", do_record=False)
