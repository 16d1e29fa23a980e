"""The base of every column type: decodes PostgreSQL's text and binary form to Arrow.

Rules:

- Exact or not at all. A value that the Arrow type cannot hold is *unfit*: null in the array
  and marked, so that the caller can reject the row. Nothing is rounded or clamped.
- Bytes that are not the type's text or binary form raise :class:`ConversionError`, which
  names the type and the row and never shows the value.
- Whole columns at a time. Only rare values (years before Christ, offsets with seconds) are
  decoded one at a time, and only in the rows that have them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from pgsluice.errors import ConversionError
from pgsluice.types.binary_to_text import NoTextForm
from pgsluice.types.buffers import (
    Bytes,
    Int64s,
    Mask,
    content_of,
    every_other,
    first_row,
    gather,
    is_ascii,
    null_mask,
    spans,
    unchecked_text,
)

T = TypeVar("T")

_BINARY_HINT: Final = "set binary = false in [source]: the text form of every type can be read"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column.

    Attributes:
        values: an array of the type's ``arrow_type``, as long as the given one; null for NULL and
            unfit.
        unfit: true for a value that the Arrow type cannot hold; None when every value fits.
    """

    values: pa.Array
    unfit: Mask | None = None


class ColumnType(ABC):
    """One PostgreSQL type, modifiers and options applied.

    Attributes:
        name: pg_type's name, ``int4[]`` for an array.
        arrow_type: a type that Spark and Delta accept without a conversion.
        spark_ddl: the same type in Spark's DDL.
    """

    __slots__ = ()

    name: str
    arrow_type: pa.DataType
    spark_ddl: str

    @abstractmethod
    def decode_text(self, values: pa.Array) -> Decoded:
        """Decode text forms, given as LargeBinary: null for SQL NULL and for values that were not
        sent. Raises ConversionError if a value is not of the type's text form."""

    def decode_binary(self, values: pa.Array) -> Decoded:
        """Decode binary forms, as the type's send function writes them, given as for
        :meth:`decode_text`. Raises ConversionError if a value is not of that form, or if the form
        cannot be decoded.

        A type implements this method or :meth:`decode_spans`: the other one calls it.
        """
        return self.decode_spans(Spans.of(values))

    def decode_spans(self, values: Spans) -> Decoded:
        """Decode binary forms where they lie, without copying them first."""
        return self.decode_binary(values.array())

    @property
    def reads_binary(self) -> bool:
        """Whether :meth:`decode_binary` can decode values.

        If it cannot and the server sends the type in binary form, ``binary = false`` is needed.
        """
        return True

    @property
    def copies_binary(self) -> bool:
        """Whether a copy requests values in binary form, or else as text.

        Both give the same values. The faster form is requested, with respect to the time of the
        server and of pgsluice together (ADR 0033).
        """
        return True

    @property
    def binary_width(self) -> int | None:
        """The fixed size of the type's binary form in bytes; None: it varies, or is unknown."""
        return None

    @property
    def is_masked(self) -> bool:
        """Whether a column's Arrow values are masks of the source's values."""
        return False

    @property
    def tells_values_apart(self) -> bool:
        """Whether values that are different at the source are different in the Arrow type."""
        return True


