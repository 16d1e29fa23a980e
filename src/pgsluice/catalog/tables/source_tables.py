"""Reads a snapshot of the source's relations, for pgsluice's own publications.

Source: pg_class, pg_attribute, pg_inherits, pg_index, pg_namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import psycopg

from pgsluice.catalog import Connection, one_snapshot
from pgsluice.catalog.tables.keys import keys_cte
from pgsluice.catalog.tables.relations import needed_types
from pgsluice.catalog.text_rules import text_rules
from pgsluice.definitions.source_tables import SourceCatalog, SourceColumn, SourceTable, SourceType

_RELATIONS = """
WITH wanted AS (
    SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p')
), {keys}
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       c.relreplident::text, k.identity_key
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN keys k ON k.relid = c.oid
WHERE c.relpersistence <> 't' AND n.nspname <> 'pg_toast'
"""

_COLUMNS = """
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attcollation::bigint,
       a.attnotnull, {generated}, a.attidentity::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       coalesce(CASE WHEN a.attcollation <> t.typcollation THEN o.collname END, ''),
       coalesce({default}, '')
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped
  AND c.relpersistence <> 't'
ORDER BY a.attrelid, a.attnum
"""

_TYPES = """
SELECT t.oid, t.typname, t.typtype::text, t.typcategory::text,
       CASE WHEN t.typlen = -1 THEN t.typelem::bigint ELSE 0 END, t.typarray::bigint,
       t.typbasetype::bigint, t.typcollation::bigint, pg_catalog.format_type(t.oid, NULL),
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e
             WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder)
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
WHERE t.oid >= 16384 AND (c.oid IS NULL OR c.relkind = 'c')
"""

_INHERITS = """
SELECT i.inhrelid, i.inhparent, c.relispartition
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE c.relkind IN ('r', 'p', 'f')
ORDER BY i.inhparent, i.inhrelid
"""


def source_catalog(
    connection: Connection, *, with_defaults: bool = False, for_filters: bool = True
) -> SourceCatalog:
    """Read the catalog in one snapshot: of the open transaction, or else of a new one.

    Args:
        with_defaults: also read :attr:`SourceColumn.display_default`. To print an expression, the
            server opens its table, and waits for ACCESS EXCLUSIVE locks.
        for_filters: ask the server which characters are letters, and their case.

    The search path is the default of the role or the database, without schemas that do not
    exist; ``"$user"`` stands for the role.
    """
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return _read(connection, with_defaults, for_filters)
    with one_snapshot(connection):
        return _read(connection, with_defaults, for_filters)


def _read(connection: Connection, with_defaults: bool, for_filters: bool) -> SourceCatalog:
    version = connection.info.server_version
    columns: dict[int, list[SourceColumn]] = {}
    generated = "a.attgenerated::text" if version >= 120000 else "''"
    default = "pg_catalog.pg_get_expr(d.adbin, d.adrelid, true)" if with_defaults else "NULL"
    query = _COLUMNS.format(generated=generated, default=default)
    for oid, *facts in connection.execute(query.encode()):
        columns.setdefault(int(oid), []).append(SourceColumn(*facts))  # in the order of the fields
    rows = [SourceType(*row) for row in connection.execute(_TYPES).fetchall()]
    types = {row.oid: replace(row, labels=tuple(row.labels)) for row in rows}
    parents, children = _inheritance(connection)
    relations = connection.execute(_RELATIONS.format(keys=keys_cte(version)).encode()).fetchall()
    tables = {
        int(row[0]): SourceTable(
            oid=int(row[0]),
            namespace=row[1],
            name=row[2],
            kind=row[3],
            persistence=row[4],
            columns=tuple(columns.get(int(row[0]), ())),
            types=needed_types(
                types,
                (column.type_oid for column in columns.get(int(row[0]), ())),
                lambda each: (each.element, each.array, each.base),
            ),
            replica_identity=row[5],
            identity_columns=tuple(row[6] or ()),
            ancestors=_ancestors(int(row[0]), parents),
            children=tuple(children.get(int(row[0]), ())),
        )
        for row in relations
    }
    names = connection.execute("SELECT nspname FROM pg_catalog.pg_namespace").fetchall()
    schemas = frozenset(name for (name,) in names)
    database = str(connection.info.dbname)
    collations = {column.collation for table in tables.values() for column in table.columns}
    rules = text_rules(connection, collations, with_characters=for_filters)
    return SourceCatalog(tables, schemas, database, _search_path(connection, schemas), rules)


def _inheritance(connection: Connection) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The parent of each partition, and the children of each parent, by OID."""
    parents: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for child, parent, is_partition in connection.execute(_INHERITS).fetchall():
        children.setdefault(int(parent), []).append(int(child))
        if is_partition:
            parents[int(child)] = int(parent)
    return parents, children


def _ancestors(oid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    ancestors: list[int] = []
    while (parent := parents.get(ancestors[-1] if ancestors else oid)) is not None:
        ancestors.append(parent)
    return tuple(ancestors)


_SEARCH_PATH = """
SELECT option FROM (
    SELECT unnest(setconfig) AS option, setrole <> 0 AS of_role, setdatabase <> 0 AS of_database
    FROM pg_catalog.pg_db_role_setting
    WHERE setrole IN (0, (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user))
    AND setdatabase IN (0, (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = current_database()))
) settings
WHERE option LIKE 'search\\_path=%'
ORDER BY of_role DESC, of_database DESC
LIMIT 1
"""


def _search_path(connection: Connection, schemas: frozenset[str]) -> tuple[str, ...]:
    """The default search path, by which statements are meant: our own sessions have an empty
    one."""
    row = connection.execute(_SEARCH_PATH.encode()).fetchone()
    text = '"$user", public' if row is None else str(row[0]).partition("=")[2]
    role = connection.execute("SELECT current_user").fetchone()
    names = (name.strip().replace('""', '"').strip('"') for name in text.split(","))
    resolved = (str(role[0]) if name == "$user" and role else name for name in names)
    return tuple(name for name in resolved if name in schemas)
