"""Where publications meet the row filter language: the one place that calls it.

A filter is bound when its publication is made: then it is refused if it has to be, and kept as
PostgreSQL prints it. Whoever evaluates it binds the printed form again, to the columns of the
relation that it acts on.
"""

from __future__ import annotations

from pgsluice import row_filter
from pgsluice.catalog.source_tables import SourceTable, SourceType
from pgsluice.publication.statements import WhereClause
from pgsluice.row_filter import (
    BoundFilter,
    FilterColumn,
    FilterNotExact,
    FilterType,
    bind_row_filter,
    plan_filters,
)
from pgsluice.sql import SqlRefused


def check_syntax(text: str, position: int) -> None:
    """Refuse a text that is no expression.

    Args:
        text: what stands between WHERE's parentheses.
        position: where it starts in its statement.

    Raises:
        SqlRefused: in PostgreSQL's words, at its place in the statement.
    """
    try:
        row_filter.check_syntax(text)
    except SqlRefused as error:
        raise error.located_in(None, position) from None


def bind_filter(text: str, table: SourceTable, position: int = 0) -> BoundFilter:
    """A filter bound to a relation's columns, by their names.

    Raises:
        SqlRefused: PostgreSQL refuses it; its place is counted from ``position`` on.
        FilterNotExact: PostgreSQL takes it, and we cannot evaluate it exactly.
    """
    columns = [
        FilterColumn(one.name, one.type_oid, one.typmod, one.collation) for one in table.columns
    ]
    bound = bind_row_filter(
        text,
        columns,
        relation=table.name,
        schema=table.namespace,
        types=map(_type, table.types),
        offset=position,
    )
    for one in table.columns:
        if one.generated == "v" and one.name in bound.columns:
            raise FilterNotExact(
                f'pgsluice cannot filter by the virtual generated column "{one.name}"',
                detail="It is never sent; PostgreSQL computes it from the other columns.",
                server_hint="Write its expression instead.",
                position=position,
            )
    return bound


def bind_where(where: WhereClause, table: SourceTable) -> BoundFilter:
    """Bind a statement's filter; an error's place is counted in the statement.

    Raises:
        SqlRefused: PostgreSQL refuses it.
        FilterNotExact: PostgreSQL takes it, and we cannot evaluate it exactly.
    """
    bound = bind_filter(where.text, table, where.position)
    try:
        plan_filters([bound])
    except FilterNotExact as error:
        raise error.located_in(None, where.position) from None
    return bound


def _type(one: SourceType) -> FilterType:
    return FilterType(
        oid=one.oid,
        name=one.name,
        kind=one.kind,
        category=one.category,
        element=one.element,
        array=one.array,
        collation=one.collation,
        display=one.display,
        base=one.base,
        labels=frozenset(one.labels) if one.kind == "e" else None,
    )
