"""PostgreSQL types to Arrow and Spark, and back: text and binary.

:func:`resolve_type` gives a column's :class:`ColumnType`; the registry holds one entry a type.
"""

from pgsluice.types.codec import ColumnType, Decoded
from pgsluice.types.definition import TypeDefinition, TypeField
from pgsluice.types.options import TypeOptions
from pgsluice.types.registry import ENTRIES, Entry, printed_type, resolve_type

__all__ = [
    "ENTRIES",
    "ColumnType",
    "Decoded",
    "Entry",
    "TypeDefinition",
    "TypeField",
    "TypeOptions",
    "printed_type",
    "resolve_type",
]
