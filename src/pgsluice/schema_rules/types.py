"""Which types have all values of another, so that a column can become wider in place.

At the source a column keeps its file when its type changes, if every stored value is one of the
new type as it is. That it also prints the same is the question here: a cidr of one address prints
its length, an inet does not. At the target, types are Arrow's.
"""

from __future__ import annotations

import pyarrow as pa

MAX_DECIMAL_DIGITS = 38
"""A numeric of more digits, or without a limit, is text at the target."""
_TEXTS = frozenset({25, 1043})
_NUMERIC = 1700
_ONE_KIND = (
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary),
)


def prints_all(type_oid: int, typmod: int, old_oid: int, old_typmod: int) -> bool:
    """Whether a column prints its values as it did with its old type, and the target's type can
    become wider for it.

    It has kept its file: the server has found that each value is one of the new type.
    """
    if type_oid != old_oid:
        return {type_oid, old_oid} <= _TEXTS
    if type_oid != _NUMERIC:
        return True
    return _digits(typmod) <= MAX_DECIMAL_DIGITS or _digits(old_typmod) > MAX_DECIMAL_DIGITS


def _digits(typmod: int) -> int:
    """The precision of a numeric; the largest where there is no limit."""
    return 1000 if typmod < 0 else (typmod - 4) >> 16


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of one type is the same value in another."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return wide.equals(narrow) or any(
        any(is_kind(wide) for is_kind in kinds) and any(is_kind(narrow) for is_kind in kinds)
        for kinds in _ONE_KIND
    )
