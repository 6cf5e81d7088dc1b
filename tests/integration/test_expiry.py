"""Approvals nobody gave: the run ends by itself, once, with the decision of one that came too late."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit

from cuo_checkpoint import archive_cli
from cuo_supervisor import schemas
from cuo_supervisor.cli import expire_cmd
from cuo_supervisor.core import audit
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.decision import exit_code_of
from cuo_supervisor.errors import DataError, UsageError
from cuo_supervisor.expiry import EXPIRY_ISSUER, answer_value, expirer
from cuo_supervisor.run_config import config_of
from cuo_supervisor.supervisor import Answer, Supervisor

LATE, IN_TIME = kit.clock_with(ahead_s=86_410), kit.clock_with(ahead_s=86_390)


@pytest.fixture
def made(shared_place: Any, tmp_path: Path) -> Callable[..., Supervisor]:
    """Makes supervisors on the shared database, all with one ledger of skill runs."""

    def make(**options: Any) -> Supervisor:
        return kit.make(shared_place.app, ledger=tmp_path / "ledger", **options)

    return make


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often a skill has run."""
    return kit.CountingRunner(tmp_path / "ledger").runs


async def waiting(supervisor: Supervisor, tenant_id: str) -> uuid.UUID:
    """A run that waits for an approval."""
    decision = await supervisor.route(
        kit.DESTRUCTIVE, persona_key="cmo", identity=kit.identity(tenant_id, persona="cmo")
    )
    assert decision.reason == "approval_required"
    return kit.run_of(decision)


