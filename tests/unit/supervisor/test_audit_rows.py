"""What the supervisor's audit rows say: complete, scrubbed, canonical, and as their schemas promise."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor import schemas
from cuo_supervisor.core import audit
from cuo_supervisor.core.audit import SupervisorAuditKind
from cuo_supervisor.core.models import (
    Alternative,
    Candidate,
    InvocationResult,
    LlmRoutingPick,
    RoutingDecision,
    TransparencyDisclosure,
)
from cuo_supervisor.core.plain_json import plain

TENANT = "5e8f1d2a-0000-4000-8000-000000000001"
REQUEST = "01HG7V8B0K8M4Z8Z8M8M8M8M8M"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
START, END = 1747920731000000000, 1747920731017200000


def decision(**fields: Any) -> RoutingDecision:
    given = {
        "routed": True,
        "skill_chosen": "vietnam-mst-validate@1.0",
        "confidence": 0.92,
        "path_taken": "auto",
        "llm_used": False,
        "alternatives": [Alternative(skill="crm-account-create@1.0", confidence=0.12)],
        "persona_key": "chief-financial-officer",
        "persona_version": "cuo-cfo@0.4.1",
        "catalog_snapshot_hash": "sha256:" + "0" * 64,
        "request_id": REQUEST,
        "ts_ns_start": START,
        "ts_ns_end": END,
    } | fields
    given["transparency"] = TransparencyDisclosure(
        skill_chosen=given["skill_chosen"],
        confidence=given["confidence"],
        alternatives=given["alternatives"],
        path_taken=given["path_taken"],
        llm_used=given["llm_used"],
    )
    return RoutingDecision(**given)


def routing(query: str = "validate MST 0301479073", **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "decision": decision(),
        "tenant_id": TENANT,
        "subject_id": "user-7",
        "jwt_issuer": "local",
        "query": query,
        "rule_scores": [],
        "gate": None,
        "llm_attempts": 0,
        "cuo_state_v": 1,
        "trace_id": TRACE,
    }
    return audit.routing_decision(**given | fields)


def check(row: dict[str, Any]) -> None:
    """The row fits its shipped schema and survives canonicalisation unchanged."""
    jsonschema.Draft202012Validator(schemas.load(row["kind"])).validate(row)
    assert json.loads(rfc8785.dumps(row)) == row


def test_kinds_are_closed() -> None:
    """Four kinds, each with a schema; a fifth is a decision that shows here."""
    assert len(SupervisorAuditKind) == 4
    for kind in SupervisorAuditKind:
        schema = schemas.load(kind.value)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["kind"] == {"const": kind.value}
    with pytest.raises(FileNotFoundError):
        schemas.load("cuo.other")


def test_routing_decision_row() -> None:
    """All promised fields, query and arguments scrubbed, stamps as decimal strings."""
    scored = Candidate(
        skill_name="vietnam-mst-validate@1.0",
        confidence=0.92,
        arguments={"mst": "0301479073"},
        score_components={"name_match": 5.0, "keyword_hits": 3.0, "region_bonus": 2.0},
    )
    result = InvocationResult(
        skill_name="vietnam-mst-validate@1.0",
        exit_code=0,
        stdout='{"mst":"0301479073","valid":false}',
        stderr="",
        duration_ms=14.2,
    )
    row = routing(rule_scores=[scored] * 5, decision=decision(invocation_result=result))
    check(row)
    assert row == {
        "kind": "cuo.routing_decision",
        "row_v": 1,
        "tenant_id": TENANT,
        "subject_id_hash16": "092081140b677b45",
        "persona_key": "chief-financial-officer",
        "persona_version": "cuo-cfo@0.4.1",
        "agent_persona_jwt_iss": "local",
        "query": "validate MST [REDACTED-MST]",
        "rule_scores": [
            {
                "skill_name": "vietnam-mst-validate@1.0",
                "confidence": 0.92,
                "arguments": {"mst": "[REDACTED-MST]"},
                "score_components": {"name_match": 5.0, "keyword_hits": 3.0, "region_bonus": 2.0},
            }
        ]
        * 3,
        "path_taken": "auto",
        "routed": True,
        "reason": None,
        "operation": None,
        "skill_chosen": "vietnam-mst-validate@1.0",
        "confidence": 0.92,
        "alternatives": [{"skill": "crm-account-create@1.0", "confidence": 0.12}],
        "cascade_taken": False,
        "cascade_outcome": None,
        "llm_used": False,
        "llm_attempts": 0,
        "llm_pick": None,
        "approval": None,
        "continued": None,
        "rerun": None,
        "invocation_result": {
            "skill_name": "vietnam-mst-validate@1.0",
            "exit_code": 0,
            "duration_ms": 14.2,
            "failure": None,
            "stdout_bytes": 34,
            "stderr_bytes": 0,
        },
        "next_step": None,
        "catalog_snapshot_hash": "sha256:" + "0" * 64,
        "catalog_changed": False,
        "cuo_state_v": 1,
        "request_id": REQUEST,
        "trace_id": TRACE,
        "ts_ns_start": str(START),
        "ts_ns_end": str(END),
    }


@pytest.mark.parametrize("path", ["auto", "ask", "defer", "cascade_then_auto", "cascade_then_ask"])
def test_same_keys_on_every_path(path: str) -> None:
    """No path leaves a key out; next_step is present and null on all of them."""
    row = routing(decision=decision(path_taken=path, skill_chosen=None, alternatives=[]))
    check(row)
    assert row.keys() == routing().keys()
    assert "next_step" in row
    assert row["next_step"] is None


def test_pick_and_approval_are_scrubbed() -> None:
    """The model's rationale and arguments, and the approver's reason, hold no personal data."""
    pick = LlmRoutingPick(
        skill_name="inv-dunning-draft@1.2",
        arguments={"email": "an@acme.vn", "n": [{"phone": "0912345678"}]},
        rationale="The mail of an@acme.vn asks for it.",
        confidence=0.83,
    )
    answer = {
        "approved": True,
        "expired": False,
        "reason": "gọi 0912345678 rồi",
        "by_hash16": "9b1deb4d3b7d4bad",
        "by_issuer": "local",
        "at_ns": END,
        "interrupt_id": "abc",
        "unexpected": "0912345678",
    }
    row = routing(
        decision=decision(
            path_taken="cascade_then_auto", llm_used=True, cascade_outcome="success", llm_pick=pick
        ),
        gate={"kind": "pass", "operation": "invoice_emit", "answer": answer},
        llm_attempts=1,
    )
    check(row)
    assert row["llm_pick"]["rationale"] == "The mail of [REDACTED-EMAIL] asks for it."
    assert row["approval"]["reason"] == "gọi [REDACTED-PHONE] rồi"
    assert row["approval"]["at_ns"] == str(END)
    assert row["cascade_taken"] is True
    text = json.dumps(row, ensure_ascii=False)
    assert "0912345678" not in text
    assert "an@acme.vn" not in text


def test_scan_failure_never_shows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the scrubber breaks the row says so instead of quoting."""
    from cuo_supervisor.core.pii import scan

    def broken(*_: object) -> Any:
        raise RuntimeError

    monkeypatch.setattr(scan, "find_shapes", broken)
    row = routing("sđt 0912345678")
    check(row)
    assert row["query"] == "[SCAN-FAILED]"


