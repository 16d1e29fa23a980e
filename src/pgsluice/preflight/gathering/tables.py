"""Gathers what the catalog has of tables: types inside columns, whether configured keys are unique,
and targets that cannot be as configured."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

import pyarrow as pa

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import partition_columns_of
from pgsluice.catalog.tables.keys import prove_keys
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.changes.deleted_rows import TIME
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.errors import ConfigError, TableError
from pgsluice.facts import RelationFacts
from pgsluice.preflight.facts import ColumnType, ConfiguredKey
from pgsluice.preflight.findings import Finding, error
from pgsluice.sinks.renamed import schema_at_target
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.subscription.base.options import table_options
from pgsluice.types import resolve_type
from pgsluice.types.definition import TypeDefinition

# The recursion ends at base types and enums. The output function tells a real array from
# types that merely have elements (point, name, int2vector).
_COLUMN_TYPES = """
WITH RECURSIVE inside (relation, number, name, of, type, is_inside) AS (
    SELECT a.attrelid, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid, false
      FROM pg_attribute a
     WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
     UNION
    SELECT i.relation, i.number, i.name, i.of, below.type, i.is_inside OR t.typtype <> 'd'
      FROM inside i JOIN pg_type t ON t.oid = i.type,
           LATERAL (SELECT t.typelem WHERE t.typoutput = 'array_out'::regproc
                    UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
                    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
                    UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
                    UNION ALL SELECT a.atttypid FROM pg_attribute a
                               WHERE t.typtype = 'c' AND a.attrelid = t.typrelid
                                 AND a.attnum > 0 AND NOT a.attisdropped) AS below (type)
)
SELECT DISTINCT i.relation, i.number, n.nspname || '.' || c.relname || '.' || i.name, i.of,
       t.oid, t.typname, t.typtype::text, t.typsend::oid <> 0, i.is_inside, i.name
  FROM inside i JOIN pg_type t ON t.oid = i.type
  JOIN pg_class c ON c.oid = i.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE t.typtype IN ('b', 'e') AND t.typoutput <> 'array_out'::regproc
 ORDER BY 1, 2, 6
"""
_WITH_REPEATED_VALUES = """
SELECT s.schemaname || '.' || s.tablename, s.attname
FROM pg_catalog.pg_stats s
JOIN pg_catalog.pg_class c ON c.relname = s.tablename
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname
WHERE c.oid = ANY (%s::oid[]) AND s.inherited = (c.relkind = 'p')
AND s.most_common_vals IS NOT NULL
"""  # ANALYZE has seen each of them at least twice


def query_column_types(
    connection: Connection, relations: Collection[int]
) -> tuple[ColumnType, ...]:
    """All types in the columns of these relations, by OID. Needs PostgreSQL 14."""
    return tuple(
        ColumnType(
            relation=int(relation),
            column=column,
            shown=f"{shown} ({column_type})",
            type_name=name,
            is_sent=is_sent,
            is_inside=is_inside,
            is_read=resolve_type(
                int(oid), -1, {int(oid): TypeDefinition(int(oid), "", name, kind)}
            ).reads_binary,
        )
        for relation, _, shown, column_type, oid, name, kind, is_sent, is_inside, column in (
            connection.execute(_COLUMN_TYPES, [sorted(relations)])
        )
    )


def configured_keys(
    connection: Connection, config: Config, catalog: SourceCatalog
) -> tuple[ConfiguredKey, ...]:
    """The configured keys of enabled subscriptions, for tables that have their columns."""
    tables = {f"{table.namespace}.{table.name}": table for table in catalog.tables.values()}
    found: list[ConfiguredKey] = []
    for subscription in config.subscriptions:
        named = [
            (title, tables[title], tuple(key))
            for title, key in subscription.key.items()
            if subscription.enabled
            and title in tables
            and {*key} <= {column.name for column in tables[title].columns}
        ]
        keys = {table.oid: key for _, table, key in named}
        leaves = {
            table.oid: [below.oid for below in catalog.below(table) if not below.is_partitioned]
            for _, table, _ in named
            if table.is_partitioned
        }
        proved = prove_keys(connection, keys, leaves)
        partition_columns = partition_columns_of(connection, leaves)
        repeated = set(connection.execute(_WITH_REPEATED_VALUES, [list(keys)]).fetchall())
        for title, table, key in named:
            missing = partition_columns.get(table.oid, frozenset()) - {*key, None}
            found.append(
                ConfiguredKey(
                    subscription=subscription.name,
                    schema=table.namespace,
                    name=table.name,
                    columns=key,
                    index=proved.get(table.oid),
                    is_shared=len(key) == 1 and (title, key[0]) in repeated,
                    lacking=tuple(sorted(map(str, missing))),
                )
            )
    return tuple(found)


def unfit_targets(
    connection: Connection,
    config: Config,
    catalog: SourceCatalog,
    sent: Collection[int],
) -> tuple[Finding, ...]:
    """Sent tables whose target the settings of the sink or ``rename`` do not allow."""
    tables = catalog.tables
    roots = {(oid, *tables[oid].ancestors)[-1] for oid in sent if oid in tables} & tables.keys()
    found: list[Finding] = []
    for subscription in config.subscriptions:
        concerned = [oid for oid in sorted(roots) if _is_concerned(subscription, catalog, oid)]
        if not subscription.enabled or not concerned:
            continue
        with suppress(ConfigError):  # another check says what is wrong
            options = table_options(subscription)
            for facts in fetch_many(connection, concerned).values():
                found += _unfit(subscription, options, facts)
    return tuple(found)


def _is_concerned(subscription: SubscriptionConfig, catalog: SourceCatalog, oid: int) -> bool:
    table, names = catalog.tables[oid], subscription.names
    name = table.namespace, table.name
    is_named = names.described(*name) or names.owner_of_table_name(*name) is not None
    return bool(is_named) or ".".join(name) in subscription.sink.table_names()


def _unfit(
    subscription: SubscriptionConfig, options: TableOptions, facts: RelationFacts
) -> Iterator[Finding]:
    try:
        table = target_table(facts, options)
        schema, mode = table.schema, options.mode
        if mode.log is not None:
            schema = mode.log.of_table(schema, table.title)
        elif mode.history is not None:
            schema = mode.history.of_table(schema)
        elif mode.deleted_column is not None:
            schema = schema.append(pa.field(mode.deleted_column, TIME))
        sink = subscription.sink.with_names(subscription.names)
        sink.check_table(table.title, schema_at_target(schema, subscription.names, table.title))
    except TableError as problem:
        what = f'subscription "{subscription.name}": {problem.what}'
        yield error("configuration", what, problem.hint or "")
