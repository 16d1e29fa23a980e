"""How PostgreSQL's types map to Arrow and Spark, in text and in binary form.

:func:`resolve_type` returns the :class:`ColumnType` of a column; the registry has an entry for
each built-in type.
"""

from pgsluice.types.codec import ColumnType, Decoded
from pgsluice.types.definition import TypeDefinition
from pgsluice.types.options import TypeOptions
from pgsluice.types.registry import ENTRIES, Entry, printed_type, resolve_type

__all__ = [
    "ENTRIES",
    "ColumnType",
    "Decoded",
    "Entry",
    "TypeDefinition",
    "TypeOptions",
    "printed_type",
    "resolve_type",
]
