"""Bind a filter's text: parse it, resolve its names and types, check it, print it.

Source: TransformPubWhereClauses in src/backend/commands/publicationcmds.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import localcontext
from functools import lru_cache

from pgsluice.definitions.source_tables import SourceType
from pgsluice.definitions.text_rules import ANY_LOCALE, TextRules
from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind.binder import Binder
from pgsluice.row_filter.bind.deparse import deparse
from pgsluice.row_filter.bind.names import ROW_TYPE
from pgsluice.row_filter.catalog import FilterColumn
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.parse.operators import parse_filter
from pgsluice.row_filter.tree import columns_of, is_deeper_than
from pgsluice.row_filter.values.numbers import EXACT
from pgsluice.sql import SqlRefused

_KEPT_FILTERS = 4096
#: More would come near the end of Python's stack where a filter is pickled and computed.
_MOST_LEVELS = 100


@dataclass(frozen=True, slots=True)
class BoundFilter:
    """A filter that PostgreSQL accepts.

    Attributes:
        expression: bound, boolean; its locations count in the text that it was bound from.
        sql: as pg_get_expr() prints it.
        columns: those that it reads.
    """

    expression: n.Node
    sql: str
    columns: frozenset[str]
    text_rules: TextRules


def check_syntax(text: str) -> None:
    """Refuse a text that is no expression.

    Raises:
        SqlRefused: PostgreSQL's parser refuses it; the position counts in ``text``.
        FilterNotExact: it is nested too deeply for us.
    """
    with _errors_located_in(text):
        parse_filter(text)


def bind_row_filter(
    text: str,
    columns: Sequence[FilterColumn],
    *,
    relation: str = "",
    schema: str = "public",
    types: Iterable[SourceType] = (),
    text_rules: TextRules = ANY_LOCALE,
) -> BoundFilter:
    """Bind the condition inside ``WHERE ( … )`` to a relation's columns.

    The same filter on the same columns is bound once in a process.

    Args:
        relation: the relation's name, for ``t.a``.
        types: the user-defined types of its columns.

    Raises:
        SqlRefused: PostgreSQL refuses it, with this message; the error position is in ``text``.
        FilterNotExact: PostgreSQL accepts it, but pgsluice cannot evaluate it exactly.
    """
    return _bound(text, tuple(columns), relation, schema, tuple(types), text_rules)


@lru_cache(maxsize=_KEPT_FILTERS)
def _bound(
    text: str,
    columns: tuple[FilterColumn, ...],
    relation: str,
    schema: str,
    types: tuple[SourceType, ...],
    text_rules: TextRules,
) -> BoundFilter:
    with _errors_located_in(text), localcontext(EXACT):
        _check_encoding(text, text_rules)
        row_type = SourceType(ROW_TYPE, relation, "c", "C", display=relation)
        catalog = c.Catalog({row.oid: row for row in (*types, row_type)}, text_rules)
        expression = Binder(catalog, columns, relation, schema).filter(parse_filter(text))
        if is_deeper_than(expression, _MOST_LEVELS):
            raise RecursionError
        printed = deparse(expression, catalog)
        return BoundFilter(expression, printed, columns_of(expression), text_rules)


def _check_encoding(text: str, text_rules: TextRules) -> None:
    """The server converts the statement to its encoding before it reads it."""
    try:
        text.encode(text_rules.codec or "ascii")
    except UnicodeEncodeError as error:
        encoding = text_rules.encoding
        if text_rules.codec is None:
            raise FilterNotExact(
                "a filter with characters beyond ASCII: pgsluice does not accept it here",
                error.start,
                detail=f"They are not known in the database's encoding {encoding}.",
                server_hint="Let the server's own publication (PostgreSQL 15 or newer) do it.",
            ) from None
        shown = " ".join(f"0x{byte:02x}" for byte in text[error.start].encode())
        raise SqlRefused(
            f'character with byte sequence {shown} in encoding "UTF8" has no equivalent in'
            f' encoding "{encoding}"'
        ) from None


@contextmanager
def _errors_located_in(text: str) -> Iterator[None]:
    """Errors show the filter's text; one that is nested too deeply is refused like any other."""
    try:
        yield
    except SqlRefused as error:
        raise error.located_in(text) from None
    except RecursionError:
        raise FilterNotExact(
            "a filter nested this deeply: PostgreSQL may accept this, pgsluice does not",
            detail=f"{_MOST_LEVELS} levels of operators and about 200 of parentheses are read.",
            server_hint="Use IN or ANY instead of long chains of OR.",
            source=text,
        ) from None
