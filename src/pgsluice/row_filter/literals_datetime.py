"""Turn dates, times and intervals in ISO forms into their canonical output.

PostgreSQL reads far more (``Jan 1 2024``, ``today``). That depends on DateStyle or on the time,
so only pgsluice refuses it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter.bad_literals import BadLiteral, invalid, not_exact

_DATE = r"(?:(\d{4,7})-(\d{1,2})-(\d{1,2})|(\d{4})(\d{2})(\d{2}))"
_TIME = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?"
_ZONE = r"(z|Z|[+-]\d{1,2}(?::?\d{2})?)"
_DAY = re.compile(rf"\s*{_DATE}( BC)?\s*", re.ASCII)
_STAMP = re.compile(rf"\s*{_DATE}(?:[ T]\s*{_TIME}\s*{_ZONE}?)?( BC)?\s*", re.ASCII)
_CLOCK = re.compile(rf"\s*{_TIME}\s*{_ZONE}?\s*", re.ASCII)
_WORDS = re.compile(r"\s*[A-Za-z ]*\s*")
_KNOWN = re.compile(
    r"now|today|tomorrow|yesterday|allballs|epoch|infinity|jan|feb|mar|apr|may|jun|jul|aug|sep"
    r"|oct|nov|dec|[0-9]",
    re.IGNORECASE,
)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_HINT = "Write it as an ISO 8601 constant, such as 2024-01-31 or 2024-01-31 12:00:00."
_STYLE = 'Perhaps you need a different "DateStyle" setting.'


def _unread(name: str, text: str) -> Exception:
    if not _KNOWN.search(text):
        return invalid(name, text)
    return not_exact(
        f"a constant of type {name} in a form other than ISO 8601",
        "It may depend on DateStyle, the time zone or the moment at which it is read.",
        _HINT,
    )


def _range(text: str, hint: str | None = None) -> Exception:
    return BadLiteral(f'date/time field value out of range: "{text}"', hint=hint)


def _calendar(match: re.Match[str], text: str) -> tuple[int, int, int]:
    year, month, day = (int(match[i] or match[i + 3]) for i in (1, 2, 3))
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        raise _range(text, _STYLE)
    is_bc = match[match.re.groups] is not None
    gregorian = 1 - year if is_bc else year
    leap = gregorian % 4 == 0 and (gregorian % 100 != 0 or gregorian % 400 == 0)
    if year == 0 or day > _DAYS[month - 1] + (month == 2 and leap):
        raise _range(text)
    return year, month, day


def _clock(match: re.Match[str], start: int, text: str) -> str:
    hour, minute = int(match[start]), int(match[start + 1])
    second, fraction = int(match[start + 2] or 0), (match[start + 3] or "").rstrip("0")
    if second == 60 and minute <= 59 and hour <= 23:
        raise _unread("time of a leap second", text)
    is_end = hour == 24 and minute == second == 0 and not fraction
    if (hour > 23 and not is_end) or minute > 59 or second > 59:
        raise _range(text)
    return f"{hour:02d}:{minute:02d}:{second:02d}" + (f".{fraction}" if fraction else "")


def _check_span(
    name: str, text: str, year: int, month: int, day: int, is_bc: str | None, last: int
) -> None:
    """Check the range: from Julian day 0, 4714-11-24 BC, to the type's last year."""
    too_early = is_bc is not None and (-year, month, day) < (-4714, 11, 24)
    if too_early or (is_bc is None and year > last):
        raise BadLiteral(f'{name} out of range: "{text}"')


def _fixed(text: str) -> str | None:
    word = text.strip().lower()
    return word if word in ("infinity", "-infinity") else None


def date(text: str) -> str:
    if fixed := _fixed(text):
        return fixed
    if text.strip().lower() == "epoch":
        return "1970-01-01"
    match = _DAY.fullmatch(text)
    if match is None:
        raise _unread("date", text)
    year, month, day = _calendar(match, text)
    _check_span("date", text, year, month, day, match[7], 5874897)
    return f"{year:04d}-{month:02d}-{day:02d}" + (match[7] or "")


def timestamp(text: str) -> str:
    """A time zone is read and ignored, as PostgreSQL does."""
    if fixed := _fixed(text):
        return fixed
    if text.strip().lower() == "epoch":
        return "1970-01-01 00:00:00"
    match = _STAMP.fullmatch(text)
    if match is None:
        raise _unread("timestamp", text)
    year, month, day = _calendar(match, text)
    clock = _clock(match, 7, text) if match[7] else "00:00:00"
    if clock.startswith("24"):
        raise _unread("timestamp", text)
    _check_span("timestamp", text, year, month, day, match[12], 294276)
    return f"{year:04d}-{month:02d}-{day:02d} {clock}" + (match[12] or "")


