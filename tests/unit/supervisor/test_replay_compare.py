"""What a replay compares, which states it accepts, and what its audit row says."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import schemas
from cuo_supervisor.core.replay import (
    COMPARED,
    MAX_DIFFERENCES,
    Difference,
    check_state_version,
    compare,
    facts_of,
    recorded_of,
    replayed_body,
)
from cuo_supervisor.errors import DataError, StateVersionUnsupported

PICK = {
    "skill_name": "inv-dunning-draft@1.2",
    "arguments": {"customer": "ACME"},
    "rationale": "an unpaid contract",
    "confidence": 0.85,
}


def state(**changes: Any) -> dict[str, Any]:
    """The stored state of a finished run on the cascade's path."""
    full = {
        "query": "what about the unpaid contract of a.nguyen@example.com",
        "tenant_id": "5e8f1d2a-0000-4000-8000-000000000001",
        "persona_key": "genie",
        "persona_version": "cuo-genie@0.1.0",
        "request_id": "01HG7V8B0K8M4Z8Z8M8M8M8M8M",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "ts_ns_start": 1_747_920_731_000_000_000,
        "cuo_state_v": 1,
        "catalog_snapshot_hash": "0" * 64,
        "rule_scores": [{"skill_name": "inv-dunning-draft@1.2", "confidence": 0.3}],
        "cascade_taken": True,
        "cascade_outcome": "success",
        "llm_pick": PICK,
        "llm_answer": json.dumps(PICK),
        "llm_attempts": 1,
        "llm_prompt_sha256": "ab" * 32,
        "gate": {"kind": "pass", "operation": "dunning_draft"},
        "decision": {
            "path_taken": "cascade_then_auto",
            "skill_chosen": "inv-dunning-draft@1.2",
            "confidence": 0.85,
            "alternatives": [{"skill": "crm-deal-update@1.0", "confidence": 0.2}],
            "cascade_outcome": "success",
            "llm_pick": PICK,
        },
        **changes,
    }
    return {name: value for name, value in full.items() if value is not ...}


@pytest.mark.clause("101-12")
@pytest.mark.criterion("101-AC16")
@pytest.mark.parametrize("version", [0, 4, -1, 99, None, "1", 1.5])
def test_other_state_versions_are_refused(version: Any) -> None:
    """A state outside 1 to 3 is state_version_unsupported, exit 65."""
    with pytest.raises(StateVersionUnsupported) as caught:
        recorded_of(state(cuo_state_v=version), waiting=False)
    assert caught.value.error == "state_version_unsupported"
    assert caught.value.exit_code == 65


@pytest.mark.clause("101-12")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_this_version_and_the_two_beside_it_are_read(version: int) -> None:
    """Rolling upgrades leave states of 1 to 3 about; all are accepted, unknown keys too."""
    assert check_state_version({"cuo_state_v": version}) == version
    assert recorded_of(state(cuo_state_v=version, later_field=[1]), waiting=False)


@pytest.mark.parametrize(
    ("changes", "waiting", "sentence"),
    [
        ({"decision": ...}, True, "waits for an approval"),
        ({"decision": ...}, False, "has not ended"),
        ({"decision": ..., "rejection": {"error": "persona_mismatch"}}, False, "was refused"),
        ({"query": ...}, False, "cannot be replayed: KeyError"),
        ({"decision": {}}, False, "cannot be replayed: KeyError"),
    ],
)
def test_a_run_without_a_decision_is_named_for_what_it_is(
    changes: dict[str, Any], waiting: bool, sentence: str
) -> None:
    """Each reason not to replay has its own sentence, without anything from the state."""
    with pytest.raises(DataError, match=sentence) as caught:
        recorded_of(state(**changes), waiting=waiting)
    assert "example.com" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reply", "failure"),
    [
        ({}, json.dumps(PICK), None),
        ({"llm_answer": None}, json.dumps(PICK), None),
        ({"cascade_outcome": "timeout", "llm_pick": None, "llm_answer": None}, None, "timeout"),
        ({"cascade_outcome": "timeout", "llm_answer": "late"}, None, "timeout"),
        ({"cascade_outcome": "schema_violation", "llm_answer": "Sure!"}, "Sure!", None),
        (
            {"cascade_outcome": "schema_violation", "llm_pick": None, "llm_answer": None},
            None,
            "unusable_reply",
        ),
        ({"cascade_outcome": "not_ready", "llm_answer": ...}, None, "not_ready"),
        ({"cascade_taken": False, "cascade_outcome": None}, None, None),
    ],
)
def test_the_models_part_is_its_words_or_its_failure(
    changes: dict[str, Any], reply: str | None, failure: str | None
) -> None:
    """The double says the recorded text again, or fails as the model failed."""
    recorded = recorded_of(state(**changes), waiting=False)
    assert (json.loads(recorded.reply) if reply and reply[0] == "{" else recorded.reply) == (
        json.loads(reply) if reply and reply[0] == "{" else reply
    )
    assert recorded.failure == failure


