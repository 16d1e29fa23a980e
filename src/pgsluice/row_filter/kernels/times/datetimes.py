"""Arithmetic and casts of dates, times and intervals; moments of other types; OVERLAPS.

Source: src/backend/utils/adt/timestamp.c, date.c, uuid.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pgsluice.row_filter.kernels.kernel import kernel, register, sited
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.datetimes import Interval, TimeTz

_INT4 = range(-(2**31), 2**31)
_INT8 = range(-(2**63), 2**63)


def overflow(type_name: str) -> SqlError:
    """PostgreSQL's error for a date or time that its type cannot hold (SQLSTATE 22008)."""
    return SqlError("datetime_field_overflow", f"{type_name} out of range")


def valid_timestamp(moment: int) -> int:
    """A result that is a timestamp, or the server's error."""
    if m.TIMESTAMP_FIRST <= moment < m.TIMESTAMP_END:
        return moment
    raise overflow("timestamp")


def is_finite_date(day: int) -> bool:
    """Whether a date is finite."""
    return day not in (m.DATE_INFINITY, m.DATE_MINUS_INFINITY)


def is_finite(moment: int) -> bool:
    """Whether a timestamp is finite."""
    return moment not in (m.INFINITY, m.MINUS_INFINITY)


def is_forever(interval: Interval) -> bool:
    """Whether an interval is infinite."""
    return interval in (m.FOREVER, m.MINUS_FOREVER)


register("isfinite(date)", is_finite_date)
register("isfinite(timestamp) isfinite(timestamptz)", is_finite)
register("isfinite(interval)", lambda interval: not is_forever(interval))


# Dates


def _valid_date(day: int) -> int:
    if m.FIRST_DAY <= day < m.DATE_END:
        return day
    raise overflow("date")


@kernel("date_pli(date,int4)")
def _date_plus(day: int, days: int) -> int:
    return _valid_date(day + days) if is_finite_date(day) else day


register("integer_pl_date(int4,date)", _date_plus, is_reversed=True)
register("date_mii(date,int4)", lambda day, days: _date_plus(day, -days))


@kernel("date_mi(date,date)")
def _days_between(a: int, b: int) -> int:
    if not (is_finite_date(a) and is_finite_date(b)):
        raise SqlError("datetime_field_overflow", "cannot subtract infinite dates")
    return a - b


@kernel("timestamp(date)")
def midnight(day: int) -> int:
    """A date, in days since 2000-01-01, as the timestamp of its midnight, in microseconds."""
    if not is_finite_date(day):
        return m.INFINITY if day > 0 else m.MINUS_INFINITY
    if day * m.DAY >= m.TIMESTAMP_END:
        raise SqlError("datetime_field_overflow", "date out of range for timestamp")
    return day * m.DAY


@kernel("date(timestamp)")
def _date_of(moment: int) -> int:
    if not is_finite(moment):
        return m.DATE_INFINITY if moment > 0 else m.DATE_MINUS_INFINITY
    return moment // m.DAY


@kernel("time(timestamp)")
def _time_of(moment: int) -> int | None:
    return moment % m.DAY if is_finite(moment) else None


@kernel("make_date(int4,int4,int4)")
def _make_date(year: int, month: int, day: int) -> int:
    astronomical = year + 1 if -(2**31) < year < 0 else year
    given = f"{astronomical}-{month:02}-{day:02}"
    wrong = SqlError("datetime_field_overflow", f"date field value out of range: {given}")
    beyond = SqlError("datetime_field_overflow", f"date out of range: {given}")
    if year in (0, -(2**31)) or not 1 <= month <= 12 or not 1 <= day <= 31:
        raise wrong
    if not -4713 <= astronomical <= 5874898:
        raise beyond
    number = m.day_number(astronomical, month, day)
    if m.civil(number) != (astronomical, month, day):
        raise wrong
    if not m.FIRST_DAY <= number < m.DATE_END:
        raise beyond
    return number


# Timestamps and intervals


