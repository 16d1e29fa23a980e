"""A publication's filters, bound to the columns of the source's tables.

A filter is bound when its publication is created. An illegal one is refused then; otherwise the
filter is kept as PostgreSQL prints it. To evaluate it, the printed form is bound again, to the
columns of the relation that it filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgsluice import row_filter
from pgsluice.definitions.source_tables import SourceTable
from pgsluice.definitions.text_rules import TextRules
from pgsluice.publication.statements.syntax import WhereClause
from pgsluice.row_filter import (
    BoundFilter,
    FilterColumn,
    FilterNotExact,
    bind_row_filter,
    plan_filters,
)
from pgsluice.sql import SqlRefused


def check_syntax(where: WhereClause) -> None:
    """Refuse a text that is not an expression.

    Raises:
        SqlRefused: PostgreSQL's parser refuses it; the position counts in the statement.
    """
    with _errors_shifted(where.position):
        row_filter.check_syntax(where.text)


def bind_filter(text: str, table: SourceTable, text_rules: TextRules) -> BoundFilter:
    """Bind a filter to a relation's columns, by their names.

    Raises:
        SqlRefused: PostgreSQL refuses it; the error position is in ``text``.
        FilterNotExact: PostgreSQL accepts it, and we cannot evaluate it exactly.
    """
    columns = [
        FilterColumn(column.name, column.type_oid, column.typmod, column.collation)
        for column in table.columns
    ]
    bound = bind_row_filter(
        text,
        columns,
        relation=table.name,
        schema=table.namespace,
        types=table.types,
        text_rules=text_rules,
    )
    for column in table.columns:
        if column.generated == "v" and column.name in bound.columns:
            raise FilterNotExact(
                f'pgsluice cannot filter by the virtual generated column "{column.name}"',
                0,
                detail="It is never sent; PostgreSQL computes it from the other columns.",
                server_hint="Write its expression instead.",
            )
    return bound


def bind_where(where: WhereClause, table: SourceTable, text_rules: TextRules) -> BoundFilter:
    """Bind a statement's filter and make sure that it can be evaluated.

    Raises:
        SqlRefused: PostgreSQL refuses it; the error position is in the statement.
        FilterNotExact: PostgreSQL accepts it, and we cannot evaluate it exactly.
    """
    with _errors_shifted(where.position):
        bound = bind_filter(where.text, table, text_rules)
        plan_filters([bound])
        return bound


@contextmanager
def _errors_shifted(position: int) -> Iterator[None]:
    """Shift the positions of errors in a filter's text to the statement that contains it."""
    try:
        yield
    except SqlRefused as error:
        raise error.located_in(None, position) from None
