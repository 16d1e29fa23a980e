"""Computes a 64-bit number for each key or whole row, by which rows are found.

Equal keys, as defined by :func:`pgsluice.changes.lineage.number_rows`, have equal numbers. If the
key is one column of at most 64 bits, different keys have different numbers. Otherwise the number is
a hash, and the keys have to be compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import TableError
from pgsluice.types.buffers import content_of, entries_of, offsets_of

Numbers = npt.NDArray[np.uint64]

ROWS_AT_ONCE = 64 * 1024
"""How many texts are hashed together: their words are in the processor's caches then."""
_ALL = np.uint64(2**64 - 1)
_SIGN = np.uint64(1 << 63)
_NULL = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """The numbers of n keys, and whether they are exact: different keys have different numbers."""

    numbers: Numbers
    are_exact: bool


def numbers_of(keys: pa.Table) -> KeyNumbers:
    """The numbers of keys; the columns have the table's types.

    Raises:
        TableError: a column's type cannot be part of a key.
    """
    columns = [_of_column(keys.column(name), name) for name in keys.schema.names]
    if len(columns) == 1:
        return columns[0]
    combined = columns[0].numbers
    for column in columns[1:]:
        combined = spread(combined) ^ column.numbers
    return KeyNumbers(spread(combined), False)


def numbers_of_rows(rows: pa.Table) -> Numbers:
    """Hashes of whole rows by their columns' names, whose order does not matter. A NULL adds
    nothing: a row keeps its number when it gets columns without values."""
    total = np.zeros(len(rows), np.uint64)
    for name in rows.schema.names:
        column = rows.column(name)
        salt = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
        numbers = spread(spread(_of_column(column, name).numbers) ^ salt)
        if column.null_count:
            numbers[column.is_null().to_numpy()] = 0
        total += numbers
    return spread(total)


def _of_column(column: pa.ChunkedArray | pa.Array, name: str) -> KeyNumbers:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])
    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
        kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        width = pa.int32() if pa.types.is_date32(kind) else kind
        integers = column if pa.types.is_integer(kind) else column.cast(_integer(width))
        values = integers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return _with_nulls(values.view(np.uint64) ^ _SIGN, column, are_exact=True)
    if pa.types.is_boolean(kind):
        values = column.fill_null(False).to_numpy(zero_copy_only=False)
        return _with_nulls(values.astype(np.uint64), column, are_exact=True)
    if pa.types.is_floating(kind):
        floats = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        floats[np.isnan(floats)] = np.nan  # there is one NaN
        return _with_nulls(floats.view(np.uint64), column, are_exact=True)
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return _with_nulls(_of_words(_fixed_words(column)), column, are_exact=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls(_of_lists(column, name), column, are_exact=False)
    if pa.types.is_struct(kind):
        return _with_nulls(_of_structs(column, name), column, are_exact=False)
    if pa.types.is_map(kind):
        return _with_nulls(_of_lists(entries_of(column), name), column, are_exact=False)
    if any(is_kind(kind) for is_kind in _BYTES):
        offsets, data = content_of(column.cast(pa.large_binary()))
        return _with_nulls(_of_bytes(data, offsets), column, are_exact=False)
    raise TableError(f"column {name!r} of type {kind} cannot be part of a key", column=name)


_BYTES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def _integer(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_int32(kind) else pa.int64()


def _with_nulls(numbers: Numbers, column: pa.Array, *, are_exact: bool) -> KeyNumbers:
    if not column.null_count:
        return KeyNumbers(numbers, are_exact)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return KeyNumbers(np.where(is_null, _NULL, numbers), False)


def spread(numbers: Numbers) -> Numbers:
    """A bijection of 64-bit numbers that distributes them evenly (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _of_words(words: Numbers) -> Numbers:
    """Hashes of rows of words, shape (n, words)."""
    result = np.full(len(words), words.shape[1], np.uint64)
    for index in range(words.shape[1]):
        result = spread(result ^ words[:, index])
    return result


def _fixed_words(column: pa.Array) -> Numbers:
    """The values of a type of fixed length as 8-byte words, shape (n, words)."""
    width = column.type.bit_width // 8
    data = np.frombuffer(column.buffers()[1], np.uint8)
    data = data[column.offset * width : (column.offset + len(column)) * width]
    padded = np.zeros((len(column), -(-width // 8) * 8), np.uint8)
    padded[:, :width] = data.reshape(len(column), width)
    return padded.view(np.uint64)


def _of_lists(column: pa.Array, name: str) -> Numbers:
    """Hashes of lists, from the numbers of their elements."""
    elements = _of_column(column.flatten(), name).numbers
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = offsets_of(lengths.astype(np.int64)) * elements.itemsize
    return _of_bytes(np.ascontiguousarray(elements).view(np.uint8), offsets)


def _of_structs(column: pa.Array, name: str) -> Numbers:
    """Hashes of structs, from the numbers of their fields."""
    fields = [_of_column(field, name).numbers for field in column.flatten()]
    return _of_words(np.stack(fields, axis=1))


def _of_bytes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Numbers:
    """Hashes of n texts; ``offsets`` (n + 1) say where each starts and ends in ``data``."""
    first, end = int(offsets[0]), int(offsets[-1])
    windows = _windows(data[first:end])
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    words = -(-lengths // 8)
    result = np.empty(len(lengths), np.uint64)
    for count in np.unique(words).tolist():
        rows = np.flatnonzero(words == count)
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[begin : begin + ROWS_AT_ONCE]
            result[some] = _of_windows(windows, starts[some], lengths[some], count)
    return result


def _windows(data: npt.NDArray[np.uint8]) -> Numbers:
    """The eight bytes from each byte on as a number; they overlap. Zeros follow the last byte."""
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    return np.ndarray(len(data) + 1, np.dtype("<u8"), padded, strides=(1,))


def _of_windows(
    windows: Numbers,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    words: int,
) -> Numbers:
    """Hashes of texts that need the same number of words, the last of which ends with zeros."""
    hashed = np.full(len(starts), words, np.uint64)
    for number in range(words):
        word = windows[starts + 8 * number]
        if number == words - 1:
            word &= _ALL >> (64 - 8 * (lengths - 8 * number)).astype(np.uint64)
        hashed = spread(hashed ^ word)
    return spread(hashed ^ lengths.astype(np.uint64))
