"""date, timestamp and timestamptz; and time, as the text that the server prints.

Arrow counts in the proleptic Gregorian calendar from 1970-01-01, PostgreSQL from 2000-01-01.
Arrow's parser reads years 0001 to 9999 in ISO form; all other text that the server prints (BC,
longer years, offsets with seconds, infinities) is parsed one value at a time.
Source: src/backend/utils/adt/datetime.c (``EncodeDateTime``), timestamp.c, date.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.buffers import (
    Mask,
    blank,
    content_of,
    fixed_width,
    null_mask,
    to_mask,
    unchecked_text,
)
from pgsluice.types.calendar import civil_from_days, days_from_civil
from pgsluice.types.codec import ColumnType, Decoded, Spans, cast_text, malformed
from pgsluice.types.text import ComputedTextType

DATE_REGEX: Final = r"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)"
TIME_REGEX: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?"
ZONE_REGEX: Final = r"(?P<sign>[+-])(?P<zh>\d\d)(?::(?P<zm>\d\d)(?::(?P<zs>\d\d))?)?"
ERA_REGEX: Final = r"(?P<era> BC)?"
Parts = dict[str, str | None]
"""The named groups of the expressions above, where they matched."""
_MOST: Final = {"hour": 23, "minute": 59, "second": 59, "zm": 59, "zs": 59}
# No Arrow array here: creating the first one imports pandas, which takes most of a second.
_INFINITE: Final = (b"infinity", b"-infinity")
_EPOCH_DAYS: Final = 10957
_DAY_US: Final = 86_400_000_000
_INT64: Final = range(-(2**63), 2**63)
_FIRST_DAY: Final = -719162  # 0001-01-01


@dataclass(frozen=True, slots=True)
class DatetimeType(ColumnType):
    """date, timestamp or timestamptz.

    Attributes:
        form: matches every text form; used one value at a time.
        plain: matches the text forms that Arrow's parser reads.
        wire: numpy's name of the binary form.
        width: the range of integers (days or microseconds since 1970) that the type holds.
        epoch: 2000-01-01, from which the binary form counts, as such an integer.
        unit_us: microseconds in one unit.
    """

    name: str
    arrow_type: pa.DataType
    spark_ddl: str
    form: re.Pattern[str]
    plain: str
    wire: str
    width: range
    epoch: int
    unit_us: int

    @property
    def _integer(self) -> pa.DataType:
        return pa.int64() if self.unit_us == 1 else pa.int32()

    def decode_text(self, values: pa.Array) -> Decoded:
        if self._looks_plain(values):
            try:
                decoded = unchecked_text(values).cast(self.arrow_type)
                if not self._has_year_zero(decoded):
                    return Decoded(decoded)
            except pa.ArrowInvalid:
                pass
        return self._decode_odd(values)

    def _looks_plain(self, values: pa.Array) -> bool:
        """Whether Arrow's parser, which accepts more forms than the server prints, can be used."""
        data = content_of(values)[1]
        if data.max(initial=0) > b":"[0]:
            return False  # letters: infinity, BC, or Arrow's T and Z
        if self.unit_us != 1 or values.null_count == len(values):
            return True
        raw = Spans.of(values)
        sent = slice(None) if raw.null is None else ~raw.null
        starts, lengths = raw.starts[sent], raw.lengths[sent]
        if lengths.min() < len("0001-01-01 00:00:00"):
            return False
        return bool((data[starts + 10] == 32).all() and (data[starts + 16] == 58).all())

    def _has_year_zero(self, decoded: pa.Array) -> bool:
        first = pc.min(decoded).cast(self._integer).as_py()
        # One day less: an offset can move the first day of year 1 into year 0.
        return first is not None and first * self.unit_us < (_FIRST_DAY - 1) * _DAY_US

    def _decode_odd(self, values: pa.Array) -> Decoded:
        plain = to_mask(pc.match_substring_regex(unchecked_text(values), self.plain))
        null = null_mask(values)
        decoded = cast_text(blank(values, ~plain), self.arrow_type, self.name)
        numbers = np.array(decoded.cast(self._integer).fill_null(0))
        unfit = to_mask(pc.is_in(values, value_set=pa.array(_INFINITE, pa.large_binary()))) & ~null
        for row in np.flatnonzero(~(plain | null | unfit)).tolist():
            number = self._parse(values[row].as_py(), row)
            if number not in self.width:
                unfit[row] = True
            else:
                numbers[row] = number
        decoded = fixed_width(numbers, self.arrow_type, null | unfit)
        return Decoded(decoded, unfit if unfit.any() else None)

    def _parse(self, value: bytes, row: int) -> int:
        """One value in days or microseconds since 1970."""
        match = self.form.match(value.decode("ascii", "replace"))
        if match is None or not _exists(parts := match.groupdict()):
            raise malformed(self.name, row)
        if self.unit_us != 1:
            return days_of(parts)
        return days_of(parts) * _DAY_US + clock_us_of(parts) + west_s_of(parts) * 1_000_000

    def decode_spans(self, values: Spans) -> Decoded:
        matrix = values.of_width(self.binary_width, self.name)
        numbers = matrix.view(self.wire)[:, 0]
        numbers = numbers.astype(numbers.dtype.newbyteorder("="))
        limits = np.iinfo(numbers.dtype)
        latest = min(limits.max - 1, self.width.stop - 1 - self.epoch)
        unfit: Mask | None = None
        null = values.null
        if len(numbers) and (numbers.max() > latest or numbers.min() == limits.min):
            unfit = (numbers > latest) | (numbers == limits.min)  # or an infinity
            null = unfit if null is None else unfit | null
            numbers[unfit] = 0
        numbers += numbers.dtype.type(self.epoch)
        return Decoded(fixed_width(numbers, self.arrow_type, null), unfit)

    @property
    def binary_width(self) -> int:
        return np.dtype(self.wire).itemsize


