"""The tests' judge of a replicated table: the source's own rows, compared by the server.

The target's rows are read with ``deltalake``, formatted by :mod:`pgsluice.verification` (which
shares nothing with the decoder), loaded into a temporary table at the source, and compared
there by EXCEPT ALL both ways. ``assert_equal`` is what other rooms' tests call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.verification import (
    ComparedTable,
    DeltaRows,
    LogRows,
    TargetRows,
    UndeletedRows,
    compare,
    one_snapshot,
)
from pgsluice.verification.postgres_text import TextForm, postgres_text
from pgsluice.verification.source import ComparedColumn

NUMERIC_OID = 1700
DELETED_COLUMN = "gone_at"
"""Which tests use for ``deleted_column``."""
SHOWN_ROWS = 5


def assert_equal(
    connection: psycopg.Connection[Any], qualified_name: str, target: str | Path | TargetRows
) -> None:
    """The target has exactly the rows that the source has now.

    Compared twice, by ways that have little in common: loaded back (:func:`compare_exact`),
    and by the hashes of both sides.

    Args:
        connection: to the source, in autocommit mode, allowed to make temporary tables.
        qualified_name: ``schema.table``; a partitioned table's root.
        target: a Delta table's folder, or rows.
    """
    missing, extra = compare_exact(connection, qualified_name, target)
    assert not missing, f"{qualified_name}: not at the target, e.g. {missing}"
    assert not extra, f"{qualified_name}: only at the target, e.g. {extra}"
    found = compare(connection, qualified_name, target)
    assert found.equal, str(found)


def target_rows(
    connection: psycopg.Connection[Any],
    qualified_name: str,
    target: str,
    options: Mapping[str, str] = MappingProxyType({}),
) -> TargetRows:
    """The rows of a table that follow from its target, in any mode."""
    rows = DeltaRows(target, options=options)
    if "_change_type" in rows.schema.names:
        return LogRows(rows, ComparedTable.find(connection, qualified_name).key, "_")
    if DELETED_COLUMN in rows.schema.names:
        return UndeletedRows(rows, DELETED_COLUMN)
    if "_valid_to" in rows.schema.names:
        return UndeletedRows(rows, "_valid_to")
    return rows


def compare_exact(
    connection: psycopg.Connection[Any],
    qualified_name: str,
    target: str | Path | TargetRows,
    *,
    columns: Collection[str] | None = None,
    row_filter: str = "true",
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Load the target's rows into the server and compare there.

    Args:
        columns: those that are compared; None: all.
        row_filter: of the source's rows.

    Returns:
        some rows of the source that the target lacks, and some of the target's that the
        source lacks (or has fewer times), as texts.
    """
    rows = DeltaRows(target) if isinstance(target, str | Path) else target
    # What one_snapshot sets for lossless text, without its being read-only.
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with one_snapshot(connection):
            table = ComparedTable.find(connection, qualified_name)
            source = sql.Identifier(table.namespace, table.name)
            loaded = sql.Identifier("pg_temp", "pgsluice_loaded")
            connection.execute(
                sql.SQL("CREATE TEMP TABLE pgsluice_loaded (LIKE {}) ON COMMIT DROP").format(source)
            )
            _load(connection, table, rows)
            compared = sql.SQL(", ").join(
                _comparable(column)
                for column in table.columns
                if columns is None or column.name in columns
            )
            ours = sql.SQL("SELECT {} FROM {} {} WHERE ").format(
                compared, sql.SQL("" if table.is_partitioned else "ONLY"), source
            ) + sql.SQL(row_filter)
            theirs = sql.SQL("SELECT {} FROM {}").format(compared, loaded)
            return _except_all(connection, ours, theirs), _except_all(connection, theirs, ours)


def count_rows(target: str | Path) -> int:
    """How many rows a Delta table has; dead ones are not counted."""
    rows = DeltaRows(target)
    return sum(len(batch) for batch in rows.batches(rows.schema.names[:1]))


def _load(connection: psycopg.Connection[Any], table: ComparedTable, rows: TargetRows) -> None:
    names = [column.name for column in table.columns if column.name in rows.schema.names]
    forms = {column.name: TextForm(column.delimiter) for column in table.columns}
    # The source's constraints are not the question here: NULLs must load to be seen.
    for column in table.columns:
        connection.execute(
            sql.SQL("ALTER TABLE pg_temp.pgsluice_loaded ALTER {} DROP NOT NULL").format(
                sql.Identifier(column.name)
            )
        )
    command = sql.SQL("COPY pg_temp.pgsluice_loaded ({}) FROM STDIN").format(
        sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        for batch in rows.batches(names):
            texts = [postgres_text(batch.column(name), forms[name]).to_pylist() for name in names]
            for row in zip(*texts, strict=True):
                copy.write_row(row)


def _comparable(column: ComparedColumn) -> sql.Composable:
    """A form that every type can be compared in: what the server prints.

    Numerics are compared by value, since a decimal at the target has its own scale.
    """
    name = sql.Identifier(column.name)
    if column.scalar_oid == NUMERIC_OID:
        return name
    return sql.SQL("CASE WHEN num_nulls({0}) = 0 THEN concat({0}) END").format(name)


def _except_all(
    connection: psycopg.Connection[Any], ours: sql.Composable, theirs: sql.Composable
) -> list[tuple[Any, ...]]:
    query = sql.SQL("{} EXCEPT ALL {} LIMIT {}").format(ours, theirs, sql.Literal(SHOWN_ROWS))
    return connection.execute(query).fetchall()
