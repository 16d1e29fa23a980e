"""The smallest and largest value of a column of a file, as Delta's statistics have them.

A bound may be wider than the values, never narrower, in the order of every engine: texts are
ordered by their bytes, times have milliseconds, and decimals have as many digits as a double keeps,
since some readers parse them as one. Source: Delta's protocol, "Per-file Statistics".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Bound = bool | int | float | str

_MOST_CHARACTERS = 32
"""Longer texts are cut."""
_LARGEST_CHARACTER = "\U0010ffff"
_ANY_TEXT = ("", _LARGEST_CHARACTER * _MOST_CHARACTERS)
_DAYS = (-719_162, 2_932_896)
"""The years 1 to 9999, in days since 1970; others have no text that all readers parse."""
_DIGITS = 15
_DECIMALS = 4
"""More decimals could make JSON's number one with an exponent."""


def has_order(kind: pa.DataType) -> bool:
    """Whether Parquet's writer computes what :func:`of` needs; floats have their own class."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


def of(kind: pa.DataType, chunks: Sequence[pq.ColumnChunkMetaData]) -> tuple[Bound, Bound] | None:
    """The bounds of a column that has values, of a type with an order, by its metadata in each row
    group; None if no text of them would be right for all readers."""
    smallest, largest = [], []
    for chunk in chunks:
        found = chunk.statistics
        if found is None or not found.has_null_count:
            return _unknown(kind)
        if found.has_min_max:
            first, last = _values(kind, found)
            smallest.append(first)
            largest.append(last)
        elif found.null_count < chunk.num_values:
            return _unknown(kind)
    if not smallest:
        return _unknown(kind)
    order = str.encode if pa.types.is_string(kind) else None
    first, last = min(smallest, key=order), max(largest, key=order)
    if pa.types.is_string(kind):
        return first[:_MOST_CHARACTERS], _not_smaller(last)
    if pa.types.is_date32(kind):
        return _as_texts("D", first, last, _DAYS, "")
    if pa.types.is_timestamp(kind):
        years = (_DAYS[0] * 86_400_000, (_DAYS[1] + 1) * 86_400_000 - 1)
        zone = "" if kind.tz is None else "Z"
        return _as_texts("ms", first // 1000, -(-last // 1000), years, zone)
    if pa.types.is_decimal(kind):
        return _decimals(kind, first, last)
    return first, last


def _values(kind: pa.DataType, found: pq.Statistics) -> tuple[Any, Any]:
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return found.min_raw, found.max_raw  # Python has no times of other years
    return found.min, found.max


def _unknown(kind: pa.DataType) -> tuple[Bound, Bound] | None:
    """Bounds of values that Parquet's writer did not compare: those of long texts."""
    return _ANY_TEXT if pa.types.is_string(kind) else None


def _not_smaller(text: str) -> str:
    """A text of few characters that is not smaller."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    rest = text[_MOST_CHARACTERS:]
    same = len(rest) - len(rest.lstrip(_LARGEST_CHARACTER))
    return text[: _MOST_CHARACTERS + same] + _LARGEST_CHARACTER


def _as_texts(
    unit: str, first: int, last: int, years: tuple[int, int], zone: str
) -> tuple[Bound, Bound] | None:
    if first < years[0] or last > years[1]:
        return None
    lower, upper = np.array([first, last]).astype(f"datetime64[{unit}]").astype(str)
    return f"{lower}{zone}", f"{upper}{zone}"


def _decimals(kind: pa.DataType, first: Decimal, last: Decimal) -> tuple[Bound, Bound] | None:
    limit = Decimal(10) ** (kind.precision - kind.scale)
    lower, upper = _rounded(first, ROUND_FLOOR), _rounded(last, ROUND_CEILING)
    if lower <= -limit or upper >= limit:
        return None
    return _number(lower), _number(upper)


def _rounded(value: Decimal, rounding: str) -> Decimal:
    few = Context(prec=_DIGITS, rounding=rounding).plus(value)
    exponent = few.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -_DECIMALS:
        few = few.quantize(Decimal(1).scaleb(-_DECIMALS), rounding=rounding)
    return few


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


class FloatBounds:
    """The bounds of a column of floats; there are none if a value is NaN, which readers order
    differently."""

    def __init__(self) -> None:
        self._pair: tuple[float, float] | None = None
        self._has_nan = False

    def add(self, values: pa.Array) -> None:
        """Widen the bounds to these values, too."""
        if self._has_nan or values.null_count == len(values):
            return
        self._has_nan = bool(pc.any(pc.is_nan(values)).as_py())
        found = pc.min_max(values).as_py()
        pair = self._pair or (math.inf, -math.inf)
        self._pair = min(pair[0], found["min"]), max(pair[1], found["max"])

    def bounds(self) -> tuple[Bound, Bound] | None:
        """The smallest and largest value; None if there are no values, or one is NaN."""
        if self._has_nan or self._pair is None:
            return None
        smallest, largest = self._pair
        return _float(smallest or -0.0), _float(largest or 0.0)


def _float(value: float) -> Bound:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
