"""Checks column lists by PostgreSQL's rules.

Source: src/backend/catalog/pg_publication.c, pub_collist_validate;
src/backend/commands/publicationcmds.c, CheckPubRelationColumnList.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgsluice.definitions.source_tables import SourceTable
from pgsluice.publication.statements.lookup import NamedTable
from pgsluice.sql import SqlRefused

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
