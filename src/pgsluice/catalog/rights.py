"""The privileges that a copy of a table needs, and the statements that grant them.

A copy needs USAGE on the table's schema, SELECT on the published columns and on those of the row
filter, and has to see all rows: every session of pgsluice sets ``row_security = off``, with which a
row security policy makes the query fail. Privileges on single columns are enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pgsluice.catalog import Connection
from pgsluice.facts import RelationFacts
from pgsluice.sql import SqlRefused, Token, TokenKind, quote_identifier, tokenize


@dataclass(frozen=True, slots=True)
class TableRights:
    """The privileges of our role on one table.

    Attributes:
        may_select: it may read the whole table, or all needed columns.
        columns: if it may not read the whole table: the columns that it may read, including system
            columns.
        lacking: the columns that it may not read, if it may read others.
    """

    role: str
    namespace: str
    name: str
    may_use_schema: bool
    may_select: bool
    sees_all_rows: bool
    columns: frozenset[str] = frozenset()
    lacking: tuple[str, ...] = ()

    @property
    def may_read(self) -> bool:
        """Whether it may query the table; row security may still hide rows."""
        return self.may_use_schema and self.may_select

    def to_read(self, columns: Collection[str]) -> TableRights:
        """The privileges with respect to a query of these columns."""
        if self.may_select or not self.columns:
            return self
        lacking = tuple(name for name in columns if name not in self.columns)
        return replace(self, may_select=not lacking, lacking=lacking)


_LEAF = "tableoid"
_SYSTEM_COLUMNS = (_LEAF, "ctid")

_RIGHTS = """
SELECT c.oid, current_user::text, n.nspname, c.relname,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       NOT pg_catalog.row_security_active(c.oid),
       CASE WHEN NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') THEN ARRAY(
           SELECT a.attname::text FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND NOT a.attisdropped
           AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')) END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) AND pg_catalog.has_table_privilege(c.oid, 'SELECT') IS NOT NULL
"""


def table_rights(connection: Connection, oids: Collection[int]) -> dict[int, TableRights]:
    """Our role's privileges on these tables, by OID; tables that do not exist are missing."""
    if not oids:
        return {}
    rows = connection.execute(_RIGHTS, [list(oids)]).fetchall()
    return {
        int(oid): replace(TableRights(*values), columns=frozenset(columns or ()))
        for oid, *values, columns in rows
    }


def columns_to_read(
    facts: RelationFacts,
    columns: Iterable[str],
    conditions: Iterable[str | None],
    *,
    by_leaf: bool = False,
) -> tuple[str, ...]:
    """The columns on which a role needs SELECT for a query of a table.

    Args:
        conditions: conditions on its rows, as SQL printed by the server or pgsluice.
        by_leaf: the query also reads each row's leaf partition (tableoid).
    """
    known = {*(column.name for column in facts.columns), *_SYSTEM_COLUMNS}
    texts = [text for text in conditions if text is not None]
    try:
        named = known & {name for text in texts for name in _names(text)}
    except SqlRefused:
        named = known  # any of them
    of_leaf = [_LEAF] if by_leaf else []
    return tuple(dict.fromkeys([*columns, *sorted(named), *of_leaf]))


def _names(text: str) -> set[str]:
    """The names in an expression, except those of types, collations, functions and fields.

    Raises:
        SqlRefused: the scanner refuses the text.
    """
    names, tokens, index = set[str](), tokenize(text), 0
    tokens.append(tokens[-1])  # a type's name may be missing
    while (token := tokens[index]).kind is not TokenKind.END:
        index += 1
        if token.is_punctuation("::") or token.is_keyword("collate"):
            index = _behind_type(tokens, index)
        elif token.is_keyword("at") and tokens[index].is_keyword("time"):  # AT TIME ZONE
            index += 2
        elif token.is_keyword("extract") and tokens[index].is_punctuation("("):
            index += 2  # its field
        elif (
            token.kind is TokenKind.NAME
            and token.keyword not in _ALWAYS_QUOTED
            and not tokens[index].is_punctuation("(")
        ):
            names.add(token.value)
    return names


_ALWAYS_QUOTED = ("T", "R")
"""Categories of keywords that are quoted where they are names: ``END`` belongs to a CASE."""
# fmt: off
_TYPE_WORDS = frozenset({
    "precision", "varying", "with", "without", "time", "zone",
    "year", "month", "day", "hour", "minute", "second", "to",
})
# fmt: on
"""Words that can follow the first word of a type's name, where no column name can be."""


def _behind_type(tokens: Sequence[Token], index: int) -> int:
    """The index after a type's name, such as ``s.t``, ``numeric(9,2)`` and ``interval day to
    hour``."""
    index += 1
    while tokens[index].is_punctuation("."):
        index += 2
    while True:
        if tokens[index].is_punctuation("("):
            while not tokens[index].is_punctuation(")"):
                if tokens[index].kind is TokenKind.END:
                    return index
                index += 1
        elif not tokens[index].is_keyword(*_TYPE_WORDS):
            return index
        index += 1


def grants(rights: Iterable[TableRights]) -> list[str]:
    """The statements that grant the missing privileges; a superuser can run each without
    changes."""
    tables = list(rights)
    statements = []
    for namespace, role in sorted({(t.namespace, t.role) for t in tables if not t.may_use_schema}):
        statements.append(
            f"GRANT USAGE ON SCHEMA {quote_identifier(namespace)} TO {quote_identifier(role)};"
        )
    for role in sorted({table.role for table in tables}):
        unread = [t for t in tables if t.role == role and not t.may_select]
        if names := ", ".join(_sql_name(table) for table in unread if not table.lacking):
            statements.append(f"GRANT SELECT ON {names} TO {quote_identifier(role)};")
        for table in unread:
            if columns := ", ".join(map(quote_identifier, table.lacking)):
                on = f"({columns}) ON {_sql_name(table)}"
                statements.append(f"GRANT SELECT {on} TO {quote_identifier(role)};")
        if any(table.role == role and not table.sees_all_rows for table in tables):
            statements.append(f"ALTER ROLE {quote_identifier(role)} BYPASSRLS;")
    return statements


def _sql_name(table: TableRights) -> str:
    return f"{quote_identifier(table.namespace)}.{quote_identifier(table.name)}"