@dataclass(frozen=True, slots=True)
class Spans:
    """Values anywhere in bytes: value i is ``data[starts[i]:starts[i] + lengths[i]]``.

    Attributes:
        starts: they ascend, and the values do not overlap.
        lengths: 0 where the value is null.
        null: true where the value is null; None when none is.
        matrix: the bytes of all values, where they have one width and have been taken out already.
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s
    null: Mask | None
    matrix: Bytes | None = None

    @classmethod
    def of(cls, values: pa.Array) -> Spans:
        """The spans of a LargeBinary array, without copying its bytes."""
        offsets, data = content_of(values)
        null = null_mask(values) if values.null_count else None
        lengths = np.diff(offsets)
        if null is not None:
            lengths[null] = 0
        return cls(data, offsets[:-1], lengths, null)

    @property
    def ends(self) -> Int64s:
        """The end of each value in the bytes."""
        return self.starts + self.lengths

    @property
    def offsets(self) -> Int64s:
        """The n + 1 bounds of values without nulls that lie one after the other."""
        return np.append(self.starts, len(self.data))

    def array(self) -> pa.Array:
        """The values as LargeBinary."""
        return spans(self.data, self.starts, self.ends, self.null)

    def strings(self, type_name: str) -> pa.Array:
        """The values as strings; raises ConversionError if one is not UTF-8."""
        if len(self.starts) > 1 and len(self.data) < 2**31:
            values = every_other(pa.binary(), self.data, self.starts, self.ends, self.null)
            try:
                return values.view(pa.string()) if is_ascii(values) else values.cast(pa.string())
            except pa.ArrowInvalid:
                pass  # below, the error names the row
        return shrink(as_text(self.array(), type_name), pa.string(), type_name)

    def of_width(self, width: int, type_name: str) -> Bytes:
        """The bytes of values of one width: n rows, and zeros for a null. Raises ConversionError if
        a value is of another width."""
        if self.matrix is not None and self.matrix.shape[1] == width:
            return self.matrix
        wrong = self.lengths != width
        if not wrong.any():
            if len(self.data) == len(wrong) * width:  # nothing lies between them
                return self.data.reshape(-1, width)
            return gather(self.data, self.starts, width)
        self.refuse(wrong, type_name, "binary")
        assert self.null is not None
        matrix = np.zeros((len(wrong), width), np.uint8)
        there = np.flatnonzero(~self.null)
        matrix[there] = gather(self.data, self.starts[there], width)
        return matrix

    def refuse(self, bad: Mask, type_name: str, form: str = "text") -> None:
        """Raise ConversionError for the first row that is bad and not null, if there is one."""
        if self.null is not None:
            bad = bad & ~self.null
        if bad.any():
            raise malformed(type_name, first_row(bad), form)


def malformed(type_name: str, row: int, form: str = "text") -> ConversionError:
    """The error for a value that is not of its type's form. It never shows the value."""
    return ConversionError(
        f"row {row} is not a value of type {type_name} in {form} form",
        type_name=type_name,
        row=row,
    )


def binary_not_supported(type_name: str, row: int) -> ConversionError:
    """The error for a type whose binary form cannot be decoded."""
    return ConversionError(
        f"pgsluice cannot read the binary form of type {type_name}",
        hint=_BINARY_HINT,
        type_name=type_name,
        row=row,
    )


def in_container(
    error: ConversionError, type_name: str, form: str, offsets: Int64s | None = None
) -> ConversionError:
    """Turn the error of a value inside another one into an error of the outer value.

    Args:
        type_name, form: those of the outer value.
        offsets: the value is an element: row i's are ``offsets[i]`` to ``offsets[i + 1]``; None:
            each outer value has one.
    """
    row = error.facts.get("row")
    if row is None:
        return error
    if offsets is not None:
        row = int(np.searchsorted(offsets, row, "right")) - 1
    if error.hint is not None:
        return binary_not_supported(error.facts["type_name"], row)
    return malformed(type_name, row, form)


def parsed(
    values: pa.Array, parse: Callable[[bytes], T], type_name: str, form: str = "binary"
) -> list[T | None]:
    """Apply a function to one value after the other of LargeBinary; None where they are null.
    Raises ConversionError if the function raised NoTextForm, or a ValueError because a value is not
    of the type's form."""
    results: list[T | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            results.append(None if value is None else parse(value))
        except NoTextForm as inner:
            raise binary_not_supported(inner.type_name, row) from None
        except (ValueError, RecursionError):
            # Not chained: the message may contain the value.
            raise malformed(type_name, row, form) from None
    return results


def as_text(values: pa.Array, type_name: str) -> pa.Array:
    """LargeBinary as large_string; raises ConversionError if a value is not UTF-8."""
    if is_ascii(values):  # a third of the time of the cast
        return unchecked_text(values)
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise malformed(type_name, _first_refused(values, pa.large_string())) from None


def shrink(values: pa.Array, arrow_type: pa.DataType, type_name: str) -> pa.Array:
    """Replace 64-bit offsets by the 32-bit offsets that Spark needs; raises ConversionError if the
    column holds more than 2 GiB, which no segment does."""
    try:
        return values.cast(arrow_type)
    except pa.ArrowInvalid:
        raise ConversionError(
            f"a column of type {type_name} has more than 2 GiB in one segment of the spool",
            hint="lower segment_bytes in [spool], which acts on new segments only. Then copy the "
            "table that this error is about: `pgsluice copy CONFIG TABLE`",
            type_name=type_name,
        ) from None


def cast_text(values: pa.Array, arrow_type: pa.DataType, type_name: str) -> pa.Array:
    """Parse text with Arrow's parser of ``arrow_type``; raises ConversionError if it cannot read a
    value."""
    try:
        return unchecked_text(values).cast(arrow_type)
    except pa.ArrowInvalid:
        # Not chained: Arrow's message contains the value.
        raise malformed(type_name, _first_refused(unchecked_text(values), arrow_type)) from None


def _first_refused(values: pa.Array, arrow_type: pa.DataType) -> int:
    """The first row that a cast refuses, found by bisection."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values.slice(low, middle - low).cast(arrow_type)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
