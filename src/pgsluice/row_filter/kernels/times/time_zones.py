"""AT TIME ZONE: a moment's local time in a zone, and the moment of a local time.

A zone has to be a constant: a full name such as Europe/Berlin, a name of UTC, or an interval. The
rules of the zones are this machine's time zone data; a server with older data may know another
rule for a zone that has changed its clocks since.
Source: src/backend/utils/adt/timestamp.c (timestamptz_zone, timestamp_zone), datetime.c
(DetermineTimeZoneOffset).
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Final

from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, register, sited
from pgsluice.row_filter.kernels.times.datetimes import is_finite, is_forever, valid_timestamp
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.datetimes import Interval

_UTC_NAMES: Final = frozenset({"utc", "gmt", "z", "zulu", "uct"})
_EPOCH: Final = datetime(2000, 1, 1)
#: The calendar and the rules of zones repeat after so many days; Python counts years up to 9999.
_CYCLE: Final = 146_097 * m.DAY
_FIRST: Final = m.day_number(2, 1, 1) * m.DAY
_LAST: Final = m.day_number(9990, 1, 1) * m.DAY


@cache
def _names() -> dict[str, str]:
    """The zones' names by their lower case; PostgreSQL does not distinguish it."""
    return {
        name.lower(): name
        for name in zoneinfo.available_timezones()
        if "/" in name and not name.startswith(("posix/", "right/"))
    }


def zone_of(site: Site) -> zoneinfo.ZoneInfo | None:
    """The constant zone of a call, None for UTC; raises Refused."""
    name = site.constants[0]
    if isinstance(name, str) and name.lower() in _UTC_NAMES:
        return None
    key = _names().get(name.lower()) if isinstance(name, str) else None
    if key is None:
        raise Refused(
            "this time zone is not a constant that is known here",
            "write a zone's full name, such as 'Europe/Berlin', or 'UTC'",
        )
    return zoneinfo.ZoneInfo(key)


def _python_time(moment: int) -> datetime:
    """A moment, or one with the same rules in a year that Python has."""
    if moment < _FIRST:
        moment = _FIRST
    elif moment > _LAST:
        moment -= -(-(moment - _LAST) // _CYCLE) * _CYCLE
    return _EPOCH + timedelta(microseconds=moment)


def _microseconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(microseconds=1)


def east_of_utc(zone: zoneinfo.ZoneInfo, moment: int) -> int:
    """The microseconds that a zone's clock is ahead of UTC at a moment."""
    local = _python_time(moment).replace(tzinfo=UTC).astimezone(zone)
    return _microseconds(local.utcoffset())


def _east_of_local(zone: zoneinfo.ZoneInfo, local: int) -> int:
    """The same for a local time.

    A time that the clock skips counts as before the change, one that it shows twice as after it.
    """
    time = _python_time(local).replace(tzinfo=zone)
    before = _microseconds(time.utcoffset())
    after = _microseconds(time.replace(fold=1).utcoffset())
    return before if after > before else after


@lru_cache(maxsize=65536)
def east_on_day(zone: zoneinfo.ZoneInfo, day: int) -> int | None:
    """The microseconds ahead of UTC on a day of UTC; None if they change in it."""
    hours = {east_of_utc(zone, day * m.DAY + hour * m.HOUR) for hour in range(25)}
    return hours.pop() if len(hours) == 1 else None


def _shifted(by: Callable[[int], int]) -> Callable[[int], int]:
    def run(moment: int) -> int:
        return valid_timestamp(moment + by(moment)) if is_finite(moment) else moment

    return run


@sited("timezone(text,timestamptz)")
def _to_local(site: Site) -> Compute:
    zone = zone_of(site)
    shift = _shifted(lambda moment: 0 if zone is None else east_of_utc(zone, moment))
    return lambda _, moment: shift(moment)


@sited("timezone(text,timestamp)")
def _from_local(site: Site) -> Compute:
    zone = zone_of(site)
    shift = _shifted(lambda local: 0 if zone is None else -_east_of_local(zone, local))
    return lambda _, local: shift(local)


def _east(zone: Interval) -> int:
    if is_forever(zone):
        raise SqlError("invalid_parameter_value", 'interval time zone "…" must be finite')
    if zone.months or zone.days:
        message = 'interval time zone "…" must not include months or days'
        raise SqlError("invalid_parameter_value", message)
    seconds = abs(zone.microseconds) // m.SECOND
    return seconds if zone.microseconds > 0 else -seconds


def _as_c_int(number: int) -> int:
    """Truncate a number to a C int, in which the server stores a zone's seconds."""
    return (number + 2**31) % 2**32 - 2**31


def _by_interval(direction: int) -> Callable[[Interval, int], int]:
    def run(zone: Interval, moment: int) -> int:
        east = _east(zone) if is_finite(moment) else 0
        return _shifted(lambda _: -_as_c_int(-direction * east) * m.SECOND)(moment)

    return run


register("timezone(interval,timestamptz)", _by_interval(1))
register("timezone(interval,timestamp)", _by_interval(-1))
