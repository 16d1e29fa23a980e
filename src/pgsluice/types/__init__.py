"""How PostgreSQL's types map to Arrow and Spark, in text and in binary form.

:func:`resolve_type` returns the :class:`ColumnType` of a column; the registry has an entry for
each built-in type.

The exported names are imported when first used: a snapshot holder and capture read definitions of
types, but decode nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.types.codec import ColumnType, Decoded
    from pgsluice.types.definition import TypeDefinition
    from pgsluice.types.options import TypeOptions
    from pgsluice.types.registry import ENTRIES, Entry, printed_type, resolve_type

__getattr__ = on_demand(__name__, ("codec", "definition", "options", "registry"))
