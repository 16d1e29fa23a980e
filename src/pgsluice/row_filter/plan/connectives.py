"""Plan AND, OR and the tests IS TRUE, IS FALSE and IS UNKNOWN.

An argument that may fail, or is slow because it is computed row by row, is computed only for the
rows that the arguments before it left undecided: as the server does, and faster.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, boolean_array, null_truth
from pgsluice.row_filter.plan.batches import Batch, constant_array, mask_of, truth_array
from pgsluice.row_filter.plan.plans import Computed, Constant, Plan, Run, Tuple, folded


def truth_column(plan: Plan, batch: Batch) -> pa.Array:
    """A plan's truth for a batch, by columns if possible, else row by row."""
    if isinstance(plan, Constant):
        return constant_array(plan.value, batch.rows)
    if plan.column is None:
        return truth_array([plan.run(row) for row in batch.tuples()])
    truth = plan.column(batch)
    return constant_array(truth.as_py(), batch.rows) if isinstance(truth, pa.Scalar) else truth


def with_fallback(plan: Computed, column: tuple[str, int] | None) -> Computed:
    """Plan a test on a batch that is computed by itself where Arrow cannot.

    Args:
        column: the only column that it reads: its name and its place in a row; then the test is
            computed once for each distinct value. None: it reads several.
    """
    by_arrow = plan.column

    def run(batch: Batch) -> Datum:
        if by_arrow is not None:
            try:
                return by_arrow(batch)
            except (NoColumn, pa.ArrowException):
                pass
        if column is None:
            return truth_array([plan.run(row) for row in batch.tuples()])
        return _by_distinct_values(plan.run, batch, *column)

    return Computed(plan.run, run, plan.is_safe)


def _by_distinct_values(compute: Run, batch: Batch, name: str, place: int) -> pa.Array:
    values, places = batch.distinct(name)
    before = (None,) * place
    truths = [compute((*before, value)) for value in values]
    truths.append(compute((*before, None)) if (places < 0).any() else None)
    return truth_array(truths, places)


def connective(is_and: bool, plans: Iterable[Plan]) -> Plan:
    """Plan AND or OR.

    Arguments are planned one by one: after a constant that decides the result, no more are planned.
    """
    deciding = not is_and
    has_null = False
    computed: list[Computed] = []
    for plan in plans:
        if isinstance(plan, Computed):
            computed.append(plan)
        elif plan.value is None:
            has_null = True
        elif plan.value is deciding:
            return Constant(deciding)
    if not computed:
        return Constant(None if has_null else is_and)
    if len(computed) == 1 and not has_null:
        return computed[0]
    runs = [plan.run for plan in computed]
    combine = pc.and_kleene if is_and else pc.or_kleene

    def run(row: Tuple) -> bool | None:
        is_unknown = has_null
        for argument in runs:
            truth = argument(row)
            if truth is None:
                is_unknown = True
            elif bool(truth) == deciding:
                return deciding
        return None if is_unknown else is_and

    def column(batch: Batch) -> pa.Array:
        truth = truth_column(computed[0], batch)
        for plan in computed[1:]:
            if plan.is_safe:
                truth = combine(truth, truth_column(plan, batch))
            else:
                truth = combine(truth, _where_undecided(plan, batch, truth, is_and))
        return combine(truth, null_truth()) if has_null else truth

    return Computed(run, column, all(plan.is_safe for plan in computed))


def _where_undecided(plan: Plan, batch: Batch, truth: pa.Array, is_and: bool) -> pa.Array:
    """A plan's truth for the undecided rows; the result of the other rows does not matter."""
    open_rows = mask_of(truth, null=is_and) == is_and
    if open_rows.all():
        return truth_column(plan, batch)
    part = truth_column(plan, batch.only(open_rows))
    whole = np.zeros(batch.rows, np.bool_)
    null = np.zeros(batch.rows, np.bool_)
    whole[open_rows] = mask_of(part, null=False)
    null[open_rows] = mask_of(part.is_null(), null=False)
    return boolean_array(whole, null)


def truth_test(plan: Plan, wanted: bool | None, is_negated: bool) -> Plan:
    """Plan ``IS [NOT] TRUE | FALSE | UNKNOWN``; ``wanted`` is None for UNKNOWN."""
    compute = plan.run

    def column(batch: Batch) -> pa.Array:
        array = truth_column(plan, batch)
        if wanted is None:
            passes = mask_of(array.is_null(), null=False)
        else:
            passes = mask_of(array, null=not wanted) == wanted
        return boolean_array(passes != is_negated)

    by_column = None if plan.column is None else column
    return folded(
        lambda row: (compute(row) is wanted) != is_negated, [plan], by_column, plan.is_safe
    )
