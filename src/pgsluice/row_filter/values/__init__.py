"""The Python values of each PostgreSQL type while a row filter is computed.

A type's module has its values, their order, how its output is parsed, and how a constant in a
filter is read: ``read_date`` and the like give the output of a constant, or its type's error.
"""

from __future__ import annotations

from typing import Final

from pgsluice.row_filter.values.collections import array_type
from pgsluice.row_filter.values.datetimes import DATETIMES
from pgsluice.row_filter.values.jsonb import JSON_TYPES
from pgsluice.row_filter.values.jsonpath import JSON_PATHS
from pgsluice.row_filter.values.networks import NETWORKS
from pgsluice.row_filter.values.numbers import NUMBERS
from pgsluice.row_filter.values.ranges import range_type
from pgsluice.row_filter.values.strings import STRINGS
from pgsluice.row_filter.values.value_type import (
    CannotKnow,
    NotReadable,
    SqlError,
    Value,
    ValueType,
)
from pgsluice.types.registry import ENTRIES

NAMES: Final = {
    **{entry.oid: entry.name for entry in ENTRIES},
    **{entry.array_oid: f"_{entry.name}" for entry in ENTRIES},
}
"""pg_type.typname by OID."""

SUBTYPES: Final = {
    entry.oid: entry.subtype_oid
    for entry in ENTRIES
    if entry.subtype_oid and not entry.name.endswith("multirange")
}
"""The subtype of each range type."""


def _by_oid() -> dict[int, ValueType]:
    by_name = {
        value_type.name: value_type
        for value_type in (*NUMBERS, *STRINGS, *DATETIMES, *NETWORKS, *JSON_TYPES, *JSON_PATHS)
    }
    for oid, subtype in SUBTYPES.items():
        by_name[NAMES[oid]] = range_type(NAMES[oid], by_name[NAMES[subtype]])
    by_oid: dict[int, ValueType] = {}
    for entry in ENTRIES:
        if entry.name in by_name:
            by_oid[entry.oid] = by_name[entry.name]
            by_oid[entry.array_oid] = array_type(by_name[entry.name])
    return by_oid


VALUE_TYPES: Final = _by_oid()
"""By pg_type.oid; values of other types cannot be computed with."""

ELEMENTS: Final = {
    entry.array_oid: entry.oid for entry in ENTRIES if entry.array_oid in VALUE_TYPES
}
"""The element type of each array type."""
