"""Which columns of a Delta table get statistics: those with exact bounds.

Readers skip files by the smallest and largest value of a column. deltalake writes bounds of
decimals as doubles, which rounds more than 15 digits, and ignores NaN in bounds of floats. With
such bounds, a reader would skip files that have matching rows, so they are not written.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties

_DIGITS_OF_A_DOUBLE = 15


def has_exact_bounds(kind: pa.DataType) -> bool:
    """Whether deltalake writes and compares exact bounds of a column."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _DIGITS_OF_A_DOUBLE)
    return not pa.types.is_floating(kind)


def writer_properties(schema: pa.Schema) -> WriterProperties:
    """How deltalake writes files with these columns."""
    none = ColumnProperties(statistics_enabled="NONE")
    without = [field.name for field in schema if not has_exact_bounds(field.type)]
    # With properties of our own, deltalake would not compress by default.
    return WriterProperties(
        compression="SNAPPY", column_properties=dict.fromkeys(without, none) if without else None
    )
