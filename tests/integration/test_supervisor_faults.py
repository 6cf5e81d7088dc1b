"""Every way a gateway can misbehave, through the whole supervisor and over a real wire."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit
from loopback_gateway import MODES, LoopbackGateway

from cuo_supervisor.gateway import Gateway

OUTCOMES = {
    "ok": "success",
    "answer": "success",
    "delay": "timeout",
    "hang": "timeout",
    "hang_mid_body": "timeout",
    "reset": "gateway_unreachable",
    "reset_mid_body": "gateway_unreachable",
    "redirect": "gateway_error",
    "unknown_skill": "unknown_skill",
}
"""All others give an answer nobody can use: `schema_violation`, or `gateway_error`."""

STATUSES = {
    402: "budget_exceeded",
    429: "budget_exceeded",
    451: "residency_denied",
    500: "gateway_error",
    503: "gateway_error",
}


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Load LiteLLM once; its import warns about its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gateway = Gateway()
        gateway.warm_up()
        assert gateway.wait_ready(120)


@pytest.fixture
def server() -> Iterator[LoopbackGateway]:
    with LoopbackGateway() as running:
        yield running


@pytest.mark.slow
@pytest.mark.clause("101-6", "101-8", "101-11", "101-23")
@pytest.mark.criterion("101-AC8", "101-AC9", "101-AC10", "101-AC17", "101-AC22")
@pytest.mark.parametrize("fault", [*(mode for mode in MODES if mode != "status"), *STATUSES])
async def test_no_fault_of_a_gateway_stops_or_decides_a_request(
    shared_place: Any,
    lens: Any,
    tenant_id: str,
    tmp_path: Path,
    server: LoopbackGateway,
    fault: Any,
) -> None:
    """A person is asked, in time, with one decision row that names the fault; nothing runs."""
    if isinstance(fault, int):
        server.mode, server.status = "status", fault
    else:
        server.mode = fault
    gateway = Gateway(base_url=server.url)
    runner = kit.CountingRunner(tmp_path / "ledger")
    made = kit.make(
        shared_place.app, ledger=runner.ledger, model=gateway, closers=(gateway.aclose,)
    )
    async with made:
        began = time.monotonic()
        decision = await made.route(kit.CASCADE, identity=kit.identity(tenant_id))
        spent = time.monotonic() - began
    wanted = STATUSES.get(fault) or OUTCOMES.get(fault)
    outcome = decision.cascade_outcome
    assert outcome == wanted if wanted else outcome in ("schema_violation", "gateway_error")
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert row["cascade_outcome"] == outcome
    assert row["cascade_taken"] is True
    own = kit.bodies(lens, "cuo.llm_cascade_timeout")
    failed = outcome not in ("success", "schema_violation", "unknown_skill", "bad_arguments")
    assert len(own) == (1 if failed else 0)
    assert "SECRET-SERVER-TEXT" not in str(own) + str(row)
    if outcome == "success":
        assert (decision.path_taken, runner.runs()) == ("cascade_then_auto", 1)
    else:
        assert (decision.path_taken, runner.runs()) == ("ask", 0)
        assert decision.alternatives
    assert spent < (6.0 if outcome == "timeout" else 30.0)
    assert len(server.requests) <= 2
