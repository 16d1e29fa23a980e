"""Executes statements: each one makes new publications from the current ones.

Nothing is changed in place, so a refused statement has no effect. The checks, their order and
their messages are the server's.

Source: src/backend/commands/publicationcmds.c.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from pgsluice.definitions.publications import Publication, Publications, PublicationTable
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.publication.statements.filters import bind_where
from pgsluice.publication.statements.lookup import (
    NamedTable,
    check_column_lists,
    check_columns,
    check_schema,
    check_table,
    named_objects,
    open_tables,
)
from pgsluice.publication.statements.parameters import with_parameters
from pgsluice.publication.statements.syntax import (
    AlterObjects,
    AlterParameters,
    CreatePublication,
    DropPublications,
    RenamePublication,
    Statement,
    TableObject,
)
from pgsluice.sql import SqlRefused


def execute(
    publications: Publications, statement: Statement, catalog: SourceCatalog
) -> Publications:
    """Execute one statement.

    Raises:
        SqlRefused: PostgreSQL refuses it, with this message.
        FilterNotExact: PostgreSQL accepts a filter that we cannot evaluate exactly.
    """
    match statement:
        case CreatePublication():
            return _create(publications, statement, catalog)
        case AlterObjects():
            publication = existing(publications, statement.name)
            return publications.with_publication(_alter_objects(publication, statement, catalog))
        case AlterParameters():
            publication = existing(publications, statement.name)
            changed = _alter_parameters(publication, statement, catalog)
            return publications.with_publication(changed)
        case RenamePublication():
            return _rename(publications, statement)
        case DropPublications():
            for name in () if statement.if_exists else statement.names:
                existing(publications, name)
            return publications.without(statement.names)
        case _:
            assert_never(statement)


def existing(publications: Publications, name: str) -> Publication:
    """The publication with this name; raises SqlRefused if there is none."""
    publication = publications.get(name)
    if publication is None:
        raise SqlRefused(f'publication "{name}" does not exist')
    return publication


def _not_existing(publications: Publications, name: str) -> None:
    if name in publications:
        raise SqlRefused(f'publication "{name}" already exists')


def _create(
    publications: Publications, statement: CreatePublication, catalog: SourceCatalog
) -> Publications:
    _not_existing(publications, statement.name)
    empty = Publication(statement.name, all_tables=statement.all_tables)
    publication = with_parameters(empty, statement.parameters)
    tables, schemas = named_objects(statement.objects, catalog)
    new = _new_tables(publication, tables, catalog, has_schemas=bool(schemas))
    added = tuple(_added(table) for table in new)
    for name in schemas:
        check_schema(name)
    created = replace(publication, tables=added, schemas=schemas)
    return publications.with_publication(created)


def _rename(publications: Publications, statement: RenamePublication) -> Publications:
    publication = existing(publications, statement.name)
    _not_existing(publications, statement.new_name)
    renamed = replace(publication, name=statement.new_name)
    return publications.without([statement.name]).with_publication(renamed)


def _new_tables(
    publication: Publication,
    objects: Iterable[TableObject],
    catalog: SourceCatalog,
    *,
    has_schemas: bool,
) -> list[tuple[NamedTable, str | None]]:
    """Find and check tables for a publication, and print their filters as PostgreSQL does."""
    opened = open_tables(objects, catalog)
    via_root = publication.publish_via_partition_root
    filters = []
    for named in opened:
        if named.where is not None and named.table.is_partitioned and not via_root:
            raise SqlRefused(
                f'cannot use publication WHERE clause for relation "{named.table.name}"',
                detail="WHERE clause cannot be used for a partitioned table when "
                "publish_via_partition_root is false.",
            )
        if named.table.is_system:
            check_table(named.table)  # a system table's columns are not in the catalog that we read
        where = named.where
        bound = None if where is None else bind_where(where, named.table, catalog.text_rules)
        filters.append(None if bound is None else bound.sql)
    check_column_lists(publication.name, opened, has_schemas=has_schemas, via_root=via_root)
    return list(zip(opened, filters, strict=True))


def _added(new: tuple[NamedTable, str | None]) -> PublicationTable:
    """The table as the publication keeps it, once it may be published at all."""
    named, where = new
    check_table(named.table)
    columns = check_columns(named.table, named.columns)
    table = named.table
    # Tables that inherit from it are listed by themselves.
    only = bool(table.children) and not table.is_partitioned
    return PublicationTable(table.name, table.namespace, columns, where, only, table.oid)


def _alter_parameters(
    publication: Publication, statement: AlterParameters, catalog: SourceCatalog
) -> Publication:
    changed = with_parameters(publication, statement.parameters)
    is_via_root_given = any(
        parameter.name == "publish_via_partition_root" for parameter in statement.parameters
    )
    if is_via_root_given and not changed.publish_via_partition_root:
        for table in publication.tables:
            source = catalog.tables.get(table.oid)
            if source is None or not source.is_partitioned:
                continue
            if table.where is not None or table.columns is not None:
                clause = "WHERE clause" if table.where is not None else "column list"
                raise SqlRefused(
                    'cannot set parameter "publish_via_partition_root" to false for publication '
                    f'"{publication.name}"',
                    detail=f"The publication contains a {clause} for partitioned table "
                    f'"{table.name}", which is not allowed when "publish_via_partition_root" is '
                    "false.",
                )
    return changed


def _alter_objects(
    publication: Publication, statement: AlterObjects, catalog: SourceCatalog
) -> Publication:
    tables, schemas = named_objects(statement.objects, catalog)
    if publication.all_tables:
        kind = "Schemas" if schemas else "Tables"
        raise SqlRefused(
            f'publication "{publication.name}" is defined as FOR ALL TABLES',
            detail=f"{kind} cannot be added to or dropped from FOR ALL TABLES publications.",
        )
    if statement.change == "add":
        return _add_schemas(_add_tables(publication, tables, schemas, catalog), schemas)
    if statement.change == "set":
        return _set_objects(publication, tables, schemas, catalog)
    return _drop_schemas(_drop_tables(publication, tables, catalog), schemas)


def _add_tables(
    publication: Publication,
    objects: Iterable[TableObject],
    schemas: tuple[str, ...],
    catalog: SourceCatalog,
) -> Publication:
    has_schemas = bool(schemas or publication.schemas)
    tables = list(publication.tables)
    for new in _new_tables(publication, objects, catalog, has_schemas=has_schemas):
        if publication.table(new[0].table.oid) is not None:
            raise SqlRefused(
                f'relation "{new[0].table.name}" is already member of publication '
                f'"{publication.name}"'
            )
        tables.append(_added(new))
    return replace(publication, tables=tuple(tables))


def _add_schemas(publication: Publication, schemas: Iterable[str]) -> Publication:
    added = list(publication.schemas)
    for name in schemas:
        if any(table.columns is not None for table in publication.tables):
            raise SqlRefused(
                f'cannot add schema to publication "{publication.name}"',
                detail="Schemas cannot be added if any tables that specify a column list are "
                "already part of the publication.",
            )
        if name in added:
            raise SqlRefused(
                f'schema "{name}" is already member of publication "{publication.name}"'
            )
        check_schema(name)
        added.append(name)
    return replace(publication, schemas=tuple(added))


def _set_objects(
    publication: Publication,
    objects: Iterable[TableObject],
    schemas: tuple[str, ...],
    catalog: SourceCatalog,
) -> Publication:
    new = _new_tables(publication, objects, catalog, has_schemas=bool(schemas))
    if publication.tables:  # the server compares the old column lists with the new ones first
        for table, _ in new:
            check_columns(table.table, table.columns)
    tables = tuple(_added(table) for table in new)
    for name in schemas:
        if name not in publication.schemas:
            check_schema(name)
    return replace(publication, tables=tables, schemas=schemas)


def _drop_tables(
    publication: Publication, objects: Iterable[TableObject], catalog: SourceCatalog
) -> Publication:
    dropped: set[int] = set()
    for table in open_tables(objects, catalog):
        if table.columns is not None:
            raise SqlRefused("column list must not be specified in ALTER PUBLICATION ... DROP")
        if publication.table(table.table.oid) is None:
            raise SqlRefused(f'relation "{table.table.name}" is not part of the publication')
        if table.where is not None:
            raise SqlRefused("cannot use a WHERE clause when removing a table from a publication")
        dropped.add(table.table.oid)
    left = tuple(table for table in publication.tables if table.oid not in dropped)
    return replace(publication, tables=left)


def _drop_schemas(publication: Publication, schemas: Iterable[str]) -> Publication:
    for name in schemas:
        if name not in publication.schemas:
            raise SqlRefused(f'tables from schema "{name}" are not part of the publication')
    dropped = frozenset(schemas)
    return replace(
        publication,
        schemas=tuple(schema for schema in publication.schemas if schema not in dropped),
    )
