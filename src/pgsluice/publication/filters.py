"""Where publications meet the row filter language: the one place that calls it.

A filter is bound when its publication is made: then it is refused if it has to be, and kept as
PostgreSQL prints it. Whoever evaluates it binds the printed form again, to the columns of the
relation that it acts on.
"""

from __future__ import annotations

from pgsluice.catalog.source_tables import SourceTable, SourceType
from pgsluice.publication.row_filter.bind import BoundFilter, FilterColumn, bind_row_filter
from pgsluice.publication.row_filter.catalog import Type
from pgsluice.publication.row_filter.errors import FilterNotExact, RowFilterError
from pgsluice.publication.row_filter.evaluate import unsupported
from pgsluice.publication.row_filter.parse import parse_filter
from pgsluice.publication.statements import WhereClause


def check_syntax(text: str, position: int) -> None:
    """Refuse a text that is no expression.

    Args:
        text: what stands between WHERE's parentheses.
        position: where it starts in its statement.

    Raises:
        PublicationError: in PostgreSQL's words, at its place in the statement.
    """
    try:
        parse_filter(text)
    except RowFilterError as error:
        raise error.located_in(None, position) from None


def bind_filter(text: str, table: SourceTable, position: int = 0) -> BoundFilter:
    """A filter bound to a relation's columns, by their names.

    Raises:
        RowFilterError: PostgreSQL refuses it; its place is counted from ``position`` on.
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
        RowFilterError: PostgreSQL refuses it.
        FilterNotExact: PostgreSQL takes it, and we cannot evaluate it exactly.
    """
    bound = bind_filter(where.text, table, where.position)
    if (refused := unsupported(bound.expression)) is not None:
        raise FilterNotExact(
            f"pgsluice cannot evaluate this row filter exactly: {refused.reason}",
            server_hint=f"What can be done: {refused.way_out}.",
            position=where.position,
        )
    return bound


def _type(one: SourceType) -> Type:
    return Type(
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
