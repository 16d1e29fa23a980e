"""A plan: an expression with its constants folded and its kernels found.

A plan is a constant, or has a function that computes it for one row, and where Arrow can, another
one for a batch.

Rules, from eval_const_expressions, which the server runs before it filters the first row:

- A part with constants only is computed at once. Its error is the filter's error, whether or not
  any row would have reached it.
- Arguments of AND, OR, COALESCE and CASE that constants make unreachable are dropped before they
  are looked at.
- A strict function with a constant NULL is NULL, whatever its other arguments would do.

Source: src/backend/optimizer/util/clauses.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from pgsluice.row_filter.kernels.arrow.functions import SITED, arrow_kernel, cannot_fail, scalar
from pgsluice.row_filter.kernels.kernel import Compute, Site
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.values import Value

Tuple: TypeAlias = tuple[Value, ...]
Run: TypeAlias = Callable[[Tuple], Value]
Column: TypeAlias = Callable[[Batch], Datum]


@dataclass(frozen=True, slots=True)
class Constant:
    """A part of a filter whose value is known before the first row."""

    value: Value
    column: ClassVar[None] = None
    is_safe: ClassVar[bool] = True

    @property
    def run(self) -> Run:
        """Gives the value, whatever the row."""
        value = self.value
        return lambda row: value


@dataclass(frozen=True, slots=True)
class Computed:
    """A value of each row.

    Attributes:
        run: computes it from a row.
        column: computes it for a batch at once, as an Arrow array; None if only rows work.
        is_safe: ``column`` never fails, also for rows that the server would not look at.
    """

    run: Run
    column: Column | None = None
    is_safe: bool = False


Plan: TypeAlias = Constant | Computed


def folded(
    run: Run, plans: Sequence[Plan], column: Column | None = None, is_safe: bool = False
) -> Plan:
    """A constant if all arguments are constants, else computed for each row."""
    if all(isinstance(plan, Constant) for plan in plans):
        return Constant(run(()))
    return Computed(run, column, is_safe)


def applied(
    compute: Compute, plans: Sequence[Plan], column: Column | None = None, is_safe: bool = False
) -> Plan:
    """Plan a strict function: if an argument is NULL, it is not called."""
    return folded(strict(compute, [plan.run for plan in plans]), plans, column, is_safe)


def strict(compute: Compute, runs: list[Run]) -> Run:
    """Compute all arguments; the result is NULL if one of them is, without a call.

    One and two arguments have a function of their own: a row takes half the time.
    """
    if len(runs) == 1:
        (only,) = runs

        def run_one(row: Tuple) -> Value:
            value = only(row)
            return None if value is None else compute(value)

        return run_one
    if len(runs) == 2:
        left, right = runs

        def run_two(row: Tuple) -> Value:
            a, b = left(row), right(row)
            return None if a is None or b is None else compute(a, b)

        return run_two

    def run(row: Tuple) -> Value:
        values = [argument(row) for argument in runs]
        return None if None in values else compute(*values)

    return run


def on_column(compute: Callable[[Datum], Datum], plan: Plan) -> Column | None:
    """A function of Arrow on a plan's column; None if it has none."""
    if (column := plan.column) is None:
        return None
    return lambda batch: compute(column(batch))


def _operand(plan: Plan, type_oid: int) -> Column | None:
    """An argument for an Arrow kernel; None if it has no column."""
    if isinstance(plan, Computed):
        return plan.column
    try:
        constant = scalar(plan.value, type_oid)
    except (NoColumn, pa.ArrowException, OverflowError):
        return None
    return lambda batch: constant


def call_column(
    signature: str, site: Site, plans: Sequence[Plan], types: Sequence[int]
) -> tuple[Column | None, bool]:
    """A call's computation on whole columns, None if there is none, and whether it is safe."""
    compute = arrow_kernel(signature, site)
    if compute is None:
        return None, False
    columns = [
        (lambda batch: None)  # the computation knows the constant
        if signature in SITED and isinstance(plan, Constant)
        else _operand(plan, type_oid)
        for plan, type_oid in zip(plans, types, strict=True)
    ]
    ready = [item for item in columns if item is not None]
    if len(ready) < len(columns):
        return None, False
    is_safe = cannot_fail(signature) and all(plan.is_safe for plan in plans)
    return lambda batch: compute(*[item(batch) for item in ready]), is_safe
