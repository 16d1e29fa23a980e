"""Which types contain all values of another type, so that a column can become wider without a
rewrite.

At the source, a table keeps its file if every stored value of a column is also a value of the
column's new type. This module decides whether it is also printed in the same way: a cidr of one
address is printed with its length, an inet is not. At the target, types are Arrow types.
"""

from __future__ import annotations

import pyarrow as pa

MAX_DECIMAL_DIGITS = 38
"""A numeric with more digits, or without a limit, is text at the target."""
_TEXTS = frozenset({25, 1043})
_NUMERIC = 1700
_ONE_KIND = (
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary),
)


def prints_all(type_oid: int, typmod: int, old_oid: int, old_typmod: int) -> bool:
    """Whether a column prints its values as with its old type, and the target's column can become
    wider for it.

    The table has kept its file, so each value is also one of the new type.
    """
    if type_oid != old_oid:
        return {type_oid, old_oid} <= _TEXTS
    if type_oid != _NUMERIC:
        return True
    return _digits(typmod) <= MAX_DECIMAL_DIGITS or _digits(old_typmod) > MAX_DECIMAL_DIGITS


def _digits(typmod: int) -> int:
    """The precision of a numeric; the largest possible one without a limit."""
    return 1000 if typmod < 0 else (typmod - 4) >> 16


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of one type is the same value in another type."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return wide.equals(narrow) or any(
        any(is_kind(wide) for is_kind in kinds) and any(is_kind(narrow) for is_kind in kinds)
        for kinds in _ONE_KIND
    )


def holds_rewritten(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column that is rewritten in another type keeps its values, as :func:`holds` or with
    more bits of a whole number."""
    are_whole = pa.types.is_signed_integer(wide) and pa.types.is_signed_integer(narrow)
    return bool(wide.bit_width > narrow.bit_width) if are_whole else holds(wide, narrow)


def contains(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a cast to another type keeps every value, perhaps with more digits: also of lists and
    structs."""
    if pa.types.is_signed_integer(wide) and pa.types.is_signed_integer(narrow):
        return bool(wide.bit_width >= narrow.bit_width)
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(digits and wide.scale >= narrow.scale)
    if pa.types.is_list(wide) and pa.types.is_list(narrow):
        return contains(wide.value_type, narrow.value_type)
    if pa.types.is_struct(wide) and pa.types.is_struct(narrow):
        return [f.name for f in wide] == [f.name for f in narrow] and all(
            contains(a.type, b.type) for a, b in zip(wide, narrow, strict=True)
        )
    return holds(wide, narrow)
