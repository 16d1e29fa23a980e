"""Constants of type interval, in all the forms that do not depend on settings.

Source: src/backend/utils/adt/datetime.c (DecodeInterval, DecodeISO8601Interval, deltatktbl).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Final

from pgsluice.row_filter.values.datetimes import DAY, HOUR, MINUTE, SECOND
from pgsluice.row_filter.values.value_type import invalid, not_exact
from pgsluice.sql import SqlRefused
from pgsluice.types.binary_to_text.datetimes import print_interval

_INT4: Final = range(-(2**31), 2**31)
_INT8: Final = range(-(2**63), 2**63)
_NAMES: Final = {
    "microsecond": "us usec usecs microsecon",
    "millisecond": "ms msec msecs msecond mseconds millisecon",
    "second": "s sec secs second seconds",
    "minute": "m min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "d day days",
    "week": "w week weeks",
    "month": "mon mons month months",
    "year": "y yr yrs year years",
    "decade": "dec decs decade decades",
    "century": "c cent century centuries",
    "millennium": "mil mils millennium millennia",
}
_UNITS: Final = {word: unit for unit, words in _NAMES.items() for word in words.split()}
_LETTERS_READ: Final = 10
_MICROSECONDS: Final = {
    "microsecond": 1, "millisecond": 1000, "second": SECOND, "minute": MINUTE,
    "hour": HOUR,
}  # fmt: skip
#: Units that seconds with a fraction exclude, too.
_SECONDS: Final = {"second", "millisecond", "microsecond"}
_YEARS: Final = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}
_ISO_UNITS: Final = ({"Y": "year", "M": "month", "W": "week", "D": "day"},
                     {"H": "hour", "M": "minute", "S": "second"})  # fmt: skip
_NUMBER: Final = r"([+-]?)(\d+)(?:\.(\d*))?"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<clock>([+-]?)(\d+):(\d\d?)(?::(\d\d?)(?:\.(\d*))?)?)(?![\d:.])"
    r"|(?P<months>([+-]?)(\d+)-(\d+)(?![\w.]))"
    rf"|(?P<number>{_NUMBER})(?![\d:.-])|(?P<word>[A-Za-z]+)|(?P<at>@))",
    re.ASCII,
)
_ISO_PART: Final = re.compile(r"(T?)([+-]?)(\d+)(?:\.(\d*))?([A-Z])", re.ASCII)


@dataclass(slots=True)
class _Sum:
    """The fields that were read so far.

    Attributes:
        text: the constant.
        units: those that have been given; a second time they are an error.
    """

    text: str
    years: int = 0
    months: int = 0
    days: int = 0
    microseconds: int = 0
    units: set[str] = field(default_factory=set)

    def take(self, units: set[str]) -> None:
        if self.units & units:
            raise invalid("interval", self.text)
        self.units |= units

    def add(self, unit: str, whole: int, fraction: float) -> None:
        """Add a number of units; ``fraction`` has the sign of the number."""
        if whole not in _INT8:
            raise _out_of_range(self.text)
        if unit in _MICROSECONDS:
            self._add_time(whole * _MICROSECONDS[unit], fraction, _MICROSECONDS[unit])
        elif unit == "day":
            self._add_days(whole, 0.0)
            self._add_time(0, fraction, DAY)
        elif unit == "week":
            self._add_days(whole * 7, fraction * 7)
        elif unit == "month":
            self.months += whole
            self._add_days(0, fraction * 30)
        else:
            self.years += whole * _YEARS[unit]
            self.months += round(fraction * _YEARS[unit] * 12)
        self._check()

    def _add_days(self, days: int, fraction: float) -> None:
        extra = int(fraction)
        self.days += days + extra
        self._add_time(0, fraction - extra, DAY)

    def _add_time(self, microseconds: int, fraction: float, scale: int) -> None:
        extra = int(fraction * scale)
        rest = fraction * scale - extra
        self.microseconds += microseconds + extra + (rest > 0.5) - (rest < -0.5)

    def _check(self) -> None:
        fits = all(value in _INT4 for value in (self.years, self.months, self.days))
        if not fits or self.microseconds not in _INT8:
            raise _out_of_range(self.text)

    def printed(self, sign: int) -> str:
        months = sign * (self.years * 12 + self.months)
        days, microseconds = sign * self.days, sign * self.microseconds
        ends = ((2**31 - 1, 2**31 - 1, 2**63 - 1), (-(2**31), -(2**31), -(2**63)))
        fits = months in _INT4 and days in _INT4 and microseconds in _INT8
        if not fits or (months, days, microseconds) in ends:
            raise SqlRefused("interval out of range")
        return print_interval(struct.pack(">qii", microseconds, days, months))


def _out_of_range(text: str) -> SqlRefused:
    return SqlRefused(f'interval field value out of range: "{text}"')


def read_interval(text: str, typmod: int) -> str:
    """``1 year 2 days 03:04:05``, ``1.5 hours``, ``P1DT2H``; without fields such as DAY TO HOUR."""
    if typmod >= 0:
        raise not_exact(
            "an interval constant with fields or digits",
            "pgsluice does not cut an interval to fields.",
            "Write the units: '1 day 02:30:00'.",
        )
    word = text.strip().lower()
    if word in ("infinity", "+infinity", "-infinity"):
        return word.removeprefix("+")
    sums = _Sum(text)
    if text.startswith("P"):
        _read_iso(text, sums)
        return sums.printed(1)
    tokens = _tokens(text)
    is_ago = (
        len(tokens) > 1 and tokens[-1]["word"] is not None and tokens[-1]["word"].lower() == "ago"
    )
    _read(tokens[:-1] if is_ago else tokens, sums)
    return sums.printed(-1 if is_ago else 1)


def _tokens(text: str) -> list[re.Match[str]]:
    tokens, index, end = [], 0, len(text.rstrip())
    while index < end:
        token = _TOKEN.match(text, index)
        if token is None:
            raise _unread(text)
        if token["at"] is None:
            tokens.append(token)
        index = token.end()
    if not tokens:
        raise invalid("interval", text)
    return tokens


def _unread(text: str) -> SqlRefused:
    if not re.search(r"[0-9]", text):
        return invalid("interval", text)
    return not_exact(
        "a constant of type interval in another form",
        "pgsluice reads numbers of units, hh:mm:ss, and the forms of ISO 8601.",
        "Write it like '1 year 2 days 03:04:05'.",
    )


def _read(tokens: list[re.Match[str]], sums: _Sum) -> None:
    """Add the tokens: a number's unit follows it; a number without unit means seconds, or days."""
    unit, is_last = "", True
    for token in reversed(tokens):
        if (word := token["word"]) is not None:
            unit = _UNITS.get(word.lower()[:_LETTERS_READ], "")
            if not unit:
                raise _unread(sums.text)
        elif token["clock"] is not None:
            _read_clock(token, sums)
            unit = "day"
        elif token["months"] is not None:
            _read_months(token, sums)
        else:
            unit = unit or ("second" if is_last else "")
            if not unit:
                raise _unread(sums.text)
            sign, digits, fraction = token.groups()[11:14]
            whole, part = _signed(sign, digits, fraction)
            sums.take(_SECONDS if unit == "second" and part else {unit})
            sums.add(unit, whole, part)
        is_last = False
    if tokens[0]["word"] is not None:
        raise _unread(sums.text)


