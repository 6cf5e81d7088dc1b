"""What a tenant's chain says of months that were dropped lawfully. Pure.

Every drop appends a `month_dropped` row to the chain of one reserved run in each tenant that had
rows in the month. It holds the month's counts and roots, and a cut for each run that goes on in
other months: which of its chain rows are gone, and the digest the next one follows. A verifier
steps over exactly those; any other missing row is missing.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from cuo_checkpoint.partitions import Month

__all__ = ["RETENTION_RUN", "SYSTEM_TENANT", "Cuts", "Gap", "month_root"]

SYSTEM_TENANT: Final = uuid.UUID("00000000-0000-8000-8000-73797374656d")
"""Reserved: whose rows speak of the whole log. The last six bytes spell "system"."""

RETENTION_RUN: Final = uuid.UUID("00000000-0000-8000-8000-726574656e74")
"""Reserved in every tenant: the run whose chain says what was dropped and held ("retent")."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Chain rows `first` to `last` of a run are gone; the next follows `head`."""

    first: int
    last: int
    head: bytes
    log_rows: int


@dataclass(slots=True)
class Cuts:
    """The months a tenant lost to retention, and where that cuts its living runs."""

    months: dict[Month, Mapping[str, Any]] = field(default_factory=dict)
    """Each dropped month with the `tables` part of its row: rows and root by table."""
    gaps: dict[uuid.UUID, dict[int, Gap]] = field(default_factory=dict)
    """By run and number of the first row that is gone."""

    whole: set[Month] = field(default_factory=set)
    """Months of the whole log; only the system tenant's chain names them."""

    def add(self, body: str) -> None:
        """Takes in one `month_dropped` row. Raises ValueError or KeyError for one that is none."""
        said = json.loads(body)
        year, number = str(said["month"]).split("-")
        month = Month(int(year), int(number))
        if said.get("whole"):
            self.whole.add(month)
            return
        self.months[month] = said["tables"]
        for cut in said["cuts"]:
            of_run = self.gaps.setdefault(uuid.UUID(cut["run_id"]), {})
            for gap in cut["gaps"]:
                of_run[gap["from"]] = Gap(
                    gap["from"], gap["to"], bytes.fromhex(gap["head"]), gap["log_rows"]
                )

    def of(self, run_id: uuid.UUID) -> Mapping[int, Gap]:
        """The gaps of one run by their first row; empty for a run that is whole."""
        return self.gaps.get(run_id, {})


def month_root(row_digests: Iterable[bytes]) -> bytes:
    """The root a `month_dropped` row holds of a table's rows.

    SHA-256 over the roots of the buckets in order, a bucket's root being the SHA-256 of its sorted
    row digests joined; rows whose digest begins with the same byte share a bucket.
    """
    outer = hashlib.sha256()
    for _, bucket in groupby(sorted(row_digests), key=lambda digest: digest[0]):
        outer.update(hashlib.sha256(b"".join(bucket)).digest())
    return outer.digest()
