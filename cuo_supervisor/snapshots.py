"""Catalogue snapshots: every recorded decision can be read beside the catalogue it was made with.

A snapshot is kept once per tenant, content hash and calendar month, before the first decision
that names it. By month, because the log is dropped by month: a snapshot lies in the same month
as the decisions that need it and goes when they go, never earlier.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from cuo_supervisor.core.catalog import Catalog
from cuo_supervisor.errors import DataError
from cuo_supervisor.ports import Store

__all__ = ["SnapshotKeeper", "find_catalog", "month_of"]

_KNOWN_MAX: Final = 10_000
"""Remembered (tenant, hash, month); more only cost a repeated no-op."""


class SnapshotKeeper:
    """Keeps snapshots through a store, and remembers those it knows to be kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[tuple[str, str, str]] = set()

    async def keep(self, catalog: Catalog, tenant_id: str, *, at_ns: int) -> None:
        """Makes sure the snapshot is stored; nothing is written when it is. Raises as the store.

        Processes that race write the same bytes under the same id, which the store keeps once.
        """
        key = (tenant_id, catalog.snapshot_hash, month_of(at_ns))
        if key in self._known:
            return
        await self._store.keep_catalog(*key, catalog.to_snapshot())
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(key)


async def find_catalog(
    store: Store, tenant_id: str, snapshot_hash: str, *, around_ns: int
) -> Catalog:
    """The catalogue of that hash as it was kept for the month of `around_ns`.

    The months beside it are looked at too, for hosts whose clocks disagree about midnight. Raises
    DataError when it is not stored or is not what its hash says.
    """
    day = dt.timedelta(days=1) // dt.timedelta(microseconds=1) * 1000
    months = dict.fromkeys(month_of(around_ns + shift * day) for shift in (0, -1, 1))
    for month in months:
        snapshot = await store.read_catalog(tenant_id, snapshot_hash, month)
        if snapshot is None:
            continue
        try:
            catalog = Catalog.from_snapshot(snapshot)
        except (ValueError, KeyError, TypeError):
            catalog = None
        if catalog is None or catalog.snapshot_hash != snapshot_hash:
            raise DataError(
                f"the stored catalogue {snapshot_hash[:16]} is not what its hash says; verify its run"
            )
        return catalog
    raise DataError(f"the catalogue {snapshot_hash[:16]} is not stored for this tenant")


def month_of(ts_ns: int) -> str:
    """The UTC month an instant lies in, such as 2026_11."""
    return dt.datetime.fromtimestamp(ts_ns // 1_000_000_000, dt.UTC).strftime("%Y_%m")
