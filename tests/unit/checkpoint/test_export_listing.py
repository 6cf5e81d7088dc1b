"""A bundle's list of runs and proofs, written as it comes, is what it would be written at once."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pytest

from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.export_listing import Listing
from cuo_checkpoint.export_places import RETENTION, RunPlace, batches

BELOW, ABOVE = uuid.UUID(int=5), [uuid.UUID(int=RETENTION.int + n) for n in (1, 2)]


@pytest.mark.parametrize(
    "runs",
    [[], ABOVE, [RETENTION], [RETENTION, BELOW], [RETENTION, BELOW, *ABOVE], [RETENTION, *ABOVE]],
)
def test_the_same_bytes_as_at_once(tmp_path: Path, runs: list[uuid.UUID]) -> None:
    """Also where the chain of retention, which comes first, is not the first by name."""
    proofs: dict[str, Any] = {str(run): {"index": n, "path": ["ab"]} for n, run in enumerate(runs)}
    told = [{"run_id": str(run), "outcome": None, "sealed": {"leaf_index": 1}} for run in runs]
    told.append({"run_id": str(uuid.UUID(int=2**127)), "outcome": "é", "sealed": None})
    manifest: dict[str, Any] = {"format": "f", "rows": {"log": 7}, "scope": {"month": "2026-11"}}
    with Listing.opened(tmp_path) as listing:
        for run in told:
            listing.add(run, proofs.get(run["run_id"]))  # type: ignore[arg-type, call-overload]
        listing.close(manifest)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "manifest.json": canonical_bytes({**manifest, "runs": told}) + b"\n",
        "proofs.json": canonical_bytes(proofs) + b"\n",
    }


def place(days: float, rows: int, months: int = 0) -> RunPlace:
    first = dt.datetime(2026, 5, 10, tzinfo=dt.UTC) + dt.timedelta(days=days)
    return RunPlace(
        uuid.uuid4(), "t", "open", None, first, first + dt.timedelta(days=30 * months), rows
    )


def test_runs_are_read_together_in_their_order() -> None:
    """Up to so many rows, runs and months; a run that is more than that alone is a batch."""
    small, long, large = [place(0, 3) for _ in range(450)], place(0, 1, 40), place(0, 5000)
    near = [place(0, 300), place(31, 300), place(62, 300), place(93, 1), place(0, 1)]
    given = [*small, long, *small[:2], large, *near]
    found = list(batches(given))
    assert [one for batch in found for one in batch] == given
    assert [len(batch) for batch in found] == [200, 200, 50, 1, 2, 1, 3, 1, 1]
    assert list(batches([])) == []
