"""Arrays, and ranges: their tests, bounds and constructors.

Source: src/backend/utils/adt/arrayfuncs.c, array_userfuncs.c, rangetypes.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pgsluice.row_filter.kernels.comparison import value_key
from pgsluice.row_filter.kernels.kernel import (
    Compute,
    KnownResult,
    Refused,
    Site,
    kernel,
    register_all,
    sited,
)
from pgsluice.row_filter.values import ELEMENTS, NAMES, SUBTYPES, VALUE_TYPES, SqlError, Value
from pgsluice.row_filter.values.collections import PgArray
from pgsluice.row_filter.values.ranges import Range, lower_key, make_range, upper_key

Key = Callable[[Value], Any]


def _key(inner: Mapping[int, int], type_oid: int, refusal: str) -> Key:
    """The key that the elements of a type's values are compared by; raises Refused."""
    if type_oid not in inner:
        raise Refused(refusal)
    return value_key(inner[type_oid])


_element_key = partial(_key, ELEMENTS, refusal="arrays of this type cannot be compared exactly")
_subtype_key = partial(_key, SUBTYPES, refusal="ranges of this type cannot be computed")


def _by_key(
    key_of: Callable[[int], Key], test: Callable[[Any, Any, Key], bool]
) -> Callable[[Site], Compute]:
    def make(site: Site) -> Compute:
        key = key_of(site.types[0])
        return lambda a, b: test(a, b, key)

    return make


def _contains(a: PgArray, b: PgArray, key: Key) -> bool:
    """Whether ``a`` has all elements of ``b``; NULL is never contained."""
    if None in b.elements:
        return False
    have = [key(element) for element in a.elements if element is not None]
    return all(key(element) in have for element in b.elements)


def _overlap(a: PgArray, b: PgArray, key: Key) -> bool:
    have = [key(element) for element in a.elements if element is not None]
    return any(key(element) in have for element in b.elements if element is not None)


sited("arraycontains(anyarray,anyarray)")(_by_key(_element_key, _contains))
sited("arraycontained(anyarray,anyarray)")(
    _by_key(_element_key, lambda a, b, key: _contains(b, a, key))
)
sited("arrayoverlap(anyarray,anyarray)")(_by_key(_element_key, _overlap))


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
    key = _element_key(site.types[0])

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


Test = Callable[[Range, Range, Key], bool]


def _of_filled(test: Test) -> Test:
    """A test that is false for an empty range."""
    return lambda a, b, key: not a.is_empty and not b.is_empty and test(a, b, key)


def _range_contains(a: Range, b: Range, key: Key) -> bool:
    if b.is_empty or a.is_empty:
        return b.is_empty
    return lower_key(a, key) <= lower_key(b, key) and upper_key(b, key) <= upper_key(a, key)


def _meet(a: Range, b: Range, key: Key) -> bool:
    """Whether the one begins right where the other ends."""
    if a.upper is None or b.lower is None or key(a.upper) != key(b.lower):
        return False
    return a.is_upper_inclusive != b.is_lower_inclusive


_RANGE_TESTS: Final[dict[str, Test]] = {
    "range_before": _of_filled(lambda a, b, key: upper_key(a, key) < lower_key(b, key)),
    "range_after": _of_filled(lambda a, b, key: upper_key(b, key) < lower_key(a, key)),
    "range_overlaps": _of_filled(
        lambda a, b, key: (
            lower_key(a, key) <= upper_key(b, key) and lower_key(b, key) <= upper_key(a, key)
        )
    ),
    "range_contains": _range_contains,
    "range_contained_by": lambda a, b, key: _range_contains(b, a, key),
    "range_overleft": _of_filled(lambda a, b, key: upper_key(a, key) <= upper_key(b, key)),
    "range_overright": _of_filled(lambda a, b, key: lower_key(a, key) >= lower_key(b, key)),
    "range_adjacent": _of_filled(lambda a, b, key: _meet(a, b, key) or _meet(b, a, key)),
}


for _name, _test in _RANGE_TESTS.items():
    sited(f"{_name}(anyrange,anyrange)")(_by_key(_subtype_key, _test))


def _has(a: Range, value: Value, key: Key) -> bool:
    if a.is_empty:
        return False
    bound = (0, key(value), 0)
    return lower_key(a, key) <= bound <= upper_key(a, key)


def _containing(site: Site, place: int) -> Compute:
    """Whether the range, which is the argument at a place, has the other argument."""
    given = site.constants[place]
    # with an empty or unbounded constant range, the result is known also for NULL (17 and newer)
    if isinstance(given, Range) and (
        given.is_empty or (given.lower is None and given.upper is None)
    ):
        raise KnownResult(not given.is_empty)
    key = _subtype_key(site.types[place])
    return lambda *both: _has(both[place], both[1 - place], key)


sited("range_contains_elem(anyrange,anyelement)")(partial(_containing, place=0))
sited("elem_contained_by_range(anyelement,anyrange)")(partial(_containing, place=1))
register_all(
    {
        "isempty(anyrange)": lambda a: a.is_empty,
        "lower(anyrange)": lambda a: a.lower,
        "upper(anyrange)": lambda a: a.upper,
        "lower_inc(anyrange)": lambda a: a.is_lower_inclusive,
        "upper_inc(anyrange)": lambda a: a.is_upper_inclusive,
        "lower_inf(anyrange)": lambda a: not a.is_empty and a.lower is None,
        "upper_inf(anyrange)": lambda a: not a.is_empty and a.upper is None,
    }
)

# Constructors


def _constructor(site: Site) -> Compute:
    subtype = VALUE_TYPES[SUBTYPES[site.result_type]]

    def run(lower: Value, upper: Value, inclusive: str | None = "[)") -> Range:
        if inclusive is None:
            message = "range constructor flags argument must not be null"
            raise SqlError("data_exception", message)
        if inclusive not in ("[)", "(]", "[]", "()"):
            raise SqlError("syntax_error", "invalid range bound flags")
        return make_range(lower, upper, inclusive, subtype)

    return run


for _name, _subtype in ((NAMES[oid], NAMES[of]) for oid, of in SUBTYPES.items()):
    sited(
        f"{_name}({_subtype},{_subtype})", f"{_name}({_subtype},{_subtype},text)", is_strict=False
    )(_constructor)
