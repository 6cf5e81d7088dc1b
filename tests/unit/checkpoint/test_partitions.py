"""Arithmetic of months."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import partitions
from cuo_checkpoint.errors import InvalidIdentifier
from cuo_checkpoint.partitions import FLOOR_MONTHS, Month

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
INSTANTS = st.datetimes(
    dt.datetime(1970, 1, 2),  # noqa: DTZ001  # the strategy adds the zone
    dt.datetime(2500, 1, 1),  # noqa: DTZ001
    timezones=ZONES,
)
MONTHS = st.builds(Month, st.integers(1971, 2400), st.integers(1, 12))
STEPS = st.integers(-500, 500)


@given(at=INSTANTS)
def test_an_instant_lies_in_exactly_its_month(at: dt.datetime) -> None:
    """Whatever the time zone it is written in, an instant is within the bounds of its month."""
    month = Month.of(at)
    assert month.start <= at < month.end
    assert Month.of(month.start) == month
    assert Month.of(month.end) == month.plus(1)
    assert Month.of(month.end - dt.timedelta(microseconds=1)) == month


@given(month=MONTHS, steps=STEPS)
def test_months_are_a_line(month: Month, steps: int) -> None:
    """Going on and coming back is staying; distance and order agree with time."""
    other = month.plus(steps)
    assert other.plus(-steps) == month
    assert month.until(other) == steps
    assert (other > month) == (other.start > month.start) == (steps > 0)
    assert 28 <= (month.end - month.start).days <= 31


@given(month=MONTHS)
def test_names_sort_as_months_do(month: Month) -> None:
    """A later month's name is a later text."""
    assert month.plus(1).partition_of("t") > month.partition_of("t")
    assert str(month.plus(1)) > str(month)


def test_the_name_is_the_databases() -> None:
    """Month and day are zero-padded, as to_char pads them."""
    assert Month(2026, 1).partition_of("cuo_memory_audit") == "cuo_memory_audit_2026_01"


@given(now=INSTANTS, absent=st.sets(st.integers(0, 3)))
def test_missing_months_are_those_not_there(now: dt.datetime, absent: set[int]) -> None:
    """Of the current month and the next three, exactly the absent ones are named, in order."""
    wanted = partitions.months_in_use(now)
    assert [Month.of(now).until(month) for month in wanted] == [0, 1, 2, 3]
    present = [month for n, month in enumerate(wanted) if n not in absent]
    assert partitions.missing_months(present, now) == [wanted[n] for n in sorted(absent)]
    near = [wanted[n] for n in sorted(absent & {0, 1})]
    assert partitions.missing_months(present, now, ahead=1) == near


@pytest.mark.criterion("102-AC12")
@given(newest=INSTANTS, late=st.timedeltas(dt.timedelta(0), dt.timedelta(days=40)))
def test_nothing_goes_before_seven_years(newest: dt.datetime, late: dt.timedelta) -> None:
    """A row is kept at least 84 calendar months less the days that shorter months lack."""
    month = Month.of(newest).plus(FLOOR_MONTHS)
    assert not partitions.is_past_keeping(newest, month.start)
    assert partitions.is_past_keeping(newest, month.end + late)


@pytest.mark.parametrize(
    ("newest", "kept", "gone"),
    [
        ("2019-11-30T12:00:00+00:00", "2026-11-30T12:00:00+00:00", "2026-11-30T12:00:01+00:00"),
        ("2020-02-29T00:00:00+00:00", "2027-02-28T00:00:00+00:00", "2027-02-28T00:00:01+00:00"),
        ("2019-12-01T06:00:00+07:00", "2026-11-30T23:00:00+00:00", "2026-11-30T23:00:01+00:00"),
    ],
)
def test_the_day_a_month_goes(newest: str, kept: str, gone: str) -> None:
    """Leap days and time zones: counted in UTC, to the same day, or the last one there is."""
    row, last, first = (dt.datetime.fromisoformat(text) for text in (newest, kept, gone))
    assert not partitions.is_past_keeping(row, last)
    assert partitions.is_past_keeping(row, first)


@pytest.mark.criterion("102-AC12")
@given(floor=st.integers(-10, FLOOR_MONTHS - 1))
def test_nobody_may_ask_for_less(floor: int) -> None:
    """A floor below 84 months is refused, not raised silently."""
    now = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(InvalidIdentifier, match="at least 84"):
        partitions.is_past_keeping(now, now, floor_months=floor)


def test_a_longer_floor_keeps_longer() -> None:
    """More than seven years may be asked for."""
    newest, now = dt.datetime(2016, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    assert partitions.is_past_keeping(newest, now)
    assert not partitions.is_past_keeping(newest, now, floor_months=120)


def test_a_time_without_zone_is_refused() -> None:
    """Which month a naive time lies in nobody can say."""
    with pytest.raises(InvalidIdentifier, match="time zone"):
        Month.of(dt.datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("text", "month"),
    [
        (
            "FOR VALUES FROM ('2026-11-01 00:00:00+00') TO ('2026-12-01 00:00:00+00')",
            Month(2026, 11),
        ),
        (
            "FOR VALUES FROM ('2026-11-01 07:00:00+07') TO ('2026-12-01 07:00:00+07')",
            Month(2026, 11),
        ),
        (
            "FOR VALUES FROM ('2026-11-01 05:30:00+05:30') TO ('2026-12-01 05:30:00+05:30')",
            Month(2026, 11),
        ),
        (
            "FOR VALUES FROM ('2026-10-31 20:00:00-04') TO ('2026-11-30 19:00:00-05')",
            Month(2026, 11),
        ),
        ("FOR VALUES FROM ('2026-11-01 00:00:00+07') TO ('2026-12-01 00:00:00+07')", None),
        ("FOR VALUES FROM ('2026-11-01 00:00:00+00') TO ('2027-01-01 00:00:00+00')", None),
        ("FOR VALUES FROM (MINVALUE) TO ('2026-12-01 00:00:00+00')", None),
        ("FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')", None),
        ("FOR VALUES FROM ('yesterday') TO ('today')", None),
        ("DEFAULT", None),
    ],
)
def test_bounds_are_read_in_any_time_zone(text: str, month: Month | None) -> None:
    """What the catalog prints depends on the session; which month it is does not."""
    assert partitions.month_of_bounds(text) == month
