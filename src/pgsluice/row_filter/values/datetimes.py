"""Dates, times and intervals as the server stores them.

A date is days and a timestamp microseconds since 2000-01-01; infinities are the smallest and
largest integer, as in C, so that integers give the order. A time is microseconds of the day; a
timetz is that and the seconds west of UTC; an interval is months, days and microseconds.
Source: src/backend/utils/adt/datetime.c, timestamp.c, date.c.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pgsluice.row_filter.values.value_type import NotReadable, ValueType
from pgsluice.types.calendar import civil_from_days, days_from_civil
from pgsluice.types.datetimes import DATE_REGEX, ERA_REGEX, TIME_REGEX, ZONE_REGEX

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
DATE_INFINITY: Final = 2**31 - 1
DATE_MINUS_INFINITY: Final = -(2**31)
INFINITY: Final = 2**63 - 1
MINUS_INFINITY: Final = -(2**63)
EPOCH_DAYS: Final = 10957
"""Days from 1970-01-01 to 2000-01-01."""

FIRST_DAY: Final = days_from_civil(-4713, 11, 24) - EPOCH_DAYS
DATE_END: Final = days_from_civil(5874898, 1, 1) - EPOCH_DAYS
TIMESTAMP_FIRST: Final = FIRST_DAY * DAY
TIMESTAMP_END: Final = (days_from_civil(294277, 1, 1) - EPOCH_DAYS) * DAY

_DATE_FORM: Final = re.compile(DATE_REGEX + ERA_REGEX, re.ASCII)
_TIMESTAMP_FORM: Final = re.compile(
    f"{DATE_REGEX} {TIME_REGEX}(?:{ZONE_REGEX})?{ERA_REGEX}", re.ASCII
)
_TIME_FORM: Final = re.compile(TIME_REGEX, re.ASCII)
_TIMETZ_FORM: Final = re.compile(TIME_REGEX + ZONE_REGEX, re.ASCII)
_INTERVAL_FORM: Final = re.compile(
    r"(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?"
    r"(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-])?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)"
    r"(?:\.(?P<fraction>\d{1,6}))?)?",
    re.ASCII,
)


class Interval(NamedTuple):
    """Months, days and microseconds: three counts that are not converted into one another."""

    months: int
    days: int
    microseconds: int


class TimeTz(NamedTuple):
    """Microseconds of the local day, and seconds west of UTC."""

    microseconds: int
    zone: int


FOREVER: Final = Interval(2**31 - 1, 2**31 - 1, INFINITY)
MINUS_FOREVER: Final = Interval(-(2**31), -(2**31), MINUS_INFINITY)


def day_number(year: int, month: int, day: int) -> int:
    """Days since 2000-01-01; year 0 is 1 BC."""
    return days_from_civil(year, month, day) - EPOCH_DAYS


def civil(day: int) -> tuple[int, int, int]:
    """The inverse of :func:`day_number`."""
    return civil_from_days(day + EPOCH_DAYS)


def _parts(form: re.Pattern[str], name: str, text: str) -> dict[str, str | None]:
    match = form.fullmatch(text)
    if match is None or not text:
        raise NotReadable(name)
    return match.groupdict()


def _infinite(text: str, low: int, high: int) -> int | None:
    return {"infinity": high, "-infinity": low}.get(text)


def _day(parts: dict[str, str | None]) -> int:
    year, month, day = (int(parts[name] or 0) for name in ("year", "month", "day"))
    return day_number(1 - year if parts["era"] else year, month, day)


def _clock(parts: dict[str, str | None]) -> int:
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    return hour * HOUR + minute * MINUTE + second * SECOND + _fraction(parts)


def _fraction(parts: dict[str, str | None]) -> int:
    return int((parts["fraction"] or "").ljust(6, "0"))


def _zone_west(parts: dict[str, str | None]) -> int:
    hours, minutes, seconds = (int(parts[name] or 0) for name in ("zh", "zm", "zs"))
    east = hours * 3600 + minutes * 60 + seconds
    return east if parts["sign"] == "-" else -east


def parse_date(text: str) -> int:
    """Days since 2000-01-01."""
    infinite = _infinite(text, DATE_MINUS_INFINITY, DATE_INFINITY)
    if infinite is not None:
        return infinite
    return _day(_parts(_DATE_FORM, "date", text))


def parse_timestamp(text: str) -> int:
    """Microseconds since 2000-01-01, in UTC where the text has a zone."""
    infinite = _infinite(text, MINUS_INFINITY, INFINITY)
    if infinite is not None:
        return infinite
    parts = _parts(_TIMESTAMP_FORM, "timestamp", text)
    return _day(parts) * DAY + _clock(parts) + _zone_west(parts) * SECOND


def parse_time(text: str) -> int:
    """Microseconds of the day; 24:00:00 is one of them."""
    return _clock(_parts(_TIME_FORM, "time", text))


def parse_timetz(text: str) -> TimeTz:
    """Parse a time of day with its zone."""
    parts = _parts(_TIMETZ_FORM, "timetz", text)
    return TimeTz(_clock(parts), _zone_west(parts))


def parse_interval(text: str) -> Interval:
    """Parse what intervalstyle = postgres prints."""
    if text in ("infinity", "-infinity"):
        return FOREVER if text == "infinity" else MINUS_FOREVER
    parts = _parts(_INTERVAL_FORM, "interval", text)
    months = int(parts["years"] or 0) * 12 + int(parts["months"] or 0)
    clock = int(parts["hours"] or 0) * HOUR + int(parts["minutes"] or 0) * MINUTE
    clock += int(parts["seconds"] or 0) * SECOND + _fraction(parts)
    return Interval(months, int(parts["days"] or 0), -clock if parts["sign"] == "-" else clock)


def interval_key(interval: Interval) -> int:
    """The order of intervals: a month counts 30 days and a day 24 hours."""
    return (interval.months * 30 + interval.days) * DAY + interval.microseconds


def timetz_key(time: TimeTz) -> tuple[int, int]:
    """The order of timetz: the moment; of equal moments the zone further east comes first."""
    return time.microseconds + time.zone * SECOND, time.zone


DATETIMES: Final = (
    ValueType("date", parse_date),
    ValueType("timestamp", parse_timestamp),
    ValueType("timestamptz", parse_timestamp),
    ValueType("time", parse_time),
    ValueType("timetz", parse_timetz, timetz_key),
    ValueType("interval", parse_interval, interval_key),
)
