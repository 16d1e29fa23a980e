"""date, time, timestamp and interval under datestyle = ISO, intervalstyle = postgres and
timezone = UTC, which the replication session sets.

Source: src/backend/utils/adt/datetime.c (``EncodeDateTime``, ``EncodeInterval``), date.c,
timestamp.c.
"""

from __future__ import annotations

from pgsluice.types.binary_to_text.cursor import Misshapen, fields
from pgsluice.types.calendar import civil_from_days

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10957  # 2000-01-01, counted from 1970-01-01
_INT4, _INT8 = 2**31, 2**63


def print_date(value: bytes) -> str:
    """Text of a value, as PostgreSQL's date_out prints it, from its binary form."""
    (days,) = fields(value, 4)
    infinite = _infinite(days, _INT4)
    if infinite:
        return infinite
    day, era = _print_day(days)
    return day + era


def print_time(value: bytes) -> str:
    """Text of a time, as PostgreSQL's time_out prints it; 24:00:00 is one."""
    return _print_clock(fields(value, 8)[0])


def print_timetz(value: bytes) -> str:
    """timetz_out; the binary form has the offset as seconds west of UTC."""
    clock_us, west_s = fields(value, 8, 4)
    return _print_clock(clock_us) + _print_offset(-west_s)


def print_timestamp(value: bytes) -> str:
    """Text of a value, as PostgreSQL's timestamp_out prints it, from its binary form."""
    return _print_timestamp(value, "")


def print_timestamptz(value: bytes) -> str:
    """Text of a value, as PostgreSQL's timestamptz_out prints it, from its binary form."""
    return _print_timestamp(value, "+00")


def _print_timestamp(value: bytes, zone: str) -> str:
    (micros,) = fields(value, 8)
    infinite = _infinite(micros, _INT8)
    if infinite:
        return infinite
    days, clock_us = divmod(micros, _DAY_US)
    day, era = _print_day(days)
    return f"{day} {_print_clock(clock_us)}{zone}{era}"


def _infinite(number: int, limit: int) -> str:
    if number == limit - 1:
        return "infinity"
    return "-infinity" if number == -limit else ""


def _print_day(days: int) -> tuple[str, str]:
    """The text of a day that is counted from 2000-01-01, and its era."""
    year, month, day = civil_from_days(days + _EPOCH_DAYS)
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}", era


def _print_clock(clock_us: int) -> str:
    if not 0 <= clock_us <= _DAY_US:
        raise Misshapen
    return _print_hours(clock_us)


def _print_hours(micros: int) -> str:
    """``HH:MM:SS[.ffffff]`` of a span that is not negative; there can be more than 24 hours."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + f".{fraction:06}".rstrip("0") if fraction else text


def _print_offset(east_s: int) -> str:
    """``+HH[:MM[:SS]]``."""
    seconds = abs(east_s)
    text = f"{'-' if east_s < 0 else '+'}{seconds // 3600:02}"
    if seconds % 3600:
        text += f":{seconds // 60 % 60:02}"
    if seconds % 60:
        text += f":{seconds % 60:02}"
    return text


def print_interval(value: bytes) -> str:
    """Text of an interval, as PostgreSQL's interval_out prints it.

    A positive field after a negative field has a plus sign.
    """
    micros, days, months = fields(value, 8, 4, 4)
    if (micros, days, months) == (_INT8 - 1, _INT4 - 1, _INT4 - 1):
        return "infinity"  # PostgreSQL 17 and later
    if (micros, days, months) == (-_INT8, -_INT4, -_INT4):
        return "-infinity"
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    parts = []
    is_before_negative = False
    for number, unit in ((years, "year"), (months - years * 12, "mon"), (days, "day")):
        if number:
            plus = "+" if is_before_negative and number > 0 else ""
            parts.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            is_before_negative = number < 0
    if micros or not parts:
        sign = "-" if micros < 0 else "+" if is_before_negative else ""
        parts.append(sign + _print_hours(abs(micros)))
    return " ".join(parts)
