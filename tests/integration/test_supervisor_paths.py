"""Every path through the graph, on the real store: what is decided, written, and how often."""

from __future__ import annotations

import itertools
import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

import supervisor_kit as kit

from cuo_supervisor.cascade import GatewayFailure
from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.decision import exit_code_of
from cuo_supervisor.core.personas import get_persona
from cuo_supervisor.core.scoring import score_one_off
from cuo_supervisor.core.scrub import scrub
from cuo_supervisor.errors import (
    PersonaMismatch,
    PersonaUnknown,
)
from cuo_supervisor.supervisor import Supervisor

_FIELDS = """
    kind row_v tenant_id subject_id_hash16 persona_key persona_version agent_persona_jwt_iss query
    rule_scores path_taken routed reason operation skill_chosen confidence alternatives
    cascade_taken cascade_outcome llm_used llm_attempts llm_pick approval continued rerun
    invocation_result next_step catalog_snapshot_hash catalog_changed cuo_state_v request_id trace_id ts_ns_start
    ts_ns_end
"""
FIELDS = frozenset(_FIELDS.split())
LOW = kit.DUNNING.replace("0.85", "0.40")


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


PATHS = {
    "auto": (kit.AUTO, kit.DUNNING, "auto", 0, 1),
    "ask": ("send invoice", kit.DUNNING, "ask", 1, 0),
    "defer": ("asdfghjkl", kit.DUNNING, "defer", 2, 0),
    "weak": ("hôm nay trời đẹp quá", kit.DUNNING, "defer", 2, 0),
    "cascade_then_auto": (kit.CASCADE, kit.DUNNING, "cascade_then_auto", 0, 1),
    "cascade_then_ask": (kit.CASCADE, LOW, "cascade_then_ask", 1, 0),
    "freeform": (kit.CASCADE, "I think you should send a reminder.", "ask", 1, 0),
    "timeout": (kit.CASCADE, GatewayFailure("timeout", None, "late"), "ask", 75, 0),
    "unreachable": (kit.CASCADE, GatewayFailure("gateway_unreachable", None, "x"), "ask", 1, 0),
    "gateway_error": (kit.CASCADE, GatewayFailure("gateway_error", 500, "x"), "ask", 1, 0),
    "residency": (kit.CASCADE, GatewayFailure("residency_denied", 451, "x"), "ask", 1, 0),
    "budget": (kit.CASCADE, GatewayFailure("budget_exceeded", 429, "x"), "ask", 1, 0),
    "matrix": (kit.MATRIX, kit.DUNNING, "auto", 2, 0),
}


@pytest.mark.clause(
    "101-3", "101-4", "101-5", "101-8", "101-13", "101-18", "101-19", "101-25", "101-26"
)
@pytest.mark.criterion("101-AC2", "101-AC3", "101-AC4", "101-AC5", "101-AC6", "101-AC17")
@pytest.mark.criterion("101-AC11", "101-AC16", "101-AC18", "101-AC29")
@pytest.mark.parametrize("name", PATHS)
async def test_each_path_leaves_exactly_one_decision_row(
    made: Any, lens: Any, tenant_id: str, runs: Any, name: str
) -> None:
    """One complete row, next_step present and null; the skill runs where the path says so."""
    query, answer, path, code, count = PATHS[name]
    persona = "cfo" if name == "matrix" else "genie"
    async with made(model=kit.Reciter(answer)) as supervisor:
        decision = await supervisor.route(
            unicodedata.normalize("NFD", query),
            persona_key=persona,
            identity=kit.identity(tenant_id, persona=persona),
        )
    assert decision.path_taken == path
    assert exit_code_of(decision) == code
    assert runs() == count
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert set(row) == FIELDS
    assert row["next_step"] is None
    assert row["path_taken"] == path
    assert (row["cuo_state_v"], row["row_v"], row["tenant_id"]) == (1, 1, tenant_id)
    state = lens.rows()[-1]["state_json"]
    assert (state["cuo_state_v"], state["query"]) == (1, query), "not in one normal form"
    assert row["query"] == scrub(query)
    sure = [scored["confidence"] for scored in row["rule_scores"]]
    assert sure == sorted(sure, reverse=True)
    assert len(sure) == min(3, len(score_one_off(query, get_persona(persona), load_catalog())))
    assert row["request_id"] == decision.request_id
    assert row["persona_version"] == get_persona(persona).claim
    assert (row["invocation_result"] is not None) == (count == 1)
    assert (row["llm_pick"] is not None) == path.startswith("cascade_then")
    assert decision.transparency.alternatives == decision.alternatives
    assert decision.transparency.path_taken == path
    assert len(decision.alternatives) <= 3
    if name == "weak":
        # Left to a person, with what was considered to choose from.
        considered = [scored["skill_name"] for scored in row["rule_scores"]]
        assert considered[0] == "inv-dunning-draft@1.2"
        assert [a.skill for a in decision.alternatives] == considered
        assert [a["skill"] for a in row["alternatives"]] == considered
    blocks = kit.bodies(lens, "cuo.persona_defer_block")
    if name == "matrix":
        (block,) = blocks
        assert (block["operation"], block["rule_top_skill"]) == (
            "invoice_emit",
            "vietnam-vat-invoice@1.2",
        )
        assert block["rule_top_confidence"] == decision.confidence
        assert block["request_id"] == decision.request_id
        assert block["persona_key"] == "chief-financial-officer"
    else:
        assert blocks == []
    lens.prove()


