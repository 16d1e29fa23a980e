"""Dates, times and intervals as the server stores them.

A date is days and a timestamp microseconds since 2000-01-01; infinities are the smallest and
largest integer, as in C, so that integers give the order. A time is microseconds of the day; a
timetz is that and the seconds west of UTC; an interval is months, days and microseconds.
Source: src/backend/utils/adt/datetime.c, timestamp.c, date.c.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from pgsluice.row_filter.values.value_type import NotReadable, ValueType, invalid, not_exact
from pgsluice.sql import SqlRefused
from pgsluice.types.binary_to_text.datetimes import (
    print_date,
    print_time,
    print_timestamp,
    print_timestamptz,
    print_timetz,
)
from pgsluice.types.calendar import civil_from_days, days_from_civil
from pgsluice.types.datetimes import (
    DATE_REGEX,
    ERA_REGEX,
    TIME_REGEX,
    ZONE_REGEX,
    Parts,
    clock_us_of,
    days_of,
    west_s_of,
)

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
    r"(?:(?P<sign>[+-])?(?P<hour>\d+):(?P<minute>\d\d):(?P<second>\d\d)"
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
    """Year, month and day of a number of days since 2000-01-01; year 0 is 1 BC."""
    return civil_from_days(day + EPOCH_DAYS)


def _parts(form: re.Pattern[str], name: str, text: str) -> Parts:
    match = form.fullmatch(text)
    if match is None or not text:
        raise NotReadable(name)
    return match.groupdict()


def _infinite(text: str, low: int, high: int) -> int | None:
    return {"infinity": high, "-infinity": low}.get(text)


def parse_date(text: str) -> int:
    """Read a date as PostgreSQL prints it: days since 2000-01-01."""
    infinite = _infinite(text, DATE_MINUS_INFINITY, DATE_INFINITY)
    if infinite is not None:
        return infinite
    return days_of(_parts(_DATE_FORM, "date", text)) - EPOCH_DAYS


def parse_timestamp(text: str) -> int:
    """Microseconds since 2000-01-01, in UTC where the text has a zone."""
    infinite = _infinite(text, MINUS_INFINITY, INFINITY)
    if infinite is not None:
        return infinite
    parts = _parts(_TIMESTAMP_FORM, "timestamp", text)
    day = days_of(parts) - EPOCH_DAYS
    return day * DAY + clock_us_of(parts) + west_s_of(parts) * SECOND


def parse_time(text: str) -> int:
    """Microseconds of the day; 24:00:00 is one of them."""
    return clock_us_of(_parts(_TIME_FORM, "time", text))


def parse_timetz(text: str) -> TimeTz:
    """Read a time of day with its zone, as PostgreSQL prints it."""
    parts = _parts(_TIMETZ_FORM, "timetz", text)
    return TimeTz(clock_us_of(parts), west_s_of(parts))


def parse_interval(text: str) -> Interval:
    """Read an interval as PostgreSQL prints it under intervalstyle = postgres."""
    if text in ("infinity", "-infinity"):
        return FOREVER if text == "infinity" else MINUS_FOREVER
    parts = _parts(_INTERVAL_FORM, "interval", text)
    months = int(parts["years"] or 0) * 12 + int(parts["months"] or 0)
    clock = clock_us_of(parts)
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


# Constants. PostgreSQL reads more forms than those of ISO 8601, which pgsluice refuses.

_ISO_TIME: Final = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d+))?)?"
)
_ISO_DATE: Final = r"\s*(?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_ISO_ZONE: Final = (
    r"(?:\s*(?P<zone>[zZ]|(?i:utc|gmt)|[+-]\d{1,2}(?::?\d{2}(?::\d{2})?)?|[+-]\d{3}))?"
)
_ISO_DAY: Final = re.compile(rf"{_ISO_DATE}{ERA_REGEX}\s*", re.ASCII)
_ISO_TIMESTAMP: Final = re.compile(
    rf"{_ISO_DATE}(?:[ T]\s*{_ISO_TIME})?{_ISO_ZONE}{ERA_REGEX}\s*", re.ASCII
)
_ISO_CLOCK: Final = re.compile(rf"\s*{_ISO_TIME}{_ISO_ZONE}\s*", re.ASCII)
_COMPACT_DATE: Final = re.compile(r"\A(\s*\d{4})(\d\d)(\d\d)(?!\d)", re.ASCII)
_KNOWN: Final = re.compile(
    r"now|today|tomorrow|yesterday|allballs|epoch|infinity|jan|feb|mar|apr|may|jun|jul|aug|sep"
    r"|oct|nov|dec|[0-9]",
    re.IGNORECASE,
)
_MAX_DISPLACEMENT_S: Final = 16 * 3600 - 1


def _not_iso(name: str, text: str) -> SqlRefused:
    if not _KNOWN.search(text):
        return invalid(name, text)
    return not_exact(
        f"a constant of type {name} in a form other than ISO 8601",
        "It may depend on DateStyle, the time zone or the moment at which it is read.",
        "Write it as an ISO 8601 constant, such as 2024-01-31 or 2024-01-31 12:00:00.",
    )


def _iso(form: re.Pattern[str], name: str, text: str) -> Parts:
    match = form.fullmatch(_COMPACT_DATE.sub(r"\1-\2-\3", text, count=1))
    if match is None:
        raise _not_iso(name, text)
    return match.groupdict()


def _out_of_range(text: str, hint: str | None = None) -> SqlRefused:
    return SqlRefused(f'date/time field value out of range: "{text}"', server_hint=hint)


def _valid_day(parts: Parts, text: str) -> int:
    month, day = int(parts["month"] or 0), int(parts["day"] or 0)
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        raise _out_of_range(text, 'Perhaps you need a different "DateStyle" setting.')
    number = days_of(parts) - EPOCH_DAYS
    if not int(parts["year"] or 0) or civil(number)[1:] != (month, day):
        raise _out_of_range(text)
    return number


def _valid_clock(parts: Parts, text: str) -> int:
    """Microseconds of the day: up to 24:00:00, with 60 as a number of seconds."""
    clock = clock_us_of({**parts, "fraction": None})
    clock += round(float(f"0.{parts['fraction'] or 0}") * SECOND)
    if int(parts["minute"] or 0) > 59 or int(parts["second"] or 0) > 60 or clock > DAY:
        raise _out_of_range(text)
    return clock


def _east_s(zone: str | None, text: str) -> int:
    """Seconds east of UTC."""
    if zone is None or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    digits = digits.zfill(4) if len(digits) == 3 else digits
    hours, minutes, seconds = (int(digits[place : place + 2] or 0) for place in (0, 2, 4))
    east = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or east > _MAX_DISPLACEMENT_S:
        raise SqlRefused(f'time zone displacement out of range: "{text}"')
    return -east if zone[0] == "-" else east


def _fixed(text: str, epoch: str) -> str | None:
    word = text.strip().lower()
    if word == "epoch":
        return epoch
    return word if word in ("infinity", "-infinity") else None


def read_date(text: str) -> str:
    """The output of a date constant."""
    if fixed := _fixed(text, "1970-01-01"):
        return fixed
    day = _valid_day(_iso(_ISO_DAY, "date", text), text)
    if not FIRST_DAY <= day < DATE_END:
        raise SqlRefused(f'date out of range: "{text}"')
    return print_date(struct.pack(">i", day))


def read_timestamp(text: str) -> str:
    """The output of a timestamp constant; as on the server, a time zone is ignored."""
    if fixed := _fixed(text, "1970-01-01 00:00:00"):
        return fixed
    parts = _iso(_ISO_TIMESTAMP, "timestamp", text)
    return print_timestamp(struct.pack(">q", _moment(parts, text, has_zone=False)))


def read_timestamptz(text: str) -> str:
    """The output of a timestamptz constant, in UTC.

    Raises:
        SqlRefused: among others, it has no zone: its value would depend on the session's.
    """
    if fixed := _fixed(text, "1970-01-01 00:00:00+00"):
        return fixed
    parts = _iso(_ISO_TIMESTAMP, "timestamp with time zone", text)
    if parts["zone"] is None:
        raise not_exact(
            "a constant of type timestamp with time zone without a zone",
            "It depends on the session's time zone.",
            "Write the zone: '2024-01-31 12:00:00+00'.",
        )
    return print_timestamptz(struct.pack(">q", _moment(parts, text, has_zone=True)))


def _moment(parts: Parts, text: str, *, has_zone: bool) -> int:
    moment = _valid_day(parts, text) * DAY
    if parts["hour"]:
        moment += _valid_clock(parts, text)
    moment -= _east_s(parts["zone"], text) * SECOND * has_zone
    if not TIMESTAMP_FIRST <= moment < TIMESTAMP_END:
        raise SqlRefused(f'timestamp out of range: "{text}"')
    return moment


def read_time(text: str) -> str:
    """The output of a time constant; as on the server, a time zone is ignored."""
    parts = _iso(_ISO_CLOCK, "time", text)
    _east_s(parts["zone"], text)
    return print_time(struct.pack(">q", _valid_clock(parts, text)))


def read_timetz(text: str) -> str:
    """The output of a timetz constant."""
    parts = _iso(_ISO_CLOCK, "time with time zone", text)
    if parts["zone"] is None:
        raise _not_iso("time with time zone", text)
    west = -_east_s(parts["zone"], text)
    return print_timetz(struct.pack(">qi", _valid_clock(parts, text), west))
