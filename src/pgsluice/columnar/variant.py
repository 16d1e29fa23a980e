"""Encodes Arrow columns as Spark's VARIANT: one object per row, a whole column at a time.

A VARIANT is two byte strings: *metadata*, the dictionary of field names, which all rows of a
relation share, and *value*. Types stay exact: a bigint is an 8-byte integer, numeric(10,2) a
decimal with its scale, a timestamptz an instant. No value is converted to JSON.

Source: the Parquet project's "Variant Binary Encoding" (VariantEncoding.md), version 1, and
Spark's reader of it, org.apache.spark.types.variant.VariantUtil.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pgsluice.columnar.ragged import Bytes, Int64s, Ragged, little_endian, spread
from pgsluice.errors import TableError
from pgsluice.types.buffers import Mask, content_of, null_mask, offsets_of
from pgsluice.types.nested import variant_format as form

TYPE = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type of a VARIANT column that Python passes to Spark."""

SIZE_LIMIT = 128 * 1024 * 1024
"""Spark refuses a larger value or dictionary."""

_FIXED: tuple[tuple[pa.DataType, int], ...] = (
    (pa.int8(), form.INT8),
    (pa.int16(), form.INT16),
    (pa.int32(), form.INT32),
    (pa.int64(), form.INT64),
    (pa.float64(), form.DOUBLE),
    (pa.date32(), form.DATE),
    (pa.float32(), form.FLOAT),
)


class Dictionary:
    """The sorted field names of one relation's rows, with their encoding.

    Args:
        names: the columns' names, each once.
    """

    __slots__ = ("_ids", "metadata")

    def __init__(self, names: Sequence[str]) -> None:
        encoded = sorted(name.encode() for name in names)
        self._ids = {name.decode(): index for index, name in enumerate(encoded)}
        self.metadata = form.metadata_of(encoded)

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, name: str) -> int:
        """The number of a name, by which objects refer to it."""
        return self._ids[name]


def encode_objects(
    dictionary: Dictionary,
    columns: Mapping[str, pa.Array],
    absent: Mapping[str, Mask],
    rows: Mask,
) -> pa.Array:
    """Encode one object per row; its fields have the columns' names.

    Args:
        dictionary: has the names of all columns.
        columns: arrays of the same length n; a null becomes the VARIANT null.
        absent: column name -> mask of length n, true where the object lacks the field.
        rows: mask of length n, false where the result is NULL.

    Returns:
        An array of :data:`TYPE`.

    Raises:
        TableError: a type has no VARIANT form, or a row is larger than Spark takes.
    """
    names = _in_order(columns)
    values = [encode_values(columns[name], name) for name in names]
    count = len(rows)
    present = np.ones((count, len(names)), np.bool_)
    for index, name in enumerate(names):
        if name in absent:
            present[:, index] = ~absent[name]
    lengths = np.zeros(count, np.int64)
    groups = _groups(present, rows)
    for members, fields in groups:
        inner = _inner_lengths(values, members, fields)
        lengths[members] = _head_length(dictionary, inner) + inner.sum(axis=1)
    if count and int(lengths.max()) > SIZE_LIMIT:
        raise TableError(f"a row is larger than the {SIZE_LIMIT} bytes that a VARIANT can be")
    offsets = offsets_of(lengths)
    data = np.empty(int(offsets[-1]), np.uint8)
    ids = np.array([dictionary.id(name) for name in names], np.int64)
    for members, fields in groups:
        inner = _inner_lengths(values, members, fields)
        object_starts = offsets[:-1][members]
        heads = _object_heads(dictionary, ids[fields], inner)
        data[object_starts[:, None] + np.arange(heads.shape[1])] = heads
        value_starts = object_starts + heads.shape[1]
        for index, field in enumerate(fields):
            values[field].write(data, value_starts, members)
            value_starts = value_starts + inner[:, index]
    return _variant_array(data, offsets, dictionary.metadata, rows)


def _in_order(names: Collection[str]) -> list[str]:
    """The names in the order that an object's fields have.

    The format wants that of UTF-8. Spark writes that of UTF-16, and searches many fields by halves
    in it; among few, it looks at each.
    """
    is_searched = len(names) >= form.SEARCHED
    return sorted(names, key=lambda name: name.encode("utf-16-be" if is_searched else "utf-8"))


