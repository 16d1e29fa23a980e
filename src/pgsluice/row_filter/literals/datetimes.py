"""Turn dates and times in ISO forms into their canonical output.

PostgreSQL reads far more (``Jan 1 2024``, ``today``). That depends on DateStyle or on the time,
so only pgsluice refuses it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter.literals.bad_literals import BadLiteral, invalid, not_exact
from pgsluice.row_filter.values import datetimes as m
from pgsluice.types.binary_to_text.datetimes import (
    print_date,
    print_time,
    print_timestamp,
    print_timestamptz,
    print_timetz,
)

_DATE = r"(?:(\d{4,7})-(\d{1,2})-(\d{1,2})|(\d{4})(\d{2})(\d{2}))"
_TIME = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d+))?)?"
_ZONE = r"([zZ]|(?i:utc|gmt)|[+-]\d{1,2}(?::?\d{2}(?::\d{2})?)?|[+-]\d{3})"
_DAY = re.compile(rf"\s*{_DATE}( BC)?\s*", re.ASCII)
_STAMP = re.compile(rf"\s*{_DATE}(?:[ T]\s*{_TIME})?(?:\s*{_ZONE})?( BC)?\s*", re.ASCII)
_CLOCK = re.compile(rf"\s*{_TIME}(?:\s*{_ZONE})?\s*", re.ASCII)
_KNOWN = re.compile(
    r"now|today|tomorrow|yesterday|allballs|epoch|infinity|jan|feb|mar|apr|may|jun|jul|aug|sep"
    r"|oct|nov|dec|[0-9]",
    re.IGNORECASE,
)
_HINT = "Write it as an ISO 8601 constant, such as 2024-01-31 or 2024-01-31 12:00:00."
_STYLE = 'Perhaps you need a different "DateStyle" setting.'
_MAX_DISPLACEMENT_S = 16 * 3600 - 1


def _unread(name: str, text: str) -> Exception:
    if not _KNOWN.search(text):
        return invalid(name, text)
    return not_exact(
        f"a constant of type {name} in a form other than ISO 8601",
        "It may depend on DateStyle, the time zone or the moment at which it is read.",
        _HINT,
    )


def _read(form: re.Pattern[str], name: str, text: str) -> re.Match[str]:
    match = form.fullmatch(text)
    if match is None:
        raise _unread(name, text)
    return match


def _range(text: str, hint: str | None = None) -> Exception:
    return BadLiteral(f'date/time field value out of range: "{text}"', hint=hint)


def _day(match: re.Match[str], text: str) -> int:
    """Days since 2000-01-01."""
    year, month, day = (int(match[i] or match[i + 3]) for i in (1, 2, 3))
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        raise _range(text, _STYLE)
    number = m.day_number(1 - year if match[match.re.groups] else year, month, day)
    if year == 0 or m.civil(number)[1:] != (month, day):
        raise _range(text)
    return number


def _clock(match: re.Match[str], start: int, text: str) -> int:
    """Microseconds of the day: up to 24:00:00, with 60 as a number of seconds."""
    hour, minute, second = (int(match[start + place] or 0) for place in range(3))
    fraction = match[start + 3] or ""
    clock = hour * m.HOUR + minute * m.MINUTE + second * m.SECOND
    clock += round(float(f"0.{fraction or 0}") * m.SECOND)
    if minute > 59 or second > 60 or clock > m.DAY:
        raise _range(text)
    return clock


def _displacement(zone: str, text: str) -> int:
    """Seconds east of UTC."""
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    digits = digits.zfill(4) if len(digits) == 3 else digits
    hours, minutes, seconds = (int(digits[place : place + 2] or 0) for place in (0, 2, 4))
    east = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or east > _MAX_DISPLACEMENT_S:
        raise BadLiteral(f'time zone displacement out of range: "{text}"')
    return -east if zone[0] == "-" else east


def _fixed(text: str, epoch: str) -> str | None:
    word = text.strip().lower()
    if word == "epoch":
        return epoch
    return word if word in ("infinity", "-infinity") else None


def date(text: str) -> str:
    if fixed := _fixed(text, "1970-01-01"):
        return fixed
    day = _day(_read(_DAY, "date", text), text)
    if not m.FIRST_DAY <= day < m.DATE_END:
        raise BadLiteral(f'date out of range: "{text}"')
    return print_date(struct.pack(">i", day))


def timestamp(text: str) -> str:
    """A time zone is read and ignored, as PostgreSQL does."""
    if fixed := _fixed(text, "1970-01-01 00:00:00"):
        return fixed
    match = _read(_STAMP, "timestamp", text)
    return print_timestamp(struct.pack(">q", _moment(match, text, has_zone=False)))


def timestamptz(text: str) -> str:
    """The literal of a timestamptz, in UTC.

    Raises:
        BadLiteral: the text has no zone: its value would depend on the session's time zone.
    """
    if fixed := _fixed(text, "1970-01-01 00:00:00+00"):
        return fixed
    match = _read(_STAMP, "timestamp with time zone", text)
    if match[11] is None:
        raise not_exact(
            "a constant of type timestamp with time zone without a zone",
            "It depends on the session's time zone.",
            "Write the zone: '2024-01-31 12:00:00+00'.",
        )
    return print_timestamptz(struct.pack(">q", _moment(match, text, has_zone=True)))


def _moment(match: re.Match[str], text: str, *, has_zone: bool) -> int:
    day, clock = _day(match, text), _clock(match, 7, text) if match[7] else 0
    moment = day * m.DAY + clock
    if match[11]:
        moment -= _displacement(match[11], text) * m.SECOND * has_zone
    if not m.TIMESTAMP_FIRST <= moment < m.TIMESTAMP_END:
        raise BadLiteral(f'timestamp out of range: "{text}"')
    return moment


def time(text: str) -> str:
    match = _read(_CLOCK, "time", text)
    if match[5]:
        _displacement(match[5], text)
    return print_time(struct.pack(">q", _clock(match, 1, text)))


def timetz(text: str) -> str:
    match = _read(_CLOCK, "time with time zone", text)
    if match[5] is None:
        raise _unread("time with time zone", text)
    west = -_displacement(match[5], text)
    return print_timetz(struct.pack(">qi", _clock(match, 1, text), west))


READERS: dict[int, Callable[[str], str]] = {
    c.DATE: date, c.TIMESTAMP: timestamp, c.TIMESTAMPTZ: timestamptz, c.TIME: time,
    c.TIMETZ: timetz,
}  # fmt: skip
