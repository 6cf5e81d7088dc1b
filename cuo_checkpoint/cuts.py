"""What a tenant's chain says of months that were dropped lawfully. Pure.

Every drop appends a `month_dropped` row to the chain of one reserved run in each tenant that had
rows in the month. It holds the month's counts and roots, and a cut for each run that goes on in
other months: which of its chain rows are gone, and the digest the next one follows. A verifier
steps over exactly those; any other missing row is missing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from cuo_checkpoint.partitions import FLOOR_MONTHS, Month, is_past_keeping

__all__ = ["RETENTION_RUN", "SYSTEM_TENANT", "Cuts", "Drop", "Gap", "month_root", "objection"]

SYSTEM_TENANT: Final = uuid.UUID("00000000-0000-8000-8000-73797374656d")
"""Reserved: whose rows speak of the whole log. The last six bytes spell "system"."""

RETENTION_RUN: Final = uuid.UUID("00000000-0000-8000-8000-726574656e74")
"""Reserved in every tenant: the run whose chain says what was dropped and held ("retent")."""

_LATE: Final = dt.timedelta(days=1)
"""Rows of a chain stand in the order of their locks, their times in that of their transactions."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A month that retention dropped: which chain row says so, when, and when that was sealed."""

    month: Month
    chain_seq: int
    at: str
    sealed_at: str | None = None

    def __str__(self) -> str:
        sealed = f"sealed {self.sealed_at}" if self.sealed_at else "not sealed yet"
        return f"month {self.month} by row {self.chain_seq} of retention, {self.at}, {sealed}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Chain rows `first` to `last` of a run are gone; the next follows `head`.

    `drop` is the last month that may have held them: cuts are told again when their own row goes.
    """

    first: int
    last: int
    head: bytes
    log_rows: int
    drop: Drop | None = None

    def misplaced(self, before: dt.datetime | None) -> bool:
        """Whether the row before it is younger than the month it is said to have gone with."""
        late = None if self.drop is None else self.drop.month.end + _LATE
        return before is not None and late is not None and before > late

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"first": self.first, "last": self.last, "log_rows": self.log_rows}
        if self.drop is not None:
            told |= {
                "month": str(self.drop.month),
                "told_at": self.drop.at,
                "told_in": self.drop.chain_seq,
                "sealed_at": self.drop.sealed_at,
            }
        return told


@dataclass(slots=True)
class Cuts:
    """The months a tenant lost to retention, and where that cuts its living runs."""

    months: dict[Month, Mapping[str, Any]] = field(default_factory=dict)
    """Each dropped month with the `tables` part of its row: rows and root by table."""
    gaps: dict[uuid.UUID, dict[int, Gap]] = field(default_factory=dict)
    """By run and number of the first row that is gone."""

    drops: dict[Month, Drop] = field(default_factory=dict)
    whole: set[Month] = field(default_factory=set)
    """Months of the whole log; only the system tenant's chain names them."""

    def add(self, content: Mapping[str, Any], sealed_at: str | None = None) -> None:
        """Takes in what one `month_dropped` row says. Raises ValueError, KeyError or TypeError for
        one that is none or that says what retention never does."""
        why = objection(content)
        if why is not None:
            raise ValueError(why)
        said = content["body"]
        month = _month(said["month"])
        if said.get("whole"):
            self.whole.add(month)
            return
        drop = Drop(month, content["chain_seq"], content["at"], sealed_at)
        self.months[month] = said["tables"]
        self.drops[month] = drop
        for cut in said["cuts"]:
            of_run = self.gaps.setdefault(uuid.UUID(cut["run_id"]), {})
            for gap in cut["gaps"]:
                of_run[gap["from"]] = Gap(
                    gap["from"], gap["to"], bytes.fromhex(gap["head"]), gap["log_rows"], drop
                )

    def of(self, run_id: uuid.UUID) -> Mapping[int, Gap]:
        """The gaps of one run by their first row; empty for a run that is whole."""
        return self.gaps.get(run_id, {})


def objection(content: Mapping[str, Any]) -> str | None:
    """Why a `month_dropped` row excuses nothing; None for one that retention may have written.

    It must be at least the floor younger than the newest row it says the month held. Raises as
    `Cuts.add` for one that cannot be read.
    """
    said = content["body"]
    month = _month(said["month"])
    at = dt.datetime.fromisoformat(content["at"])
    asked = said["older_than_months"]
    if asked < FLOOR_MONTHS:
        return f"it drops {month} after {asked} months, which retention refuses"
    newest = month.end
    if said.get("newest_row") is not None:
        newest = dt.datetime.fromisoformat(said["newest_row"])
        if Month.of(newest) != month:
            return f"it drops {month} and speaks of a newest row of {Month.of(newest)}"
    oldest = month.start if said.get("whole") else newest
    if not is_past_keeping(oldest, at, floor_months=asked):
        return f"it drops {month} before its {asked} months are over"
    return None


def _month(text: Any) -> Month:
    year, number = str(text).split("-")
    return Month(int(year), int(number))


def month_root(row_digests: Iterable[bytes]) -> bytes:
    """The root a `month_dropped` row holds of a table's rows.

    SHA-256 over the roots of the buckets in order, a bucket's root being the SHA-256 of its sorted
    row digests joined; rows whose digest begins with the same byte share a bucket.
    """
    outer = hashlib.sha256()
    for _, bucket in groupby(sorted(row_digests), key=lambda digest: digest[0]):
        outer.update(hashlib.sha256(b"".join(bucket)).digest())
    return outer.digest()