@pytest.mark.parametrize("outcome", sorted(audit.CASCADE_ROW_OUTCOMES))
def test_cascade_row(outcome: str) -> None:
    """A time-out has no error; the gateway's failures are named in `error`."""
    row = audit.llm_cascade_timeout(
        tenant_id=TENANT,
        persona_key="genie",
        query="nhắc an@acme.vn",
        outcome=outcome,
        elapsed_ms=3012,
        attempts=1,
        request_id=REQUEST,
        trace_id=TRACE,
        ts_ns=START,
    )
    check(row)
    assert row["query"] == "nhắc [REDACTED-EMAIL]"
    assert row["error"] == (None if outcome == "timeout" else outcome)
    assert row["ts_ns"] == str(START)


@pytest.mark.parametrize("outcome", ["success", "schema_violation", "not_ready"])
def test_other_outcomes_have_no_cascade_row(outcome: str) -> None:
    """Only the five ends that deserve the row get it."""
    with pytest.raises(ValueError, match="no row"):
        audit.llm_cascade_timeout(
            tenant_id=TENANT,
            persona_key="genie",
            query="q",
            outcome=outcome,
            elapsed_ms=1,
            attempts=1,
            request_id=REQUEST,
            trace_id=TRACE,
            ts_ns=START,
        )


