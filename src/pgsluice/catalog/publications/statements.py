"""The statements that create, change and drop the managed publications.

pgsluice runs them, or prints them for a role with more privileges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from pgsluice.catalog.publications.publications import TableName, comment_for
from pgsluice.sql import quote_identifier

SENDS_GENERATED = "publish_generated_columns = stored"


def drop_statement(names: Sequence[str]) -> str:
    """The statement that drops publications, to be run or to be printed."""
    return f"DROP PUBLICATION IF EXISTS {', '.join(map(quote_identifier, names))}"


def create_statements(
    name: str,
    tables: Sequence[str],
    options: Sequence[str],
    only: Collection[TableName] | None = None,
) -> list[str]:
    """CREATE PUBLICATION and its COMMENT; the tables are given by :func:`table_name`."""
    listed = f" FOR TABLE {', '.join(tables)}" if tables else ""
    parameters = f" WITH ({', '.join(options)})" if options else ""
    return [f"CREATE PUBLICATION {_quoted(name)}{listed}{parameters}", set_comment(name, only)]


def set_comment(name: str, only: Collection[TableName] | None) -> str:
    """The COMMENT of one of our publications."""
    comment = sql.Literal(comment_for(only)).as_string()
    return f"COMMENT ON PUBLICATION {_quoted(name)} IS {comment}"


def alter(publication: str, change: str) -> str:
    """ALTER PUBLICATION, such as with ``ADD TABLE t``."""
    return f"ALTER PUBLICATION {_quoted(publication)} {change}"


def table_name(namespace: str, name: str, kind: str) -> str:
    """A relation of that relkind as publications name it."""
    # ONLY: inheriting tables are listed separately; each has its own replica identity.
    only = "ONLY " if kind == "r" else ""
    return f"{only}{_quoted(namespace)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    """A name in quotes; control characters are written as escapes, because statements are also
    printed."""
    return sql.Identifier(name).as_string() if name.isprintable() else quote_identifier(name)
