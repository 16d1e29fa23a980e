"""A table that a query reads under a snapshot: found by its name, with the columns and rows to
read.

Problems that would fail later, in a task, are reported here with a clear message: a table that does
not exist, a view, missing privileges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from pgsluice.catalog.publications.publications import publications_of
from pgsluice.catalog.publications.published import relations_of
from pgsluice.catalog.rights import grants, table_rights
from pgsluice.catalog.server import server_info
from pgsluice.catalog.tables.relations import fetch_many, fetch_relation_facts
from pgsluice.catalog.tables.tables import leaf_filenodes
from pgsluice.definitions.published import disagreeing
from pgsluice.definitions.source_tables import FIRST_NORMAL_OID
from pgsluice.errors import ConfigError, ParkReason, SourceRefused, SourceUnreachable, TableError
from pgsluice.facts import RelationFacts
from pgsluice.replication import connect_sql
from pgsluice.snapshots.content import PublishedContent, published_content
from pgsluice.snapshots.reader import TableLocked, TableQuery
from pgsluice.snapshots.snapshot import SnapshotGone
from pgsluice.spark.source.lookup import catalog_types, relation_named
from pgsluice.spark.source.options import SnapshotOptions, TableName
from pgsluice.types import ColumnType, TypeOptions

Connection = psycopg.Connection[Any]
Condition = Callable[
    [Connection, RelationFacts, Mapping[str, ColumnType], PublishedContent], str | None
]
"""Returns an SQL condition on a table's rows; None for all rows."""

_NOT_TABLES = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
_EVERYTHING = PublishedContent(None, None)
_LOCKED = "read the table again after the lock is released; pg_locks shows its session"
_HINTS = {
    ParkReason.REWRITTEN: "read the table again: a newer snapshot sees its rows",
    ParkReason.RIGHTS: "GRANT SELECT, or ALTER ROLE … BYPASSRLS; then read the table again",
}


def refuse_standby(connection: Connection) -> None:
    """Refuse a server that cannot create a snapshot with a position.

    Raises:
        SourceRefused: the server is a standby.
    """
    if server_info(connection).is_standby:
        raise SourceRefused(
            "the server is a standby, and pgsluice can read a snapshot of a table only on a "
            "primary",
            hint="set the option dsn to the primary",
        )


def find_table(connection: Connection, table: TableName) -> RelationFacts:
    """The metadata of a table, in the connection's snapshot if it has one.

    Raises:
        ConfigError: there is no table with this name.
        TableError: our role may not read it, or not all of its rows.
    """
    found = relation_named(connection, table)
    if found is None:
        raise ConfigError(
            f"the server has no table {table}",
            hint="correct the option table, or the database in the dsn; PostgreSQL folds an "
            "unquoted name to lower case",
            option="table",
        )
    oid, kind = found
    if kind not in "rp":
        raise ConfigError(
            f"{table} is {_NOT_TABLES.get(kind, 'not a table')}, and the option snapshot reads "
            "tables only",
            hint=f"read the tables that {table} is made from, or read it over JDBC",
            option="table",
        )
    if oid < FIRST_NORMAL_OID:
        raise ConfigError(
            f"{table} is a system table, and the option snapshot reads tables of users only",
            hint="read this table over JDBC",
            option="table",
        )
    facts = fetch_relation_facts(connection, oid)
    rights = table_rights(connection, [oid]).get(oid)
    if facts is None or rights is None:  # dropped meanwhile
        raise ConfigError(f"the server has no table {table}", option="table")
    # Reading says which columns are missing, of a role that may read single ones.
    rights = rights.to_read(())
    if rights.may_read and rights.sees_all_rows:
        return facts
    what = f"the role {rights.role} may not read {table}"
    if rights.may_read:
        what = f"row level security of {table} hides rows from the role {rights.role}"
    raise TableError(what, hint="\n".join(grants([rights])), table=str(table))


