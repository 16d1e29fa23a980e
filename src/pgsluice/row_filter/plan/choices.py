"""Plans of expressions that are no calls: CASE, COALESCE, NULLIF, GREATEST, LEAST, IN, ANY, ALL,
ROW(...) and ARRAY[...]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.arrow.functions import scalar
from pgsluice.row_filter.kernels.comparison import COMPARED, order_key
from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, null_truth
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.plan.plans import Computed, Constant, Plan, Run, Tuple, folded
from pgsluice.row_filter.values import NAMES, SqlError, Value
from pgsluice.row_filter.values.collections import PgArray


def case(argument: Plan | None, arms: Sequence[tuple[Run, Run]], default: Plan) -> Plan:
    """Plan CASE.

    Args:
        argument: what the conditions compare with; they see the row with its value at the end if
            it is computed.
        arms: the condition and the result of each arm that can be reached.
    """
    if not arms:
        return default
    otherwise = default.run
    compute_argument = argument.run if isinstance(argument, Computed) else None

    def run(row: Tuple) -> Value:
        tested = row if compute_argument is None else (*row, compute_argument(row))
        for condition, result in arms:
            if condition(tested):
                return result(row)
        return otherwise(row)

    return Computed(run)


def coalesce(plans: Iterable[Plan]) -> Plan:
    """Plan COALESCE; the plans after a constant that is not NULL are ignored."""
    runs: list[Run] = []
    for plan in plans:
        if isinstance(plan, Constant):
            if plan.value is None:
                continue
            if not runs:
                return plan
            runs.append(plan.run)
            break
        runs.append(plan.run)
    if not runs:
        return Constant(None)

    def run(row: Tuple) -> Value:
        for argument in runs:
            value = argument(row)
            if value is not None:
                return value
        return None

    return Computed(run)


def null_if(equal: Compute, plans: Sequence[Plan]) -> Plan:
    """Plan NULLIF of two plans."""
    if any(isinstance(argument, Constant) and argument.value is None for argument in plans):
        return plans[0]
    left, right = [plan.run for plan in plans]

    def run(row: Tuple) -> Value:
        a, b = left(row), right(row)
        return None if a is not None and b is not None and equal(a, b) else a

    return folded(run, plans)


def min_max(key: Callable[[Value], Any], plans: Sequence[Plan], *, is_greatest: bool) -> Plan:
    """Plan GREATEST or LEAST, by the key that orders the type's values."""
    runs = [argument.run for argument in plans]

    def run(row: Tuple) -> Value:
        best = None
        for value in [argument(row) for argument in runs]:
            if value is None:
                continue
            if best is None or (key(value) > key(best) if is_greatest else key(value) < key(best)):
                best = value
        return best

    return folded(run, plans)


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


#: Types of whose values Arrow's is_in finds those that are equal.
_SET_TYPES: Final = ("int2", "int4", "int8", "oid", "text", "bytea", "uuid", "date")


def membership(compute: Compute, scalar_run: Run, array_run: Run, is_any: bool) -> Run:
    """Compute for a row; it stops at the first element that decides."""

    def run(row: Tuple) -> bool | None:
        value = scalar_run(row)
        array: PgArray | None = array_run(row)
        is_unknown = False
        if array is None:
            return None
        if not array.elements:
            return not is_any
        if value is None:
            return None
        for element in array.elements:
            if element is None:
                is_unknown = True
            elif bool(compute(value, element)) == is_any:
                return is_any
        return None if is_unknown else not is_any

    return run


def is_in_column(
    signature: str, value: Plan, array: Plan, types: tuple[int, int], is_any: bool
) -> Callable[[Batch], Datum] | None:
    """The computation of IN or NOT IN of constants on whole columns; None if Arrow cannot do it."""
    if not isinstance(value, Computed) or value.column is None or not isinstance(array, Constant):
        return None
    is_equality = COMPARED.get(signature) == ("eq" if is_any else "ne")
    is_of_set = types[0] == types[1] and NAMES.get(types[0]) in _SET_TYPES
    if array.value is None or not is_equality or not is_of_set:
        return None
    elements = [element for element in array.value.elements if element is not None]
    has_null = len(elements) < len(array.value.elements)
    if not elements:
        return None
    try:
        scalars = [scalar(element, types[1]) for element in elements]
    except (NoColumn, pa.ArrowException, OverflowError):
        return None
    wanted = pa.concat_arrays([pa.repeat(element, 1) for element in scalars])
    column = value.column

    def run(batch: Batch) -> Datum:
        values = column(batch)
        membership_array = pc.is_in(values, value_set=wanted)
        is_unknown = null_truth()
        if has_null:  # a value that is not among the known elements may equal the unknown one
            membership_array = pc.if_else(membership_array, membership_array, is_unknown)
        membership_array = pc.if_else(pc.is_null(values), is_unknown, membership_array)
        return membership_array if is_any else pc.invert(membership_array)

    return run
