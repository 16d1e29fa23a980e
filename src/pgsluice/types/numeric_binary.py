"""numeric's binary form as decimals or as text, whole columns at a time.

The binary form has digits in base 10000, the first worth 10000 ** weight, a sign, and the number
of digits after the decimal point. Decimals of up to 18 digits are computed as 64-bit integers. For
text, one table look-up turns every digit of every row into four characters; then leading and
trailing zeros are removed, and signs and points are inserted.
Source: src/backend/utils/adt/numeric.c (``numeric_send``, ``get_str_from_var``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.types.binary_to_text.scalars import print_numeric
from pgsluice.types.buffers import (
    Bytes,
    Int64s,
    Mask,
    first_row,
    gather,
    integers,
    large_binary,
    offsets_of,
    ragged,
    validity_buffer,
)
from pgsluice.types.codec import RawValues, Spans, malformed

_HEADER: Final = 8
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_SPECIAL: Final = (0xC000, 0xD000, 0xF000)
_MAX_SCALE: Final = 0x3FFF
_NUMBERS: Final = np.arange(10000)
_LETTERS: Final = (_NUMBERS[:, None] // [1000, 100, 10, 1] % 10 + ord("0")).astype(np.uint8)
_SIZES: Final = np.searchsorted([10, 100, 1000], _NUMBERS, "right") + 1
_POWERS: Final = 10 ** np.arange(19)
_MOST_PRECISION: Final = 18
_HALF: Final = 63
_MOST_GROUPS: Final = 6
"""Eighteen digits are in at most as many groups of four."""


def reads_decimals(arrow_type: pa.Decimal128Type) -> bool:
    """Whether decimals of a type are computed without their text."""
    return bool(arrow_type.precision <= _MOST_PRECISION)


def numeric_binary_to_decimals(values: Spans, arrow_type: pa.Decimal128Type) -> pa.Array | None:
    """The decimals of this type; None if one of them needs more care than integers can give.

    That is so for a type of more than 18 digits, for NaN and the infinities, and for a value that
    does not fit or is not of the binary form.
    """
    if not reads_decimals(arrow_type):
        return None
    there = slice(None) if values.null is None else np.flatnonzero(~values.null)
    lengths, heads = values.lengths[there], values.starts[there]
    if not len(heads):
        return _decimals(heads, there, values, arrow_type)
    if lengths.min() < _HEADER:
        return None
    header = gather(values.data, heads, _HEADER)
    counts, weights, signs, scales = header.view(">i2").astype(np.int16).T
    negative = signs == _NEGATIVE
    if (
        (lengths != _HEADER + 2 * counts).any()
        or not (negative | (signs == _POSITIVE)).all()
        or scales.min() < 0
        or scales.max() > arrow_type.scale
        or counts.max() > _MOST_GROUPS
    ):
        return None
    groups = _groups(values.data, heads, counts)
    numbers = _whole_numbers(groups, weights, arrow_type.scale)
    if numbers is None or numbers.max() >= _POWERS[arrow_type.precision]:
        return None
    return _decimals(np.where(negative, -numbers, numbers), there, values, arrow_type)


def _groups(data: Bytes, heads: Int64s, counts: npt.NDArray[np.int16]) -> Int64s:
    """The digits of n values in base 10000: a row for each place, with zeros behind the last."""
    most = int(counts.max())
    if not most:
        return np.zeros((0, len(heads)), np.int64)
    behind = int(heads[-1]) + _HEADER + 2 * most
    if behind > len(data):  # the last value ends the data, and may have fewer digits
        data = np.concatenate([data, np.zeros(behind - len(data), np.uint8)])
    groups = gather(data, heads + _HEADER, 2 * most).view(">u2").T.astype(np.int64)
    if counts.min() < most:
        groups[np.arange(most)[:, None] >= counts] = 0
    return groups


def _whole_numbers(groups: Int64s, weights: npt.NDArray[np.int16], scale: int) -> Int64s | None:
    """The value of the digits times 10 ** scale; None if that is not an integer of at most 18
    digits."""
    numbers = np.zeros(len(weights), np.int64)
    if groups.size and groups.max() > _NUMBERS[-1]:
        return None
    first, last = int(weights.min()), int(weights.max())
    if last - first > _MOST_GROUPS:
        return None
    for weight in range(first, last + 1):
        rows = slice(None) if first == last else np.flatnonzero(weights == weight)
        for place, digits in enumerate(groups[:, rows]):
            exponent = 4 * (weight - place) + scale
            if exponent >= 0:
                factor = _POWERS[min(exponent, _MOST_PRECISION)]
                if digits.max(initial=0) > (_POWERS[-1] // factor if exponent < 19 else 0):
                    return None
                numbers[rows] += digits * factor
            elif exponent > -4:
                wholes, rests = np.divmod(digits, 10**-exponent)
                if rests.any():
                    return None
                numbers[rows] += wholes
            elif digits.any():
                return None
    return numbers


def _decimals(
    numbers: Int64s, there: slice | Int64s, raw: Spans, arrow_type: pa.DataType
) -> pa.Array:
    """128-bit decimals: a low half, and a high half that repeats the sign."""
    halves = np.zeros((len(raw.lengths), 2), np.int64)
    halves[there, 0] = numbers
    halves[there, 1] = numbers >> _HALF
    buffers = [validity_buffer(raw.null), pa.py_buffer(halves)]
    return pa.Array.from_buffers(arrow_type, len(halves), buffers)


def numeric_binary_to_text(values: pa.Array) -> pa.Array:
    """The text that the server would print, as LargeBinary.

    Raises:
        ConversionError: a value is not of the binary form.
    """
    raw = RawValues.of(values)
    there = np.arange(len(values)) if raw.null is None else np.flatnonzero(~raw.null)
    lengths = np.zeros(len(values), np.int64)
    data = np.zeros(0, np.uint8)
    if len(there):
        data, lengths[there] = _print(_Digits.parse(raw, there))
    return large_binary(data, offsets_of(lengths), raw.null)


@dataclass(frozen=True, slots=True)
class _Digits:
    """The fields of the values that are not NULL.

    Attributes:
        counts, weights, scales: those of each value.
        negative: the value is below zero.
        odd: the value is printed by itself: NaN, an infinity, or digits that begin with zero.
        flat: the digits of all values, one value after the other.
        starts: the index in ``flat`` of each value's first digit.
        raw, rows: the column and the rows that the values come from.
    """

    counts: Int64s
    weights: Int64s
    scales: Int64s
    negative: Mask
    odd: Mask
    flat: Int64s
    starts: Int64s
    raw: RawValues
    rows: Int64s

    @classmethod
    def parse(cls, raw: RawValues, rows: Int64s) -> _Digits:
        lengths = raw.lengths[rows]
        _refuse(lengths < _HEADER, rows)
        heads = raw.starts[rows]
        counts, weights, signs, scales = (
            integers(raw.data, heads + 2 * i, kind)
            for i, kind in enumerate((">u2", ">i2", ">u2", ">u2"))
        )
        special = np.isin(signs, _SPECIAL)
        negative = signs == _NEGATIVE
        known = special | negative | (signs == _POSITIVE)
        _refuse((lengths != _HEADER + 2 * counts) | ~known | (scales > _MAX_SCALE), rows)
        owners, places = ragged(counts)
        flat = integers(raw.data, heads[owners] + _HEADER + 2 * places, ">u2")
        if flat.size and flat.max() > _NUMBERS[-1]:
            raise malformed("numeric", int(rows[owners[first_row(flat > _NUMBERS[-1])]]), "binary")
        starts = np.cumsum(counts) - counts
        has_digits = np.flatnonzero(counts)
        odd = special
        odd[has_digits[flat[starts[has_digits]] == 0]] = True
        return cls(counts, weights, scales, negative, odd, flat, starts, raw, rows)

    def alone(self, value: int) -> bytes:
        """The text of one odd value."""
        row = self.rows[value]
        binary = self.raw.data[self.raw.offsets[row] : self.raw.offsets[row + 1]].tobytes()
        return print_numeric(binary).encode()


def _refuse(bad: Mask, rows: Int64s) -> None:
    if bad.any():
        raise malformed("numeric", int(rows[first_row(bad)]), "binary")


def _print(digits: _Digits) -> tuple[Bytes, Int64s]:
    """The texts of all values, concatenated, and their lengths."""
    whole = np.where(digits.odd, 0, np.maximum(digits.weights + 1, 0))
    places = np.where(digits.odd, 0, digits.scales)
    letters, first_groups = _body(digits, whole, places)
    alone = {int(value): digits.alone(int(value)) for value in np.flatnonzero(digits.odd)}

    signs = (digits.negative & ~digits.odd).astype(np.int64)
    integer = np.where(whole > 0, 4 * (whole - 1) + _SIZES[first_groups], 1)
    lengths = signs + integer + places + (places > 0)
    for value, text in alone.items():
        lengths[value] = len(text)
    starts = np.cumsum(lengths) - lengths
    texts = np.empty(int(lengths.sum()), np.uint8)
    free = np.ones(len(texts), np.bool_)
    for at, letter in (
        (starts[signs > 0], b"-"),
        ((starts + signs)[(whole == 0) & ~digits.odd], b"0"),
        ((starts + signs + integer)[places > 0], b"."),
    ):
        texts[at], free[at] = letter[0], False
    for value, text in alone.items():
        place = slice(int(starts[value]), int(starts[value]) + len(text))
        texts[place], free[place] = np.frombuffer(text, np.uint8), False
    texts[free] = letters
    return texts, lengths


def _body(digits: _Digits, whole: Int64s, places: Int64s) -> tuple[Bytes, Int64s]:
    """The decimal digits without signs and points, and each value's first group of four digits.

    Args:
        whole: how many groups of four are before the point.
        places: how many decimal digits are after it.
    """
    owners, numbers = ragged(whole + (places + 3) // 4)
    # Below 1 the groups begin after the point, at or before the first digit that is not zero.
    index = numbers + np.minimum(digits.weights + 1, 0)[owners]
    carried = (index >= 0) & (index < digits.counts[owners])
    groups = np.zeros(len(owners), np.int64)
    groups[carried] = digits.flat[digits.starts[owners[carried]] + index[carried]]

    behind_point = numbers - whole[owners]
    kept = np.where(behind_point < 0, 4, np.minimum(places[owners] - 4 * behind_point, 4))
    keep = np.arange(4) < kept[:, None]
    leading = np.flatnonzero((numbers == 0) & (whole[owners] > 0))
    keep[leading] = np.arange(4) >= 4 - _SIZES[groups[leading], None]
    first_groups = np.zeros(len(whole), np.int64)
    first_groups[owners[leading]] = groups[leading]
    letters: Bytes = _LETTERS[groups][keep]
    return letters, first_groups
