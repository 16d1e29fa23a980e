"""Text -> a filter that PostgreSQL would take: parsed, bound, checked, printable.

Source: TransformPubWhereClauses in src/backend/commands/publicationcmds.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.binder import ROW_TYPE, Binder
from pgsluice.row_filter.columns import FilterColumn
from pgsluice.row_filter.deparse import deparse
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.parse import parse_filter
from pgsluice.row_filter.tree import columns_of
from pgsluice.sql import SqlRefused


@dataclass(frozen=True, slots=True)
class BoundFilter:
    """A filter that PostgreSQL would take.

    Attributes:
        expression: bound, boolean.
        sql: as pg_get_expr() prints it.
        columns: the names of the columns that it reads.
        source: the text that it was made of.
    """

    expression: n.Node
    sql: str
    columns: frozenset[str]
    source: str


def check_syntax(text: str) -> None:
    """Refuse a text that is no expression.

    Raises:
        SqlRefused: PostgreSQL's parser refuses it.
    """
    parse_filter(text)


def bind_row_filter(
    text: str,
    columns: Sequence[FilterColumn],
    *,
    relation: str = "",
    schema: str = "public",
    types: Iterable[c.Type] = (),
    statement: str | None = None,
    offset: int = 0,
) -> BoundFilter:
    """Make a filter of what stands in ``WHERE ( … )``.

    Args:
        columns: the relation's.
        relation: its name, for ``t.a``; and its ``schema``.
        types: the user-defined types of its columns.
        statement: the statement that holds the filter, ``offset`` characters in: errors then
            show their place in it.

    Raises:
        SqlRefused: PostgreSQL refuses it; with its message, detail, hint and place.
        FilterNotExact: PostgreSQL takes it and pgsluice cannot do exactly the same.
    """
    source = text if statement is None else statement
    try:
        syntax = parse_filter(text)
        row_type = c.Type(ROW_TYPE, relation, "c", "C", display=relation)
        catalog = c.Catalog({row.oid: row for row in (*types, row_type)})
        binder = Binder(catalog, columns, relation, schema)
        expression = binder.filter(syntax)
        return BoundFilter(expression, deparse(expression, catalog), columns_of(expression), text)
    except SqlRefused as error:
        raise error.located_in(source, offset) from None
    except RecursionError:
        raise FilterNotExact(
            "a filter nested this deeply: PostgreSQL may accept this, pgsluice does not",
            detail="Some 200 levels of parentheses or operators are read.",
            server_hint="Write IN or ANY in the place of long chains.",
            source=source,
        ) from None
