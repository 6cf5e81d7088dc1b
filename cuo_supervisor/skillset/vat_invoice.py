"""vietnam-vat-invoice: an order to issue a VAT invoice, left in the outbox.

The order is picked up by the e-invoice service, which numbers, signs and files it; this skill
does none of that. Tax is not computed here: the rate depends on the goods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "run"]

ARGUMENTS: Final = ("customer", "amount_vnd", "customer_mst")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The order and its record. Raises ValueError naming an argument that is wrong."""
    customer = arguments.get("customer")
    if not isinstance(customer, str) or not customer.strip():
        raise ValueError("customer")
    amount = arguments.get("amount_vnd")
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 1:
        raise ValueError("amount_vnd")
    buyer_code = arguments.get("customer_mst")
    if buyer_code is not None and not isinstance(buyer_code, str):
        raise ValueError("customer_mst")
    record = {
        "order": "invoice_emit",
        "customer": customer.strip(),
        "customer_mst": buyer_code,
        # Money as text: JSON readers disagree on large numbers.
        "amount_vnd": str(amount),
        "currency": "VND",
    }
    return {
        "status": "ordered",
        "customer": customer.strip(),
        "amount_vnd": amount,
        "effect": {"kind": "record", "file": "invoices.jsonl", "record": record},
    }
