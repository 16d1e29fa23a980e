"""Splits the text of ranges and composites into their fields, whole columns at a time.

A field that is empty, or has spaces, quotes, backslashes, commas, parentheses or brackets, is
quoted, with quotes and backslashes doubled. Nothing at all between two commas is NULL. Source:
src/backend/utils/adt/rowtypes.c (``record_out``), rangetypes.c (``range_bound_escape``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import ConversionError
from pgsluice.types.buffers import Bytes, Int64s, Mask, blank, first_row, spans
from pgsluice.types.codec import ColumnType, Decoded, Spans, in_container, malformed

_COMMA, _QUOTE, _BACKSLASH = b',"\\'


@dataclass(frozen=True, slots=True)
class SplitFields:
    """The fields of n values, each with ``count`` fields: LargeBinary, those of one value after the
    other; null for NULL."""

    values: pa.Array
    count: int

    def at(self, index: int) -> pa.Array:
        """The field with this index of each value."""
        places = np.arange(index, len(self.values), self.count)
        return self.values.take(pa.array(places, pa.int64()))


def without(values: pa.Array, mask: Mask, filling: bytes) -> pa.Array:
    """Replace NULLs and the values in a mask, so that each value has fields."""
    rest = blank(values, mask) if mask.any() else values
    return rest.fill_null(filling) if rest.null_count else rest


def split_text(values: pa.Array, count: int, type_name: str) -> SplitFields:
    """Split text forms such as ``(1,"a b",)``, given as LargeBinary without nulls; the caller has
    checked their first and last bytes. Raises ConversionError if a value is not of this form, or
    does not have ``count`` fields."""
    rows = Spans.of(values)
    data, starts, ends = rows.data, rows.starts, rows.ends
    if not len(starts):
        return SplitFields(pa.array([], pa.large_binary()), count)
    quote = data == _QUOTE
    inside = np.cumsum(quote, dtype=np.uint8) % 2 == 1  # overflow keeps the parity
    rows.refuse(inside[ends - 1], type_name)
    separators = np.flatnonzero((data == _COMMA) & ~inside)
    rows.refuse(np.diff(np.searchsorted(separators, rows.offsets)) != count - 1, type_name)
    first = np.sort(np.append(starts, separators)) + 1
    last = np.sort(np.append(separators, ends - 1))
    return SplitFields(_unquoted(data, first, last, count, type_name), count)


def _unquoted(data: Bytes, first: Int64s, last: Int64s, count: int, type_name: str) -> pa.Array:
    """The fields ``data[first:last]`` without their quotes."""
    is_null = first == last
    is_quoted = ~is_null & (data[np.where(is_null, 0, first)] == _QUOTE)
    broken = is_quoted & ((last - first < 2) | (data[np.where(is_null, 0, last - 1)] != _QUOTE))
    _refuse(broken, count, type_name)
    values = spans(data, first + is_quoted, last - is_quoted, is_null)
    if not ((data == _QUOTE) | (data == _BACKSLASH)).any():
        return values
    for special in (b'"', b"\\"):
        single, pairs = (
            pc.count_substring(values, text).fill_null(0).to_numpy()
            for text in (special, special * 2)
        )
        _refuse((single != 2 * pairs) | (~is_quoted & (single > 0)), count, type_name)
        values = pc.replace_substring(values, special * 2, special)
    return values


def _refuse(bad: Mask, count: int, type_name: str) -> None:
    if bad.any():
        raise malformed(type_name, first_row(bad) // count)


def structs(
    kind: pa.StructType,
    fields: Sequence[tuple[ColumnType, pa.Array]],
    flags: Sequence[Mask],
    null: Mask,
    what: tuple[str, str],
) -> Decoded:
    """Structs of decoded fields; one is unfit if a field of it is. Raises ConversionError if a
    value is not of its field's type.

    Args:
        fields: the type of each field, and its n values in the form.
        flags: fields that are decoded already, behind the others.
        null: the structs that are NULL.
        what: the name of the structs' type, and the form: ``text`` or ``binary``.
    """
    unfit = np.zeros(len(null), np.bool_)
    children = []
    for field, values in fields:
        try:
            decode = field.decode_text if what[1] == "text" else field.decode_binary
            decoded = decode(values)
        except ConversionError as error:
            raise in_container(error, *what) from None
        children.append(decoded.values)
        if decoded.unfit is not None:
            unfit |= decoded.unfit
    children += map(pa.array, flags)
    made = pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(null | unfit))
    return Decoded(made, unfit if unfit.any() else None)
