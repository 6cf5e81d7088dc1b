"""Replaying stored runs against a real store: every path, every refusal, the snapshot it needs."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from ulid import ULID

from cuo_checkpoint.errors import CheckpointConflict
from cuo_checkpoint.runs import RunReader
from cuo_supervisor import catalog_threads
from cuo_supervisor.cascade import GatewayFailure, GatewayReply
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.compose import CuoStore, Place
from cuo_supervisor.core import scoring
from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.core.models import InvocationResult, RoutingDecision
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.errors import DataError, PersonaUnknown, StateVersionUnsupported
from cuo_supervisor.identity import ROLE_AGENT_PERSONA, ROLE_APPROVER, Identity
from cuo_supervisor.replay import catalog_of_run, replay_run
from cuo_supervisor.snapshots import SnapshotKeeper, find_catalog, month_of
from cuo_supervisor.supervisor import SYSTEM_CLOCK, Answer, Supervisor

AUTO = "validate MST 0301479073"
CASCADE = "what should we do about the unpaid Q4 contract from ACME"
MATRIX = "emit hoa don for ACME 4M VND"
DESTRUCTIVE = "chuyển khoản 5.000.000 VND cho công ty ACME stk 0123456789"
NOVEMBER_NS = 1_764_547_200_000_000_000 - 1  # the last nanosecond of November 2025, UTC


def answer(skill: str = "inv-dunning-draft@1.2", confidence: float = 0.85) -> str:
    return json.dumps(
        {"skill_name": skill, "arguments": {}, "rationale": "unpaid", "confidence": confidence}
    )


class Reciter:
    """A model that gives one answer after the other, and keeps count."""

    def __init__(self, *answers: str | GatewayFailure) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def complete(self, messages: Any, **options: Any) -> GatewayReply | GatewayFailure:
        given = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return given if isinstance(given, GatewayFailure) else GatewayReply(given, 200)


class Runner:
    """A skill that says it ran, and keeps count."""

    def __init__(self) -> None:
        self.ran = 0

    async def run(self, manifest: Any, arguments: Any, **options: Any) -> InvocationResult:
        self.ran += 1
        return InvocationResult(
            skill_name=manifest.skill_name, exit_code=0, stdout="{}", stderr="", duration_ms=1.0
        )


class House:
    """A tenant's supervisor, with its parts at hand."""

    def __init__(self, dsn: str, tenant: str, model: Reciter, catalog: Catalog) -> None:
        self.dsn, self.tenant, self.model, self.runner = dsn, tenant, model, Runner()
        self.store = CuoStore(Place(dsn, "public"), max_connections=4)
        self.supervisor = Supervisor(
            catalog=catalog, store=self.store, model=model, runner=self.runner
        )

    def who(self, persona: str = "genie", subject: str = "subject-1") -> Identity:
        roles = frozenset({ROLE_AGENT_PERSONA, ROLE_APPROVER})
        claim = get_persona(persona).claim
        return Identity(self.tenant, subject, "https://issuer.example", claim, roles)

    async def route(self, query: str, persona: str = "genie", **options: Any) -> RoutingDecision:
        who = self.who(persona)
        return await self.supervisor.route(query, persona_key=persona, identity=who, **options)

    async def replay(self, run: RoutingDecision | uuid.UUID) -> Any:
        run_id = run if isinstance(run, uuid.UUID) else run_of(run)
        return await replay_run(self.store, run_id, identity=self.who(subject="auditor"))


OpenHouse = Callable[..., Any]


@pytest.fixture
def house(shared_place: Any, tenant_id: str) -> OpenHouse:
    """Opens the test's tenant: house(model answers..., tenant=..., catalog=...)."""

    @asynccontextmanager
    async def opened(
        *answers: str | GatewayFailure, tenant: str = tenant_id, catalog: Catalog | None = None
    ) -> AsyncIterator[House]:
        model = Reciter(*(answers or (answer(),)))
        made = House(shared_place.app, tenant, model, catalog or load_catalog())
        async with made.supervisor:
            yield made

    return opened


def run_of(decision: RoutingDecision) -> uuid.UUID:
    return ULID.from_str(decision.request_id).to_uuid()


