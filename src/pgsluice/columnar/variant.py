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

from pgsluice.columnar.changes import Bytes, Int64s, Mask
from pgsluice.errors import TableError
from pgsluice.types.buffers import content_of, large_binary, null_mask, offsets_of, ragged
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
_BINARY = pa.large_binary()


def encode_objects(
    dictionary: Collection[str],
    columns: Mapping[str, pa.Array],
    absent: Mapping[str, Mask],
    rows: Mask,
) -> pa.Array:
    """Encode one object per row, as an array of :data:`TYPE`; its fields have the columns' names.
    Raises TableError if a type has no VARIANT form, or if a row is larger than Spark takes.

    Args:
        dictionary: the field names of the relation's rows, all columns among them; each once.
        columns: arrays of the same length n; a null becomes the VARIANT null.
        absent: column name -> mask of length n, true where the object lacks the field.
        rows: mask of length n, false where the result is NULL.
    """
    encoded = sorted(name.encode() for name in dictionary)
    id_of = {name.decode(): index for index, name in enumerate(encoded)}
    metadata, id_width = form.metadata_of(encoded), form.width_of(max(len(encoded) - 1, 0))
    names = _in_order(columns)
    values = [encode_values(columns[name], name) for name in names]
    present = np.ones((len(rows), len(names)), np.bool_)
    for index, name in enumerate(names):
        if name in absent:
            present[:, index] = ~absent[name]
    parts, members = [pa.array([], _BINARY)], [np.zeros(0, np.int64)]
    for of_group, fields in _groups(present, rows):
        some = [values[field] for field in fields]
        if len(of_group) < len(rows):
            some = [column.take(pa.array(of_group)) for column in some]
        ids = [id_of[names[field]] for field in fields]
        parts.append(_objects(ids, id_width, some, len(of_group)))
        members.append(of_group)
    objects = pa.concat_arrays(parts)
    sizes = pc.binary_length(objects)
    if (pc.max(sizes).as_py() or 0) > SIZE_LIMIT:
        raise TableError(f"a row is larger than the {SIZE_LIMIT} bytes that a VARIANT can be")
    count = len(rows)
    if max(pc.sum(sizes).as_py() or 0, len(metadata) * count) > 2**31 - 1:
        raise TableError("a batch of VARIANT rows is larger than 2 GiB", rows=count)
    place = np.zeros(count, np.int64)
    place[np.concatenate(members)] = np.arange(len(objects))
    objects = objects.take(pa.array(place, mask=~rows)).fill_null(b"").cast(pa.binary())
    return pa.StructArray.from_arrays(
        [objects, pa.repeat(metadata, count)],
        fields=list(TYPE),
        mask=None if rows.all() else pa.array(~rows),
    )


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


def _objects(ids: Sequence[int], id_width: int, values: Sequence[pa.Array], count: int) -> pa.Array:
    """The objects of rows that have the same fields, as LargeBinary.

    Args:
        ids: the numbers of the fields' names in the dictionary, of ``id_width`` bytes each.
        values: the encoded values of each field.
    """
    offsets = np.zeros((count, len(values) + 1), np.int64)
    for index, column in enumerate(values):
        offsets[:, index + 1] = offsets[:, index] + np.diff(content_of(column)[0])
    width = form.width_of(int(offsets[:, -1].max(initial=0)))
    head = form.head_of(form.OBJECT, len(values), width, ids, id_width)
    return _joined(head, _of_one_width(_little_endian(offsets, width)), *values)


def encode_values(array: pa.Array, name: str) -> pa.Array:
    """Encode each value of a column as LargeBinary, NULL as the VARIANT null; raises TableError,
    with the column's name, if the type has no VARIANT form."""
    kind = array.type
    if pt.is_null(kind):
        encoded = pa.nulls(len(array), _BINARY)
    elif pt.is_boolean(kind):
        true, false = (pa.scalar(bytes([value]), _BINARY) for value in (form.TRUE, form.FALSE))
        encoded = pc.if_else(array, true, false)
    elif pt.is_decimal128(kind):
        # In little-endian two's complement, the first bytes of a small number are the number.
        code, width = form.decimal_form(max(kind.precision, kind.scale))
        head = bytes([code << 2 | form.PRIMITIVE, kind.scale])
        encoded = _joined(head, _of_one_width(_fixed_bytes(array, 16)[:, :width], null_mask(array)))
    elif pt.is_string(kind) or pt.is_large_string(kind):
        encoded = _encode_bytes(array, form.LONG_STRING, form.LONGEST_SHORT_STRING)
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        encoded = _encode_bytes(array, form.BINARY, -1)
    elif pt.is_list(kind) or pt.is_large_list(kind):
        encoded = _encode_lists(array, name)
    else:
        code, width = _fixed_code(kind, name)
        raw = _of_one_width(_fixed_bytes(array, width), null_mask(array))
        encoded = _joined(bytes([code << 2 | form.PRIMITIVE]), raw)
    return encoded.fill_null(bytes([form.NULL]))


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


def _encode_bytes(array: pa.Array, long: int, longest_short: int) -> pa.Array:
    """Encode strings or binaries: a head that has the length, then the unchanged bytes.

    Args:
        long: the code of a value whose length has four bytes.
        longest_short: the largest length that is in the first byte.
    """
    sizes = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_short = sizes <= longest_short
    heads = np.empty((len(array), 5), np.uint8)
    heads[:, 0] = np.where(is_short, sizes << 2 | form.SHORT_STRING, long << 2 | form.PRIMITIVE)
    heads[:, 1:] = _little_endian(sizes, 4)
    kept = np.ones(heads.shape, np.bool_)
    kept[is_short, 1:] = False
    head = large_binary(heads[kept], offsets_of(np.where(is_short, 1, 5)), None)
    return _joined(head, array.cast(_BINARY))


def _encode_lists(array: pa.Array, name: str) -> pa.Array:
    """Encode arrays: a head, the number of elements, their offsets, the elements.

    All sizes and offsets have four bytes, as if each array were large.
    """
    inner, elements = content_of(encode_values(array.flatten(), name))
    lengths = pc.list_value_length(array).fill_null(0)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    first = offsets_of(counts)
    owners, numbers = ragged(counts + 1)
    offsets = _little_endian(inner[first[owners] + numbers] - inner[first[owners]], 4)
    null = null_mask(array)
    return _joined(
        bytes([(1 << 2 | 4 - 1) << 2 | form.ARRAY]),
        _of_one_width(_little_endian(counts, 4), null),
        large_binary(offsets.reshape(-1), 4 * offsets_of(counts + 1), null),
        large_binary(elements, inner[first], null),
    )


def _joined(*parts: bytes | pa.Array) -> pa.Array:
    """Byte strings joined row by row; null where a part is."""
    columns = [pa.scalar(part, _BINARY) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", _BINARY))


def _of_one_width(rows: Bytes, null: Mask | None = None) -> pa.Array:
    """A matrix of n rows as n byte strings."""
    count, width = rows.shape
    return large_binary(np.ascontiguousarray(rows), np.arange(count + 1) * width, null)


def _little_endian(numbers: Int64s, width: int) -> Bytes:
    """Unsigned integers, n or n rows of them, as ``width`` bytes each: n rows of bytes."""
    every = np.ascontiguousarray(numbers, "<u8").view(np.uint8).reshape(*numbers.shape, 8)
    return every[..., :width].reshape(len(numbers), width * int(np.prod(numbers.shape[1:])))
