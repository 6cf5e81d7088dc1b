"""The eleven personas and their matrices."""

from __future__ import annotations

import pytest

from cuo_supervisor.core.operations import OPERATIONS
from cuo_supervisor.core.persona_data import PERSONA_ROWS
from cuo_supervisor.core.personas import (
    PERSONA_KEYS,
    PERSONAS,
    build_personas,
    get_persona,
)
from cuo_supervisor.errors import PersonaUnknown


@pytest.mark.clause("101-9")
def test_the_catalogue_is_closed_at_eleven() -> None:
    """Genie and ten roles, no more and no fewer."""
    assert tuple(PERSONAS) == PERSONA_KEYS
    assert len(PERSONAS) == 11


@pytest.mark.clause("101-9", "101-19")
@pytest.mark.parametrize(
    ("key", "matrix"),
    [
        ("genie", {"wire_transfer", "subject_role_grant_reserved"}),
        (
            "cfo",
            {
                "wire_transfer", "invoice_emit", "payroll_commit", "esop_grant_signoff",
                "po_cancellation",
            },
        ),
        ("cto", {"prod_deploy", "prod_rollback", "key_rotation"}),
    ],
)  # fmt: skip
def test_promised_matrices_are_kept_exactly(key: str, matrix: set[str]) -> None:
    """The three matrices that were specified hold just those operations."""
    assert set(get_persona(key).defer_to_human_matrix) == matrix


@pytest.mark.clause("101-9")
def test_every_matrix_is_filled_with_registered_operations() -> None:
    """No role may auto-run everything, and no row names an unknown operation."""
    for persona in PERSONAS.values():
        assert persona.defer_to_human_matrix
        assert set(persona.defer_to_human_matrix) <= OPERATIONS.keys()
        assert all(OPERATIONS[name].destructive for name in persona.defer_to_human_matrix)


def test_roles_are_no_copies_of_one_another() -> None:
    """Prompts, banks and matrices differ pairwise; only Genie has no words of its own."""
    values = list(PERSONAS.values())
    assert len({p.system_prompt for p in values}) == 11
    assert len({frozenset(p.defer_to_human_matrix) for p in values}) == 11
    banks = [frozenset(p.keyword_bank) for p in values]
    assert [not bank for bank in banks] == [p.short == "genie" for p in values]
    assert all(
        len(a & b) < min(len(a), len(b)) / 3 for a in banks for b in banks if a and b and a is not b
    )


def test_specialists_know_both_languages() -> None:
    """Each bank holds plain English and marked Vietnamese words."""
    for persona in PERSONAS.values():
        if persona.keyword_bank:
            assert any(not word.isascii() for word in persona.keyword_bank)
            assert any(word.isascii() for word in persona.keyword_bank)


def test_promised_bank_words_are_there() -> None:
    """The CFO's and CTO's specified words are in their banks."""
    cfo = {"invoice", "vat", "hoa don", "bhxh", "p1", "p2", "p3", "payroll", "approve"}
    cto = {"deploy", "rollback", "incident", "p0", "p1", "tech-debt", "security"}
    assert cfo <= set(get_persona("cfo").keyword_bank)
    assert cto <= set(get_persona("cto").keyword_bank)


def test_both_names_lead_to_one_persona() -> None:
    """Short and long names are accepted, with blanks around them."""
    assert get_persona("cfo") is get_persona(" chief-financial-officer ")
    assert get_persona("genie").key == "genie"
    assert get_persona("cfo").claim == "cuo-cfo@0.4.1"


@pytest.mark.parametrize("key", ["", "foo", "CFO", "cfo\0", "cuo-cfo", "chief financial officer"])
def test_other_names_are_unknown(key: str) -> None:
    """Anything else, another case included, is refused with the list of known keys."""
    with pytest.raises(PersonaUnknown) as caught:
        get_persona(key)
    assert caught.value.known == PERSONA_KEYS
    assert caught.value.exit_code == 65


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"matrix": ()}, "empty"),
        ({"matrix": ("wire_transfer", "no_such_thing")}, "unregistered"),
        ({"matrix": ("wire_transfer", "wire_transfer")}, "repeats"),
        ({"version": "1"}, "semver"),
        ({"keyword_bank": ("one",)}, "own words"),
        ({"system_prompt": " "}, "prompt"),
    ],
)
def test_a_faulty_row_stops_the_import(change: dict[str, object], said: str) -> None:
    """The import-time check names what is wrong with a role."""
    rows = [row._replace(**change) if row.short == "coo" else row for row in PERSONA_ROWS]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        build_personas(rows)


def test_a_missing_role_stops_the_import() -> None:
    """Ten roles are not a catalogue."""
    with pytest.raises(ValueError, match="must hold"):
        build_personas(PERSONA_ROWS[:-1])
