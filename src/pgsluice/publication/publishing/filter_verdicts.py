"""Evaluates the row filters on the tuples of changes.

INSERTs are evaluated on their new tuple, DELETEs on their old one, UPDATEs on both. The filters of
the change's action are combined with OR. NULL counts as false. In the new tuple, unchanged values
are taken from the old one.

If a filter fails for a row, none of the changes are returned, so their batch applies nothing. As
on the server, no row is skipped.

Source: src/backend/replication/pgoutput/pgoutput.c (pgoutput_row_filter).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import DELETE, INSERT, UPDATE, Int64s, Mask, RelationChanges
from pgsluice.columnar.row_pool import RowPool
from pgsluice.errors import EvaluationError, TableError
from pgsluice.hints import copied_again, copy_again
from pgsluice.lsn import Lsn
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules.target import check_filter_column
from pgsluice.sql import quote_title
from pgsluice.types import resolve_type


def check_plans(changes: RelationChanges, filters: Iterable[FilterEvaluator | None]) -> None:
    """Raise the errors that the server raises before it evaluates a row.

    The server computes a filter's constants at the table's first change, regardless of its action.

    Raises:
        EvaluationError: as :func:`evaluate_filters`, for the first change.
    """
    for evaluator in filters:
        if len(changes) and evaluator is not None and (failure := evaluator.failure) is not None:
            raise _located(failure, changes, 0)


def evaluate_filters(
    changes: RelationChanges, pool: RowPool, filters: Mapping[int, FilterEvaluator | None]
) -> tuple[Mask, Mask]:
    """Whether each change's old tuple passes the filters, and its new one.

    Both do if no filter applies. For an UPDATE without an old tuple, the old one is as the new one.

    Args:
        filters: by INSERT, UPDATE and DELETE; actions with the same filters share one evaluator.

    Raises:
        EvaluationError: a filter fails for a row, as it would on the server. The error is that of
            the first such change, with ``table``, ``lsn``, ``ordinal`` and ``key_columns``.
        TableError: a filter needs a column or a value that the server does not send.
    """
    count = len(changes)
    old, new = np.ones(count, np.bool_), np.ones(count, np.bool_)
    failures: list[tuple[int, EvaluationError]] = []
    for evaluator in dict.fromkeys(
        candidate for candidate in filters.values() if candidate is not None
    ):
        actions = [action for action, candidate in filters.items() if candidate is evaluator]
        evaluated = _EvaluatedTuples.of(changes, pool, np.isin(changes.actions, actions))
        if not len(evaluated.rows):
            continue
        columns = _columns(changes, pool, evaluator, evaluated)
        try:
            passed = evaluator.passing(columns, len(evaluated.rows))
        except EvaluationError as error:
            failures.append((int(evaluated.changes[error.row]), error))
            continue
        old[evaluated.changes[evaluated.is_old]] = passed[evaluated.is_old]
        new[evaluated.changes[~evaluated.is_old]] = passed[~evaluated.is_old]
    if failures:
        change, first = min(failures, key=lambda candidate: candidate[0])
        raise _located(first, changes, change) from first
    alone = (changes.actions == UPDATE) & (changes.old_index < 0)
    old[alone] = new[alone]
    return old, new


@dataclass(frozen=True, slots=True)
class _EvaluatedTuples:
    """The tuples on which one filter is evaluated, in the server's order: by change, old before
    new.

    Attributes:
        changes: the change of each tuple.
        is_old: whether it is the change's old tuple.
    """

    rows: Int64s
    changes: Int64s
    is_old: Mask

    @classmethod
    def of(cls, changes: RelationChanges, pool: RowPool, acting: Mask) -> _EvaluatedTuples:
        actions = changes.actions
        with_old = ((actions == UPDATE) | (actions == DELETE)) & (changes.old_index >= 0)
        with_new = (actions == INSERT) | (actions == UPDATE)
        olds, news = np.flatnonzero(acting & with_old), np.flatnonzero(acting & with_new)
        rows = np.concatenate([changes.old_index[olds] + pool.new_rows, changes.new_index[news]])
        owners = np.concatenate([olds, news])
        is_old = np.arange(len(rows)) < len(olds)
        if len(olds) and len(news):
            order = np.lexsort((~is_old, owners))
            rows, owners, is_old = rows[order], owners[order], is_old[order]
        return cls(rows, owners, is_old)


def _columns(
    changes: RelationChanges, pool: RowPool, evaluator: FilterEvaluator, evaluated: _EvaluatedTuples
) -> dict[str, pa.Array]:
    """The columns that a filter reads, by name."""
    column_indexes = {
        column.name: column_index for column_index, column in enumerate(changes.relation.columns)
    }
    arrays = {}
    for name, type_oid in evaluator.columns.items():
        column_index = column_indexes.get(name)
        if column_index is None:
            raise TableError(
                f"the row filter of table {changes.title} reads column {name!r}, which the server's"
                " publications do not send",
                hint="add the column to the column lists of the server's publications; for a"
                " generated column, set publish_generated_columns = stored (from PostgreSQL 18 on);"
                f" then copy the table: {copy_again(changes.table_title)}",
                table=changes.title,
                column=name,
            )
        check_filter_column(
            changes.table_title,
            name,
            planned_oid=type_oid,
            type_oid=changes.relation.columns[column_index].type_oid,
        )
        rows = pool.completed(column_index, evaluated.rows)
        absent = pool.absent(column_index, rows)
        if absent is not None:
            raise _absent(changes, name, int(evaluated.changes[np.argmax(absent)]))
        is_exact = pool.unfit(column_index, rows) is None and _is_exact(changes, column_index)
        arrays[name] = (
            pool.values(column_index, rows) if is_exact else pool.text(column_index, rows)
        )
    return arrays


def _is_exact(changes: RelationChanges, column_index: int) -> bool:
    """Whether the decoded values are as exact as PostgreSQL's text."""
    column, decoded = (
        changes.relation.columns[column_index],
        changes.schema.field(column_index).type,
    )
    if pa.types.is_nested(decoded) or column.name in changes.masked:
        return False
    usual = resolve_type(column.type_oid, column.typmod, {}).arrow_type
    return bool(decoded.equals(usual))


def _located(error: EvaluationError, changes: RelationChanges, change: int) -> EvaluationError:
    """A filter's error with the change for which it failed, without a row's values."""
    table, lsn = changes.title, Lsn(int(changes.positions[change]))
    keys = tuple(column.name for column in changes.relation.columns if column.is_key)
    key = f" (key columns: {', '.join(keys)})" if keys else ""
    facts = {**error.facts, "table": table, "lsn": lsn, "key_columns": keys}
    facts["ordinal"] = ordinal = int(changes.ordinals[change])
    facts.pop("row", None)
    return EvaluationError(
        f"table {table}{key}: {error.what}, in change {ordinal} of the transaction that ends at "
        f"{lsn}; pgsluice has not applied any change of this batch",
        hint="change the row filter, or the row in PostgreSQL, then "
        + copied_again(changes.table_title),
        **facts,
    )


def _absent(changes: RelationChanges, column: str, change: int) -> TableError:
    table, lsn = changes.title, Lsn(int(changes.positions[change]))
    return TableError(
        f"the row filter of table {table} reads column {column!r}, a large value that an update in"
        f" the transaction that ends at {lsn} does not change, so the server did not send it",
        hint=f"run ALTER TABLE {quote_title(table)} REPLICA IDENTITY FULL, then "
        + copied_again(changes.table_title),
        table=table,
        column=column,
        lsn=lsn,
        ordinal=int(changes.ordinals[change]),
    )
