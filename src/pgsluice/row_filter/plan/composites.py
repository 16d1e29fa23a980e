"""Compute row comparisons and ARRAY[...] of arrays, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgsluice.row_filter.kernels.comparison import order_key
from pgsluice.row_filter.kernels.kernel import Refused, Site
from pgsluice.row_filter.plan.plans import Run, Tuple
from pgsluice.row_filter.values import NAMES, SqlError, Value
from pgsluice.row_filter.values.collections import PgArray

Key = Callable[[Value], Any]


def pair_keys(site: Site) -> tuple[Key, Key]:
    """The keys that the two sides of a field are compared by; raises Refused."""
    left, right = site.types
    names = NAMES.get(left), NAMES.get(right)
    if set(names) == {"date", "timestamp"}:
        raise Refused("a date and a timestamp in a row comparison cannot be computed here")
    return order_key(left, site), order_key(right, site)


def row_comparison(
    comparison: str,
    pairs: list[tuple[Run, Run, Key, Key]],
) -> Run:
    """Compare field by field; the first that differs or is NULL decides."""
    is_less, with_equal = comparison[0] == "<", comparison.endswith("=")

    def run(row: Tuple) -> Value:
        for left, right, left_key, right_key in pairs:
            a, b = left(row), right(row)
            if a is None or b is None:
                return None
            x, y = left_key(a), right_key(b)
            if x != y:
                return bool(x < y) if is_less else bool(x > y)
        return with_equal

    return run


def nested_array(arrays: list[PgArray | None]) -> PgArray:
    """Put arrays into one array with one more dimension."""
    full = [array for array in arrays if array is not None and array.elements]
    if not full:
        return PgArray((), (), ())
    first = full[0]
    same = all(
        array.dimensions == first.dimensions and array.lower_bounds == first.lower_bounds
        for array in full
    )
    if len(full) < len(arrays) or not same:
        raise SqlError(
            "array_subscript_error",
            "multidimensional arrays must have array expressions with matching dimensions",
        )
    elements = tuple(element for array in full for element in array.elements)
    return PgArray(elements, (len(full), *first.dimensions), (1, *first.lower_bounds))
