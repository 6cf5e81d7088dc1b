"""SIGTERM amid runs that do not end in time: nothing is lost, and each can be continued."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from forked_commands import Shell
from loopback_gateway import LoopbackGateway
from served import Served
from skill_catalog import catalog_running
from supervisor_kit import AUTO, CASCADE

SLOW_SKILL = (
    "import os, time; p = os.environ['CUO_OUTBOX'] + '/mark';"
    " open(p, 'a').write('ran '); time.sleep(60); open(p, 'a').write('late ')"
)


def until(holds: Callable[[], Any]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.1)  # what is asked costs the service its time


def decisions(cuo: Shell, run: str) -> list[str]:
    """The run's decision rows, after checking that it holds and ended once."""
    shown = cuo("runs", "show", run, "--json").json
    assert shown["verification"]["ok"], shown["verification"]["problems"]
    kinds = [event["kind"] for event in shown["events"]]
    assert (kinds.count("run_started"), kinds[-1]) == (1, "run_completed")
    return [row["kind"] for row in shown["audit"] if row["kind"] == "cuo.routing_decision"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_late_runs_are_cancelled_and_continued(
    open_tmp_path: Path, model_server: socket.socket
) -> None:
    """One amid its skill, one amid the model's answer: 503 to both callers, exit 0, and `continue`
    ends each with its one decision, running no skill twice."""
    mark = open_tmp_path / "data" / "outbox" / "mark"
    answers: dict[str, httpx.Response] = {}
    with LoopbackGateway() as gateway:
        served = Served(
            open_tmp_path / "data",
            "--shutdown-seconds",
            "1",
            server=model_server,
            CUO_CATALOG=str(catalog_running(open_tmp_path / "catalog", SLOW_SKILL)),
            CYBEROS_AI_GATEWAY_URL=gateway.url,
        )

        def ask(query: str, **more: Any) -> httpx.Response:
            url = f"{served.url}/v1/cuo/supervisor/route"
            answers[query] = httpx.post(url, json={"query": query, **more}, timeout=60)
            return answers[query]

        # Until the model client has loaded, unclear requests are asked back.
        until(lambda: ask(CASCADE, record=False).json()["cascade_outcome"] != "not_ready")
        gateway.mode, before = "hang", len(gateway.requests)
        asking = [threading.Thread(target=ask, args=[query]) for query in (AUTO, CASCADE)]
        asking[0].start()
        until(lambda: mark.exists() and mark.read_text() == "ran ")
        asking[1].start()
        until(lambda: len(gateway.requests) > before)
        assert served.stop() == 0
        for thread in asking:
            thread.join(30)
        for query in (AUTO, CASCADE):
            said = answers[query].json()
            assert (answers[query].status_code, said["error"]) == (503, "stopping")
            assert "supervisor continue" in said["detail"]
        assert not any("Traceback" in line for line in served.said)
        gateway.mode = "ok"
        cuo = served.cli
        listed = cuo("runs", "list", "--json").json["runs"]
        assert [(run["outcome"], run["decision"]) for run in listed] == [("run_failed", None)] * 2
        in_cascade, in_skill = (run["ulid"] for run in listed)
        done = cuo("supervisor", "continue", in_cascade, "--json")
        assert (done.code, done.json["path_taken"]) == (0, "cascade_then_auto")
        done = cuo("supervisor", "continue", in_skill, "--json")
        assert (done.code, done.json["reason"]) == (5, "invocation_unknown")
        assert mark.read_text() == "ran "
        for run in (in_cascade, in_skill):
            assert len(decisions(cuo, run)) == 1
