"""Arithmetic of months: names, bounds, which must be there, which are past keeping. Pure.

A month is a partition: `cuo_memory_audit_2026_11` holds 2026-11-01 00:00 UTC up to, not including,
2026-12-01 00:00 UTC. Names are for people; what a partition holds is read from its bounds.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from cuo_checkpoint.errors import InvalidIdentifier

__all__ = [
    "AHEAD",
    "FLOOR_MONTHS",
    "Month",
    "is_past_keeping",
    "missing_months",
    "month_of_bounds",
    "months_in_use",
    "parse_bounds",
]

AHEAD: Final = 3
"""Months made in advance, as the database's own function makes them."""

FLOOR_MONTHS: Final = 84
"""Seven years, counted from a month's newest row. Nothing may ask for less."""

_BOUNDS: Final = re.compile(r"FOR VALUES FROM \('([^']+)'\) TO \('([^']+)'\)")


class Month(NamedTuple):
    """A calendar month in UTC. Months compare and sort by time."""

    year: int
    month: int

    @classmethod
    def of(cls, at: dt.datetime) -> Month:
        """The month that holds an instant. Raises InvalidIdentifier for one without a time zone."""
        if at.tzinfo is None:
            raise InvalidIdentifier("time", "must have a time zone")
        at = at.astimezone(dt.UTC)
        return cls(at.year, at.month)

    @property
    def start(self) -> dt.datetime:
        """Its first instant."""
        return dt.datetime(self.year, self.month, 1, tzinfo=dt.UTC)

    @property
    def end(self) -> dt.datetime:
        """The first instant after it."""
        return self.plus(1).start

    def plus(self, months: int) -> Month:
        """The month so many later, or earlier if negative."""
        years, index = divmod(self.year * 12 + self.month - 1 + months, 12)
        return Month(years, index + 1)

    def until(self, other: Month) -> int:
        """How many months later the other is."""
        return (other.year - self.year) * 12 + other.month - self.month

    def partition_of(self, parent: str) -> str:
        """The name of its partition of a table."""
        return f"{parent}_{self.year:04d}_{self.month:02d}"

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"


def months_in_use(now: dt.datetime) -> list[Month]:
    """The current month and those made ahead."""
    current = Month.of(now)
    return [current.plus(n) for n in range(AHEAD + 1)]


def missing_months(
    present: Iterable[Month], now: dt.datetime, *, ahead: int = AHEAD
) -> list[Month]:
    """Which of the current month and the `ahead` next ones are not there."""
    there = set(present)
    return [month for month in months_in_use(now)[: ahead + 1] if month not in there]


def is_past_keeping(
    newest_row: dt.datetime, now: dt.datetime, *, floor_months: int = FLOOR_MONTHS
) -> bool:
    """Whether a month whose newest row is this old has served its time.

    A row of the 31st is kept until the same day of the month so many months on, or that month's
    end where it is shorter. Raises InvalidIdentifier for a floor below 84 months.
    """
    if floor_months < FLOOR_MONTHS:
        raise InvalidIdentifier("older-than-months", f"must be at least {FLOOR_MONTHS}")
    newest_row = newest_row.astimezone(dt.UTC)
    month = Month.of(newest_row).plus(floor_months)
    last_day = (month.end - dt.timedelta(days=1)).day
    kept_until = newest_row.replace(
        year=month.year, month=month.month, day=min(newest_row.day, last_day)
    )
    return now > kept_until


def parse_bounds(text: str) -> tuple[dt.datetime, dt.datetime] | None:
    """What `pg_get_expr` says of a range partition, as instants; None for anything else.

    The text depends on the session's time zone, and so carries an offset.
    """
    match = _BOUNDS.fullmatch(text)
    if match is None:
        return None
    try:
        start, end = (dt.datetime.fromisoformat(_padded(part)) for part in match.groups())
    except ValueError:
        return None
    if start.tzinfo is None or end.tzinfo is None:
        return None
    return start.astimezone(dt.UTC), end.astimezone(dt.UTC)


def month_of_bounds(text: str) -> Month | None:
    """The month a partition holds, if its bounds are exactly one month's."""
    bounds = parse_bounds(text)
    if bounds is None:
        return None
    month = Month.of(bounds[0])
    return month if bounds == (month.start, month.end) else None


def _padded(text: str) -> str:
    """PostgreSQL writes offsets as +00, +05:30 or +05:53:28; the first needs its minutes."""
    return f"{text}:00" if re.search(r"[+-]\d\d$", text) else text
