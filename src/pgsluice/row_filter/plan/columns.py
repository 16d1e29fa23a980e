"""Plan calls and tests on whole columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.arrow.functions import SITED, arrow_kernel, cannot_fail, scalar
from pgsluice.row_filter.kernels.kernel import Site
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.plan.plans import Computed, Constant, Plan

Column = Callable[[Batch], Datum]


def operand(plan: Plan, type_oid: int) -> Column | None:
    """An argument for an Arrow kernel; None if it has no column."""
    if isinstance(plan, Computed):
        return plan.column
    try:
        constant = scalar(plan.value, type_oid)
    except (NoColumn, pa.ArrowException, OverflowError):
        return None
    return lambda batch: constant


def _unread(batch: Batch) -> None:
    """A constant that the computation knows already."""


def call_column(
    signature: str, site: Site, plans: Sequence[Plan], types: Sequence[int]
) -> Computed | None:
    """Plan a call on whole columns; only ``column`` and ``is_safe`` of the result are meant."""
    compute = arrow_kernel(signature, site)
    if compute is None:
        return None
    columns = [
        _unread if signature in SITED and isinstance(plan, Constant) else operand(plan, type_oid)
        for plan, type_oid in zip(plans, types, strict=True)
    ]
    ready = [item for item in columns if item is not None]
    if len(ready) < len(columns):
        return None
    is_safe = cannot_fail(signature) and all(
        isinstance(item, Constant) or item.is_safe for item in plans
    )
    if len(ready) == 2:
        left, right = ready
        return Computed(_none, lambda batch: compute(left(batch), right(batch)), is_safe)
    return Computed(_none, lambda batch: compute(*[item(batch) for item in ready]), is_safe)


def _none(_: object) -> None:
    return None


def not_column(plan: Plan) -> Computed | None:
    """Plan NOT of a boolean column."""
    if isinstance(plan, Constant) or plan.column is None:
        return None
    column = plan.column
    return Computed(_none, lambda batch: pc.invert(column(batch)), plan.is_safe)


def is_null_column(plan: Computed, is_null: bool) -> Column | None:
    """Plan IS [NOT] NULL of a column."""
    column = plan.column
    if column is None:
        return None
    test = pc.is_null if is_null else pc.is_valid
    return lambda batch: test(column(batch))
