"""Reads from the catalog and the statistics whether configured keys are unique."""

from __future__ import annotations

from typing import Any

import psycopg

from pgsluice.catalog import partition_columns_of, prove_keys
from pgsluice.config import Config
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.preflight.facts import ConfiguredKey

_WITH_REPEATED_VALUES = """
SELECT s.schemaname || '.' || s.tablename, s.attname
FROM pg_catalog.pg_stats s
JOIN pg_catalog.pg_class c ON c.relname = s.tablename
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname
WHERE c.oid = ANY (%s::oid[]) AND s.inherited = (c.relkind = 'p')
AND s.most_common_vals IS NOT NULL
"""
"""The minimum number of rows with a common value: ANALYZE has seen it at least twice."""


def configured_keys(
    connection: psycopg.Connection[tuple[Any, ...]], config: Config, catalog: SourceCatalog
) -> tuple[ConfiguredKey, ...]:
    """The configured keys of enabled subscriptions, for tables that have their columns."""
    tables = {f"{table.namespace}.{table.name}": table for table in catalog.tables.values()}
    found: list[ConfiguredKey] = []
    for subscription in config.subscriptions:
        named = {
            title: tuple(key)
            for title, key in subscription.key.items()
            if subscription.enabled
            and title in tables
            and {*key} <= {column.name for column in tables[title].columns}
        }
        keys = {tables[title].oid: key for title, key in named.items()}
        leaves = {
            tables[title].oid: [
                below.oid for below in catalog.below(tables[title]) if not below.is_partitioned
            ]
            for title in named
            if tables[title].is_partitioned
        }
        proved = prove_keys(connection, keys, leaves)
        partition_columns = partition_columns_of(connection, leaves)
        repeated = set(connection.execute(_WITH_REPEATED_VALUES, [list(keys)]).fetchall())
        found += (
            ConfiguredKey(
                subscription=subscription.name,
                schema=tables[title].namespace,
                name=tables[title].name,
                columns=key,
                index=proved.get(tables[title].oid),
                is_shared=len(key) == 1 and (title, key[0]) in repeated,
                lacking=tuple(
                    sorted(
                        column
                        for column in partition_columns.get(tables[title].oid, ())
                        if column is not None and column not in key
                    )
                ),
            )
            for title, key in named.items()
        )
    return tuple(found)