def add_interval(moment: int, interval: Interval) -> int:
    """Add months, then days, then time; the day is cut to the month's last."""
    if is_forever(interval):
        end = m.INFINITY if interval == m.FOREVER else m.MINUS_INFINITY
        if not is_finite(moment) and moment != end:
            raise overflow("timestamp")
        return end
    if not is_finite(moment):
        return moment
    if interval.months:
        moment = _add_months(moment, interval.months)
    if interval.days:
        moment = valid_timestamp(moment + interval.days * m.DAY)
    return valid_timestamp(moment + interval.microseconds)


def _add_months(moment: int, months: int) -> int:
    number, clock = divmod(moment, m.DAY)
    year, month, day = m.civil(number)
    years, month_index = divmod(month - 1 + months, 12)
    year, month = year + years, month_index + 1
    last = m.day_number(year + month // 12, month % 12 + 1, 1) - 1
    day = min(day, m.civil(last)[2])
    return valid_timestamp(m.day_number(year, month, day) * m.DAY + clock)


@kernel("interval_um(interval)")
def negated(interval: Interval) -> Interval:
    """The interval with the opposite sign; raises the server's error if it is out of range."""
    if is_forever(interval):
        return m.MINUS_FOREVER if interval == m.FOREVER else m.FOREVER
    return _valid_interval(*(-part for part in interval))


def _valid_interval(months: int, days: int, microseconds: int) -> Interval:
    interval = Interval(months, days, microseconds)
    fits = months in _INT4 and days in _INT4 and microseconds in _INT8
    if not fits or is_forever(interval):
        raise overflow("interval")
    return interval


@kernel("timestamp_mi_interval(timestamp,interval)")
def _minus(moment: int, interval: Interval) -> int:
    return add_interval(moment, negated(interval))


@kernel("date_pl_interval(date,interval)")
def _date_plus_interval(day: int, interval: Interval) -> int:
    return add_interval(midnight(day), interval)


register("date_mi_interval(date,interval)", lambda day, interval: _minus(midnight(day), interval))
register("timestamp_pl_interval(timestamp,interval)", add_interval)
register("interval_pl_timestamp(interval,timestamp)", add_interval, is_reversed=True)
register("interval_pl_date(interval,date)", _date_plus_interval, is_reversed=True)


@kernel("timestamp_mi(timestamp,timestamp) timestamptz_mi(timestamptz,timestamptz)")
def _timestamps_between(a: int, b: int) -> Interval:
    """A difference in days and time."""
    if not (is_finite(a) and is_finite(b)):
        if a == b:
            raise overflow("interval")
        return m.FOREVER if a == m.INFINITY or b == m.MINUS_INFINITY else m.MINUS_FOREVER
    between = a - b
    if between not in _INT8:
        raise overflow("interval")
    days = abs(between) // m.DAY * (1 if between >= 0 else -1)
    return Interval(0, days, between - days * m.DAY)


@kernel("interval_pl(interval,interval)")
def _add_intervals(a: Interval, b: Interval) -> Interval:
    if is_forever(a) or is_forever(b):
        if is_forever(a) and is_forever(b) and a != b:
            raise overflow("interval")
        return a if is_forever(a) else b
    return _valid_interval(*(x + y for x, y in zip(a, b, strict=True)))


@kernel("interval_mi(interval,interval)")
def _subtract_intervals(a: Interval, b: Interval) -> Interval:
    if is_forever(a) or is_forever(b):
        if a == b:
            raise overflow("interval")
        return a if is_forever(a) else negated(b)
    return _valid_interval(*(x - y for x, y in zip(a, b, strict=True)))


@kernel("age(timestamp,timestamp)")
def _age(a: int, b: int) -> Interval:
    """A difference in months, days and time, as by the calendar."""
    if not (is_finite(a) and is_finite(b)):
        return _timestamps_between(a, b)
    is_negative = a < b
    later, earlier = max(a, b), min(a, b)
    later_day, later_clock = divmod(later, m.DAY)
    earlier_day, earlier_clock = divmod(earlier, m.DAY)
    (year, month, day), (year_0, month_0, day_0) = m.civil(later_day), m.civil(earlier_day)
    months, days = (year - year_0) * 12 + month - month_0, day - day_0
    clock = later_clock - earlier_clock
    if clock < 0:
        clock, days = clock + m.DAY, days - 1
    if days < 0:  # the days of the earlier moment's month
        days += m.day_number(year_0 + month_0 // 12, month_0 % 12 + 1, 1)
        days, months = days - m.day_number(year_0, month_0, 1), months - 1
    sign = -1 if is_negative else 1
    return Interval(sign * months, sign * days, sign * clock)


# Times of day


register("time_mi_time(time,time)", lambda a, b: Interval(0, 0, a - b))
register("interval(time)", lambda time: Interval(0, 0, time))


def _finite(interval: Interval, message: str) -> int:
    if is_forever(interval):
        raise SqlError("datetime_field_overflow", message)
    return interval.microseconds


@kernel("time(interval)")
def _interval_to_time(interval: Interval) -> int:
    return _finite(interval, "cannot convert infinite interval to time") % m.DAY


def _wrapped(microseconds: int) -> int:
    """Wrap around at 64 bits: the server does not check here."""
    return (microseconds + 2**63) % 2**64 - 2**63


@kernel("time_pl_interval(time,interval)")
def _time_plus(time: int, interval: Interval) -> int:
    return _wrapped(time + _finite(interval, "cannot add infinite interval to time")) % m.DAY


@kernel("time_mi_interval(time,interval)")
def _time_minus(time: int, interval: Interval) -> int:
    microseconds = _finite(interval, "cannot subtract infinite interval from time")
    return _wrapped(time - microseconds) % m.DAY


def _of_timetz(compute: Callable[[int, Any], int]) -> Callable[[TimeTz, Any], TimeTz]:
    """A function of a time, which leaves the zone as it is."""
    return lambda time, by: TimeTz(compute(time.microseconds, by), time.zone)


_timetz_plus = _of_timetz(_time_plus)
register("interval_pl_time(interval,time)", _time_plus, is_reversed=True)
register("timetz_pl_interval(timetz,interval)", _timetz_plus)
register("interval_pl_timetz(interval,timetz)", _timetz_plus, is_reversed=True)
register("timetz_mi_interval(timetz,interval)", _of_timetz(_time_minus))
register("time(timetz)", lambda time: time.microseconds)


@kernel("datetime_pl(date,time) timestamp(date,time)")
def _date_and_time(day: int, time: int) -> int:
    moment = midnight(day)
    return valid_timestamp(moment + time) if is_finite(moment) else moment


@kernel("datetimetz_pl(date,timetz) timestamptz(date,timetz)")
def _date_and_timetz(day: int, time: TimeTz) -> int:
    if not is_finite_date(day):
        return m.INFINITY if day > 0 else m.MINUS_INFINITY
    beyond = SqlError("datetime_field_overflow", "date out of range for timestamp")
    if day * m.DAY >= m.TIMESTAMP_END:
        raise beyond
    moment = day * m.DAY + time.microseconds + time.zone * m.SECOND
    if m.TIMESTAMP_FIRST <= moment < m.TIMESTAMP_END:
        return moment
    raise beyond


register("timedate_pl(time,date)", _date_and_time, is_reversed=True)
register("timetzdate_pl(timetz,date)", _date_and_timetz, is_reversed=True)


# Type modifiers: digits after the seconds


@kernel("time(time,int4)")
def _to_precision(microseconds: int, digits: int) -> int:
    """Round half away from zero."""
    if not 0 <= digits < 6:
        return microseconds
    unit = int(10 ** (6 - digits))
    whole = (abs(microseconds) + unit // 2) // unit * unit
    return whole if microseconds >= 0 else -whole


@kernel("timestamp(timestamp,int4) timestamptz(timestamptz,int4)")
def _timestamp_precision(moment: int, digits: int) -> int:
    if not is_finite(moment) or digits < 0:
        return moment
    if digits > 6:
        message = f"timestamp({digits}) precision must be between 0 and 6"
        raise SqlError("invalid_parameter_value", message)
    return _to_precision(moment, digits)


register("timetz(timetz,int4)", _of_timetz(_to_precision))


_SECONDS_A_DAY = 86400
_UNIX_DAYS = -m.EPOCH_DAYS
"""From 2000-01-01 to 1970-01-01."""
_GREGORIAN_DAYS = -152384
"""From 2000-01-01 to 1582-10-15, where the time of a UUID of version 1 begins."""
_FIRST_SECOND = float(_SECONDS_A_DAY * -2440588)
_END_SECOND = float(_SECONDS_A_DAY * (109203528 - 2440588))


@kernel("to_timestamp(float8)")
def _of_seconds(seconds: float) -> int:
    if math.isnan(seconds):
        raise SqlError("datetime_field_overflow", "timestamp cannot be NaN")
    if math.isinf(seconds):
        return m.INFINITY if seconds > 0 else m.MINUS_INFINITY
    beyond = SqlError("datetime_field_overflow", f'timestamp out of range: "{seconds:g}"')
    if not _FIRST_SECOND <= seconds < _END_SECOND:
        raise beyond
    moment = round((seconds + _UNIX_DAYS * _SECONDS_A_DAY) * 1e6)
    if not m.TIMESTAMP_FIRST <= moment < m.TIMESTAMP_END:
        raise beyond
    return moment


def _version(uuid: UUID) -> int | None:
    """The version of a UUID; None for another variant than that of RFC 9562."""
    return uuid.bytes[6] >> 4 if uuid.bytes[8] & 0xC0 == 0x80 else None


@kernel("uuid_extract_version(uuid)")
def _version_of(text: str) -> int | None:
    return _version(UUID(text))


@kernel("uuid_extract_timestamp(uuid)")
def _moment_of(text: str) -> int | None:
    uuid = UUID(text)
    match _version(uuid):
        case 1:
            return uuid.time // 10 + _GREGORIAN_DAYS * m.DAY
        case 7:
            return int.from_bytes(uuid.bytes[:6]) * 1000 + _UNIX_DAYS * m.DAY
    return None


def _overlap(a: int | None, b: int | None, c: int | None, d: int | None) -> bool | None:
    """Whether the periods from a to b and from c to d overlap; an end may be unknown."""
    first = _period(a, b)
    second = _period(c, d)
    if first is None or second is None:
        return None
    earlier, later = sorted((first, second), key=lambda period: period[0])
    if earlier[0] == later[0]:
        return None if earlier[1] is None or later[1] is None else True
    if earlier[1] is None:
        return None
    if later[0] < earlier[1]:
        return True
    return None if later[1] is None else False


def _period(start: int | None, end: int | None) -> tuple[int, int | None] | None:
    """Its lesser end first, an unknown one last; None if both are unknown."""
    if start is None or end is None:
        known = end if start is None else start
        return None if known is None else (known, None)
    return min(start, end), max(start, end)


def _overlap_of_timestamps(
    a: int | None, b: int | Interval | None, c: int | None, d: int | Interval | None
) -> bool | None:
    """A period's second value is its other end, or how long it is."""
    return _overlap(a, _end(a, b), c, _end(c, d))


def _end(start: int | None, given: int | Interval | None) -> int | None:
    if not isinstance(given, Interval):
        return given
    return None if start is None else add_interval(start, given)


for _type in ("timestamptz", "time"):
    sited(f"overlaps({_type},{_type},{_type},{_type})", is_strict=False)(lambda site: _overlap)
for _first in ("timestamp", "interval"):
    for _second in ("timestamp", "interval"):
        sited(f"overlaps(timestamp,{_first},timestamp,{_second})", is_strict=False)(
            lambda site: _overlap_of_timestamps
        )