@pytest.mark.clause("101-19")
async def test_a_models_pick_that_the_matrix_stops_leaves_the_same_row(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """The block names the pick and the model's confidence in it; the path stays the model's."""
    pick = json.dumps(
        {
            "skill_name": "vietnam-vat-invoice@1.2",
            "arguments": {"customer": "ACME", "amount_vnd": 4_000_000},
            "rationale": "an invoice",
            "confidence": 0.91,
        }
    )
    async with made(model=kit.Reciter(pick)) as supervisor:
        decision = await supervisor.route(
            kit.CASCADE, persona_key="cfo", identity=kit.identity(tenant_id, persona="cfo")
        )
    assert (decision.path_taken, decision.routed) == ("cascade_then_auto", False)
    assert (decision.reason, decision.operation) == ("persona_defer_matrix", "invoice_emit")
    (block,) = kit.bodies(lens, "cuo.persona_defer_block")
    assert (block["rule_top_skill"], block["rule_top_confidence"]) == (
        "vietnam-vat-invoice@1.2",
        0.91,
    )
    assert runs() == 0


@pytest.mark.clause("101-1", "101-6", "101-23")
@pytest.mark.criterion("101-AC7", "101-AC9", "101-AC10")
@pytest.mark.parametrize(
    ("answers", "path", "outcome", "asked"),
    [
        (["no JSON", kit.DUNNING], "cascade_then_auto", "success", 2),
        (["no JSON", "still none", kit.DUNNING], "ask", "schema_violation", 2),
        (
            [kit.DUNNING.replace("inv-dunning-draft@1.2", "make-up-skill")],
            "ask",
            "unknown_skill",
            2,
        ),
        ([kit.DUNNING.replace("0.85", "0.20")], "cascade_then_ask", "success", 1),
        ([kit.DUNNING.replace("0.85", "7")], "ask", "schema_violation", 2),
        ([kit.DUNNING.replace("{}", '{"nonsense": 1}')], "ask", "bad_arguments", 2),
    ],
)
async def test_the_model_is_asked_at_most_twice_and_the_cascade_once(
    made: Any, lens: Any, tenant_id: str, answers: list[str], path: str, outcome: str, asked: int
) -> None:
    """An unacceptable answer earns one stricter question; then a person is asked."""
    model = kit.Reciter(*answers)
    async with made(model=model) as supervisor:
        decision = await supervisor.route(kit.CASCADE, identity=kit.identity(tenant_id))
    assert (decision.path_taken, decision.cascade_outcome) == (path, outcome)
    assert len(model.asked) == asked
    told = model.asked[0]["messages"][1]["content"]
    document = json.loads(told.split("\n", 1)[1].rsplit("\n", 1)[0])
    best = score_one_off(kit.CASCADE, get_persona("genie"), load_catalog())[:5]
    assert [one["skill_name"] for one in document["candidates"]] == [c.skill_name for c in best]
    assert len(best) > 1
    assert document["envelope"] == {
        "tenant_id": tenant_id,
        "persona_key": "genie",
        "request_id": decision.request_id,
        "query": kit.CASCADE,
    }
    (row,) = kit.bodies(lens, "cuo.routing_decision")
    assert row["cascade_taken"] is True
    assert row["llm_attempts"] == asked
    assert lens.events().count(">llm_cascade") == 1


@pytest.mark.clause("101-6")
@pytest.mark.criterion("101-AC8")
@pytest.mark.parametrize(
    "outcome",
    ["timeout", "gateway_unreachable", "gateway_error", "residency_denied", "budget_exceeded"],
)
async def test_a_model_that_cannot_be_heard_leaves_its_own_row(
    made: Any, lens: Any, tenant_id: str, outcome: Any
) -> None:
    """A `cuo.llm_cascade_timeout` row says why, beside the decision."""
    async with made(model=kit.Reciter(GatewayFailure(outcome, None, "x"))) as supervisor:
        decision = await supervisor.route(kit.CASCADE, identity=kit.identity(tenant_id))
    assert decision.cascade_outcome == outcome
    assert decision.llm_used is False
    (row,) = kit.bodies(lens, "cuo.llm_cascade_timeout")
    assert row["error"] == (None if outcome == "timeout" else outcome)
    assert row["request_id"] == decision.request_id
    assert len(kit.bodies(lens, "cuo.routing_decision")) == 1


@pytest.mark.clause("101-3")
@pytest.mark.criterion("101-AC14")
async def test_an_unknown_persona_leaves_its_own_row_and_no_decision(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """The name is kept scrubbed; the run is closed."""
    async with made() as supervisor:
        with pytest.raises(PersonaUnknown):
            await supervisor.route(
                kit.AUTO, persona_key="an@example.vn", identity=kit.identity(tenant_id, local=True)
            )
    (row,) = kit.bodies(lens, "cuo.persona_unknown")
    assert "example.vn" not in row["requested"]
    assert kit.bodies(lens, "cuo.routing_decision") == []
    assert runs() == 0
    assert lens.events()[-1] == "done"
    lens.prove()


@pytest.mark.clause("101-10")
@pytest.mark.criterion("101-AC13")
@pytest.mark.parametrize("claim", ["cto", None])
async def test_a_token_for_another_persona_decides_nothing(
    made: Any, lens: Any, tenant_id: str, runs: Any, claim: str | None
) -> None:
    """No scoring, no decision row; the refused request stays in the log."""
    async with made() as supervisor:
        with pytest.raises(PersonaMismatch) as refused:
            await supervisor.route(
                kit.AUTO, persona_key="cfo", identity=kit.identity(tenant_id, persona=claim)
            )
    assert refused.value.exit_code == 77
    assert refused.value.requested.startswith("cuo-cfo@")
    assert lens.audit("cuo.routing_decision", "cuo.persona_unknown") == []
    assert ">rule_score" not in lens.events()
    assert runs() == 0


@pytest.mark.clause("101-20")
@pytest.mark.criterion("101-AC28")
@pytest.mark.parametrize("query", [kit.AUTO, kit.CASCADE, kit.DESTRUCTIVE, "asdfghjkl"])
async def test_a_dry_run_writes_nothing(
    made: Any, lens: Any, tenant_id: str, runs: Any, query: str
) -> None:
    """No log row, no audit row, no snapshot, no skill; the decision is what it would have been."""
    async with made() as supervisor:
        decision = await supervisor.route(query, identity=kit.identity(tenant_id), do_record=False)
    assert decision.dry_run
    assert decision.invocation_result is None
    assert lens.rows() == []
    assert lens.audit() == []
    assert runs() == 0


@pytest.mark.clause("101-20")
async def test_no_invoke_alone_records_a_decision_without_running_anything(
    made: Any, lens: Any, tenant_id: str, runs: Any
) -> None:
    """Also for a destructive skill: the run ends, nothing waits for an answer."""
    async with made() as supervisor:
        for query in (kit.AUTO, kit.DESTRUCTIVE):
            decision = await supervisor.route(
                query,
                persona_key="cmo",
                identity=kit.identity(tenant_id, persona="cmo"),
                do_invoke=False,
            )
            assert decision.invocation_result is None
    assert runs() == 0
    assert len(kit.bodies(lens, "cuo.routing_decision")) == 2
    assert {
        row["state"] for row in lens.query("SELECT state FROM cuo_runs WHERE tenant_id = $T")
    } == {"closed"}


@pytest.mark.clause("102-7", "102-9")
@pytest.mark.criterion("102-AC3", "102-AC9")
@pytest.mark.clause("101-12", "102-2", "102-3")
@pytest.mark.criterion("101-AC1")
async def test_one_run_with_the_cascade_is_whole_in_the_log(
    made: Any, lens: Any, tenant_id: str
) -> None:
    """Every node entered and completed (branch twice), every edge, one trace, one chain; and no node
    begins before the step before it is stored."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    points = kit.Points()
    async with made(points=points) as supervisor:
        await supervisor.route(
            kit.CASCADE, identity=kit.identity(tenant_id), traceparent=f"00-{trace}-{'b' * 16}-01"
        )
    own = [row for row in lens.rows() if not row["thread_id"].startswith("$")]
    events = lens.events(own[0]["thread_id"])
    nodes = ["parse", "rule_score", "branch", "llm_cascade", "branch", "invoke", "record"]
    assert events[0] == "started"
    assert events[-1] == "done"
    steps = [name for name in points.names if name == "put:after" or name.endswith(":in")]
    own_steps = steps[
        steps.index("parse:in") :
    ]  # the first puts are the catalogue's and the input's
    assert own_steps == [part for node in nodes for part in (f"{node}:in", "put:after")]
    assert Counter(e for e in events if e[0] == ">") == Counter(f">{n}" for n in nodes)
    assert Counter(e for e in events if e[0] == "<") == Counter(f"<{n}" for n in nodes)
    walked = ["__start__", *nodes, "__end__"]
    edges = Counter(f"{a}->{b}" for a, b in itertools.pairwise(walked))
    assert Counter(e for e in events if "->" in e) == edges
    assert {row["trace_id"] for row in own} == {trace}
    told = [json.loads(r["row_bytes"]) for r in lens.audit() if r["run_id"] == own[0]["run_id"]]
    assert {row["trace_id"] for row in told if "trace_id" in row} <= {trace}
    assert kit.bodies(lens, "cuo.routing_decision")[0]["trace_id"] == trace
    lens.prove()
