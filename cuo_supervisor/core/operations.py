"""The closed registry of operations: what a skill does to the world, as the gates see it.

A manifest names one of these; it cannot add one, and it cannot make a destructive one
harmless. Adding an operation is a code change with a decision record. Pure.

An operation is destructive when it moves money, commits the company to a third party,
reaches people outside, or cannot be undone by a later entry in the same system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = [
    "OPERATIONS",
    "SKILLSET_OPERATIONS",
    "Operation",
    "command_fits",
    "get_operation",
    "why_unknown",
]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of act. `destructive` is intrinsic: a manifest may tighten it, never loosen it."""

    name: str
    destructive: bool
    description: str


_HARMLESS: Final = (
    ("tax_code_validate", "Check a tax code's form and check digit; changes nothing."),
    ("crm_record_create", "Append a new CRM record; a later entry can retire it."),
    ("crm_record_update", "Append a change to a CRM record; the former entry stays."),
    ("dunning_draft", "Write a payment reminder for a person to read and send."),
    ("message_draft", "Write an e-mail or message for a person to read and send."),
)

_DESTRUCTIVE: Final = (
    # money
    ("wire_transfer", "Move money out of a bank account."),
    ("payroll_commit", "Release a payroll run."),
    ("esop_grant_signoff", "Sign off a grant of shares or options."),
    ("budget_reallocation", "Move approved budget between cost centres."),
    ("ad_spend_commit", "Commit advertising budget with a media seller."),
    ("refund_issue", "Pay money back to a customer."),
    ("discount_override", "Grant a price below the approved floor."),
    # documents and commitments to third parties
    ("invoice_emit", "Issue a tax invoice, which is filed with the tax authority."),
    ("po_cancellation", "Cancel a purchase order a supplier relies on."),
    ("vendor_contract_commit", "Bind the company to a supplier."),
    ("contract_signature", "Sign a contract on the company's behalf."),
    ("acquisition_offer_submit", "Submit an offer to buy or sell a business."),
    ("board_resolution_commit", "Enter a resolution in the company's book."),
    ("settlement_accept", "Accept or offer the settlement of a dispute."),
    ("legal_filing_submit", "File with a court or an authority."),
    ("regulator_notification", "Notify a regulator."),
    ("litigation_hold_release", "Lift a hold that keeps evidence."),
    # people
    ("executive_termination", "End an executive's appointment."),
    ("employment_termination", "End an employment contract."),
    ("offer_letter_send", "Send a binding offer of employment."),
    ("compensation_change", "Change a person's pay or grade."),
    ("disciplinary_action_record", "Enter a disciplinary act in a personal file."),
    ("subject_role_grant_reserved", "Grant a reserved access role to a person."),
    # production and data
    ("prod_deploy", "Deploy to production."),
    ("prod_rollback", "Roll production back to an earlier release."),
    ("key_rotation", "Rotate keys or secrets in use."),
    ("service_shutdown", "Take a service or site out of operation."),
    ("dataset_delete", "Delete a dataset."),
    ("personal_data_export", "Hand personal data to another system or party."),
    ("data_sharing_grant", "Give another party standing access to data."),
    ("retention_override", "Shorten or lengthen how long records are kept."),
    ("feature_flag_prod_enable", "Switch a feature on for customers."),
    ("pricing_publish", "Publish prices or plans."),
    ("product_sunset", "Announce or carry out the end of a product."),
    ("release_publish", "Publish a release to customers."),
    # words in public
    ("public_statement_release", "Speak for the company in public."),
    ("press_release_publish", "Publish a press release."),
    ("campaign_launch", "Start a campaign."),
    ("mass_message_send", "Send one message to many people outside."),
    # bulk acts in operations and sales
    ("inventory_write_off", "Write stock off the books."),
    ("account_bulk_reassign", "Move many customers to other owners at once."),
)

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        name: Operation(name, destructive, description)
        for destructive, group in ((False, _HARMLESS), (True, _DESTRUCTIVE))
        for name, description in group
    }
)


SKILLSET_OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bank-transfer": "wire_transfer",
        "crm-account-create": "crm_record_create",
        "crm-deal-update": "crm_record_update",
        "dunning-draft": "dunning_draft",
        "email-draft": "message_draft",
        "mst-validate": "tax_code_validate",
        "vat-invoice": "invoice_emit",
    }
)
"""What each command that ships with the program does, whatever a manifest calls it."""

_SKILLSET: Final = "{skillset}"
_PACKAGE: Final = "cuo_supervisor"


def command_fits(argv: Sequence[str], operation: str | None) -> bool:
    """False if a manifest runs a shipped command under another operation than its own.

    Else an edited manifest could run a bank transfer as a harmless check. The placeholder in its
    one place is the only way to name a shipped command; our package spelled out is refused. (A
    path that hides both is refused by the command itself, which is told the operation.) Programs
    that do not ship are whatever the owner of the catalogue says they are.
    """
    if not any(mark in word for word in argv for mark in (_SKILLSET, _PACKAGE)):
        return True
    *before, place, name = ("", "", *argv)
    if place != _SKILLSET or any(mark in word for word in before for mark in (_SKILLSET, _PACKAGE)):
        return False
    return SKILLSET_OPERATIONS.get(name) == operation


def why_unknown(operation: str | None) -> str:
    """Why the gate `operation_unknown` stops a skill whose manifest names `operation`."""
    if operation is None:
        return "no operation is named for the skill"
    if get_operation(operation) is None:
        return f"{operation} is no registered operation"
    return f"the skill runs a shipped command as {operation}, which is not what that command does"


def get_operation(name: str) -> Operation | None:
    """The operation of that exact name, or None; None never runs on its own."""
    return OPERATIONS.get(name)


if len(OPERATIONS) != len(_HARMLESS) + len(_DESTRUCTIVE):  # a name listed twice
    raise ImportError("cuo_supervisor.core.operations lists an operation twice")