def _groups(present: Mask, rows: Mask) -> list[tuple[Int64s, Int64s]]:
    """Groups of rows that have the same fields: (row numbers, field numbers) of each group."""
    members = np.flatnonzero(rows)
    if not len(members):
        return []
    if present.all():
        return [(members, np.arange(present.shape[1], dtype=np.int64))]
    patterns, group_of = np.unique(present[members], axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)
    return [
        (members[group_of == number], np.flatnonzero(pattern))
        for number, pattern in enumerate(patterns)
    ]


def _inner_lengths(values: Sequence[Ragged], members: Int64s, fields: Int64s) -> Int64s:
    """The encoded lengths of a group's values: shape (rows, fields)."""
    if not len(fields):
        return np.zeros((len(members), 0), np.int64)
    return np.stack([values[field].lengths[members] for field in fields], axis=1)


def _widths(dictionary: Dictionary, inner: Int64s) -> tuple[int, int, int]:
    """Bytes of a group's field counts, ids and offsets; the same for all its objects."""
    fields = inner.shape[1]
    largest = int(inner.sum(axis=1).max()) if inner.size else 0
    return (
        (4 if fields > form.MOST_SMALL else 1),
        form.width_of(max(len(dictionary) - 1, 0)),
        form.width_of(largest),
    )


def _head_length(dictionary: Dictionary, inner: Int64s) -> int:
    size_width, id_width, offset_width = _widths(dictionary, inner)
    fields = inner.shape[1]
    length: int = 1 + size_width + fields * id_width + (fields + 1) * offset_width
    return length


def _object_heads(dictionary: Dictionary, ids: Int64s, inner: Int64s) -> Bytes:
    """The part of each object that precedes its values: shape (rows, length of the head)."""
    size_width, id_width, offset_width = _widths(dictionary, inner)
    rows, fields = inner.shape
    is_large = 1 if size_width == 4 else 0
    info = is_large << 4 | (id_width - 1) << 2 | (offset_width - 1)
    fixed = (
        bytes([info << 2 | form.OBJECT])
        + fields.to_bytes(size_width, "little")
        + little_endian(ids, id_width).tobytes()
    )
    offsets = np.zeros((rows, fields + 1), np.int64)
    np.cumsum(inner, axis=1, out=offsets[:, 1:])
    tail = little_endian(offsets.reshape(-1), offset_width).reshape(rows, -1)
    head = np.broadcast_to(np.frombuffer(fixed, np.uint8), (rows, len(fixed)))
    return np.hstack([head, tail])


def encode_values(array: pa.Array, name: str) -> Ragged:
    """Encode each value of a column; ``name`` is for error messages.

    Raises:
        TableError: the type has no VARIANT form.
    """
    valid = ~null_mask(array)
    kind = array.type
    if pt.is_null(kind):
        return _with_nulls(np.zeros((len(array), 1), np.uint8), valid)
    if pt.is_boolean(kind):
        truth = array.fill_null(False).to_numpy(zero_copy_only=False)
        return _with_nulls(
            np.where(truth, form.TRUE, form.FALSE).astype(np.uint8).reshape(-1, 1), valid
        )
    if pt.is_decimal128(kind):
        return _encode_decimals(array, valid)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _encode_bytes(array.cast(pa.large_string()), valid, is_text=True)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return _encode_bytes(array.cast(pa.large_binary()), valid, is_text=False)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _encode_lists(array, valid, name)
    code, width = _fixed_code(kind, name)
    raw = _fixed_bytes(array, width)
    header = np.full((len(array), 1), code << 2 | form.PRIMITIVE, np.uint8)
    return _with_nulls(np.hstack([header, raw]), valid)


def _fixed_code(kind: pa.DataType, name: str) -> tuple[int, int]:
    if pt.is_timestamp(kind) and kind.unit == "us":
        return (form.TIMESTAMP if kind.tz is not None else form.TIMESTAMP_NTZ), 8
    for fixed_type, code in _FIXED:
        if kind == fixed_type:
            return code, kind.bit_width // 8
    raise TableError(
        f'pgsluice cannot write column "{name}", of the Arrow type {kind}, as VARIANT',
        hint="set the option table to read this table alone, with its own columns",
        column=name,
    )


