"""Dates and timestamps on whole columns: parts, truncation, time zones.

Arrow and PostgreSQL have the same calendar from year 1 on; columns with earlier years, or years of
five digits, are computed one value at a time.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import Refused, Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute as Compute
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn
from pgsluice.row_filter.kernels.times.time_zones import east_of_utc, east_on_day, zone_of
from pgsluice.row_filter.values import datetimes as m

Part: TypeAlias = Callable[[Any], Any]

_DATE_PARTS: Final[dict[str, Part]] = {
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "quarter": pc.quarter,
    "doy": pc.day_of_year,
    "week": pc.iso_week,
    "isoyear": pc.iso_year,
    "dow": lambda column: pc.day_of_week(column, count_from_zero=True, week_start=7),
    "isodow": lambda column: pc.day_of_week(column, count_from_zero=False, week_start=1),
}
_PARTS: Final[dict[str, Part]] = {**_DATE_PARTS, "hour": pc.hour, "minute": pc.minute}
_TRUNCATED: Final = ("minute", "hour", "day", "week", "month", "quarter", "year")
_FIRST: Final = -719_162  # 0001-01-01, in days since 1970
_LAST: Final = 2_932_896  # 9999-12-31
_FARTHEST: Final = 1_000 * 365 * m.DAY
"""So far from a usual year, in microseconds, there is still a timestamp of PostgreSQL's."""
_US: Final = pa.timestamp("us")
_EPOCH_US: Final = m.EPOCH_DAYS * m.DAY


def _usual(column: Datum) -> Datum:
    """A column whose years have four digits; raises NoColumn."""
    if isinstance(column, pa.Scalar):
        raise NoColumn
    days = column if pa.types.is_date32(column.type) else column.cast(_US).cast(pa.date32())
    first, last = pc.min_max(days.cast(pa.int32())).values()
    if first.is_valid and not _FIRST < first.as_py() <= last.as_py() < _LAST:
        raise NoColumn
    return column


def _part(site: Site, result: pa.DataType) -> Compute | None:
    part = _PARTS.get(_unit(site))
    if part is None:
        return None
    return lambda _, column: part(_usual(column)).cast(pa.int64()).cast(result)


def _unit(site: Site) -> str:
    unit = site.constants[0]
    return unit.lower() if isinstance(unit, str) else ""


def _truncated(site: Site) -> Compute | None:
    unit = _unit(site)
    if unit not in _TRUNCATED:
        return None
    return lambda _, column: pc.floor_temporal(_usual(column), unit=unit)


def _day(column: Datum) -> Datum:
    return pc.floor_temporal(_usual(column), unit="day").cast(pa.date32())


def _to_local(site: Site) -> Compute | None:
    try:
        zone = zone_of(site)
    except Refused:
        return None

    def run(_: Datum, column: Datum) -> Datum:
        moments = _usual(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        if zone is None:
            return moments.cast(_US)
        values = moments.fill_null(0).to_numpy()
        days, places = np.unique(values // m.DAY, return_inverse=True)
        easts = [east_on_day(zone, day - m.EPOCH_DAYS) for day in days.tolist()]
        shifts = np.array([0 if east is None else east for east in easts], np.int64)[places]
        for row in np.flatnonzero(np.array([east is None for east in easts])[places]):
            shifts[row] = east_of_utc(zone, int(values[row]) - _EPOCH_US)
        shift = pa.Array.from_buffers(pa.int64(), len(shifts), [None, pa.py_buffer(shifts)])
        return pc.add_checked(moments, shift).cast(_US)

    return run


def _shifted(sign: int, site: Site) -> Compute | None:
    """A timestamp and a constant interval that has no months."""
    interval = site.constants[1]
    if not isinstance(interval, m.Interval) or interval.months:
        return None
    microseconds = sign * (interval.days * m.DAY + interval.microseconds)
    if abs(microseconds) > _FARTHEST:
        return None

    def run(column: Datum, _: Datum) -> Datum:
        return pc.add_checked(_usual(column).cast(_US).cast(pa.int64()), microseconds).cast(_US)

    return run


MAKERS: Final[dict[str, Callable[[Site], Compute | None]]] = {
    **{f"extract(text,{name})": lambda site: _part(site, pa.decimal128(19, 0))
       for name in ("date", "timestamp")},
    "date_part(text,timestamp)": lambda site: _part(site, pa.float64()),
    "date_trunc(text,timestamp)": _truncated,
    "date(timestamp)": lambda site: _day,
    "timezone(text,timestamptz)": _to_local,
    "timestamp_pl_interval(timestamp,interval)": partial(_shifted, 1),
    "timestamp_mi_interval(timestamp,interval)": partial(_shifted, -1),
}  # fmt: skip
"""For functions of times, what makes the computation of a call; None: rows only."""
