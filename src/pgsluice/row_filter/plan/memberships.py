"""Plan ``= ANY (array)``, ``op ALL (array)``, IN and NOT IN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.arrow.functions import scalar
from pgsluice.row_filter.kernels.kernel import Compute
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, null_truth
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.plan.plans import Computed, Constant, Plan, Run, Tuple
from pgsluice.row_filter.values.collections import PgArray

#: Equality and inequality functions that Arrow's is_in can compute; True for equality.
_SETS: Final = {
    f"{form.format(name)}({kind},{kind})": name == "eq"
    for form, kind in (
        ("int2{}", "int2"),
        ("int4{}", "int4"),
        ("int8{}", "int8"),
        ("oid{}", "oid"),
        ("text{}", "text"),
        ("bytea{}", "bytea"),
        ("uuid_{}", "uuid"),
        ("date_{}", "date"),
    )
    for name in ("eq", "ne")
}


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
    """IN and NOT IN of constants, for a whole column."""
    if not isinstance(value, Computed) or value.column is None or not isinstance(array, Constant):
        return None
    if array.value is None or _SETS.get(signature) is not is_any or types[0] != types[1]:
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
