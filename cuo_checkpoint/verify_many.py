"""Verifying every run of a log: batches of a few thousand rows, each in a snapshot of its own.

Runs are put together by the months they lie in, so that no batch opens more months than its runs need.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, Engine, select, tuple_

from cuo_checkpoint import run_queries
from cuo_checkpoint.cuts import Cuts
from cuo_checkpoint.models import RunIndex
from cuo_checkpoint.partitions import Month
from cuo_checkpoint.run_check import RunVerification
from cuo_checkpoint.sessions import reading
from cuo_checkpoint.verify import Indexed, all_runs, verify_runs

__all__ = ["verdicts"]

_LOOKED_UP: Final = 1000
"""Runs whose index rows are read in one query."""

_ROWS: Final = 4000
"""Log rows of a batch, by the index; a run that has more is a batch."""

_RUNS: Final = 500


@dataclass(slots=True)
class _Batch:
    """Runs of one tenant that lie in the same months."""

    tenant_id: uuid.UUID
    runs: list[Indexed] = field(default_factory=list)
    rows: int = 0

    @property
    def full(self) -> bool:
        return self.rows >= _ROWS or len(self.runs) >= _RUNS


def verdicts(
    engine: Engine,
    conn: Connection,
    tenant_id: uuid.UUID | None,
    settled_before: dt.datetime,
    cuts: Mapping[uuid.UUID, Cuts],
) -> Iterator[RunVerification]:
    """The verdict on each run of one tenant or of all; `conn` lists the runs meanwhile.

    A run that only writes or tombstones speak of has no verdict: they are then counted as strays.
    """
    for batch in _batches(conn, tenant_id):
        with reading(engine, tenant_id) as snapshot:
            told = cuts.get(batch.tenant_id) or Cuts()
            found = verify_runs(snapshot, batch.tenant_id, batch.runs, settled_before, told)
        yield from (verdict for verdict in found if verdict is not None)


def _batches(conn: Connection, tenant_id: uuid.UUID | None) -> Iterator[_Batch]:
    runs = all_runs(conn, tenant_id)
    open_ones: dict[tuple[uuid.UUID, Month, Month], _Batch] = {}
    while some := list(itertools.islice(runs, _LOOKED_UP)):
        key = tuple_(RunIndex.tenant_id, RunIndex.run_id)
        rows = conn.execute(select(*run_queries.finite(RunIndex)).where(key.in_(some)))
        indexed = {(row.tenant_id, row.run_id): row for row in rows}
        for tenant, run in some:
            index = indexed.get((tenant, run))
            if index is None:  # every month must be searched for it
                yield _Batch(tenant, [(run, None)])
                continue
            low, high = run_queries.span(index)
            place = (tenant, Month.of(low), Month.of(high))
            batch = open_ones.setdefault(place, _Batch(tenant))
            batch.runs.append((run, index))
            batch.rows += index.log_rows
            if batch.full:
                yield open_ones.pop(place)
    yield from open_ones.values()