@pytest.mark.clause("101-12", "101-17", "102-5")
@pytest.mark.criterion("101-AC30", "102-AC14")
@pytest.mark.parametrize(
    ("query", "persona", "answers", "path"),
    [
        (AUTO, "cfo", (), "auto"),
        ("send invoice", "genie", (), "ask"),
        ("asdfghjkl", "genie", (), "defer"),
        (MATRIX, "cfo", (), "auto"),
        (CASCADE, "genie", (answer(),), "cascade_then_auto"),
        (CASCADE, "genie", (answer(confidence=0.4),), "cascade_then_ask"),
        (CASCADE, "genie", ("I think you should", answer()), "cascade_then_auto"),
        (CASCADE, "genie", ("I think you should", "Sure!"), "ask"),
        (CASCADE, "genie", (answer("make-up-skill@1.0"),), "ask"),
        (CASCADE, "genie", (GatewayFailure("timeout", None, ""),), "ask"),
        (CASCADE, "genie", (GatewayFailure("budget_exceeded", 402, ""),), "ask"),
        (CASCADE, "genie", (GatewayFailure("unusable_reply", 200, ""),), "ask"),
    ],
)
async def test_every_path_replays_identically(
    house: OpenHouse, lens: Any, query: str, persona: str, answers: Any, path: str
) -> None:
    """Same path, pick, skill, confidence, alternatives and gate; no model asked, nothing invoked."""
    async with house(*answers) as at:
        decision = await at.route(query, persona)
        assert decision.path_taken == path
        asked, ran = at.model.asked, at.runner.ran
        replayed = await at.replay(decision)
        assert replayed.differences == ()
        assert replayed.identical
        assert (at.model.asked, at.runner.ran) == (asked, ran)
        assert replayed.same_prompt is (True if asked == 1 else None)
    (row,) = lens.audit("cuo.checkpoint_replayed")
    body = json.loads(row["body"])
    assert row["run_id"] == run_of(decision)
    assert (body["identical"], body["difference_count"]) == (True, 0)
    assert len(lens.audit("cuo.routing_decision")) == 1


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answered_run_replays_identically(house: OpenHouse, approved: bool) -> None:
    """The gate is compared as it spoke; what a person answered is no part of the decision."""
    async with house() as at:
        decision = await at.route(DESTRUCTIVE, "coo")
        assert decision.reason == "approval_required"
        with pytest.raises(DataError, match="waits for an approval"):
            await at.replay(decision)
        boss = at.who("coo", "boss")
        await at.supervisor.resume(run_of(decision), Answer(approved, "checked"), identity=boss)
        replayed = await at.replay(decision)
        assert replayed.identical
        assert replayed.recorded["gate"]["kind"] == "approval_required"


async def test_a_run_replays_with_the_catalogue_it_was_decided_with(house: OpenHouse) -> None:
    """Skills that left the catalogue since are still there for the replay."""
    async with house() as at:
        decision = await at.route(AUTO)
    rest = [s for s in load_catalog().skills if s.skill_name != decision.skill_chosen]
    async with house(catalog=Catalog.of(rest)) as later:
        assert (await later.route(AUTO)).skill_chosen != decision.skill_chosen
        replayed = await later.replay(decision)
        assert replayed.identical
        then = await catalog_of_run(later.store, run_of(decision), identity=later.who())
        assert then == load_catalog()
        assert replayed.catalog_snapshot_hash == decision.catalog_snapshot_hash