def table_columns_now(options: SnapshotOptions) -> list[tuple[str, str]]:
    """The columns of a table, and their Spark types, for a query with a snapshot.

    A generated column is included only if the option ``columns`` has it, as in a stream.

    Raises:
        ConfigError, TableError: as :func:`find_table`.
        SourceUnreachable: no connection.
    """
    asked = options.columns or ()
    what = f"looking up the columns of {options.table}"
    with connect_sql(options.dsn, what) as connection:
        facts = find_table(connection, options.table)
    types = catalog_types(facts, TypeOptions(numeric=options.numeric))
    return [
        (column.name, types[column.name].spark_ddl)
        for column in facts.columns
        if not column.generated or column.name in asked
    ]


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The rows and columns that a query reads of a table; picklable.

    Attributes:
        columns: the columns' names.
        publications: the server's publications whose rows and columns are read; empty: all.
        condition: returns one more condition on the rows.
    """

    table: TableName
    columns: tuple[str, ...]
    types: TypeOptions
    publications: tuple[str, ...] = ()
    condition: Condition | None = None

    def query(self, connection: Connection) -> TableQuery:
        """The query, in the connection's snapshot.

        Raises:
            ConfigError: the table or one of its columns does not exist, or is not published.
            TableError: as :func:`find_table`.
        """
        facts = find_table(connection, self.table)
        if not self.columns:
            raise ConfigError(f"{self.table} has no columns that could be read", option="columns")
        content = self._content(connection, facts)
        types = catalog_types(facts, self.types)
        self._refuse_missing(types, content)
        own = self.condition and self.condition(connection, facts, types, content)
        conditions = [f"({text})" for text in (content.row_filter, own) if text is not None]
        return TableQuery(
            facts,
            self.columns,
            tuple(types[name] for name in self.columns),
            " AND ".join(conditions) or None,
            content.unlisted,
        )

    def _content(self, connection: Connection, facts: RelationFacts) -> PublishedContent:
        if not self.publications:
            return _EVERYTHING
        published = relations_of(connection, self.publications)
        if facts.root_oid == facts.oid:
            known = fetch_many(connection, published)
            mine = [
                relation
                for oid, relation in published.items()
                if relation.sent_as in known and known[relation.sent_as].root_oid == facts.oid
            ]
        else:
            own = published.get(facts.oid)
            mine = [own] if own is not None and own.sent_as == facts.oid else []
        names = ", ".join(self.publications)
        if missing := set(self.publications) - set(publications_of(connection, self.publications)):
            raise ConfigError(
                f"the option publications names publication {', '.join(sorted(missing))}, which "
                "the server does not have",
                hint="correct the name in the option publications, or remove the option",
                option="publications",
            )
        if not mine:
            raise ConfigError(
                f"table {self.table} is not in the publications {names} of the option publications",
                hint="add the table to one of these publications, or remove the option "
                "publications",
                option="publications",
            )
        if disagreement := disagreeing(mine):
            raise ConfigError(disagreement.what, option="publications")
        partitioned = {relation.oid for relation in mine if relation.kind == "p"}
        leaves = leaf_filenodes(connection, {facts.oid, *partitioned})
        return published_content(facts, mine, leaves)

    def _refuse_missing(self, types: Mapping[str, ColumnType], content: PublishedContent) -> None:
        for name in self.columns:
            if name not in types:
                raise ConfigError(
                    f'table {self.table} no longer has the column "{name}"',
                    hint="call load() again, which reads the table's current columns",
                    column=name,
                )
            if content.columns is not None and name not in content.columns:
                raise ConfigError(
                    f"the publications {', '.join(self.publications)} do not send column "
                    f'"{name}" of table {self.table}',
                    hint="list the other columns in the option columns",
                    column=name,
                )


@contextmanager
def hints_of_a_read(gone: str) -> Iterator[None]:
    """A context that replaces a copy's hints in errors by hints for the user of a query.

    Args:
        gone: what to do if the snapshot is gone.
    """
    try:
        yield
    except TableLocked as error:
        raise TableError(error.what, hint=_LOCKED, **error.facts) from error
    except TableError as error:
        reason = error.facts.get("reason")
        hint = error.hint if reason is None else _HINTS.get(reason)
        raise TableError(error.what, hint=hint, **error.facts) from error
    except SnapshotGone as error:
        raise SourceUnreachable(
            "the snapshot of the table's rows no longer exists", hint=gone
        ) from error
