"""Arrays.

Source: src/backend/utils/adt/arrayfuncs.c, array_userfuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgsluice.row_filter.kernels.comparison import value_key
from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, kernel, sited
from pgsluice.row_filter.values import ELEMENTS, SqlError, Value
from pgsluice.row_filter.values.collections import PgArray

Key = Callable[[Value], Any]


def element_key(array_oid: int) -> Key:
    """The key that an array's elements are compared by; raises Refused."""
    if array_oid not in ELEMENTS:
        raise Refused("arrays of this type cannot be compared exactly")
    return value_key(ELEMENTS[array_oid])


def _contains(a: PgArray, b: PgArray, key: Key) -> bool:
    """Whether ``a`` has all elements of ``b``; NULL is never contained."""
    if None in b.elements:
        return False
    have = [key(element) for element in a.elements if element is not None]
    return all(key(element) in have for element in b.elements)


@sited("arraycontains(anyarray,anyarray)")
def _array_contains(site: Site) -> Compute:
    key = element_key(site.types[0])
    return lambda a, b: _contains(a, b, key)


@sited("arraycontained(anyarray,anyarray)")
def _array_contained(site: Site) -> Compute:
    key = element_key(site.types[0])
    return lambda a, b: _contains(b, a, key)


@sited("arrayoverlap(anyarray,anyarray)")
def _array_overlap(site: Site) -> Compute:
    key = element_key(site.types[0])

    def run(a: PgArray, b: PgArray) -> bool:
        have = [key(element) for element in a.elements if element is not None]
        return any(key(element) in have for element in b.elements if element is not None)

    return run


@kernel("cardinality(anyarray)")
def _cardinality(array: PgArray) -> int:
    return len(array.elements)


@kernel("array_ndims(anyarray)")
def _ndims(array: PgArray) -> int | None:
    return len(array.dimensions) or None


def _has_dimension(array: PgArray, dimension: int) -> bool:
    return 1 <= dimension <= len(array.dimensions)


@kernel("array_length(anyarray,int4)")
def _length(array: PgArray, dimension: int) -> int | None:
    return array.dimensions[dimension - 1] if _has_dimension(array, dimension) else None


@kernel("array_lower(anyarray,int4)")
def _lower(array: PgArray, dimension: int) -> int | None:
    return array.lower_bounds[dimension - 1] if _has_dimension(array, dimension) else None


@kernel("array_upper(anyarray,int4)")
def _upper(array: PgArray, dimension: int) -> int | None:
    if not _has_dimension(array, dimension):
        return None
    return array.lower_bounds[dimension - 1] + array.dimensions[dimension - 1] - 1


@sited("array_position(anycompatiblearray,anycompatible)", is_strict=False)
def _position(site: Site) -> Compute:
    key = element_key(site.types[0])

    def run(array: PgArray | None, wanted: Value) -> int | None:
        if array is None:
            return None
        if len(array.dimensions) > 1:
            message = "searching for elements in multidimensional arrays is not supported"
            raise SqlError("feature_not_supported", message)
        for index, element in enumerate(array.elements):
            if element is None or wanted is None:
                if element is wanted:
                    return index + array.lower_bounds[0]
            elif key(element) == key(wanted):
                return index + array.lower_bounds[0]
        return None

    return run
