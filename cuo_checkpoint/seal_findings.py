"""What holding a database against its exported heads can find, and how it is told. Pure."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

__all__ = ["Finding", "FindingKind", "SealCheck"]


class FindingKind(StrEnum):
    """What can be wrong between a database and its exported heads; a closed set.

    The last three are not wrong: a later head, the holder of the seal key, or the chain of
    retention accounts for them.
    """

    FORGED_NOTE = "forged_note"
    WRONG_KEY = "wrong_key"
    OTHER_LOG = "other_log"
    MALFORMED = "malformed"
    LEAVES_CHANGED = "leaves_changed"
    SPLIT_VIEW = "split_view"
    DATABASE_BEHIND = "database_behind"
    STALE_EXPORT = "stale_export"
    LEAF_COPY_CHANGED = "leaf_copy_changed"
    HEAD_COPY_CHANGED = "head_copy_changed"
    MISSING_MONTH = "missing_month"
    REBUILT_MONTH = "rebuilt_month"
    MISSING_RUN = "missing_run"
    SHORTENED_RUN = "shortened_run"
    MISSING_ROW = "missing_row"
    REWRITTEN_RUN = "rewritten_run"
    NOTHING_SEALED = "nothing_sealed"
    VOUCHED_LATER = "vouched_later"
    DECLARED_LOSS = "declared_loss"
    DROPPED_MONTH = "dropped_month"


_SOUND: Final = frozenset(
    {FindingKind.VOUCHED_LATER, FindingKind.DECLARED_LOSS, FindingKind.DROPPED_MONTH}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `run_id` and `row` name the place where there is one."""

    kind: FindingKind
    text: str
    run_id: uuid.UUID | None = None
    row: int | None = None

    def to_json(self) -> dict[str, Any]:
        run = None if self.run_id is None else str(self.run_id)
        return {"kind": self.kind.value, "text": self.text, "run_id": run, "row": self.row}


@dataclass(slots=True)
class SealCheck:
    """What holding one tenant against its heads showed. `unsealed` are chain rows no leaf covers."""

    tenant_id: uuid.UUID
    heads: int = 0
    leaves: int = 0
    sealed_at: dt.datetime | None = None
    unsealed: int = 0
    unsealed_runs: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(finding.kind in _SOUND for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "tenant_id": str(self.tenant_id),
            "ok": self.ok,
            "heads": self.heads,
            "leaves": self.leaves,
            "sealed_at": None if self.sealed_at is None else self.sealed_at.isoformat(),
            "unsealed_rows": self.unsealed,
            "unsealed_runs": self.unsealed_runs,
            "findings": [finding.to_json() for finding in self.findings],
        }

    def add(
        self, kind: FindingKind, text: str, run: uuid.UUID | None = None, row: int | None = None
    ) -> None:
        self.findings.append(Finding(kind, text, run, row))
