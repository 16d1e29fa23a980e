"""What every type of the registry is: a way from PostgreSQL's forms to Arrow, and back.

Rules:

- Exact or not at all. A value that the Arrow type cannot hold is *unfit*: null in the array
  and marked, so that the caller rejects it loudly. Nothing is rounded or clamped.
- Bytes that are not the type's text or binary form raise :class:`ConversionError`, which
  names the type and the row and never shows the value.
- Whole columns at a time. Code that looks at one value after the other serves only the rare
  ones (years before Christ, offsets with seconds), and only the rows that need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import ConversionError

Mask = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BINARY_HINT: Final = "set binary = false in [source]: the text form of every type can be read"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column.

    Attributes:
        values: of the type's ``arrow_type``, one a given value; null for NULL and for unfit.
        unfit: true where a value was there but the Arrow type cannot hold it; None when
            every value fits.
    """

    values: pa.Array
    unfit: Mask | None = None


class ColumnType(ABC):
    """One PostgreSQL type, modifiers and options applied.

    Attributes:
        name: pg_type's name, ``int4[]`` for an array.
        arrow_type: a type that Spark and Delta take as it is.
        spark_ddl: the same in Spark's DDL.
    """

    __slots__ = ()

    name: str
    arrow_type: pa.DataType
    spark_ddl: str

    @abstractmethod
    def decode_text(self, values: pa.Array) -> Decoded:
        """Decode text forms.

        Args:
            values: LargeBinary; null for SQL NULL and for values that are not there.

        Raises:
            ConversionError: a value is not of the type's text form.
        """

    def decode_binary(self, values: pa.Array) -> Decoded:
        """Decode what the type's send function made.

        Args:
            values: LargeBinary; null for SQL NULL and for values that are not there.

        Raises:
            ConversionError: a value is not of the type's binary form, or there is no way
                to read that form.
        """
        if values.null_count == len(values):
            return Decoded(pa.nulls(len(values), self.arrow_type))
        raise no_binary_way(self.name, first_row(~null_mask(values)))

    @property
    def reads_binary(self) -> bool:
        """Whether :meth:`decode_binary` can read values. Where not, a type that the server
        sends in binary form needs ``binary = false``."""
        return True

    @abstractmethod
    def encode_text(self, array: pa.Array) -> pa.Array:
        """Encode as text that the type's input function reads back to the same values.

        Args:
            array: of ``arrow_type``.

        Returns:
            large_string, null where the array is.
        """


@dataclass(frozen=True, slots=True)
class RawValues:
    """A LargeBinary array's memory: value i is ``data[offsets[i]:offsets[i + 1]]``.

    Attributes:
        data: the bytes from the first offset on.
        offsets: n + 1, from 0. A null may have bytes; they mean nothing.
        null: true where the value is null; None when none is.
    """

    data: Bytes
    offsets: Int64s
    null: Mask | None

    @classmethod
    def of(cls, values: pa.Array) -> RawValues:
        """Look at an array without copying its bytes."""
        _, offset_buffer, data_buffer = values.buffers()
        count = len(values)
        if count == 0 or offset_buffer is None:
            return cls(np.zeros(0, np.uint8), np.zeros(count + 1, np.int64), None)
        offsets = np.frombuffer(offset_buffer, np.int64, count + 1, values.offset * 8)
        first, last = int(offsets[0]), int(offsets[-1])
        data = (
            np.zeros(0, np.uint8)
            if data_buffer is None or first == last
            else np.frombuffer(data_buffer, np.uint8, last - first, first)
        )
        null = null_mask(values) if values.null_count else None
        return cls(data, offsets - first if first else offsets, null)

    @property
    def starts(self) -> Int64s:
        return self.offsets[:-1]

    @property
    def lengths(self) -> Int64s:
        return np.diff(self.offsets)

    def refuse(self, bad: Mask, type_name: str, form: str = "text") -> None:
        """Raise for the first row that is bad and not null; else do nothing."""
        if self.null is not None:
            bad = bad & ~self.null
        if bad.any():
            raise malformed(type_name, first_row(bad), form)


