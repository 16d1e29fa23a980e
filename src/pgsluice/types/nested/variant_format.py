"""The binary form of VARIANT: what its encoders share.

A VARIANT is two byte strings: *metadata*, the dictionary of field names, and *value*. Source: the
Parquet project's "Variant Binary Encoding" (VariantEncoding.md), version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

PRIMITIVE, SHORT_STRING, OBJECT, ARRAY = range(4)
"""The two low bits of a value's first byte."""
NULL, TRUE, FALSE = 0 << 2, 1 << 2, 2 << 2
"""Whole values of one byte."""
INT8, INT16, INT32, INT64, DOUBLE = 3, 4, 5, 6, 7
DECIMAL4, DECIMAL8, DECIMAL16 = 8, 9, 10
DATE, TIMESTAMP, TIMESTAMP_NTZ, FLOAT = 11, 12, 13, 14
BINARY, LONG_STRING = 15, 16
LONGEST_SHORT_STRING: Final = 63
"""In bytes."""
MOST_SMALL: Final = 255
"""The number of elements from which on it has four bytes instead of one."""
SEARCHED: Final = 32
"""Spark searches an object with as many names by halves, in their order as UTF-16."""

_VERSION, _IS_SORTED = 1, 1 << 4


def width_of(largest: int) -> int:
    """How many bytes (1 to 4) an unsigned number needs."""
    return max(1, (largest.bit_length() + 7) // 8)


def little_endian(numbers: Sequence[int], width: int) -> bytes:
    """Unsigned numbers as ``width`` bytes each."""
    if width == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(width, "little") for number in numbers])


def decimal_form(digits: int) -> tuple[int, int]:
    """The type of a decimal with as many digits, at most 38, and the bytes of its number."""
    if digits <= 9:
        return DECIMAL4, 4
    return (DECIMAL8, 8) if digits <= 18 else (DECIMAL16, 16)


def metadata_of(names: Sequence[bytes]) -> bytes:
    """The dictionary of field names in UTF-8, which are sorted and different."""
    offsets = list(accumulate(map(len, names), initial=0))
    width = width_of(max(offsets[-1], len(names)))
    return (
        bytes([_VERSION | _IS_SORTED | (width - 1) << 6])
        + little_endian([len(names), *offsets], width)
        + b"".join(names)
    )


def head_of(kind: int, count: int, width: int, ids: Sequence[int] = (), id_width: int = 1) -> bytes:
    """What an array or object has before the offsets of its values.

    Args:
        kind: ARRAY or OBJECT.
        width: the bytes of an offset.
        ids: for an object, the numbers of its names.
        id_width: the bytes of such a number.
    """
    is_large = count > MOST_SMALL
    widths = id_width - 1 << 2 | width - 1
    info = is_large << 4 | widths if kind == OBJECT else is_large << 2 | widths
    size = count.to_bytes(4 if is_large else 1, "little")
    return bytes([info << 2 | kind]) + size + little_endian(ids, id_width)