def test_defer_block_row() -> None:
    """The block names operation, skill and confidence."""
    row = audit.persona_defer_block(
        tenant_id=TENANT,
        persona_key="chief-financial-officer",
        operation="invoice_emit",
        rule_top_skill="vietnam-vat-invoice@1.2",
        rule_top_confidence=0.95,
        request_id=REQUEST,
        trace_id=TRACE,
        ts_ns=START,
    )
    check(row)
    assert (row["operation"], row["rule_top_confidence"]) == ("invoice_emit", 0.95)


def test_persona_unknown_row() -> None:
    """What was asked for is scrubbed first and cut afterwards."""
    row = audit.persona_unknown(
        tenant_id=TENANT,
        subject_id="user-7",
        requested="an@acme.vn " + "x" * 100,
        request_id=REQUEST,
        trace_id=TRACE,
        ts_ns=START,
    )
    check(row)
    assert row["requested"] == ("[REDACTED-EMAIL] " + "x" * 100)[:64]


def test_subject_is_a_pseudonym() -> None:
    """Sixteen hex digits of the subject's SHA-256; the same subject is the same row to row."""
    assert audit.subject_hash16("user-7") == routing()["subject_id_hash16"]
    assert audit.subject_hash16("user-8") != audit.subject_hash16("user-7")
    audit.subject_hash16("\ud800")


TEXT = st.text(max_size=40) | st.sampled_from(["\ud800", "a\x00b", "e\u0301", "0912345678"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**52, 2**70)
    | st.floats()
    | TEXT
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(TEXT, st.dictionaries(TEXT, VALUES, max_size=3), st.integers(0, 2**63))
def test_always_canonical(text: str, arguments: dict[str, Any], stamp: int) -> None:
    """Whatever is asked and found, the row can be canonicalised and reads back the same."""
    scored = Candidate(skill_name="a@1.0", confidence=0.5, arguments=arguments)
    pick = LlmRoutingPick(skill_name="a@1.0", arguments=arguments, rationale="x", confidence=0.5)
    row = routing(
        text,
        rule_scores=[scored],
        decision=decision(llm_pick=pick, ts_ns_start=stamp, cascade_outcome="success"),
        gate={"answer": {"reason": text}},
    )
    assert json.loads(rfc8785.dumps(row)) == row
    assert "\x00" not in json.dumps(row, ensure_ascii=False)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_plain_is_idempotent_and_loses_nothing(value: dict[str, Any]) -> None:
    """Plain JSON stays as it is; every entry survives, collisions included."""
    once = plain(value)
    assert plain(once) == once
    assert len(once) == len(value)
    rfc8785.dumps(once)


def test_plain_spells_large_numbers_out() -> None:
    """Beyond 2**53 numbers become decimal strings; below they stay numbers."""
    assert plain({"a": 2**53 - 1, "b": 2**53, "c": -(2**53), "d": 1e21, "e": float("nan")}) == {
        "a": 2**53 - 1,
        "b": "9007199254740992",
        "c": "-9007199254740992",
        "d": "1000000000000000000000",
        "e": "nan",
    }
    assert plain({"é": 1, "e\u0301": 2}) == {"é": 1, "é#2": 2}
    assert plain({"x": 10**5000, "y": b"1"}) == {"x": "[out of range]", "y": "[bytes]"}
