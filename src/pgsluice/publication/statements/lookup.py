"""Looks up the relations and schemas in a statement; checks their names and column lists.

Source: src/backend/catalog/namespace.c, RangeVarGetRelid;
src/backend/commands/publicationcmds.c, OpenTableList and ObjectsInPublicationToOids;
src/backend/catalog/pg_publication.c, check_publication_add_relation and pub_collist_validate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.publication.statements.syntax import (
    PublicationObject,
    RelationName,
    SchemaObject,
    TableObject,
    WhereClause,
)
from pgsluice.sql import SqlRefused

_KINDS = {
    "r": "tables",
    "i": "indexes",
    "S": "sequences",
    "t": "TOAST tables",
    "v": "views",
    "m": "materialized views",
    "c": "composite types",
    "f": "foreign tables",
    "p": "partitioned tables",
    "I": "partitioned indexes",
}
_NEVER_OPENED = ("i", "I", "c")


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table of a statement: a listed one, or one that inherits from it."""

    table: SourceTable
    columns: tuple[str, ...] | None
    where: WhereClause | None


def named_objects(
    objects: Iterable[PublicationObject], catalog: SourceCatalog
) -> tuple[list[TableObject], tuple[str, ...]]:
    """Split a list of objects into tables, which are looked up later, and schemas, each once.

    Raises:
        SqlRefused: a schema does not exist.
    """
    tables: list[TableObject] = []
    schemas: dict[str, None] = {}
    for item in objects:
        if isinstance(item, SchemaObject):
            schemas[_schema(item, catalog)] = None
        else:
            tables.append(item)
    return tables, tuple(schemas)


def _schema(schema: SchemaObject, catalog: SourceCatalog) -> str:
    if schema.name is None:
        if not catalog.search_path:
            raise SqlRefused("no schema has been selected for CURRENT_SCHEMA")
        return catalog.search_path[0]
    if schema.name not in catalog.schemas:
        raise SqlRefused(f'schema "{schema.name}" does not exist')
    return schema.name


def find_table(name: RelationName, catalog: SourceCatalog) -> SourceTable:
    """Find the relation with a name.

    Raises:
        SqlRefused: it does not exist, or its kind cannot be opened as a table.
    """
    if name.database is not None and name.database != catalog.database:
        full = f"{name.database}.{name.namespace}.{name.name}"
        raise SqlRefused(f'cross-database references are not implemented: "{full}"')
    if name.namespace is None:
        table, shown = catalog.visible(name.name), name.name
    else:
        if name.namespace not in catalog.schemas:
            raise SqlRefused(f'schema "{name.namespace}" does not exist')
        table = catalog.table(name.namespace, name.name)
        shown = f"{name.namespace}.{name.name}"
    if table is None:
        raise SqlRefused(f'relation "{shown}" does not exist')
    if table.kind in _NEVER_OPENED:
        raise SqlRefused(f'cannot open relation "{table.name}"', detail=_not_supported(table.kind))
    return table


def open_tables(objects: Iterable[TableObject], catalog: SourceCatalog) -> list[NamedTable]:
    """Find all tables of a list, and those that inherit from them, each once.

    Raises:
        SqlRefused: a relation does not exist, or is listed twice with filters or column lists.
    """
    named: dict[int, NamedTable] = {}
    for item in objects:
        table = find_table(item.relation, catalog)
        meant = [table]
        # A partitioned table's partitions are published with it and never listed themselves.
        if table.oid not in named and not item.relation.only and not table.is_partitioned:
            meant += catalog.below(table)
        for member in meant:
            earlier = named.get(member.oid)
            if earlier is None:
                named[member.oid] = NamedTable(member, item.columns, item.where)
            else:
                _no_conflict(table, item.where or earlier.where, item.columns or earlier.columns)
    return list(named.values())


def _no_conflict(table: SourceTable, where: object, columns: object) -> None:
    """Refuse a filter or a column list for a table that is listed twice."""
    for given, clauses in ((where, "WHERE clauses"), (columns, "column lists")):
        if given is not None:
            raise SqlRefused(f'conflicting or redundant {clauses} for table "{table.name}"')


def check_table(table: SourceTable) -> None:
    """Refuse a relation that cannot be published.

    Raises:
        SqlRefused: with the reason as its detail.
    """
    if table.kind not in ("r", "p"):
        detail = _not_supported(table.kind)
    elif table.is_system:
        detail = "This operation is not supported for system tables."
    elif table.persistence == "t":
        detail = "This operation is not supported for temporary tables."
    elif table.persistence == "u":
        detail = "This operation is not supported for unlogged tables."
    else:
        return
    raise SqlRefused(f'cannot add relation "{table.name}" to publication', detail=detail)


def check_schema(name: str) -> None:
    """Refuse the server's own schemas.

    Raises:
        SqlRefused: with the reason as its detail.
    """
    if name in ("pg_catalog", "pg_toast"):
        detail = "This operation is not supported for system schemas."
    elif name.startswith(("pg_temp_", "pg_toast_temp_")):
        detail = "Temporary schemas cannot be replicated."
    else:
        return
    raise SqlRefused(f'cannot add schema "{name}" to publication', detail=detail)


def _not_supported(kind: str) -> str:
    return f"This operation is not supported for {_KINDS[kind]}."


_SYSTEM_COLUMNS = frozenset(("tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"))


def check_columns(table: SourceTable, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Check a column list, and return it in the table's order.

    Raises:
        SqlRefused: a column does not exist, is named twice, or can never be published.
    """
    if columns is None:
        return None
    seen: set[str] = set()
    for name in columns:
        column = table.column(name)
        if column is None and name in _SYSTEM_COLUMNS:
            raise SqlRefused(f'cannot use system column "{name}" in publication column list')
        if column is None:
            raise SqlRefused(f'column "{name}" of relation "{table.name}" does not exist')
        if column.generated == "v":
            raise SqlRefused(
                f'cannot use virtual generated column "{name}" in publication column list'
            )
        if name in seen:
            raise SqlRefused(f'duplicate column "{name}" in publication column list')
        seen.add(name)
    return tuple(column.name for column in table.columns if column.name in seen)


def check_column_lists(
    publication: str, tables: Iterable[NamedTable], *, has_schemas: bool, via_root: bool
) -> None:
    """Refuse column lists in a publication that cannot have any.

    Raises:
        SqlRefused: the publication has schemas, too, or the table is partitioned and not published
            under its own name.
    """
    for named in tables:
        if named.columns is None:
            continue
        if has_schemas:
            detail = (
                "Column lists cannot be specified in publications containing "
                "FOR TABLES IN SCHEMA elements."
            )
        elif named.table.is_partitioned and not via_root:
            detail = (
                "Column lists cannot be specified for partitioned tables when "
                "publish_via_partition_root is false."
            )
        else:
            continue
        raise SqlRefused(
            f'cannot use column list for relation "{named.table.namespace}.{named.table.name}" '
            f'in publication "{publication}"',
            detail=detail,
        )
