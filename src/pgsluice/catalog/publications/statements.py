"""The statements that create, change and drop the managed publications.

pgsluice runs them, or prints them for a role with more privileges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from pgsluice.catalog.publications.publications import TableName, comment_for
from pgsluice.catalog.tables.tables import UserTable
from pgsluice.sql import quote_identifier

SENDS_GENERATED = sql.SQL("publish_generated_columns = stored")


def drop_statement(names: Sequence[str]) -> str:
    """The statement that drops publications, to be run or to be printed."""
    return f"DROP PUBLICATION IF EXISTS {', '.join(map(quote_identifier, names))}"


def insert_actions(version: int) -> str:
    """The actions of the second publication; TRUNCATE is published since 11."""
    return "insert, truncate" if version >= 110000 else "insert"


def publication_options(actions: str | None, *, sends_generated: bool) -> sql.Composed:
    """The options of a new publication; for ``actions`` None the server publishes all."""
    options: list[sql.Composable] = [SENDS_GENERATED] if sends_generated else []
    if actions is not None:
        options.append(sql.SQL("publish = {}").format(sql.Literal(actions)))
    return sql.SQL(", ").join(options)


def set_options(publication: str, options: sql.Composable) -> sql.Composed:
    """ALTER PUBLICATION with options."""
    return sql.SQL("ALTER PUBLICATION {} SET ({})").format(_identifier(publication), options)


def create_statements(
    name: str,
    members: list[UserTable],
    options: sql.Composed,
    only: Collection[TableName] | None = None,
) -> list[sql.Composed]:
    """CREATE PUBLICATION and its COMMENT."""
    publication = _identifier(name)
    create = sql.SQL("CREATE PUBLICATION {}").format(publication)
    if members:
        create += sql.SQL(" FOR TABLE {}").format(
            sql.SQL(", ").join(table_name(table) for table in members)
        )
    if list(options):
        create += sql.SQL(" WITH ({})").format(options)
    return [create, set_comment(name, only)]


def set_comment(name: str, only: Collection[TableName] | None) -> sql.Composed:
    """The COMMENT of one of our publications."""
    return sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        _identifier(name), sql.Literal(comment_for(only))
    )


def alter_tables(publication: str, verb: str, tables: list[sql.Composed]) -> sql.Composed:
    """ALTER PUBLICATION with a verb, ADD or DROP, and the names of tables."""
    return sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
        _identifier(publication), sql.SQL(verb), sql.SQL(", ").join(tables)
    )


def table_name(table: UserTable) -> sql.Composed:
    """A table as publications name it."""
    return qualified_name(table.namespace, table.name, table.kind)


def qualified_name(namespace: str, name: str, kind: str) -> sql.Composed:
    """A relation of that relkind as publications name it."""
    # ONLY: inheriting tables are listed separately; each has its own replica identity.
    only = sql.SQL("ONLY " if kind == "r" else "")
    return sql.SQL("{}{}").format(only, _identifier(namespace, name))


def _identifier(*names: str) -> sql.Composed:
    """A name, qualified if there are two. Statements are also printed, so that a name's control
    characters are written as escapes."""
    parts = (
        sql.Identifier(name) if name.isprintable() else sql.SQL(quote_identifier(name))
        for name in names
    )
    return sql.SQL(".").join(parts)
