"""Plans of expressions that choose among values: CASE, COALESCE, NULLIF, GREATEST and LEAST."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pgsluice.row_filter.kernels.kernel import Compute
from pgsluice.row_filter.plan.plans import Computed, Constant, Plan, Run, Tuple, folded, runner
from pgsluice.row_filter.values import Value


def case(argument: Plan | None, arms: Sequence[tuple[Run, Run]], default: Plan) -> Plan:
    """Plan CASE.

    Args:
        argument: what the conditions compare with; they see the row with its value at the end if
            it is computed.
        arms: the condition and the result of each arm that can be reached.
    """
    if not arms:
        return default
    otherwise = runner(default)
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
            runs.append(runner(plan))
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
    left, right = map(runner, plans)

    def run(row: Tuple) -> Value:
        a, b = left(row), right(row)
        return None if a is not None and b is not None and equal(a, b) else a

    return folded(run, plans)


def min_max(key: Callable[[Value], Any], plans: Sequence[Plan], *, is_greatest: bool) -> Plan:
    """Plan GREATEST or LEAST, by the key that orders the type's values."""
    runs = [runner(argument) for argument in plans]

    def run(row: Tuple) -> Value:
        best = None
        for value in [argument(row) for argument in runs]:
            if value is None:
                continue
            if best is None or (key(value) > key(best) if is_greatest else key(value) < key(best)):
                best = value
        return best

    return folded(run, plans)
