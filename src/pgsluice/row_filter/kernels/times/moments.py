"""Moments from other types, and periods that overlap.

Source: src/backend/utils/adt/timestamp.c, uuid.c.
"""

from __future__ import annotations

import math
from uuid import UUID

from pgsluice.row_filter.kernels.kernel import kernel, sited
from pgsluice.row_filter.kernels.times.datetimes import add_interval
from pgsluice.row_filter.values import SqlError
from pgsluice.row_filter.values import datetimes as m

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
    a: int | None, b: int | m.Interval | None, c: int | None, d: int | m.Interval | None
) -> bool | None:
    """A period's second value is its other end, or how long it is."""
    return _overlap(a, _end(a, b), c, _end(c, d))


def _end(start: int | None, given: int | m.Interval | None) -> int | None:
    if not isinstance(given, m.Interval):
        return given
    return None if start is None else add_interval(start, given)


for _type in ("timestamptz", "time"):
    sited(f"overlaps({_type},{_type},{_type},{_type})", is_strict=False)(lambda site: _overlap)
for _first in ("timestamp", "interval"):
    for _second in ("timestamp", "interval"):
        sited(f"overlaps(timestamp,{_first},timestamp,{_second})", is_strict=False)(
            lambda site: _overlap_of_timestamps
        )
