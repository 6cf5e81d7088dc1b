"""vietnam-bank-transfer: a payment order, left in the outbox for the bank interface.

No bank is contacted. The order names amount and account as given; whether the payee's name
fits the account is for the bank and the approver to see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "run"]

ARGUMENTS: Final = ("amount_vnd", "account_number", "payee", "bank")
_ACCOUNT: Final = re.compile(r"[0-9]{6,19}")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The order and its record. Raises ValueError or TypeError naming a wrong argument."""
    amount = arguments.get("amount_vnd")
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 1:
        raise ValueError("amount_vnd")
    account = arguments.get("account_number")
    if not isinstance(account, str) or not _ACCOUNT.fullmatch(account):
        raise ValueError("account_number")
    for name in ("payee", "bank"):
        if not isinstance(arguments.get(name), str | None):
            raise TypeError(name)
    record = {
        "order": "wire_transfer",
        "account_number": account,
        "payee": arguments.get("payee"),
        "bank": arguments.get("bank"),
        "amount_vnd": str(amount),
        "currency": "VND",
    }
    return {
        "status": "ordered",
        "amount_vnd": amount,
        "account_ending": account[-4:],
        "effect": {"kind": "record", "file": "payment_orders.jsonl", "record": record},
    }
