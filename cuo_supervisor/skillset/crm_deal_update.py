"""crm-deal-update: a deal's new stage, appended to the CRM's inbox.

The change is an entry of its own: the former stage stays on record and can be set again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ARGUMENTS", "STAGES", "run"]

ARGUMENTS: Final = ("deal", "stage")
STAGES: Final = ("qualified", "proposal", "negotiation", "won", "lost")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The change and its record. Raises ValueError naming an argument that is wrong."""
    deal = arguments.get("deal")
    if not isinstance(deal, str) or not deal.strip():
        raise ValueError("deal")
    stage = arguments.get("stage")
    if stage not in STAGES:
        raise ValueError("stage")
    record = {"change": "deal_stage", "deal": deal.strip(), "stage": stage}
    return {
        "status": "recorded",
        "deal": deal.strip(),
        "stage": stage,
        "effect": {"kind": "record", "file": "crm_changes.jsonl", "record": record},
    }
