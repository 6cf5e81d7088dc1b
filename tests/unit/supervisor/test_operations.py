"""The closed registry of operations."""

from __future__ import annotations

import pytest

from cuo_supervisor.catalog_loader import load_catalog
from cuo_supervisor.core.operations import OPERATIONS, command_fits, get_operation
from cuo_supervisor.core.personas import PERSONAS


def test_the_registry_cannot_be_changed() -> None:
    """Nothing at run time adds an operation or loosens one."""
    with pytest.raises(TypeError):
        OPERATIONS["x"] = OPERATIONS["wire_transfer"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        OPERATIONS["wire_transfer"].destructive = False  # type: ignore[misc]


@pytest.mark.parametrize("name", ["wire_transfer", "invoice_emit", "payroll_commit", "prod_deploy"])
def test_dangerous_operations_are_destructive(name: str) -> None:
    """Money, tax filings, pay and production always need approval."""
    assert OPERATIONS[name].destructive


@pytest.mark.parametrize(
    "name",
    [
        "tax_code_validate",
        "dunning_draft",
        "message_draft",
        "crm_record_create",
        "crm_record_update",
    ],
)
def test_checks_drafts_and_appended_records_are_not(name: str) -> None:
    """What changes nothing, or only adds an entry, runs without approval."""
    assert not OPERATIONS[name].destructive


SHIPPED = "/usr/lib/python3/site-packages/cuo_supervisor/skillset"


@pytest.mark.criterion("101-AC12")
@pytest.mark.parametrize(
    "argv",
    [
        ("{python}", "-I", "{skillset}", "bank-transfer"),
        ("{python}", "-I", SHIPPED, "bank-transfer"),
        ("{python}", "-m", "cuo_supervisor.skillset", "bank-transfer"),
        ("{python}", "-c", "import cuo_supervisor.skillset.bank_transfer as b", "x"),
        ("sh", "-c", "exec python -I {skillset} bank-transfer"),
        ("{python}", "-I", "{skillset}/../skillset", "bank-transfer"),
        ("{python}", "-I", "{skillset}", "bank-transfer", "{skillset}", "mst-validate"),
        ("env", "-u", "CUO_OPERATION", "{python}", SHIPPED, "{skillset}", "mst-validate"),
    ],
)
def test_a_shipped_command_fits_its_own_operation_only(argv: tuple[str, ...]) -> None:
    """However an edited manifest spells it, a transfer is not run as a check of a tax code."""
    assert not command_fits(argv, "tax_code_validate")


def test_own_commands_and_foreign_programs_fit() -> None:
    """The shipped manifests pass, and so does a program of somebody else's."""
    for skill in load_catalog().skills:
        assert command_fits(skill.argv, skill.operation)
    assert command_fits(("/opt/acme/check", "--mst"), "tax_code_validate")


def test_unknown_names_give_none() -> None:
    """There is no default operation."""
    assert get_operation("") is None
    assert get_operation("Wire_Transfer") is None


@pytest.mark.clause("101-9")
def test_no_destructive_operation_is_without_an_owner() -> None:
    """Every destructive operation stands in some role's matrix."""
    owned = {name for persona in PERSONAS.values() for name in persona.defer_to_human_matrix}
    assert {name for name, o in OPERATIONS.items() if o.destructive} == owned
