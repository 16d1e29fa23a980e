"""A row filter computed on Arrow data, three-valued, exactly as PostgreSQL 18 does.

Rules:

- Whole columns at once where Arrow's kernels give the same; where they do not, or where they
  meet something that they cannot do, every row by itself. Both give the same answers.
- The first row, in order, for which the server would fail is an :class:`EvaluationError`; rows
  and branches that the server does not look at never fail.
- What only the server knows (the case of a letter beyond ASCII) fails too, and is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pgsluice.errors import EvaluationError
from pgsluice.publication.row_filter.batches import Batch, truth_array
from pgsluice.publication.row_filter.connective_plans import truth_column
from pgsluice.publication.row_filter.kernels.arrow import NoColumn
from pgsluice.publication.row_filter.nodes import Node
from pgsluice.publication.row_filter.planner import Planner
from pgsluice.publication.row_filter.plans import Constant, Plan, runner
from pgsluice.publication.row_filter.unsupported import CannotCompute, Unsupported
from pgsluice.publication.row_filter.values import CannotKnow, SqlError


def unsupported(expression: Node) -> Unsupported | None:
    """The first node that cannot be computed exactly as PostgreSQL does; None if all can."""
    try:
        Planner().plan(expression)
    except CannotCompute as refused:
        return refused.unsupported
    except SqlError:
        return None  # the server fails as well, with the first row
    return None


class Evaluator:
    """A bound row filter, ready for any number of batches. It pickles.

    Args:
        expression: of type boolean.

    Attributes:
        columns: the types (OIDs) of the columns that it reads, by name.

    Raises:
        ValueError: the expression is one of those that :func:`unsupported` names.
    """

    def __init__(self, expression: Node) -> None:
        self.expression = expression
        planner = Planner()
        self._failure: SqlError | None = None
        self._plan: Plan = Constant(None)
        try:
            self._plan = planner.plan(expression)
        except CannotCompute as refused:
            raise ValueError(f"not to be computed: {refused.unsupported.reason}") from None
        except SqlError as error:
            self._failure = error
        self.columns: Mapping[str, int] = dict(planner.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Evaluator, (self.expression,)

    @property
    def failure(self) -> EvaluationError | None:
        """What the server fails with when it plans the filter, before it looks at any row: at
        the table's first change, whatever that is. None where it can be planned."""
        return None if self._failure is None else _error(self._failure, 0)

    def evaluate(self, columns: Mapping[str, pa.Array], rows: int | None = None) -> pa.Array:
        """True, false or null for each row.

        Args:
            columns: the values of at least the columns in ``columns``, all of one length. A
                string array is PostgreSQL's text output (datestyle ISO, intervalstyle
                postgres, extra_float_digits 3) of any type; another array is what
                ``pgsluice.types`` decodes, and must have had no unfit value.
            rows: their number; needed where there is no column.

        Raises:
            EvaluationError: PostgreSQL would fail, or what it answers cannot be known here.
        """
        batch = Batch(columns, self.columns)
        if rows is not None:
            batch.rows = rows
        if not batch.rows:
            return truth_array([])
        if self._failure is not None:
            raise _error(self._failure, 0)
        try:
            return truth_column(self._plan, batch)
        except (NoColumn, SqlError, RecursionError, pa.ArrowException):
            return self._by_rows(batch)

    def _by_rows(self, batch: Batch) -> pa.Array:
        run = runner(self._plan)
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
    what = f"the row filter failed: {error.message}"
    if isinstance(error, CannotKnow):
        what = f"the row filter cannot be computed for a row: {error.message}"
    return EvaluationError(
        what,
        hint="change the filter, or the row at the source, and copy the table again",
        condition=error.condition,
        message=error.message,
        row=row,
    )
