"""What the OpenAPI document shows of each answer: one run of each kind, as the service tells it."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["DECISION", "READY", "RUN", "VERIFICATION", "WAITING"]

_RUN_ID: Final = "019a1f7c-61c8-7a3e-9b1d-5f0e4c2a7d10"
_ULID: Final = "01M8FQRRE8F8Z9P7AZ1S12MZ8G"
_CATALOG: Final = "0288f2f813893aed042054692acdcd1851fda5880a27c14cfcd4df31a202db19"

DECISION: Final[dict[str, Any]] = {
    "routed": True,
    "reason": None,
    "operation": None,
    "skill_chosen": "vietnam-mst-validate@1.0",
    "confidence": 0.9465,
    "path_taken": "auto",
    "llm_used": False,
    "cascade_outcome": None,
    "llm_pick": None,
    "alternatives": [],
    "invocation_result": {
        "skill_name": "vietnam-mst-validate@1.0",
        "exit_code": 0,
        "stdout": '{"mst": "0301479073", "valid": false, "reason": "check_digit"}\n',
        "stderr": "",
        "duration_ms": 84.2,
        "failure": None,
    },
    "next_step": None,
    "transparency": {
        "skill_chosen": "vietnam-mst-validate@1.0",
        "confidence": 0.9465,
        "alternatives": [],
        "path_taken": "auto",
        "llm_used": False,
    },
    "persona_key": "chief-financial-officer",
    "persona_version": "cuo-cfo@0.4.1",
    "catalog_snapshot_hash": _CATALOG,
    "dry_run": False,
    "request_id": _ULID,
    "ts_ns_start": 1796093015206173267,
    "ts_ns_end": 1796093015763487584,
}

WAITING: Final[dict[str, Any]] = {
    **DECISION,
    "routed": False,
    "reason": "approval_required",
    "operation": "wire_transfer",
    "skill_chosen": "vietnam-bank-transfer@1.0",
    "confidence": 0.9282,
    "alternatives": [{"skill": "crm-account-create@1.0", "confidence": 0.21}],
    "invocation_result": None,
    "transparency": {
        "skill_chosen": "vietnam-bank-transfer@1.0",
        "confidence": 0.9282,
        "alternatives": [{"skill": "crm-account-create@1.0", "confidence": 0.21}],
        "path_taken": "auto",
        "llm_used": False,
    },
    "persona_key": "chief-operating-officer",
    "persona_version": "cuo-coo@0.1.0",
}

RUN: Final[dict[str, Any]] = {
    "run_id": _RUN_ID,
    "ulid": _ULID,
    "thread_id": _RUN_ID,
    "state": "waiting",
    "outcome": None,
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "first_at": "2026-11-30T08:15:30.123456Z",
    "newest_at": "2026-11-30T08:15:30.301122Z",
    "log_rows": 14,
    "chain_rows": 21,
    "hidden": False,
    "decision": None,
    "pending": {
        "persona_key": "chief-operating-officer",
        "persona_version": "cuo-coo@0.1.0",
        "path_taken": "auto",
        "skill_chosen": "vietnam-bank-transfer@1.0",
        "rejection": None,
        "query": "transfer 5M VND to ACME account [REDACTED-BANK_ACCOUNT]",
    },
}

VERIFICATION: Final[dict[str, Any]] = {
    "tenant_id": "7d0f6e52-3c1b-4f8a-9a55-0e2d4b6c8f10",
    "run_id": _RUN_ID,
    "ok": True,
    "rows": 21,
    "chain_rows": 33,
    "writes": 12,
    "problems": [],
    "dropped": [],
}

READY: Final[dict[str, Any]] = {"ready": True, "checks": {"log": "ok"}}
