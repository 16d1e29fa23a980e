"""Arrow arrays from bytes and back, without an object for each value.

This module knows no PostgreSQL types and raises no errors of its own: the caller has checked that
offsets and lengths are within the bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_FIRST_NOT_ASCII: Final = 128


def null_mask(array: pa.Array) -> Mask:
    """A mask that is true where an Arrow array is null."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return to_mask(array.is_null())


def to_mask(booleans: pa.Array) -> Mask:
    """A boolean array as a mask; null counts as false."""
    if booleans.null_count:
        booleans = booleans.fill_null(False)
    mask: Mask = booleans.to_numpy(zero_copy_only=False)
    return mask


def first_row(mask: Mask) -> int:
    """The index of the first row where a mask is true; one has to be."""
    return int(np.argmax(mask))


def integers(data: Bytes, at: Int64s, kind: str) -> Int64s:
    """Integers of a numpy kind at any offsets, which the caller has checked."""
    if not len(at):
        return at
    # A view with an integer at every byte: twice as fast as gathering single bytes.
    count = len(data) + 1 - np.dtype(kind).itemsize
    everywhere = np.ndarray((count,), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


def gather(data: Bytes, at: Int64s, width: int) -> Bytes:
    """``data[at[i]:at[i] + width]`` for each i, as a matrix of n rows; the caller has checked
    them."""
    if not len(at):
        return np.zeros((0, width), np.uint8)
    # Elements of this width at every byte: one step for each row, however wide.
    everywhere = np.ndarray((len(data) + 1 - width,), f"V{width}", data, strides=(1,))
    return everywhere[at].view(np.uint8).reshape(-1, width)


def ragged(counts: Int64s) -> tuple[Int64s, Int64s]:
    """Number the elements of rows that have ``counts[i]`` elements: for each element its row i, and
    its index in the row."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)


def spans(data: Bytes, starts: Int64s, ends: Int64s, null: Mask | None = None) -> pa.Array:
    """``data[starts[i]:ends[i]]`` as LargeBinary; the spans ascend and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], pa.large_binary())
    if count == 1:  # it may have hundreds of megabytes
        # It begins at 0, as with more values: the spool's checksums are those of the buffers.
        value = data[starts[0] : ends[0]]
        return large_binary(value, np.array([0, len(value)], np.int64), null)
    return every_other(pa.large_binary(), data, starts, ends, null)


def every_other(
    arrow_type: pa.DataType, data: Bytes, starts: Int64s, ends: Int64s, null: Mask | None
) -> pa.Array:
    """Spans as Binary or LargeBinary; there are at least two.

    The offsets alternate between the spans and the gaps between them, which makes an array without
    copying; every second element of it is taken, without an object for each.
    """
    count = len(starts)
    offsets = np.empty(2 * count, np.int32 if pa.types.is_binary(arrow_type) else np.int64)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    spaced = pa.Array.from_buffers(arrow_type, 2 * count - 1, buffers)
    return spaced.take(fixed_width(np.arange(0, 2 * count, 2), pa.int64(), null))


def offsets_of(lengths: npt.NDArray[np.generic]) -> Int64s:
    """The n + 1 offsets, from 0, of n consecutive lengths; for a mask: how often it is true before
    each index."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def validity_buffer(null: Mask | None) -> pa.Buffer | None:
    """Arrow's validity bitmap of a null mask."""
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))


def fixed_width(
    values: npt.NDArray[np.generic], arrow_type: pa.DataType, null: Mask | None = None
) -> pa.Array:
    """An Arrow array over a numpy array of the same layout, without a copy of the values.

    ``pa.array`` would import pandas: 50 MB and some time.
    """
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


def content_of(values: pa.Array) -> tuple[Int64s, Bytes]:
    """The n + 1 offsets, from 0, and the bytes of an array of byte strings or texts. A null may
    have bytes, which are to be ignored."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return np.zeros(len(values) + 1, np.int64), np.empty(0, np.uint8)
    is_small = pa.types.is_binary(values.type) or pa.types.is_string(values.type)
    kind = np.dtype(np.int32 if is_small else np.int64)
    bounds = np.frombuffer(offsets, kind, len(values) + 1, values.offset * kind.itemsize)
    content = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return (bounds - bounds[0] if bounds[0] else bounds), content


def entries_of(maps: pa.MapArray) -> pa.ListArray:
    """An array of maps as lists of structs of a key and a value."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    offsets = fixed_width(maps.offsets.to_numpy(), pa.int32())
    mask = pa.array(null_mask(maps))
    return pa.ListArray.from_arrays(offsets, entries, mask=mask)


def blank(values: pa.Array, mask: Mask) -> pa.Array:
    """Replace the values of an array by null where the mask is true."""
    import pyarrow.compute as pc  # 30 ms, which capture's start does without

    return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)


def is_ascii(values: pa.Array) -> bool:
    """Whether the bytes of an array of byte strings are all of ASCII, also those of nulls."""
    return bool(content_of(values)[1].max(initial=0) < _FIRST_NOT_ASCII)


def unchecked_text(values: pa.Array) -> pa.Array:
    """LargeBinary as large_string without checking that it is UTF-8.

    Only for bytes that are known to be ASCII, or that go to a parser of Arrow (of numbers, dates,
    times), which refuses any other byte.
    """
    return values.view(pa.large_string())
