"""Bands, alternatives and gates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.branching import GateVerdict, alternatives, choose_path, decide_gate
from cuo_supervisor.core.catalog import SkillManifest
from cuo_supervisor.core.models import Candidate
from cuo_supervisor.core.operations import OPERATIONS
from cuo_supervisor.core.personas import PERSONAS, get_persona
from cuo_supervisor.rerun import may_rerun

CATALOG = load_catalog()


def rule(confidence: float | None) -> str:
    return choose_path(confidence, cascade_taken=False, llm_confidence=None, cascade_failed=False)


@pytest.mark.clause("101-5")
@pytest.mark.parametrize(
    ("confidence", "path"),
    [
        (1.0, "auto"), (0.70, "auto"), (math.nextafter(0.70, 0), "ask"), (0.50, "ask"),
        (math.nextafter(0.50, 0), "cascade"), (0.10, "cascade"),
        (math.nextafter(0.10, 0), "defer"), (0.0, "defer"), (-0.0, "defer"), (None, "defer"),
        (math.nan, "defer"), (math.inf, "defer"), (-math.inf, "defer"),
        (math.nextafter(1.0, 2), "defer"), (-0.01, "defer"),
    ],
)  # fmt: skip
def test_bands_are_closed_below_and_open_above(confidence: float | None, path: str) -> None:
    """Each limit belongs to the band above it; a value outside [0, 1] defers."""
    assert rule(confidence) == path


@pytest.mark.parametrize(
    ("confidence", "path"),
    [
        (0.70, "cascade_then_auto"), (1.0, "cascade_then_auto"), (0.6999, "cascade_then_ask"),
        (0.0, "cascade_then_ask"), (None, "ask"), (math.nan, "ask"), (1.5, "ask"),
    ],
)  # fmt: skip
def test_the_models_confidence_decides_after_a_cascade(confidence: float | None, path: str) -> None:
    """A valid pick passes or asks by the auto limit; none at all asks."""
    taken = choose_path(0.3, cascade_taken=True, llm_confidence=confidence, cascade_failed=False)
    assert taken == path


@pytest.mark.clause("101-1")
@pytest.mark.criterion("101-AC7")
@given(
    st.one_of(st.none(), st.floats()),
    st.booleans(),
    st.one_of(st.none(), st.floats()),
    st.booleans(),
)
def test_the_cascade_is_entered_at_most_once(
    top: float | None, taken: bool, model: float | None, failed: bool
) -> None:
    """After a cascade, failed or not, no combination leads to another; a failed one asks."""
    path = choose_path(top, cascade_taken=taken, llm_confidence=model, cascade_failed=failed)
    if taken or failed:
        assert path in ("ask", "cascade_then_ask", "cascade_then_auto")
    if failed:
        assert path == "ask"


def test_alternatives_are_the_best_three_others_above_zero() -> None:
    """The chosen one and zero scores are left out; ties go by name."""
    scored = [
        Candidate(skill_name=name, confidence=value)
        for name, value in [("b", 0.4), ("a", 0.4), ("c", 0.9), ("z", 0.0), ("d", 0.2), ("e", 0.1)]
    ]
    assert [a.skill for a in alternatives(scored, "c")] == ["a", "b", "d"]
    assert [a.skill for a in alternatives(scored, None)] == ["c", "a", "b"]
    assert alternatives([Candidate(skill_name="z", confidence=0.0)], None) == []


def test_the_matrix_comes_before_approval() -> None:
    """For the CFO an invoice is blocked; for a role without it in the matrix it needs approval."""
    invoice = CATALOG.get("vietnam-vat-invoice@1.2")
    assert decide_gate(get_persona("cfo"), invoice) == GateVerdict(
        "persona_defer_matrix", "invoice_emit"
    )
    assert decide_gate(get_persona("genie"), invoice) == GateVerdict(
        "approval_required", "invoice_emit"
    )


@pytest.mark.clause("101-19")
def test_every_persona_and_skill_meets_the_right_gate() -> None:
    """Over all pairs: matrix first, then destructive, else pass."""
    for persona in PERSONAS.values():
        for skill in CATALOG.skills:
            verdict = decide_gate(persona, skill)
            assert skill.operation is not None
            if skill.operation in persona.defer_to_human_matrix:
                assert verdict.kind == "persona_defer_matrix"
            elif skill.is_destructive:
                assert verdict.kind == "approval_required"
            else:
                assert verdict.kind == "pass"


def changed(**update: object) -> SkillManifest:
    base = CATALOG.get("vietnam-mst-validate@1.0")
    assert base is not None
    data = base.model_dump(mode="json")
    data.update(update)
    return SkillManifest.model_validate(data)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_manifest_that_says_harmless_stays_what_its_operation_is(name: str) -> None:
    """However it got past the loader: the act is gated and never run a second time."""
    skill = changed(argv=["/opt/own"]).model_copy(
        update={"operation": name, "destructive": False, "idempotent": True}
    )
    assert skill.is_destructive is OPERATIONS[name].destructive
    assert may_rerun(skill) is not OPERATIONS[name].destructive
    for persona in PERSONAS.values():
        verdict = decide_gate(persona, skill).kind
        assert (verdict == "pass") is not OPERATIONS[name].destructive


@pytest.mark.parametrize("operation", [None, "no_such_operation"])
def test_an_unknown_operation_never_passes(operation: str | None) -> None:
    """A manifest without a registered operation does not run on its own."""
    skill = changed(operation=operation)
    assert decide_gate(get_persona("genie"), skill) == GateVerdict("operation_unknown", operation)
    assert skill.is_destructive


def test_a_skill_outside_the_catalogue_never_passes() -> None:
    """No manifest, no run."""
    assert decide_gate(get_persona("genie"), None).kind == "operation_unknown"


def test_a_manifest_may_tighten_a_harmless_operation() -> None:
    """destructive = true on a harmless operation asks for approval."""
    assert decide_gate(get_persona("genie"), changed(destructive=True)).kind == "approval_required"