def timestamptz(text: str) -> str:
    """In UTC; without a zone it would depend on the session's."""
    if fixed := _fixed(text):
        return fixed
    if text.strip().lower() == "epoch":
        return "1970-01-01 00:00:00+00"
    match = _STAMP.fullmatch(text)
    if match is None or match[12]:
        raise _unread("timestamp with time zone", text)
    year, month, day = _calendar(match, text)
    if match[7] is None or match[11] is None or year > 9999:
        raise not_exact(
            "a constant of type timestamp with time zone without a zone",
            "It depends on the session's time zone.",
            "Write the zone: '2024-01-31 12:00:00+00'.",
        )
    clock = _clock(match, 7, text)
    hour, minute, second = (int(part) for part in clock[:8].split(":"))
    moment = datetime.datetime(year, month, day) + datetime.timedelta(
        hours=hour, minutes=minute, seconds=second
    )
    moment -= _offset(match[11])
    return f"{moment:%Y-%m-%d %H:%M:%S}".zfill(19) + clock[8:] + "+00"


def _offset(zone: str) -> datetime.timedelta:
    if zone in "zZ":
        return datetime.timedelta(0)
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if len(digits) == 3:
        hours, minutes = int(digits[:1]), int(digits[1:])
    offset = datetime.timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset


def time(text: str) -> str:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise _unread("time", text)
    return _clock(match, 1, text)


def timetz(text: str) -> str:
    match = _CLOCK.fullmatch(text)
    if match is None or match[5] is None:
        raise _unread("time with time zone", text)
    zone = match[5]
    if zone in "zZ":
        return _clock(match, 1, text) + "+00"
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:2], digits[2:]) if len(digits) != 3 else (digits[:1], digits[1:])
    shown = f"{zone[0]}{int(hours):02d}" + (f":{minutes}" if int(minutes or 0) else "")
    if shown == "-00":
        shown = "+00"
    return _clock(match, 1, text) + shown


READERS: dict[int, Callable[[str], str]] = {
    c.DATE: date, c.TIMESTAMP: timestamp, c.TIMESTAMPTZ: timestamptz, c.TIME: time,
    c.TIMETZ: timetz,
}  # fmt: skip

_UNITS = {
    "year": (12, 0, 0), "mon": (1, 0, 0), "month": (1, 0, 0), "week": (0, 7, 0), "day": (0, 1, 0),
    "hour": (0, 0, 3_600_000_000), "hr": (0, 0, 3_600_000_000), "min": (0, 0, 60_000_000),
    "minute": (0, 0, 60_000_000), "sec": (0, 0, 1_000_000), "second": (0, 0, 1_000_000),
    "decade": (120, 0, 0), "century": (1200, 0, 0),
}  # fmt: skip
_SAME_UNITS = {"mon": "month", "hr": "hour", "min": "minute", "sec": "second"}
_CLOCK_UNITS = frozenset(("hour", "minute", "second"))
_PART = re.compile(
    r"\s*(?:([+-]?)(\d+):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?|([+-]?\d+)\s*([A-Za-z]+))", re.ASCII
)


def interval(text: str, typmod: int) -> str:
    """``1 year 2 days 03:04:05``: whole numbers of units, and a time."""
    if fixed := _fixed(text):
        return fixed
    months = days = micros = 0
    index = 0
    seen: set[str] = set()
    stripped = text.rstrip()
    while index < len(stripped):
        match = _PART.match(stripped, index)
        if match is None or typmod >= 0:
            raise _odd_interval(text)
        index = match.end()
        if match[6] is None:
            hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4] or 0)
            if minutes > 59 or seconds > 59:
                raise _odd_interval(text)
            if seen & _CLOCK_UNITS:
                raise invalid("interval", text)
            seen |= _CLOCK_UNITS
            whole = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
            whole += int((match[5] or "").ljust(6, "0"))
            micros += -whole if match[1] == "-" else whole
            continue
        word = match[7].lower()
        name = word if word in _UNITS else word.removesuffix("s")
        unit = _UNITS.get(name)
        if unit is None:
            raise _odd_interval(text)
        name = _SAME_UNITS.get(name, name)
        if name in seen:
            raise invalid("interval", text)
        seen.add(name)
        count = int(match[6])
        months, days, micros = (
            months + count * unit[0], days + count * unit[1], micros + count * unit[2],
        )  # fmt: skip
    if not stripped:
        raise _odd_interval(text)
    return _interval_text(months, days, micros)


def _odd_interval(text: str) -> Exception:
    if not re.search(r"[0-9]", text):
        return invalid("interval", text)
    return not_exact(
        "a constant of type interval in a form of its own",
        "pgsluice reads whole numbers of units and hh:mm:ss.",
        "Write it like '1 year 2 days 03:04:05'.",
    )


def _interval_text(months: int, days: int, micros: int) -> str:
    """intervalstyle postgres: after a negative field, a positive one has a plus sign."""
    years, rest = int(months / 12), months - int(months / 12) * 12
    parts: list[str] = []
    was_negative = False
    for value, word in ((years, "year"), (rest, "mon"), (days, "day")):
        if value:
            sign = "+" if was_negative and value > 0 else ""
            parts.append(f"{sign}{value} {word}" + ("s" if value != 1 else ""))
            was_negative = value < 0
    if micros or not parts:
        sign = "-" if micros < 0 else ("+" if was_negative else "")
        seconds, fraction = divmod(abs(micros), 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        parts.append(sign + clock + tail)
    return " ".join(parts)
