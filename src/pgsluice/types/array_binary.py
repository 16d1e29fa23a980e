"""Splits arrays in binary form, whole columns at a time.

An array of one dimension has a header of 20 bytes, then each element after its length. If all
elements of an array have the same length, their offsets are computed at once. Otherwise short
arrays are read together, one element of each at a time, and long arrays one after the other. A
single array of megabytes is read in pieces, because an element may be shorter than the offsets that
describe it. Source: src/backend/utils/adt/arrayfuncs.c (``array_send``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pgsluice.types.buffers import (
    Bytes,
    Int64s,
    Mask,
    content_of,
    first_row,
    integers,
    offsets_of,
    ragged,
    spans,
)
from pgsluice.types.codec import Spans, malformed

_EMPTY: Final = 12
_HEADER: Final = 20
_MAX_DIMENSIONS: Final = 6
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = 64
"""Arrays of at most so many elements are read together."""
LONG_BYTES: Final = 2**20
"""A column with a single array of at least this size in bytes is read in pieces."""
PIECE_ELEMENTS: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class SplitArrays:
    """The elements of a column's arrays.

    Attributes:
        elements: LargeBinary, null for NULL.
        offsets: row i's elements are ``offsets[i]`` to ``offsets[i + 1]``.
        unfit: rows whose array a list cannot hold.
    """

    elements: pa.Array
    offsets: Int64s
    unfit: Mask


def split_arrays(values: pa.Array, type_name: str) -> SplitArrays:
    """Split PostgreSQL arrays, given in array_send's binary form, into their elements; raises
    ConversionError if a value is not of that form."""
    raw = Spans.of(values)
    there = np.arange(len(values)) if raw.null is None else np.flatnonzero(~raw.null)
    unfit = np.zeros(len(values), np.bool_)
    counts = np.zeros(len(values), np.int64)
    begins, limits = raw.starts[there], raw.ends[there]
    _refuse(limits - begins < _EMPTY, there, type_name)
    dimensions = integers(raw.data, begins, ">i4")
    wrong = (dimensions < 0) | (dimensions > _MAX_DIMENSIONS)
    wrong |= limits - begins < _EMPTY + 8 * dimensions
    wrong |= (dimensions == 0) & (limits - begins != _EMPTY)
    _refuse(wrong, there, type_name)

    flat = np.flatnonzero(dimensions == 1)
    sizes = integers(raw.data, begins[flat] + _EMPTY, ">i4")
    _refuse((sizes < 0) | (sizes > (limits - begins)[flat] // 4), there[flat], type_name)
    starts_at_1 = integers(raw.data, begins[flat] + _EMPTY + 4, ">i4") == 1
    unfit[there[dimensions > 1]] = unfit[there[flat[~starts_at_1]]] = True
    rows = there[flat[starts_at_1]]
    counts[rows] = sizes[starts_at_1]
    offsets = offsets_of(counts)
    places = _ElementSpans.of(raw, offsets, type_name)
    places.find(rows)
    elements = spans(raw.data, places.starts, places.ends, places.null)
    return SplitArrays(elements, offsets, unfit)


def pieces_of_array(values: pa.Array, type_name: str) -> Iterator[pa.Array] | None:
    """The elements of a single long array, some at a time; None: :func:`split_arrays` is for it.
    The iterator raises ConversionError if the array is not of the binary form."""
    data = content_of(values)[1]
    if len(values) != 1 or values.null_count or len(data) < LONG_BYTES:
        return None
    dimensions, _, _, count, first = _HEAD.unpack_from(data.data)
    if dimensions != 1 or first != 1 or not 0 <= count <= len(data) // 4:
        return None
    return _pieces(data, count, type_name)


def _pieces(data: Bytes, count: int, type_name: str) -> Iterator[pa.Array]:
    at = _HEADER
    while count:
        number = min(count, PIECE_ELEMENTS)
        found = _even_elements(data, at, number) or _elements(data, at, len(data), number)
        if found is None:
            raise malformed(type_name, 0, "binary")
        starts, ends, null = found
        yield spans(data, starts, ends, null)
        at, count = int(ends[-1]), count - number
    if at != len(data):
        raise malformed(type_name, 0, "binary")


_Elements = tuple[Int64s, Int64s, Mask]
"""Start and end of elements, and which are NULL."""


def _even_elements(data: Bytes, at: int, count: int) -> _Elements | None:
    """The next elements, if all have the length of the first one, and none is NULL."""
    if at + 4 > len(data):
        return None
    (width,) = _LENGTH.unpack_from(data.data, at)
    if width < 0 or at + count * (width + 4) > len(data):
        return None
    heads = at + np.arange(count) * (width + 4)
    if (integers(data, heads, ">i4") != width).any():
        return None
    return heads + 4, heads + 4 + width, np.zeros(count, np.bool_)


def _elements(data: Bytes, at: int, limit: int, count: int) -> _Elements | None:
    """The next elements, one after the other; None: they are not of the binary form."""
    starts, ends, null = [], [], []
    view = data.data
    for _ in range(count):
        if at + 4 > limit:
            return None
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4
        starts.append(at)
        at += max(length, 0)
        if length < -1 or at > limit:
            return None
        ends.append(at)
        null.append(length == -1)
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(null, np.bool_)


def _refuse(bad: Mask, rows: Int64s, type_name: str) -> None:
    if bad.any():
        raise malformed(type_name, int(rows[first_row(bad)]), "binary")


@dataclass(frozen=True, slots=True)
class _ElementSpans:
    """Where each element is; filled in row by row.

    Attributes:
        data: the bytes of all arrays.
        begins, limits: row i's array is ``data[begins[i]:limits[i]]``.
        offsets: row i's elements begin at number ``offsets[i]``.
        starts, ends: element k is ``data[starts[k]:ends[k]]``.
        null: element k is NULL.
    """

    data: Bytes
    begins: Int64s
    limits: Int64s
    offsets: Int64s
    type_name: str
    starts: Int64s
    ends: Int64s
    null: Mask

    @classmethod
    def of(cls, raw: Spans, offsets: Int64s, type_name: str) -> _ElementSpans:
        total = int(offsets[-1])
        starts, ends = np.empty(total, np.int64), np.empty(total, np.int64)
        null = np.zeros(total, np.bool_)
        return cls(raw.data, raw.starts, raw.ends, offsets, type_name, starts, ends, null)

    def find(self, rows: Int64s) -> None:
        """Fill in the elements of rows whose arrays are not empty."""
        even = self._find_even(rows)
        uneven = rows[~even]
        is_short = self.offsets[uneven + 1] - self.offsets[uneven] <= _SHORT
        self._walk_together(uneven[is_short])
        for row in uneven[~is_short].tolist():
            self._walk(row)

    def _find_even(self, rows: Int64s) -> Mask:
        """Fill in the arrays whose elements all have the same length, and return a mask of these
        rows."""
        heads, limits = self.begins[rows] + _HEADER, self.limits[rows]
        counts = self.offsets[rows + 1] - self.offsets[rows]
        widths = np.full(len(rows), -1, np.int64)
        readable = heads + 4 <= limits
        widths[readable] = integers(self.data, heads[readable], ">i4")
        even: Mask = (widths >= 0) & (heads + counts * (widths + 4) == limits)
        candidates = np.flatnonzero(even)
        owners, numbers = ragged(counts[candidates])
        owners = candidates[owners]
        at = heads[owners] + numbers * (widths[owners] + 4)
        even[owners[integers(self.data, at, ">i4") != widths[owners]]] = False
        proven = even[owners]
        into = self.offsets[rows[owners[proven]]] + numbers[proven]
        self.starts[into] = at[proven] + 4
        self.ends[into] = self.starts[into] + widths[owners[proven]]
        return even

    def _walk_together(self, rows: Int64s) -> None:
        """Fill in one element of every row at a time."""
        at, limits = self.begins[rows] + _HEADER, self.limits[rows]
        counts = self.offsets[rows + 1] - self.offsets[rows]
        for number in range(int(counts.max()) if len(counts) else 0):
            active = np.flatnonzero(counts > number)
            heads, ends = at[active], limits[active]
            _refuse(heads + 4 > ends, rows[active], self.type_name)
            lengths = integers(self.data, heads, ">i4")
            behind = heads + 4 + np.maximum(lengths, 0)
            _refuse((lengths < -1) | (behind > ends), rows[active], self.type_name)
            into = self.offsets[rows[active]] + number
            self.starts[into], self.ends[into] = heads + 4, behind
            self.null[into] = lengths == -1
            at[active] = behind
        _refuse(at != limits, rows, self.type_name)

    def _walk(self, row: int) -> None:
        """Fill in the elements of one row."""
        begin, limit = int(self.begins[row]), int(self.limits[row])
        into = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        found = _elements(self.data, begin + _HEADER, limit, into.stop - into.start)
        if found is None or found[1][-1] != limit:
            raise malformed(self.type_name, row, "binary")
        self.starts[into], self.ends[into], self.null[into] = found