async def test_a_run_that_ran_out_ends_as_expired(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """Not before its time; then once, with its decision row, also under another catalogue."""
    async with made() as supervisor:
        run_id = await waiting(supervisor, tenant_id)
        with pytest.raises(DataError, match="has not run out"):
            await supervisor.expire(run_id, tenant_id=tenant_id)
        skills = [skill for skill in supervisor.catalog.skills if "bank" not in skill.skill_name]
    assert lens.query("SELECT state FROM cuo_runs WHERE run_id = %s", run_id) == [
        {"state": "waiting"}
    ]
    async with made(clock=LATE, catalog=Catalog.of(skills)) as later:
        decision = await later.expire(run_id, tenant_id=tenant_id)
        assert (decision.reason, exit_code_of(decision)) == ("approval_expired", 4)
        with pytest.raises(DataError, match="does not wait"):
            await later.expire(run_id, tenant_id=tenant_id)
        approver = kit.identity(tenant_id, "subject-2", approver=True)
        with pytest.raises(DataError):
            await later.resume(run_id, Answer(True, "at last"), identity=approver)
    assert runs() == 0
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert (row["reason"], row["catalog_changed"]) == ("approval_expired", False)
    assert (row["approval"]["approved"], row["approval"]["expired"]) == (False, True)
    (said,) = kit.bodies(lens, "approval")
    assert (said["by_issuer"], said["counted"]) == (EXPIRY_ISSUER, True)
    assert lens.query("SELECT state, outcome FROM cuo_runs WHERE run_id = %s", run_id) == [
        {"state": "closed", "outcome": "run_completed"}
    ]


async def test_a_last_approval_and_the_clock_at_once(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """One claim decides; what it decided is what happens, in one decision row."""
    approver = kit.identity(tenant_id, "subject-2", approver=True)
    async with made() as first:
        pending = [await waiting(first, tenant_id) for _ in range(3)]
    for run_id in pending:
        async with made(clock=IN_TIME) as person, made(clock=LATE) as cron, made(clock=LATE) as two:
            given = await asyncio.gather(
                cron.expire(run_id, tenant_id=tenant_id),
                person.resume(run_id, Answer(True, "just in time"), identity=approver),
                two.expire(run_id, tenant_id=tenant_id),
                return_exceptions=True,
            )
        assert all(isinstance(one, DataError) for one in given if isinstance(one, Exception))
    decided = kit.bodies(lens, "cuo.routing_decision")
    assert len(decided) == len(pending)
    assert runs() == sum(row["approval"]["approved"] for row in decided)
    for row in decided:
        assert (row["reason"] == "approval_expired") is not row["approval"]["approved"]
    counted = [row for row in kit.bodies(lens, "approval") if row["counted"]]
    assert len(counted) == len(pending)
    lens.prove()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_process_that_died_after_its_claim_is_followed(
    made: Any, lens: Any, tenant_id: str, runs: Any, begun: bool
) -> None:
    """The claim stands; calling again carries the run to its end. A person's answer is left alone,
    and a yes that was not acted on within the day is not acted on later."""
    async with made() as first:
        pending = [await waiting(first, tenant_id) for _ in range(2)]
    async with made(clock=LATE) as later:
        for run_id, expired in zip(pending, (True, False), strict=True):
            config = config_of(expirer(tenant_id), run_id, None)
            state = (await later._durable.aget_state(config)).values
            snapshot = await later._durable.aget_state(config)
            value = answer_value(
                state,
                approved=not expired,
                reason="r",
                identity=expirer(tenant_id),
                interrupt_id=snapshot.interrupts[0].id,
                now_ns=state["ts_ns_start"] + int((86_410 if expired else 10) * 1e9),
                age_s=0.0,
            )
            name = f"answer/{snapshot.interrupts[0].id}"
            assert await later._store.claim(config, name, value, approval=audit.approval(value))
        assert (await later.expire(pending[0], tenant_id=tenant_id)).reason == "approval_expired"
        with pytest.raises(DataError, match="answered in time"):
            await later.expire(pending[1], tenant_id=tenant_id)
        assert len(kit.bodies(lens, "cuo.routing_decision")) == 1
        # Nobody acted on the yes that day, so nobody does now; what may have begun is not known.
        persona = kit.identity(tenant_id, persona="cmo")
        if begun:
            config = config_of(persona, pending[1], None)
            assert await later._store.claim(config, "invoke", {"skill": "x"})
        decision = await later.carry_on(pending[1], identity=persona)
    assert decision.reason == ("invocation_unknown" if begun else "approval_expired")
    assert runs() == 0
    row = kit.bodies(lens, "cuo.routing_decision")[-1]
    assert (row["approval"]["approved"], row["reason"]) == (True, decision.reason)
    jsonschema.Draft202012Validator(schemas.load("cuo.routing_decision")).validate(row)


async def test_a_snapshot_that_is_gone_does_not_change_why_a_run_ends(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """The catalogue it was asked with is hidden and the one in service is another: still expired,
    of that operation, and the row says that the catalogue is no longer the one that was scored."""
    async with made() as supervisor:
        run_id = await waiting(supervisor, tenant_id)
        asked = supervisor.catalog.snapshot_hash
        (kept,) = lens.query(
            "SELECT DISTINCT thread_id FROM cuo_langgraph_checkpoints WHERE tenant_id = $T"
            " AND thread_id LIKE %s",
            f"$catalog/{asked}/%",
        )
        supervisor._store.saver.plans.tenant_id = uuid.UUID(tenant_id)
        await supervisor._store.saver.adelete_thread(kept["thread_id"])
        skills = [skill for skill in supervisor.catalog.skills if "bank" not in skill.skill_name]
    async with made(clock=LATE, catalog=Catalog.of(skills)) as later:
        decision = await later.expire(run_id, tenant_id=tenant_id)
    assert (decision.reason, decision.operation) == ("approval_expired", "wire_transfer")
    assert (exit_code_of(decision), runs()) == (4, 0)
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert (row["reason"], row["catalog_changed"]) == ("approval_expired", True)
    assert (row["approval"]["expired"], row["approval"]["by_issuer"]) == (True, EXPIRY_ISSUER)
    assert row["agent_persona_jwt_iss"] == "https://issuer.example"


@pytest.mark.parametrize("method", ["resume", "expire"])
async def test_no_hosts_clock_gives_anybody_more_time(
    made: Any, lens: Any, tenant_id: str, runs: Any, shared_place: Any, method: str
) -> None:
    """Asked on a host a year ahead and answered on one a year behind: by the log's clock the day is
    over, so a yes is none, and the chore ends the run."""
    year = 365 * 86_400.0
    async with made(clock=kit.clock_with(ahead_s=year)) as ahead:
        run_id = await waiting(ahead, tenant_id)
    async with made(clock=kit.clock_with(ahead_s=-year)) as behind:
        with pytest.raises(DataError, match="has not run out"):
            await behind.expire(run_id, tenant_id=tenant_id)
        with psycopg.connect(shared_place.admin) as conn:
            conn.execute("SET session_replication_role = replica")
            conn.execute(
                "UPDATE cuo_runs SET first_at = first_at - interval '25 hours' WHERE run_id = %s",
                [run_id],
            )
        if method == "resume":
            approver = kit.identity(tenant_id, "subject-2", approver=True)
            decision = await behind.resume(run_id, Answer(True, "in time, here"), identity=approver)
        else:
            decision = await behind.expire(run_id, tenant_id=tenant_id)
    assert (decision.reason, runs()) == ("approval_expired", 0)
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert (row["approval"]["approved"], row["approval"]["expired"]) == (False, True)


@pytest.mark.parametrize("text", ["", "[{}]", '["x"]', '{"tenant_id": 1}'])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    """What the other command did not print is not taken for "nothing to do"."""
    with pytest.raises(UsageError, match="not the list"):
        expire_cmd.listed_runs(text)


async def test_the_two_commands_as_cron_calls_them(
    made: Any,
    lens: Any,
    tenant_id: str,
    shared_place: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    tmp_path: Path,
) -> None:
    """One lists as the archiver, the other ends as the application; no login, every tenant, and no
    catalogue: its folder is gone."""
    async with made(clock=kit.clock_with(ahead_s=-90_000)) as early:
        run_id = await waiting(early, tenant_id)
    with psycopg.connect(shared_place.admin) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(
            "UPDATE cuo_runs SET first_at = first_at - interval '25 hours' WHERE run_id = %s",
            [run_id],
        )
    archiver = shared_place.app.replace("cyberos_app", "cyberos_archiver")
    monkeypatch.setenv("CUO_DATABASE_URL", archiver)
    capsys.readouterr()
    assert archive_cli.main(["expire-approvals", "--json", "--tenant", tenant_id]) == 0
    listed = capsys.readouterr().out
    assert [one["run_id"] for one in json.loads(listed)] == [str(run_id)]
    server = {
        "CUO_DATABASE_URL": shared_place.app,
        "CUO_JWKS": str(tmp_path / "jwks.json"),
        "CUO_JWT_ISSUER": "https://issuer.example",
        "CUO_JWT_AUDIENCE": "cuo",
        "CYBEROS_AI_GATEWAY_URL": "http://localhost:9",
        "CUO_CATALOG": str(tmp_path / "no-such-folder"),
    }

    def end(*argv: str, given: str = "") -> tuple[int, str]:
        command = [sys.executable, "-c", "from cuo_supervisor.cli.main import main; main()"]
        done = subprocess.run(
            [*command, "supervisor", "expire", *argv],
            input=given,
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("CUO_")} | server,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = end("-", given=listed)
    assert (code, f"run {run_id}  approval_expired" in said) == (0, True), said
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert (row["reason"], row["catalog_changed"]) == ("approval_expired", False)
    assert end("--tenant", tenant_id) == (0, "No approval has run out.\n")
