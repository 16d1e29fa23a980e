"""The columns that a filter is computed on, for both ways to compute: by columns and by rows.

Rules:

- A string array holds PostgreSQL's text output, whatever the column's type. Any other array is
  what ``pgsluice.types`` decodes: integers, floats, booleans, decimals, binary, dates and
  timestamps. Null is NULL.
- A typed array must hold every value. Where decoding marked values as unfit (an infinite date),
  the caller passes the text.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.row_filter.kernels.arrow.functions import ARROW_TYPES
from pgsluice.row_filter.kernels.scalars import Mask, NoColumn, boolean_array
from pgsluice.row_filter.values import NAMES, VALUE_TYPES, NotReadable, SqlError, Value
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.numbers import plain
from pgsluice.types import resolve_type

_EPOCH_US: Final = m.EPOCH_DAYS * m.DAY


class Batch:
    """A batch of rows as columns, all of one length.

    Args:
        types: the OIDs of the types of the columns that the filter reads, by name.
    """

    def __init__(self, columns: Mapping[str, pa.Array], types: Mapping[str, int]) -> None:
        self._columns = {name: _whole(columns[name]) for name in types}
        self._types = types
        self._arrays: dict[str, pa.Array] = {}
        first = next(iter(columns.values()), None)
        self.rows = 0 if first is None else len(first)

    def only(self, wanted: Mask) -> Batch:
        """The batch of only those rows for which a mask is true."""
        mask = boolean_array(wanted)
        batch = Batch({}, {})
        batch._types = self._types
        batch._columns = {name: column.filter(mask) for name, column in self._columns.items()}
        batch.rows = int(wanted.sum())
        return batch

    def array(self, name: str) -> pa.Array:
        """A column as Arrow's kernels compute with it; raises NoColumn."""
        if name not in self._arrays:
            self._arrays[name] = _as_typed(self._columns[name], self._types[name])
        return self._arrays[name]

    def tuples(self) -> Iterator[tuple[Value, ...]]:
        """Row by row, the values of the columns in the order of ``types``.

        Raises:
            SqlError: a value cannot be read.
        """
        if not self._types:
            return iter([()] * self.rows)
        values = (self._read(self._columns[name], name) for name in self._types)
        return zip(*values, strict=True)

    def distinct(self, name: str) -> tuple[list[Value], npt.NDArray[np.int64]]:
        """A column's distinct values, and for each row the place of its value; -1 for NULL.

        Raises:
            SqlError: a value cannot be read.
        """
        encoded = self._columns[name].dictionary_encode()
        places = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy()
        return self._read(encoded.dictionary, name), places

    def _read(self, array: pa.Array, name: str) -> list[Value]:
        type_oid = self._types[name]
        if _is_text(array.type):
            value_type = VALUE_TYPES.get(type_oid)
            if value_type is None:
                return list(array.to_pylist())
            return _parsed(array, value_type.parse, name)
        return _plain_values(array, NAMES.get(type_oid, ""))


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def _parsed(array: pa.Array, parse: Callable[[str], Value], name: str) -> list[Value]:
    try:
        return [None if text is None else parse(text) for text in array.to_pylist()]
    except NotReadable as error:
        message = f"a value of column {name} is not the text of its type ({error})"
        raise SqlError("invalid_text_representation", message) from None


def _plain_values(array: pa.Array, type_name: str) -> list[Value]:
    """A typed column as the kernels' values."""
    match type_name:
        case "date":
            days = array.cast(pa.int32()).to_pylist()
            return [None if day is None else day - m.EPOCH_DAYS for day in days]
        case "timestamp" | "timestamptz":
            moments = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).to_pylist()
            return [None if moment is None else moment - _EPOCH_US for moment in moments]
        case "numeric":
            return [None if number is None else plain(number) for number in array.to_pylist()]
        case "bool" | "int2" | "int4" | "int8" | "oid" | "xid" | "float4" | "float8" | "bytea":
            return list(array.to_pylist())
    raise TypeError(f"a column of type {type_name} is needed as text, not as {array.type}")


def _as_typed(array: pa.Array, type_oid: int) -> pa.Array:
    name = NAMES.get(type_oid, "")
    if name == "numeric":
        return array if pa.types.is_decimal(array.type) else array.cast(pa.large_string())
    wanted = ARROW_TYPES.get(name)
    if wanted is None:
        raise NoColumn
    if array.type == wanted:
        return array
    if not _is_text(array.type) or pa.types.is_large_string(wanted):
        return array.cast(wanted)
    return _decoded(array, type_oid, wanted)


def _decoded(text: pa.Array, type_oid: int, wanted: pa.DataType) -> pa.Array:
    """A column of text as typed values, if all of them fit."""
    decoded = resolve_type(type_oid, -1, {}).decode_text(text.cast(pa.large_binary()))
    if decoded.unfit is not None and decoded.unfit.any():
        raise NoColumn
    return decoded.values.cast(wanted)


def truth_array(
    values: list[bool | None], places: npt.NDArray[np.int64] | slice = slice(None)
) -> pa.Array:
    """Booleans as an Arrow array: all of a list, or those at some places; -1 is the last one."""
    codes = np.fromiter((2 if one is None else bool(one) for one in values), np.uint8, len(values))
    codes = codes[places]
    return boolean_array(codes == 1, codes == 2)


def constant_array(truth: bool | None, rows: int) -> pa.Array:
    """An Arrow array with the same truth in each of some rows; None is NULL."""
    codes = np.full(rows, bool(truth))
    return boolean_array(codes, None if truth is not None else np.ones(rows, np.bool_))


def mask_of(array: pa.Array, null: bool) -> Mask:
    """A boolean array as a mask; ``null`` is what NULL counts as."""
    filled = array.fill_null(null) if array.null_count else array
    mask: Mask = filled.to_numpy(zero_copy_only=False)
    return mask