@pytest.mark.parametrize(
    ("gate", "kind"),
    [
        (None, "none"),
        ({"kind": "pass", "operation": "x"}, "pass"),
        ({"kind": "pass", "operation": "x", "answer": {"approved": True}}, "approval_required"),
        ({"kind": "approval_denied", "operation": "x"}, "approval_required"),
        ({"kind": "approval_expired", "operation": "x"}, "approval_required"),
        ({"kind": "invocation_unknown", "operation": "x"}, "pass"),
        (
            {"kind": "invocation_unknown", "operation": "x", "answer": {"approved": True}},
            "approval_required",
        ),
        ({"kind": "persona_defer_matrix", "operation": "x"}, "persona_defer_matrix"),
    ],
)
def test_gates_are_compared_as_they_spoke_before_any_answer(gate: Any, kind: str) -> None:
    """What a person or a crash made of a gate is no difference between two decisions."""
    assert facts_of(state(gate=gate))["gate"]["kind"] == kind


def test_a_gate_that_was_never_asked_is_not_compared() -> None:
    """A changed catalogue stops a run before its gates, so there is no verdict to hold it to."""
    recorded = facts_of(state(gate={"kind": "catalog_changed", "operation": None}))
    assert compare(recorded, facts_of(state())) == []


def test_a_difference_names_its_leaf() -> None:
    """Each differing leaf is one entry with its path and both values."""
    before, after = facts_of(state()), copy.deepcopy(facts_of(state()))
    after["alternatives"][0]["confidence"] = 0.3
    after["llm_pick"]["arguments"]["customer"] = "OTHER"
    after["alternatives"].append({"skill": "x@1.0", "confidence": 0.1})
    after["path_taken"] = "ask"
    found = {d.field: (d.recorded, d.replayed) for d in compare(before, after)}
    assert found == {
        "path_taken": ("cascade_then_auto", "ask"),
        "alternatives[0].confidence": (0.2, 0.3),
        "alternatives[1]": (None, {"skill": "x@1.0", "confidence": 0.1}),
        "llm_pick.arguments.customer": ("ACME", "OTHER"),
    }


def test_true_is_not_one() -> None:
    """Python's True == 1 does not hide a changed type."""
    before, after = facts_of(state()), facts_of(state())
    before["confidence"], after["confidence"] = 1, True
    assert [d.field for d in compare(before, after)] == ["confidence"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(name=st.sampled_from(COMPARED), left=JSON, right=JSON)
def test_equal_exactly_when_nothing_differs(name: str, left: Any, right: Any) -> None:
    """No difference is reported for equal facts, and one always is for different ones."""
    before, after = facts_of(state()), facts_of(state())
    before[name], after[name] = left, right
    if name == "gate":
        before[name], after[name] = {"kind": "pass", "x": left}, {"kind": "pass", "x": right}
    same = json.dumps(_nulls(left), sort_keys=True) == json.dumps(_nulls(right), sort_keys=True)
    assert (compare(before, after) == []) == same


def _nulls(value: Any) -> Any:
    """A key or item that is null and one that is missing are the same to a comparison."""
    if isinstance(value, dict):
        kept = {k: _nulls(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None}
    if isinstance(value, list):
        kept_items = [_nulls(v) for v in value]
        while kept_items and kept_items[-1] is None:
            kept_items.pop()
        return kept_items
    return value


def test_the_audit_row_names_fields_and_never_values() -> None:
    """The row fits its schema, counts all differences, and holds nothing from either decision."""
    recorded = recorded_of(state(), waiting=False)
    many = [Difference(f"rule_scores[{n}].confidence", "secret-a", "secret-b") for n in range(80)]
    body = replayed_body(recorded, many, by_hash16="0" * 16, by_issuer="https://issuer.example")
    jsonschema.Draft202012Validator(schemas.load("cuo.checkpoint_replayed")).validate(body)
    assert (body["identical"], body["difference_count"]) == (False, 80)
    assert len(body["differences"]) == MAX_DIFFERENCES
    text = json.dumps(body)
    assert "secret" not in text
    assert "example.com" not in text
