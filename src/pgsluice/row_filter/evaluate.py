"""A row filter computed on Arrow data, three-valued, exactly as PostgreSQL 18 does.

Rules:

- Whole columns are computed at once where Arrow's kernels give PostgreSQL's answer. Where they
  do not, or meet a value that they cannot compute, the filter is computed row by row. Both ways
  give the same answers.
- The first row, in order, for which the server would fail is an :class:`EvaluationError`. Rows
  and branches that the server does not look at never fail.
- What only the server knows (the case of some letters) is an error too, never a guess.
- Numbers are computed with all their digits: Python would round decimals to 28.
- An expression is planned once in a process, however many relations and batches use it. Bound
  expressions are values, so equal ones share their plan; an evaluator pickles as its expression
  and the database's rules of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import localcontext
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pgsluice.definitions.text_rules import ANY_LOCALE, TextRules
from pgsluice.errors import EvaluationError
from pgsluice.row_filter.bind.bound_filter import BoundFilter
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.kernels import KERNELS
from pgsluice.row_filter.kernels.kernel import Refused
from pgsluice.row_filter.kernels.scalars import Mask, NoColumn
from pgsluice.row_filter.nodes import Bool, Connective, Node
from pgsluice.row_filter.plan.batches import Batch, mask_of, truth_array
from pgsluice.row_filter.plan.connectives import truth_column
from pgsluice.row_filter.plan.planner import Planner
from pgsluice.row_filter.plan.plans import Constant, Plan
from pgsluice.row_filter.tree import functions_of, location_of
from pgsluice.row_filter.values import CannotKnow, SqlError
from pgsluice.row_filter.values.numbers import EXACT

_KEPT_PLANS = 4096


def plan_filters(filters: Sequence[BoundFilter]) -> FilterEvaluator:
    """Plan the filters of a relation, one or more, of which a row has to pass at least one.

    Raises:
        FilterNotExact: PostgreSQL can evaluate one of them, but pgsluice cannot do it exactly. The
            position of a filter's error is in that filter's text.
    """
    expressions = tuple(bound.expression for bound in filters)
    single = len(expressions) == 1
    try:
        expression = expressions[0] if single else Bool(Connective.OR, expressions)
        return plan_expression(expression, _needed(expression, filters[0].text_rules))
    except Refused as error:
        position = None
        if single and error.node is not None:  # an operator's own place, not its argument's
            position = error.node.location
            position = location_of(error.node) if position is None else position
        raise FilterNotExact(
            f"pgsluice cannot evaluate this row filter exactly: {error.reason}",
            position,
            server_hint=f"What can be done: {error.way_out}.",
        ) from None


def _needed(expression: Node, text_rules: TextRules) -> TextRules:
    """The rules of text that an expression asks for."""
    kernels = (KERNELS.get(function.signature) for function in functions_of(expression))
    if any(kernel is not None and kernel.reads_characters for kernel in kernels):
        return text_rules
    return text_rules.without_characters()


@lru_cache(maxsize=_KEPT_PLANS)
def plan_expression(
    expression: Node,
    text_rules: TextRules = ANY_LOCALE,
) -> FilterEvaluator:
    """Plan a bound expression of type boolean, once in a process.

    Raises:
        Refused: a part of it cannot be computed exactly.
    """
    planner = Planner(text_rules)
    try:
        with localcontext(EXACT):
            plan: Plan | SqlError = planner.plan(expression)
    except SqlError as error:
        plan = error  # the server fails as well, at the table's first change
    return FilterEvaluator((expression, text_rules), plan, planner.columns)


class FilterEvaluator:
    """A planned row filter, for any number of batches. :func:`plan_filters` makes it.

    Attributes:
        columns: the types (OIDs) of the columns that it reads, by name.
    """

    def __init__(
        self,
        planned: tuple[Node, TextRules],
        plan: Plan | SqlError,
        columns: Mapping[str, int],
    ) -> None:
        self._planned = planned
        self._failure = plan if isinstance(plan, SqlError) else None
        self._plan = Constant(None) if isinstance(plan, SqlError) else plan
        self.columns = columns

    def __reduce__(self) -> tuple[Any, ...]:
        return plan_expression, self._planned

    @property
    def failure(self) -> EvaluationError | None:
        """The server's error when it plans the filter, before it evaluates a row; or None.

        The server plans at the table's first change, regardless of its action.
        """
        return None if self._failure is None else _error(self._failure, 0)

    def passing(self, columns: Mapping[str, pa.Array], rows: int) -> Mask:
        """Which rows pass: those for which the filter is true, not NULL.

        Arguments and errors are those of :meth:`evaluate`.
        """
        return mask_of(self.evaluate(columns, rows), null=False)

    def evaluate(self, columns: Mapping[str, pa.Array], rows: int | None = None) -> pa.Array:
        """Compute true, false or null for each row.

        Args:
            columns: the values of at least the columns in ``columns``, all of one length. A
                string array is PostgreSQL's text output (datestyle ISO, intervalstyle
                postgres, extra_float_digits 3) of any type; another array is what
                ``pgsluice.types`` decodes, and must have had no unfit value.
            rows: their number; needed where there is no column.

        Raises:
            EvaluationError: PostgreSQL would fail, or its answer cannot be known here.
        """
        batch = Batch(columns, self.columns)
        if rows is not None:
            batch.rows = rows
        if not batch.rows:
            return truth_array([])
        if self._failure is not None:
            raise _error(self._failure, 0)
        with localcontext(EXACT):
            try:
                return truth_column(self._plan, batch)
            except (NoColumn, SqlError, RecursionError, pa.ArrowException):
                return self.evaluate_rows(batch)

    def evaluate_rows(self, batch: Batch) -> pa.Array:
        """The same one row after the other, where whole columns cannot be evaluated."""
        run = self._plan.run
        truths: list[bool | None] = []
        try:
            for row in batch.tuples():
                truths.append(run(row))  # noqa: PERF401 - its length is the failing row
        except SqlError as error:
            raise _error(error, len(truths)) from None
        except RecursionError:
            raise _error(CannotKnow("a value is nested too deep"), len(truths)) from None
        return truth_array(truths)


def _error(error: SqlError, row: int) -> EvaluationError:
    message = f"the row filter failed: {error.message}"
    if isinstance(error, CannotKnow):
        message = f"pgsluice cannot compute the row filter for a row: {error.message}"
    return EvaluationError(
        message,
        hint="change the row filter, or the row in PostgreSQL, and copy the table again: "
        "`pgsluice copy CONFIG TABLE`",
        condition=error.condition,
        message=error.message,
        row=row,
    )
