"""Running a skill again that may have run: only by an operator's word, only where harmless."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cuo_supervisor import schemas
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core.audit import subject_hash16
from cuo_supervisor.core.models import InvocationResult
from cuo_supervisor.errors import DataError
from cuo_supervisor.identity import ROLE_AGENT_PERSONA, ROLE_APPROVER, Identity
from cuo_supervisor.rerun import MAX_RERUNS
from cuo_supervisor.supervisor import SYSTEM_CLOCK, Answer, Supervisor

AUTO = "validate MST 0301479073"
NOT_IDEMPOTENT = "create account for ACME"
DESTRUCTIVE = "chuyển khoản 5.000.000 VND cho công ty ACME stk 0123456789"


class Deadly:
    """A skill that notes that it ran and takes the process with it."""

    def __init__(self, ledger: Path, *, deadly: bool = True) -> None:
        self.ledger, self.deadly = ledger, deadly

    async def run(self, manifest: Any, arguments: Any, **options: Any) -> InvocationResult:
        with self.ledger.open("a") as file:
            file.write(f"{manifest.skill_name}\n")
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return InvocationResult(
            skill_name=manifest.skill_name, exit_code=0, stdout="{}", stderr="", duration_ms=1.0
        )


class House:
    """One tenant's runs, some of whose processes die."""

    def __init__(self, dsn: str, tenant: str, ledger: Path, *, deadly: bool = False) -> None:
        self.dsn, self.tenant, self.ledger = dsn, tenant, ledger
        self.run_id = uuid.uuid4()
        self.supervisor = Supervisor(
            catalog=load_catalog(),
            store=CuoStore(Place(dsn, "public"), max_connections=2),
            model=None,
            runner=Deadly(ledger, deadly=deadly),
            clock=type(SYSTEM_CLOCK)(
                SYSTEM_CLOCK.time_ns,
                SYSTEM_CLOCK.monotonic,
                lambda: self.run_id,
                SYSTEM_CLOCK.random_bytes,
            ),
        )

    def who(self, subject: str = "asker", persona: str = "genie") -> Identity:
        roles = frozenset({ROLE_AGENT_PERSONA, ROLE_APPROVER})
        claim = f"cuo-{persona}@0.1.0"
        return Identity(self.tenant, subject, "https://issuer.example", claim, roles)

    def die(self, query: str, *, what: str = "route") -> None:
        """Does it in a process of its own, whose skill kills it."""
        fork = multiprocessing.get_context("fork")
        job = (self.dsn, self.tenant, str(self.ledger), str(self.run_id), what, query)
        child = fork.Process(target=lambda: asyncio.run(main(*job)))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL

    async def carry_on(self, *, rerun: bool) -> Any:
        async with self.supervisor:
            return await self.supervisor.carry_on(
                self.run_id, identity=self.who("operator"), rerun_idempotent=rerun
            )

    def runs(self) -> int:
        return len(self.ledger.read_text().splitlines())


@pytest.fixture
def house(shared_place: Any, tenant_id: str, tmp_path: Path) -> House:
    return House(shared_place.app, tenant_id, tmp_path / "ledger")


@pytest.mark.slow
async def test_an_idempotent_skill_runs_again_by_the_flag(house: House, lens: Any) -> None:
    """The word, who gave it and when are in the log; one decision is recorded."""
    house.die(AUTO)
    decision = await house.carry_on(rerun=True)
    assert decision.routed
    assert decision.invocation_result is not None
    assert house.runs() == 2
    assert len(lens.audit("cuo.routing_decision")) == 1
    claims = lens.query(
        "SELECT channel, value FROM cuo_langgraph_writes WHERE tenant_id = $T"
        " AND starts_with(lg_checkpoint_id, '$claim/') ORDER BY seq"
    )
    first, word, again = (row["channel"] for row in claims)
    assert (first, word.partition("/")[0], again) == ("invoke", "continue", "invoke/rerun/1")
    told = claims[2]["value"]
    assert (told["skill"], told["number"]) == ("vietnam-mst-validate@1.0", 1)
    assert told["by_hash16"] != told["by_issuer"]
    last = [r for r in lens.rows() if r["kind"] == "run_completed"][-1]
    assert last["state_json"]["gate"]["rerun"]["by_hash16"] == told["by_hash16"]
    (row,) = (json.loads(one["body"]) for one in lens.audit("cuo.routing_decision"))
    operator = subject_hash16("operator")
    assert row["continued"]["by_hash16"] == claims[1]["value"]["by_hash16"] == operator
    assert row["rerun"]["by_hash16"] == operator
    assert row["rerun"]["by_issuer"] == told["by_issuer"]
    assert row["subject_id_hash16"] != operator
    jsonschema.Draft202012Validator(schemas.load("cuo.routing_decision")).validate(row)
    lens.prove()


@pytest.mark.slow
async def test_without_the_flag_it_does_not(house: House) -> None:
    """The run ends not knowing, and then takes no second decision; a new request is the way."""
    house.die(AUTO)
    decision = await house.carry_on(rerun=False)
    assert decision.reason == "invocation_unknown"
    assert house.runs() == 1
    with pytest.raises(DataError, match="route the request again"):
        await house.carry_on(rerun=True)
    assert house.runs() == 1


@pytest.mark.slow
async def test_a_skill_that_is_not_idempotent_never_does(house: House) -> None:
    """The flag is refused before anything moves; the run can still be continued without it."""
    house.die(NOT_IDEMPOTENT)
    with pytest.raises(DataError, match="is not idempotent, so it is never run twice"):
        await house.carry_on(rerun=True)
    assert (await house.carry_on(rerun=False)).reason == "invocation_unknown"
    assert house.runs() == 1


@pytest.mark.slow
@pytest.mark.clause("101-7")
async def test_a_destructive_skill_never_does(house: House) -> None:
    """Not even after an approval whose process died in the act."""
    async with house.supervisor:
        waiting = await house.supervisor.route(
            DESTRUCTIVE, persona_key="coo", identity=house.who(persona="coo")
        )
    assert waiting.reason == "approval_required"
    house.die("", what="approve")
    with pytest.raises(DataError, match="is destructive, so it is never run twice"):
        await house.carry_on(rerun=True)
    assert house.runs() == 1


@pytest.mark.slow
async def test_a_skill_that_keeps_killing_its_process_is_given_up(house: House) -> None:
    """After five reruns the run ends not knowing, flag or not."""
    house.die(AUTO)
    for _ in range(MAX_RERUNS):
        house.die("", what="rerun")
    assert house.runs() == 1 + MAX_RERUNS
    decision = await house.carry_on(rerun=True)
    assert decision.reason == "invocation_unknown"
    assert house.runs() == 1 + MAX_RERUNS


async def main(dsn: str, tenant: str, ledger: str, run_id: str, what: str, query: str) -> None:
    """What the processes do that `House.die` starts."""
    made = House(dsn, tenant, Path(ledger), deadly=True)
    made.run_id = uuid.UUID(run_id)
    async with made.supervisor:
        if what == "route":
            await made.supervisor.route(query, identity=made.who())
        elif what == "approve":
            boss = made.who("boss", "coo")
            await made.supervisor.resume(made.run_id, Answer(True, "checked"), identity=boss)
        else:
            await made.supervisor.carry_on(
                made.run_id, identity=made.who("operator"), rerun_idempotent=True
            )