@dataclass(frozen=True, slots=True)
class TimeType(ComputedTextType):
    """time without time zone, as ``HH:MM:SS[.ffffff]`` without trailing zeros; 24:00:00 is one.

    The binary form counts microseconds since midnight.
    """

    binary_width: ClassVar[int] = 8

    def decode_spans(self, values: Spans) -> Decoded:
        micros = values.of_width(self.binary_width, self.name).view(">i8")[:, 0].astype(np.int64)
        values.refuse((micros < 0) | (micros > _DAY_US), self.name, "binary")
        times = fixed_width(micros % _DAY_US, pa.time64("us"), values.null)
        # Arrow prints six digits after the point.
        text = pc.utf8_rtrim(pc.utf8_rtrim(times.cast(pa.string()), "0"), ".")
        if (is_end := micros == _DAY_US).any():
            text = pc.if_else(pa.array(is_end), pc.if_else(text.is_valid(), "24:00:00", None), text)
        return Decoded(text)


def days_of(parts: Parts) -> int:
    """Days from 1970-01-01 of a date that DATE_REGEX and ERA_REGEX matched."""
    year, month, day = (int(parts[name] or 0) for name in ("year", "month", "day"))
    return days_from_civil(1 - year if parts["era"] else year, month, day)


def clock_us_of(parts: Parts) -> int:
    """Microseconds since midnight of a time that TIME_REGEX matched."""
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    micros = int((parts["fraction"] or "").ljust(6, "0"))
    return (hour * 3600 + minute * 60 + second) * 1_000_000 + micros


def west_s_of(parts: Parts) -> int:
    """Seconds west of UTC of a zone that ZONE_REGEX matched; 0 without one."""
    hours, minutes, seconds = (int(parts.get(name) or 0) for name in ("zh", "zm", "zs"))
    east = hours * 3600 + minutes * 60 + seconds
    return east if parts.get("sign") == "-" else -east


def _exists(parts: Parts) -> bool:
    """Whether there is such a date, and such a time with such a zone if it has them."""
    if not int(parts["year"] or 0) or any(
        int(parts.get(name) or 0) > _MOST[name] for name in _MOST
    ):
        return False
    return civil_from_days(days_of(parts))[1:] == (int(parts["month"] or 0), int(parts["day"] or 0))


def _compiled(form: str) -> re.Pattern[str]:
    return re.compile(rf"\A{form}{ERA_REGEX}\Z", re.ASCII)


_PLAIN_DATE: Final = r"([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_PLAIN_TIME: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_PLAIN_ZONE: Final = r"[+-][0-9]{2}(:[0-9]{2})?"

DATE: Final = DatetimeType(
    name="date",
    arrow_type=pa.date32(),
    spark_ddl="date",
    form=_compiled(DATE_REGEX),
    plain=rf"^{_PLAIN_DATE}$",
    wire=">i4",
    # deltalake cannot write a later day into a file's statistics; the server has later ones.
    width=range(-(2**31), days_from_civil(262143, 1, 1)),
    epoch=_EPOCH_DAYS,
    unit_us=_DAY_US,
)
TIMESTAMP: Final = DatetimeType(
    name="timestamp",
    arrow_type=pa.timestamp("us"),
    spark_ddl="timestamp_ntz",
    form=_compiled(f"{DATE_REGEX} {TIME_REGEX}"),
    plain=rf"^{_PLAIN_DATE} {_PLAIN_TIME}$",
    wire=">i8",
    width=_INT64,
    epoch=_EPOCH_DAYS * _DAY_US,
    unit_us=1,
)
TIMESTAMPTZ: Final = DatetimeType(
    name="timestamptz",
    arrow_type=pa.timestamp("us", "UTC"),
    spark_ddl="timestamp",
    form=_compiled(f"{DATE_REGEX} {TIME_REGEX}{ZONE_REGEX}"),
    plain=rf"^{_PLAIN_DATE} {_PLAIN_TIME}{_PLAIN_ZONE}$",
    wire=">i8",
    width=_INT64,
    epoch=_EPOCH_DAYS * _DAY_US,
    unit_us=1,
)