def _fixed_bytes(array: pa.Array, width: int) -> Bytes:
    """The memory of a fixed-width array: shape (n, width). Bytes under a null are arbitrary."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros((len(array), width), np.uint8)
    raw = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
    return raw.reshape(-1, width)


def _encode_decimals(array: pa.Array, valid: Mask) -> Ragged:
    """Encode decimals in the fewest bytes that hold their precision: 4, 8 or 16."""
    code, width = form.decimal_form(max(array.type.precision, array.type.scale))
    header = np.empty((len(array), 2), np.uint8)
    header[:, 0] = code << 2 | form.PRIMITIVE
    header[:, 1] = array.type.scale
    # In little-endian two's complement, the first bytes of a small number are the number.
    return _with_nulls(np.hstack([header, _fixed_bytes(array, 16)[:, :width]]), valid)


def _with_nulls(rows: Bytes, valid: Mask) -> Ragged:
    """Encodings of one width, replaced by a VARIANT null (one byte) where not valid."""
    count, width = rows.shape
    rows = np.ascontiguousarray(rows)
    if rows.size and not valid.all():
        rows = rows.copy()
        rows[~valid, 0] = form.NULL
    lengths = np.where(valid, width, 1).astype(np.int64)
    return Ragged(rows.reshape(-1), np.arange(count, dtype=np.int64) * width, lengths)


def _encode_bytes(array: pa.Array, valid: Mask, *, is_text: bool) -> Ragged:
    """Encode strings and binaries: a head that has the length, then the unchanged bytes."""
    bounds, source = content_of(array)
    content = np.where(valid, np.diff(bounds), 0)
    short = valid & (content <= form.LONGEST_SHORT_STRING) if is_text else np.zeros_like(valid)
    long = valid & ~short
    head = np.where(long, 5, 1).astype(np.int64)
    lengths = head + content
    starts = offsets_of(lengths)[:-1]
    data = np.zeros(int(lengths.sum()), np.uint8)
    data[starts[short]] = (content[short] << 2 | form.SHORT_STRING).astype(np.uint8)
    data[starts[long]] = (form.LONG_STRING if is_text else form.BINARY) << 2 | form.PRIMITIVE
    sizes = little_endian(content[long], 4)
    data[starts[long][:, None] + np.arange(1, 5)] = sizes
    Ragged(source, bounds[:-1], content).write(data, starts + head)
    return Ragged(data, starts, lengths)


def _encode_lists(array: pa.Array, valid: Mask, name: str) -> Ragged:
    """Encode arrays: a head, the number of elements, their offsets, the elements."""
    elements = encode_values(array.flatten(), name)
    counts = np.zeros(len(array), np.int64)
    counts[valid] = pc.list_value_length(array).drop_null().to_numpy(zero_copy_only=False)
    first = offsets_of(counts)
    inner = offsets_of(elements.lengths)
    # All sizes and offsets have four bytes, so the number of elements determines where they are.
    head = np.where(valid, 1 + 4 + 4 * (counts + 1), 1)
    content = inner[first[1:]] - inner[first[:-1]]
    lengths = head + content
    starts = offsets_of(lengths)[:-1]
    data = np.zeros(int(lengths.sum()), np.uint8)
    is_large, widest = 1, 4
    data[starts[valid]] = (is_large << 2 | (widest - 1)) << 2 | form.ARRAY
    data[starts[valid][:, None] + np.arange(1, 5)] = little_endian(counts[valid], 4)
    numbers = spread(first[:-1][valid], counts[valid] + 1)
    owners = np.repeat(np.flatnonzero(valid), counts[valid] + 1)
    relative = inner[numbers] - inner[first[owners]]
    slots = spread(np.zeros(int(valid.sum()), np.int64), counts[valid] + 1)
    data[(starts[owners] + 5 + 4 * slots)[:, None] + np.arange(4)] = little_endian(relative, 4)
    owner_of_element = np.repeat(np.arange(len(array)), counts)
    element_starts = (starts + head)[owner_of_element] + inner[:-1]
    elements.write(data, element_starts - inner[first[owner_of_element]])
    return Ragged(data, starts, lengths)


def _variant_array(data: Bytes, offsets: Int64s, metadata: bytes, rows: Mask) -> pa.Array:
    """A struct of the two byte strings; the dictionary is the same in every row."""
    count = len(rows)
    if max(int(offsets[-1]), len(metadata) * count) > 2**31 - 1:
        raise TableError("a batch of VARIANT rows is larger than 2 GiB", rows=count)
    value = _binary_array(data, offsets)
    names = np.tile(np.frombuffer(metadata, np.uint8), count)
    dictionary = _binary_array(names, np.arange(count + 1, dtype=np.int64) * len(metadata))
    return pa.StructArray.from_arrays(
        [value, dictionary], fields=list(TYPE), mask=None if rows.all() else pa.array(~rows)
    )


def _binary_array(data: Bytes, offsets: Int64s) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
