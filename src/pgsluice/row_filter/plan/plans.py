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
from typing import TypeAlias

from pgsluice.row_filter.kernels.kernel import Compute
from pgsluice.row_filter.kernels.scalars import Datum
from pgsluice.row_filter.plan.batches import Batch
from pgsluice.row_filter.values import Value

Tuple: TypeAlias = tuple[Value, ...]
Run: TypeAlias = Callable[[Tuple], Value]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is known before the first row."""

    value: Value


@dataclass(frozen=True, slots=True)
class Computed:
    """A value of each row.

    Attributes:
        run: computes it from a row.
        column: computes it for a batch at once, as an Arrow array; None if only rows work.
        is_safe: ``column`` never fails, also for rows that the server would not look at.
    """

    run: Run
    column: Callable[[Batch], Datum] | None = None
    is_safe: bool = False


Plan: TypeAlias = Constant | Computed


def runner(plan: Plan) -> Run:
    """The function that computes a plan for a row."""
    if isinstance(plan, Computed):
        return plan.run
    value = plan.value
    return lambda row: value


def folded(run: Run, plans: Sequence[Plan], column: Callable[[Batch], Datum] | None = None) -> Plan:
    """A constant if all arguments are constants, else computed for each row."""
    if all(isinstance(plan, Constant) for plan in plans):
        return Constant(run(()))
    return Computed(run, column)


def applied(compute: Compute, plans: Sequence[Plan], computed: Computed | None = None) -> Plan:
    """Plan a strict function; ``computed`` has its computation on columns."""
    run = strict(compute, [runner(plan) for plan in plans])
    if all(isinstance(plan, Constant) for plan in plans):
        return Constant(run(()))
    if computed is None:
        return Computed(run)
    return Computed(run, computed.column, computed.is_safe)


def strict(compute: Compute, runs: list[Run]) -> Run:
    """Compute all arguments; the result is NULL if one of them is, without a call."""
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


def calling(compute: Compute, runs: list[Run]) -> Run:
    """Call a function that accepts NULL."""
    return lambda row: compute(*[argument(row) for argument in runs])
