"""numeric's binary form as decimals or as text, whole columns at a time.

The binary form has digits in base 10000, the first worth 10000 ** weight, a sign, and the number
of digits after the decimal point. Numbers of up to 18 digits are computed as 64-bit integers; for
text, Arrow prints these. Other numbers are printed one at a time.
Source: src/backend/utils/adt/numeric.c (``numeric_send``, ``get_str_from_var``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.types.binary_to_text.scalars import print_numeric
from pgsluice.types.buffers import Bytes, Int64s, blank, gather, integers, to_mask, validity_buffer
from pgsluice.types.codec import Spans, parsed

_HEADER: Final = 8
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
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
    if groups.size and groups.max() > 9999:
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


def numeric_binary_to_text(raw: Spans) -> pa.Array:
    """The text that the server would print, as LargeBinary; raises ConversionError if a value is
    not of the binary form."""
    count = len(raw.starts)
    is_printed = np.zeros(count, np.bool_) if raw.null is None else raw.null.copy()
    rows = [np.flatnonzero(is_printed)]
    texts = [pa.nulls(len(rows[0]), pa.large_string())]
    for scale, some in _of_few_digits(raw, np.flatnonzero(~is_printed)):
        of_scale = Spans(raw.data, raw.starts[some], raw.lengths[some], None)
        decimals = numeric_binary_to_decimals(of_scale, pa.decimal128(_MOST_PRECISION, scale))
        if decimals is not None:
            printed = decimals.cast(pa.large_string())
            # Arrow prints decimals below 0.000001 with an exponent.
            is_plain = ~to_mask(pc.match_substring(printed, "E"))
            rows.append(some[is_plain])
            texts.append(printed.filter(pa.array(is_plain)))
            is_printed[some[is_plain]] = True
    if not is_printed.all():
        others = parsed(blank(raw.array(), is_printed), print_numeric, "numeric")
        rows.append(np.flatnonzero(~is_printed))
        texts.append(pa.array(others, pa.large_string()).drop_null())
    place = np.empty(count, np.int64)
    place[np.concatenate(rows)] = np.arange(count)
    return pa.concat_arrays(texts).take(pa.array(place)).cast(pa.large_binary())


def _of_few_digits(raw: Spans, there: Int64s) -> Iterator[tuple[int, Int64s]]:
    """The rows of numbers of at most 18 digits, for each number of digits after the point."""
    there = there[raw.lengths[there] >= _HEADER]
    weights, signs, scales = (
        integers(raw.data, raw.starts[there] + place, kind)
        for place, kind in ((2, ">i2"), (4, ">u2"), (6, ">u2"))
    )
    is_small = 4 * np.maximum(weights + 1, 0) + scales <= _MOST_PRECISION
    is_small &= (signs == _POSITIVE) | (signs == _NEGATIVE)
    for scale in np.unique(scales[is_small]).tolist():
        yield scale, there[is_small & (scales == scale)]
