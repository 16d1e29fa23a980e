"""Arrays.

Source: src/backend/utils/adt/arrayfuncs.c, array_userfuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgsluice.row_filter.kernels.comparison import value_key
from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, kernel, register_all, sited
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


def _overlap(a: PgArray, b: PgArray, key: Key) -> bool:
    have = [key(element) for element in a.elements if element is not None]
    return any(key(element) in have for element in b.elements if element is not None)


def _by_key(test: Callable[[PgArray, PgArray, Key], bool]) -> Callable[[Site], Compute]:
    def make(site: Site) -> Compute:
        key = element_key(site.types[0])
        return lambda a, b: test(a, b, key)

    return make


sited("arraycontains(anyarray,anyarray)")(_by_key(_contains))
sited("arraycontained(anyarray,anyarray)")(_by_key(lambda a, b, key: _contains(b, a, key)))
sited("arrayoverlap(anyarray,anyarray)")(_by_key(_overlap))


def _at(numbers: tuple[int, ...], dimension: int) -> int | None:
    return numbers[dimension - 1] if 1 <= dimension <= len(numbers) else None


register_all(
    {
        "cardinality(anyarray)": lambda array: len(array.elements),
        "array_ndims(anyarray)": lambda array: len(array.dimensions) or None,
        "array_length(anyarray,int4)": lambda array, place: _at(array.dimensions, place),
        "array_lower(anyarray,int4)": lambda array, place: _at(array.lower_bounds, place),
    }
)


@kernel("array_upper(anyarray,int4)")
def _upper(array: PgArray, dimension: int) -> int | None:
    lower, length = _at(array.lower_bounds, dimension), _at(array.dimensions, dimension)
    return None if lower is None or length is None else lower + length - 1


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