def _signed(sign: str, digits: str, fraction: str | None) -> tuple[int, float]:
    if len(digits) > 20:
        digits = "9" * 20  # out of range
    whole, part = int(digits), float(f"0.{fraction or 0}")
    return (-whole, -part) if sign == "-" else (whole, part)


def _read_clock(token: re.Match[str], sums: _Sum) -> None:
    sign, hours, minutes, seconds, fraction = token.groups()[1:6]
    if len(token[0].strip().lstrip("+-").split(":")) == 2 and fraction:
        raise _unread(sums.text)
    sums.take({"hour", "minute", *_SECONDS})
    if int(minutes) > 59 or int(seconds or 0) > 60:
        raise _out_of_range(sums.text)
    for unit, digits in (("hour", hours), ("minute", minutes)):
        sums.add(unit, *_signed(sign, digits, None))
    sums.add("second", *_signed(sign, seconds or "0", fraction))


def _read_months(token: re.Match[str], sums: _Sum) -> None:
    """SQL's form of years and months: ``1-2``."""
    sign, years, months = token.groups()[7:10]
    sums.take({"month"})
    if len(months) > 2 or int(months) > 11:
        raise _out_of_range(sums.text)
    sums.add("month", _signed(sign, years, None)[0] * 12, 0.0)
    sums.add("month", _signed(sign, months, None)[0], 0.0)


def _read_iso(text: str, sums: _Sum) -> None:
    index, is_time = 1, False
    while index < len(text):
        if text[index:] == "T" and index > 1:
            return
        part = _ISO_PART.match(text, index)
        if part is None or (part[1] and is_time):
            raise _unread(text)
        is_time = is_time or bool(part[1])
        unit = _ISO_UNITS[is_time].get(part[5])
        if unit is None:
            raise _unread(text)
        sums.add(unit, *_signed(part[2], part[3], part[4]))
        index = part.end()
    if index == 1:
        raise invalid("interval", text)
