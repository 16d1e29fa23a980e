"""Arrays and ranges.

Source: src/backend/utils/adt/arrayfuncs.c, array_userfuncs.c, rangetypes.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pgsluice.row_filter.kernels.comparison import value_key
from pgsluice.row_filter.kernels.kernel import (
    Compute,
    KnownResult,
    Refused,
    Site,
    kernel,
    sited,
)
from pgsluice.row_filter.values import ELEMENTS, SUBTYPES, SqlError, Value
from pgsluice.row_filter.values.collections import (
    PgArray,
    Range,
    lower_key,
    upper_key,
)

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


# Ranges


def _subtype_key(type_oid: int) -> Key:
    if type_oid not in SUBTYPES:
        raise Refused("ranges of this type cannot be computed")
    return value_key(SUBTYPES[type_oid])


def _is_before(a: Range, b: Range, key: Key) -> bool:
    return not a.is_empty and not b.is_empty and upper_key(a, key) < lower_key(b, key)


def _overlaps(a: Range, b: Range, key: Key) -> bool:
    return (
        not a.is_empty
        and not b.is_empty
        and lower_key(a, key) <= upper_key(b, key)
        and lower_key(b, key) <= upper_key(a, key)
    )


def _range_contains(a: Range, b: Range, key: Key) -> bool:
    if b.is_empty or a.is_empty:
        return b.is_empty
    return lower_key(a, key) <= lower_key(b, key) and upper_key(b, key) <= upper_key(a, key)


def _not_right_of(a: Range, b: Range, key: Key) -> bool:
    return not a.is_empty and not b.is_empty and upper_key(a, key) <= upper_key(b, key)


def _not_left_of(a: Range, b: Range, key: Key) -> bool:
    return not a.is_empty and not b.is_empty and lower_key(a, key) >= lower_key(b, key)


_RANGE_TESTS: Final[dict[str, Callable[[Range, Range, Key], bool]]] = {
    "range_before": _is_before,
    "range_after": lambda a, b, key: _is_before(b, a, key),
    "range_overlaps": _overlaps,
    "range_contains": _range_contains,
    "range_contained_by": lambda a, b, key: _range_contains(b, a, key),
    "range_overleft": _not_right_of,
    "range_overright": _not_left_of,
}


def _range_test(test: Callable[[Range, Range, Key], bool]) -> Callable[[Site], Compute]:
    def make(site: Site) -> Compute:
        key = _subtype_key(site.types[0])
        return lambda a, b: test(a, b, key)

    return make


for _name, _test in _RANGE_TESTS.items():
    sited(f"{_name}(anyrange,anyrange)")(_range_test(_test))


def _simplify(a: Value) -> None:
    """An empty or unbounded constant range decides by itself, even for NULL (17 and newer)."""
    if isinstance(a, Range) and (a.is_empty or (a.lower is None and a.upper is None)):
        raise KnownResult(not a.is_empty)


def _has(a: Range, value: Value, key: Key) -> bool:
    if a.is_empty:
        return False
    bound = (0, key(value), 0)
    return lower_key(a, key) <= bound <= upper_key(a, key)


@sited("range_contains_elem(anyrange,anyelement)")
def _contains_element(site: Site) -> Compute:
    _simplify(site.constants[0])
    key = _subtype_key(site.types[0])
    return lambda a, value: _has(a, value, key)


@sited("elem_contained_by_range(anyelement,anyrange)")
def _element_contained(site: Site) -> Compute:
    _simplify(site.constants[1])
    key = _subtype_key(site.types[1])
    return lambda value, a: _has(a, value, key)


@kernel("isempty(anyrange)")
def _is_empty(a: Range) -> bool:
    return a.is_empty


@kernel("lower(anyrange)")
def _lower_bound(a: Range) -> Value:
    return a.lower


@kernel("upper(anyrange)")
def _upper_bound(a: Range) -> Value:
    return a.upper


@kernel("lower_inc(anyrange)")
def _lower_inclusive(a: Range) -> bool:
    return a.is_lower_inclusive


@kernel("upper_inc(anyrange)")
def _upper_inclusive(a: Range) -> bool:
    return a.is_upper_inclusive


@kernel("lower_inf(anyrange)")
def _lower_infinite(a: Range) -> bool:
    return not a.is_empty and a.lower is None


@kernel("upper_inf(anyrange)")
def _upper_infinite(a: Range) -> bool:
    return not a.is_empty and a.upper is None