def null_mask(array: pa.Array) -> Mask:
    """True where an array is null."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return to_mask(pc.is_null(array))


def to_mask(booleans: pa.Array) -> Mask:
    """A boolean array as a mask; null counts as false."""
    if booleans.null_count:
        booleans = booleans.fill_null(False)
    mask: Mask = booleans.to_numpy(zero_copy_only=False)
    return mask


def first_row(mask: Mask) -> int:
    """The first row where a mask is true."""
    return int(np.argmax(mask))


def malformed(type_name: str, row: int, form: str = "text") -> ConversionError:
    """The error for a value that is not of its type's form. It never shows the value."""
    return ConversionError(
        f"row {row} is not a value of type {type_name} in {form} form",
        type_name=type_name,
        row=row,
    )


def no_binary_way(type_name: str, row: int) -> ConversionError:
    """The error for a binary form from which the value cannot be told."""
    return ConversionError(
        f"the binary form of type {type_name} cannot be read",
        hint=_BINARY_HINT,
        type_name=type_name,
        row=row,
    )


def integers(data: Bytes, at: Int64s, kind: str) -> Int64s:
    """Integers of a numpy kind at any offsets; these must have been checked."""
    if not len(at):
        return at
    # An integer that begins at every byte: twice as fast as to gather single bytes.
    count = len(data) + 1 - np.dtype(kind).itemsize
    everywhere = np.ndarray((count,), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


def ragged(counts: Int64s) -> tuple[Int64s, Int64s]:
    """For each of ``counts[i]`` things of i: i, and its number among these."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)


def spans(data: Bytes, starts: Int64s, ends: Int64s, null: Mask | None) -> pa.Array:
    """``data[starts[i]:ends[i]]`` as LargeBinary; the spans rise and do not overlap.

    Offsets that alternate between spans and what lies between them make a LargeBinary
    array without touching a byte; every second element of it is taken.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.large_binary())
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    spaced = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
    every_second = pa.py_buffer(np.arange(0, 2 * count, 2))
    indices = pa.Array.from_buffers(pa.int64(), count, [validity_buffer(null), every_second])
    return spaced.take(indices)


def validity_buffer(null: Mask | None) -> pa.Buffer | None:
    """Arrow's validity bitmap of a null mask."""
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))


def fixed_width(
    values: npt.NDArray[np.generic], arrow_type: pa.DataType, null: Mask | None
) -> pa.Array:
    """An Arrow array over a numpy array of the same layout, without a copy of the values."""
    buffers = [validity_buffer(null), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(arrow_type, len(values), buffers)


def large_binary(data: Bytes, offsets: Int64s, null: Mask | None) -> pa.Array:
    """A LargeBinary array over bytes and offsets, without a copy."""
    buffers = [
        validity_buffer(null),
        pa.py_buffer(np.ascontiguousarray(offsets)),
        pa.py_buffer(data),
    ]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def blank(values: pa.Array, mask: Mask) -> pa.Array:
    """The values, null where the mask is true."""
    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)


def as_text(values: pa.Array, type_name: str) -> pa.Array:
    """LargeBinary as large_string.

    Raises:
        ConversionError: a value is not UTF-8.
    """
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise malformed(type_name, _first_refused(values, pa.large_string())) from None


def shrink(values: pa.Array, arrow_type: pa.DataType, type_name: str) -> pa.Array:
    """Large offsets as the 32-bit ones that Spark takes.

    Raises:
        ConversionError: the column holds more than 2 GiB, which no segment does.
    """
    try:
        return values.cast(arrow_type)
    except pa.ArrowInvalid:
        raise ConversionError(
            f"more than 2 GiB of type {type_name} in one column of a segment",
            hint="set segment_bytes in [spool] lower",
            type_name=type_name,
        ) from None


def cast_text(values: pa.Array, arrow_type: pa.DataType, type_name: str) -> pa.Array:
    """Parse LargeBinary text by Arrow's own reader of ``arrow_type``.

    Raises:
        ConversionError: Arrow cannot read a value.
    """
    try:
        return unchecked_text(values).cast(arrow_type)
    except pa.ArrowInvalid:
        # Arrow's error shows the value, so it is not chained.
        raise malformed(type_name, _first_refused(unchecked_text(values), arrow_type)) from None


def unchecked_text(values: pa.Array) -> pa.Array:
    """LargeBinary as large_string without a look at the bytes: only for Arrow's parsers of
    ASCII forms, which refuse everything else."""
    return values.view(pa.large_string())


def _first_refused(values: pa.Array, arrow_type: pa.DataType) -> int:
    """The first row that a cast refuses, by halving."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values.slice(low, middle - low).cast(arrow_type)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