async def test_a_scorer_that_decides_otherwise_is_found_out(
    house: OpenHouse, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference names the fields, in the result with values, in the audit row without."""
    async with house() as at:
        decision = await at.route("validate MST 0301479073 for nguyen@example.com", "cfo")
        monkeypatch.setattr(scoring, "_BASE", 0.05)
        monkeypatch.setattr(scoring, "_ARGUMENTS_BONUS", 0.0)
        replayed = await at.replay(decision)
    assert not replayed.identical
    by_field = {d.field: d for d in replayed.differences}
    assert by_field["confidence"].recorded == decision.confidence
    assert by_field["confidence"].replayed != decision.confidence
    (row,) = lens.audit("cuo.checkpoint_replayed")
    body = json.loads(row["body"])
    assert body["identical"] is False
    assert body["differences"] == [d.field for d in replayed.differences]
    assert "example.com" not in row["body"]
    assert "0301479073" not in row["body"]


async def test_a_replay_extends_the_runs_own_chain(
    house: OpenHouse, shared_place: Any, tenant_id: str
) -> None:
    """The rows of two replays follow the run's close, and the run still verifies."""
    async with house() as at:
        decision = await at.route("send invoice")
        await at.replay(decision)
        await at.replay(decision)
    with RunReader(shared_place.app, tenant_id=tenant_id) as reader:
        kinds = [row.kind for row in reader.audit(run_of(decision))]
        assert kinds[-3:] == ["close", "cuo.checkpoint_replayed", "cuo.checkpoint_replayed"]
        assert reader.verify(run_of(decision)).ok


async def test_what_cannot_be_replayed_says_why(
    house: OpenHouse, lens: Any, other_tenant_id: str
) -> None:
    """Unknown runs, other tenants' runs and refused requests are clear sentences; no row is left."""
    async with house() as at:
        decision = await at.route("send invoice")
        refused = uuid.uuid4()
        at.supervisor._clock = type(SYSTEM_CLOCK)(
            SYSTEM_CLOCK.time_ns, SYSTEM_CLOCK.monotonic, lambda: refused, SYSTEM_CLOCK.random_bytes
        )
        with pytest.raises(PersonaUnknown):
            await at.supervisor.route("send invoice", persona_key="foo", identity=at.who())
        with pytest.raises(DataError, match="refused before any decision"):
            await at.replay(refused)
        with pytest.raises(DataError, match="no such run"):
            await at.replay(uuid.uuid4())
        async with house(tenant=other_tenant_id) as other:
            with pytest.raises(DataError, match="no such run"):
                await other.replay(decision)
    assert lens.audit("cuo.checkpoint_replayed") == []


@pytest.mark.clause("101-12")
@pytest.mark.criterion("101-AC16")
async def test_a_stored_state_of_version_4_is_not_replayed(
    house: OpenHouse, shared_place: Any
) -> None:
    """A run that a much later version left is refused, not guessed at."""
    tenant = str(uuid.uuid4())  # its rows are altered below, so the lens may not look at them
    async with house(tenant=tenant) as at:
        decision = await at.route("send invoice")
        alter(shared_place.admin, tenant, run_of(decision), "{cuo_state_v}", "3")
        assert (await at.replay(decision)).identical
        alter(shared_place.admin, tenant, run_of(decision), "{cuo_state_v}", "4")
        with pytest.raises(StateVersionUnsupported):
            await at.replay(decision)
        with pytest.raises(StateVersionUnsupported):
            await at.supervisor.carry_on(run_of(decision), identity=at.who())


async def test_an_altered_decision_does_not_replay(house: OpenHouse, shared_place: Any) -> None:
    """Whoever edits the stored answer past the log's defences is contradicted by the replay."""
    tenant = str(uuid.uuid4())
    async with house(tenant=tenant) as at:
        decision = await at.route(AUTO, "cfo")
        alter(shared_place.admin, tenant, run_of(decision), "{decision,path_taken}", '"ask"')
        replayed = await at.replay(decision)
    assert [(d.field, d.recorded, d.replayed) for d in replayed.differences] == [
        ("path_taken", "ask", "auto")
    ]


def alter(dsn: str, tenant: str, run_id: uuid.UUID, path: str, value: str) -> None:
    """Changes stored states as only a superuser with triggers off can."""
    with psycopg.connect(dsn) as conn:
        conn.execute("SET session_replication_role = replica")
        changed = conn.execute(
            "UPDATE cuo_langgraph_checkpoints SET state_json = jsonb_set(state_json, %s, %s)"
            " WHERE tenant_id = %s AND run_id = %s",
            (path, value, tenant, run_id),
        )
        assert changed.rowcount > 1


# -- snapshots -----------------------------------------------------------------------------------


async def test_a_snapshot_is_kept_once_however_many_race(house: OpenHouse, lens: Any) -> None:
    """Twelve first requests at once, by three supervisors, leave one snapshot row."""
    async with house() as one, house() as two, house() as three:
        houses = (one, two, three)
        await asyncio.gather(*(h.route("send invoice") for h in houses for _ in range(4)))
    rows = [r for r in lens.rows() if r["thread_id"].startswith(catalog_threads.PREFIX)]
    assert len(rows) == 1
    catalog = load_catalog()
    _, named, month = rows[0]["thread_id"].split("/")
    assert named == catalog.snapshot_hash
    async with house() as at:
        kept = await catalog_threads.read(at.store.saver, at.tenant, named, month)
    assert kept == catalog.to_snapshot()


async def test_each_month_keeps_its_own(house: OpenHouse, lens: Any) -> None:
    """The same catalogue is kept again for another month, because months go one by one."""
    catalog = load_catalog()
    async with house() as at:
        keeper = SnapshotKeeper(at.store)
        for at_ns in (NOVEMBER_NS, NOVEMBER_NS + 1, NOVEMBER_NS):
            await keeper.keep(catalog, at.tenant, at_ns=at_ns)
        threads = {r["thread_id"].rpartition("/")[2] for r in lens.rows()}
        assert threads == {"2025_11", "2025_12"}
        found = await find_catalog(
            at.store, at.tenant, catalog.snapshot_hash, around_ns=NOVEMBER_NS
        )
        assert found == catalog


def test_months_are_utc() -> None:
    """The month of a snapshot is that of the log's partitions."""
    assert month_of(NOVEMBER_NS) == "2025_11"
    assert month_of(NOVEMBER_NS + 1) == "2025_12"


async def test_a_clock_on_the_other_side_of_midnight_finds_it(house: OpenHouse) -> None:
    """A snapshot kept under the month before is found from a run that began just after it."""
    catalog = load_catalog()
    async with house() as at:
        await SnapshotKeeper(at.store).keep(catalog, at.tenant, at_ns=NOVEMBER_NS)
        near = await find_catalog(
            at.store, at.tenant, catalog.snapshot_hash, around_ns=NOVEMBER_NS + 10**9
        )
        assert near == catalog
        with pytest.raises(DataError, match="is not stored for this tenant"):
            await find_catalog(
                at.store, at.tenant, catalog.snapshot_hash, around_ns=NOVEMBER_NS + 10**17
            )


async def test_snapshots_are_the_tenants_own(house: OpenHouse, other_tenant_id: str) -> None:
    """Another tenant does not see it, even with the hash in hand."""
    catalog = load_catalog()
    async with house() as at:
        await at.route("send invoice")
        now = SYSTEM_CLOCK.time_ns()
        assert await find_catalog(at.store, at.tenant, catalog.snapshot_hash, around_ns=now)
        with pytest.raises(DataError, match="is not stored for this tenant"):
            await find_catalog(at.store, other_tenant_id, catalog.snapshot_hash, around_ns=now)


async def test_other_content_under_a_kept_hash_is_refused_and_told(
    house: OpenHouse, lens: Any
) -> None:
    """What is kept stays; the attempt is an audit row."""
    catalog = load_catalog()
    async with house() as at:
        kept = (at.store.saver, at.tenant, catalog.snapshot_hash, "2025_11")
        await catalog_threads.keep(*kept, catalog.to_snapshot())
        with pytest.raises(CheckpointConflict):
            await catalog_threads.keep(*kept, {**catalog.to_snapshot(), "skills": []})
        assert await catalog_threads.read(*kept) == catalog.to_snapshot()
    assert len(lens.audit("refused_overwrite")) == 1


@pytest.mark.parametrize(
    "planted", [{"catalog_format": 1, "skills": []}, {"catalog_format": 9}, {}]
)
async def test_a_snapshot_that_is_not_what_its_hash_says_is_not_used(
    house: OpenHouse, planted: dict[str, Any]
) -> None:
    """The hash is recomputed on reading; something else under its name is refused."""
    catalog = load_catalog()
    async with house() as at:
        await catalog_threads.keep(
            at.store.saver, at.tenant, catalog.snapshot_hash, "2025_11", planted
        )
        with pytest.raises(DataError, match="is not what its hash says"):
            await find_catalog(at.store, at.tenant, catalog.snapshot_hash, around_ns=NOVEMBER_NS)


async def test_listings_leave_snapshots_out(
    house: OpenHouse, shared_place: Any, tenant_id: str
) -> None:
    """A person sees requests; the snapshot is read by its own run and verifies like any other."""
    async with house() as at:
        decision = await at.route("send invoice")
    with RunReader(shared_place.app, tenant_id=tenant_id) as reader:
        page = reader.list_runs()
        assert [run.run_id for run in page.runs] == [run_of(decision)]


async def test_snapshots_verify(house: OpenHouse, lens: Any, shared_place: Any) -> None:
    """The snapshot's own chain recomputes."""
    async with house() as at:
        await at.route("send invoice")
        (row,) = [r for r in lens.rows() if r["thread_id"].startswith("$")]
        with RunReader(shared_place.app, tenant_id=at.tenant) as reader:
            assert reader.verify(row["run_id"]).ok
