"""crm-account-create: a new customer account, appended to the CRM's inbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "run"]

ARGUMENTS: Final = ("account_name", "email", "mst")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The account and its record. Raises ValueError or TypeError naming a wrong argument."""
    name = arguments.get("account_name")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("account_name")
    for optional in ("email", "mst"):
        if not isinstance(arguments.get(optional), str | None):
            raise TypeError(optional)
    record = {
        "change": "account_created",
        "account_name": name.strip(),
        "email": arguments.get("email"),
        "mst": arguments.get("mst"),
    }
    return {
        "status": "recorded",
        "account_name": name.strip(),
        "effect": {"kind": "record", "file": "crm_changes.jsonl", "record": record},
    }
