"""Where publications meet the row filter language: the one place that calls it.

A filter is bound when its publication is made: then it is refused if it has to be, and kept as
PostgreSQL prints it. Whoever evaluates it binds the printed form again, to the columns of the
relation that it acts on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pgsluice.catalog.source_tables import SourceTable
from pgsluice.publication.errors import PublicationError
from pgsluice.publication.row_filter.errors import RowFilterError
from pgsluice.publication.row_filter.lexer import Kind, tokenize
from pgsluice.publication.row_filter.parse import parse_filter
from pgsluice.publication.statements import WhereClause


class RowFilter(Protocol):
    """What publications need of a bound filter."""

    @property
    def sql(self) -> str:
        """The expression as PostgreSQL prints it."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it uses."""


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
        raise _ours(error, position) from None


@dataclass(frozen=True, slots=True)
class _Unbound:
    """Stands for a bound filter until the row filter room binds."""

    sql: str
    columns: frozenset[str]


def bind_filter(text: str, table: SourceTable) -> RowFilter:
    """A filter bound to a relation's columns, by their names."""
    names = {token.value for token in tokenize(text) if token.kind is Kind.NAME}
    return _Unbound(text, frozenset(one.name for one in table.columns if one.name in names))


def bind_where(where: WhereClause, table: SourceTable) -> RowFilter:
    """Bind a statement's filter; an error's place is counted in the statement.

    Raises:
        PublicationError: PostgreSQL refuses it.
    """
    try:
        return bind_filter(where.text, table)
    except RowFilterError as error:
        raise _ours(error, where.position) from None


def _ours(error: RowFilterError, position: int) -> PublicationError:
    return PublicationError(
        error.message,
        detail=error.detail,
        server_hint=error.server_hint,
        position=None if error.position is None else error.position + position,
    )
