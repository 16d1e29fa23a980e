"""date_trunc, extract and date_part of timestamps, dates, times and intervals.

The unit has to be a constant. extract gives numeric, date_part the same value as float8.
Source: src/backend/utils/adt/timestamp.c (``timestamp_trunc``, ``timestamp_part_common``),
date.c (``extract_date``, ``time_part_common``).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from decimal import Decimal
from typing import Final

from pgsluice.row_filter.kernels.kernel import KERNELS, Compute, Refused, Site, sited
from pgsluice.row_filter.kernels.numerics import division_scale, quotient
from pgsluice.row_filter.kernels.times.datetimes import (
    is_finite,
    is_finite_date,
    is_forever,
    midnight,
    valid_timestamp,
)
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.datetimes import Interval
from pgsluice.row_filter.values.numbers import EXACT, with_scale

#: Units without an upper bound; the others are NULL for an infinite value.
_MONOTONIC: Final = frozenset(
    {"year", "decade", "century", "millennium", "julian", "isoyear", "epoch"}
)
_DATE_UNITS: Final = frozenset({"day", "month", "quarter", "week", "dow", "isodow", "doy"})
_CLOCK_UNITS: Final = frozenset({"microseconds", "milliseconds", "second", "minute", "hour"})
_ALIASES: Final = {
    "usec": "microseconds", "microsecond": "microseconds", "msec": "milliseconds",
    "millisecond": "milliseconds", "seconds": "second", "minutes": "minute", "hours": "hour",
    "days": "day", "weeks": "week", "months": "month", "years": "year", "decades": "decade",
    "centuries": "century", "millennia": "millennium",
}  # fmt: skip
_UNIX_EPOCH: Final = -m.EPOCH_DAYS * m.DAY
_FAR: Final = 2**63 - 1 + _UNIX_EPOCH
"""From this value on, microseconds since 1970 exceed 64 bits."""

_JULIAN_2000: Final = 2451545
_INFINITE: Final = {True: Decimal("Infinity"), False: Decimal("-Infinity")}
Part = Decimal | int | None


def _unit(site: Site, known: Set[str]) -> str:
    given = site.constants[0]
    unit = given.lower() if isinstance(given, str) else ""
    unit = _ALIASES.get(unit, unit)
    if unit not in known:
        raise Refused("the unit is not one that can be computed, or no constant")
    return unit


def _iso_weekday(day: int) -> int:
    """The day of the week, Monday is 1; 2000-01-01 was a Saturday."""
    return (day + 5) % 7 + 1


def _iso_week(day: int) -> tuple[int, int]:
    """The ISO year (astronomical) and week: those of the week's Thursday."""
    thursday = day - _iso_weekday(day) + 4
    year = m.civil(thursday)[0]
    return year, (thursday - m.day_number(year, 1, 1)) // 7 + 1


#: The units of several years, and how many.
_SPANS: Final = {"decade": 10, "century": 100, "millennium": 1000}


def _span(year: int, length: int) -> int:
    """The number of a century or millennium; there is none with the number 0."""
    return (year + length - 1) // length if year > 0 else -((length - year) // length)


def _truncate_year(unit: str, year: int) -> int:
    """The first year of a unit."""
    if unit == "year":
        return year
    length = _SPANS[unit]
    if unit == "decade":
        return year // length * length
    number = _span(year, length) * length
    return number - length + 1 if year > 0 else number + 1


_TRUNCATED_CLOCK: Final = {
    "microseconds": 1,
    "milliseconds": 1000,
    "second": m.SECOND,
    "minute": m.MINUTE,
    "hour": m.HOUR,
    "day": m.DAY,
}
_TRUNCATED: Final = {*_TRUNCATED_CLOCK, "week", "month", "quarter", "year", *_SPANS}


@sited("date_trunc(text,timestamp)")
def _date_trunc(site: Site) -> Compute:
    unit = _unit(site, _TRUNCATED)

    def run(_: str, moment: int) -> int:
        return valid_timestamp(_truncate(unit, moment)) if is_finite(moment) else moment

    return run


def _truncate(unit: str, moment: int) -> int:
    length = _TRUNCATED_CLOCK.get(unit)
    if length is not None:
        return moment // length * length
    day = moment // m.DAY
    if unit == "week":
        return (day - _iso_weekday(day) + 1) * m.DAY
    year, month, _ = m.civil(day)
    if unit in ("month", "quarter"):
        first = month if unit == "month" else (month - 1) // 3 * 3 + 1
        return m.day_number(year, first, 1) * m.DAY
    return m.day_number(_truncate_year(unit, year), 1, 1) * m.DAY


def _of_day(unit: str, day: int) -> int:
    """A unit's value of a date."""
    year, month, day_of_month = m.civil(day)
    match unit:
        case "day":
            return day_of_month
        case "month":
            return month
        case "quarter":
            return (month - 1) // 3 + 1
        case "week":
            return _iso_week(day)[1]
        case "dow":
            return _iso_weekday(day) % 7
        case "isodow":
            return _iso_weekday(day)
        case "doy":
            return day - m.day_number(year, 1, 1) + 1
        case "decade":
            return year // 10
        case "century" | "millennium":
            return _span(year, _SPANS[unit])
        case "julian":
            return day + _JULIAN_2000
    if unit == "isoyear":
        year = _iso_week(day)[0]
    return year if year > 0 else year - 1


