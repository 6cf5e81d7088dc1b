"""States in full, also where the rows of a superstep share one. Follows rows in order of `seq`.

The row that holds a shared state comes before those that refer to it, so a reader in order has just
read it. What it has not (a page that begins between them, a filter that left it out) is fetched by
its key. A join would leave that to the planner: under row security and without statistics, as in
every new month, it read a run of n rows n times.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from cuo_checkpoint import run_queries
from cuo_checkpoint.digests import shared_with

__all__ = ["SharedStates"]

_KEPT: Final = 4
"""Holders remembered: one for each thread that writes to a run at a time; states go up to 5 MB."""

_Place = tuple[str, dt.datetime]


class SharedStates:
    """Within one snapshot of one tenant."""

    def __init__(self, conn: Connection, tenant_id: uuid.UUID) -> None:
        self._conn = conn
        self._tenant_id = tenant_id
        self._seen: OrderedDict[_Place, str] = OrderedDict()

    def of(self, rows: Sequence[tuple[str, dt.datetime, str]]) -> list[str]:
        """The states, as jsonb's text, of rows given by checkpoint_id, created_at and what they hold.

        A reference to a row that is not there stays as it is.
        """
        places: list[_Place] = []
        known: dict[_Place, str] = {}
        wanted: set[_Place] = set()
        for own, at, text in rows:
            holder = shared_with(text)
            place = (own if holder is None else str(holder), at)
            places.append(place)
            if holder is None:
                known[place] = text
            else:
                wanted.add(place)
        wanted -= known.keys()
        known |= {place: self._seen[place] for place in wanted & self._seen.keys()}
        missing = {(uuid.UUID(id_), at) for id_, at in wanted - known.keys()}
        if missing:
            for row in self._conn.execute(run_queries.states_at(self._tenant_id, missing)):
                known[str(row.checkpoint_id), row.created_at] = row.state
        states = []
        for place, (_, _, text) in zip(places, rows, strict=True):
            states.append(known.get(place, text))
            self._keep(place, states[-1])
        return states

    def _keep(self, place: _Place, state: str) -> None:
        self._seen[place] = state
        self._seen.move_to_end(place)
        while len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
