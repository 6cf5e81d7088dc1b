"""Every audit row a busy tenant leaves fits a schema that ships in the packages."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ulid import ULID

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import row_schemas

from cuo_checkpoint import AuditKind, ChainKind, schemas
from cuo_checkpoint.errors import CheckpointConflict
from cuo_supervisor import catalog_threads
from cuo_supervisor.cascade import GatewayFailure
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core.audit import SupervisorAuditKind
from cuo_supervisor.core.models import InvocationResult
from cuo_supervisor.errors import DataError, PersonaUnknown
from cuo_supervisor.identity import ROLE_AGENT_PERSONA, ROLE_APPROVER, Identity
from cuo_supervisor.replay import replay_run
from cuo_supervisor.supervisor import Answer, Supervisor

NOT_FROM_A_TENANTS_WORK = {"cuo.checkpoint_archive_failed", "month_dropped", "hold"}
"""Kinds that retention writes; a tenant's own calls leave none of them."""


class OutOfTime:
    async def complete(self, messages: Any, **options: Any) -> GatewayFailure:
        return GatewayFailure("timeout", None, "")


class Runner:
    async def run(self, manifest: Any, arguments: Any, **options: Any) -> InvocationResult:
        return InvocationResult(
            skill_name=manifest.skill_name, exit_code=0, stdout="{}", stderr="", duration_ms=1.5
        )


@pytest.mark.parametrize("kind", [*AuditKind, *ChainKind])
def test_each_kind_has_a_schema(kind: str) -> None:
    """Three kinds of the store and nine of the chain; each schema is one and describes its kind."""
    schema = schemas.load(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == kind
    assert schema["description"]


def test_the_rows_schema_knows_every_kind() -> None:
    """The envelope's list of kinds is the three enums together."""
    known = {k.value for enum in (AuditKind, ChainKind, SupervisorAuditKind) for k in enum}
    assert set(schemas.load("row")["properties"]["kind"]["enum"]) == known
    with pytest.raises(FileNotFoundError):
        schemas.load("cuo.other")


@pytest.mark.parametrize("kind", sorted(NOT_FROM_A_TENANTS_WORK))
def test_retentions_kinds_take_no_other_object(kind: str) -> None:
    """No member more, and none but those named; the rows themselves are tried with retention."""
    validator = jsonschema.Draft202012Validator(schemas.load(kind))
    for body in ({}, {"month": "2018-03"}, {"x": 1}, {"whole": True, "month": "2018-13"}):
        assert not validator.is_valid(body)


@pytest.mark.clause("102-6")
@pytest.mark.criterion("102-AC6", "102-AC7")
async def test_every_row_of_a_busy_tenant_fits_its_schema(
    shared_place: Any, tenant_id: str, lens: Any
) -> None:
    """All kinds a tenant's own calls can leave, each body and each row's bytes validated."""
    await busy(shared_place.app, tenant_id)
    seen: dict[str, list[dict[str, Any]]] = {}
    for row in lens.audit():
        row_schemas.check(row)
        assert "0912345678" not in row["body"]
        seen.setdefault(row["kind"], []).append(json.loads(row["body"]))
    every = {k.value for enum in (AuditKind, ChainKind, SupervisorAuditKind) for k in enum}
    assert set(seen) == every - NOT_FROM_A_TENANTS_WORK
    for kind, bodies in seen.items():
        # Rows of one kind differ in what is null; the first few of the chains show all of it.
        for body in bodies[:3] if kind == "cuo.checkpoint_written" else bodies:
            for how, other in row_schemas.spoiled(body):
                assert not row_schemas.validator(kind).is_valid(other), f"{kind}: {how}"
    counted = [json.loads(r["body"])["counted"] for r in lens.audit("approval")]
    assert counted == [True, False]


async def busy(dsn: str, tenant: str) -> None:
    """Routes down every path, answers twice, overwrites, deletes, replays."""
    store = CuoStore(Place(dsn, "public"), max_connections=3)
    catalog = load_catalog()
    supervisor = Supervisor(catalog=catalog, store=store, model=OutOfTime(), runner=Runner())

    def who(subject: str, claim: str = "cuo-genie@0.1.0") -> Identity:
        roles = frozenset({ROLE_AGENT_PERSONA, ROLE_APPROVER})
        return Identity(tenant, subject, "https://issuer.example", claim, roles)

    async with supervisor:
        first = await supervisor.route("validate MST 0301479073", identity=who("a"))
        await supervisor.route("what should we do about Q4 churn", identity=who("a"))
        await supervisor.route(
            "emit hoa don for ACME 4M VND",
            persona_key="cfo",
            identity=who("a", "cuo-cfo@0.4.1"),
        )
        with pytest.raises(PersonaUnknown):
            await supervisor.route("call 0912345678", persona_key="foo", identity=who("a"))
        coo = who("a", "cuo-coo@0.1.0"), who("b", "cuo-coo@0.1.0")
        waiting = await supervisor.route(
            "chuyển khoản 5.000.000 VND cho công ty ACME stk 0123456789",
            persona_key="coo",
            identity=coo[0],
        )
        run = ULID.from_str(waiting.request_id).to_uuid()
        config = {"configurable": {"thread_id": str(run), "run_id": str(run), "tenant_id": tenant}}
        reason = "asked ACME on 0912345678"
        await supervisor.resume(run, Answer(True, reason), identity=coo[1])
        with pytest.raises(DataError):
            await supervisor.resume(run, Answer(True, reason), identity=coo[1])
        await late_answer(store, config)
        await replay_run(store, ULID.from_str(first.request_id).to_uuid(), identity=who("auditor"))
        kept = (store.saver, tenant, catalog.snapshot_hash, "2025_11")
        await catalog_threads.keep(*kept, catalog.to_snapshot())
        with pytest.raises(CheckpointConflict):
            await catalog_threads.keep(*kept, {})
        plans = store.saver.plans
        gone = f"$catalog/{catalog.snapshot_hash}/2025_11"
        plans.tenant_id = uuid.UUID(tenant)
        await store.saver.adelete_thread(gone)


async def late_answer(store: CuoStore, config: Any) -> None:
    """What a second process meets that read the run before the first one's answer arrived."""
    found = await store.saver.aget_tuple(config)
    assert found is not None
    answer = found.checkpoint["channel_values"]["gate"]["answer"]
    from cuo_supervisor.core.audit import approval

    taken = await store.claim(
        config, f"answer/{answer['interrupt_id']}", answer, approval=approval(answer)
    )
    assert not taken