def _of_clock(unit: str, clock: int) -> Part:
    """A unit's value of the microseconds of a day; negative ones count backwards."""
    sign, clock = (-1, -clock) if clock < 0 else (1, clock)
    match unit:
        case "epoch":
            return _scaled(sign * clock, 6)
        case "microseconds":
            return sign * (clock % m.MINUTE)
        case "milliseconds":
            return _scaled(sign * (clock % m.MINUTE), 3)
        case "second":
            return _scaled(sign * (clock % m.MINUTE), 6)
        case "minute":
            return sign * (clock // m.MINUTE % 60)
    return sign * (clock // m.HOUR)


def _scaled(number: int, scale: int) -> Decimal:
    return Decimal(number).scaleb(-scale, EXACT)


def _of_timestamp(unit: str, moment: int) -> Part:
    if not is_finite(moment):
        return _INFINITE[moment > 0] if unit in _MONOTONIC else None
    day, clock = divmod(moment, m.DAY)
    if unit in _CLOCK_UNITS:
        return _of_clock(unit, clock)
    if unit == "epoch":
        return _seconds_since_1970(moment)
    if unit == "julian":
        of_day = Decimal(clock), Decimal(m.DAY)
        return EXACT.add(Decimal(day + _JULIAN_2000), quotient(*of_day, division_scale(*of_day)))
    return _of_day(unit, day)


def _seconds_since_1970(moment: int) -> Decimal:
    if moment < _FAR:
        return _scaled(moment - _UNIX_EPOCH, 6)
    # Beyond 64 bits the server divides as numeric does, and loses digits.
    of_second = Decimal(moment - _UNIX_EPOCH), Decimal(m.SECOND)
    return with_scale(quotient(*of_second, division_scale(*of_second)), 6)


def _of_date(unit: str, day: int) -> Part:
    if not is_finite_date(day):
        return _INFINITE[day > 0] if unit in _MONOTONIC else None
    if unit == "epoch":
        return (day + m.EPOCH_DAYS) * 86400
    return _of_day(unit, day)


def _toward_zero(number: int, divisor: int) -> tuple[int, int]:
    whole, rest = divmod(abs(number), divisor)
    return (whole, rest) if number >= 0 else (-whole, -rest)


_INTERVAL_YEARS: Final = {"year": 1, **_SPANS}


def _of_interval(unit: str, interval: Interval) -> Part:
    if is_forever(interval):
        is_endless = unit in ("hour", "day", "week", "epoch", *_INTERVAL_YEARS)
        return _INFINITE[interval == m.FOREVER] if is_endless else None
    years, months = _toward_zero(interval.months, 12)
    if unit in _CLOCK_UNITS:
        return _of_clock(unit, interval.microseconds)
    if unit in _INTERVAL_YEARS:
        return _toward_zero(years, _INTERVAL_YEARS[unit])[0]
    match unit:
        case "day":
            return interval.days
        case "month":
            return months
    # A year has 365.25 days, so the unit is a quarter of a day.
    quarters = 1461 * years + 120 * months + 4 * interval.days
    return _scaled(quarters * 21600 * m.SECOND + interval.microseconds, 6)


_MOMENT_UNITS: Final = _DATE_UNITS | _MONOTONIC
_INTERVAL_UNITS: Final = _CLOCK_UNITS | set(_INTERVAL_YEARS) | {"day", "month", "epoch"}
_READERS: Final[dict[str, tuple[Callable[..., Part], frozenset[str]]]] = {
    "timestamp": (_of_timestamp, _MOMENT_UNITS | _CLOCK_UNITS),
    "date": (_of_date, _MOMENT_UNITS),
    "time": (_of_clock, _CLOCK_UNITS | {"epoch"}),
    "interval": (_of_interval, _INTERVAL_UNITS),
}


def _extracting(type_name: str) -> Callable[[Site], Compute]:
    read, units = _READERS[type_name]

    def make(site: Site) -> Compute:
        unit = _unit(site, units)

        def run(_: str, value: object) -> Decimal | None:
            part = read(unit, value)
            return None if part is None else Decimal(part)

        return run

    return make


def _as_float(type_name: str) -> Callable[[Site], Compute]:
    """date_part, where float8 arithmetic gives the nearest double anyway."""
    read, units = _READERS[type_name]
    exact = units - {"julian"} if type_name != "interval" else units - {"epoch"}

    def make(site: Site) -> Compute:
        unit = _unit(site, exact)

        def run(_: str, value: object) -> float | None:
            if unit == "epoch" and isinstance(value, int) and _FAR <= value < m.INFINITY:
                return (float(value) - _UNIX_EPOCH) / 1e6
            part = read(unit, value)
            if part is None or not isinstance(part, Decimal) or not part.is_finite():
                return None if part is None else float(part)
            return _divided(unit, part)

        return run

    return make


def _divided(unit: str, part: Decimal) -> float:
    """The server divides doubles, so its last digit may differ from the exact quotient's."""
    microseconds = int(part.scaleb(6, EXACT))
    if unit == "epoch":
        return microseconds / 1e6
    sign = -1 if microseconds < 0 else 1
    if unit == "second":
        seconds, rest = divmod(abs(microseconds), m.SECOND)
        return sign * (seconds + rest / 1e6)
    seconds, rest = divmod(abs(microseconds) // 1000, m.SECOND)
    return sign * (seconds * 1e3 + rest / 1e3)


for _type in _READERS:
    sited(f"extract(text,{_type})")(_extracting(_type))
    if _type != "date":
        sited(f"date_part(text,{_type})")(_as_float(_type))


@sited("date_part(text,date)")
def _date_as_timestamp(site: Site) -> Compute:
    part = KERNELS["date_part(text,timestamp)"].make(site)
    return lambda unit, day: part(unit, midnight(day))
