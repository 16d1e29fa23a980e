"""Divides a table's rows into ranges of its primary key, by the server's statistics.

With outdated statistics, the ranges have different numbers of rows, but together they still have
each row once. Only keys of the types in :data:`_TYPES`, of domains over them, and of enums are
divided. The order of other types may depend on a collation, even inside a composite type or jsonb:
an update of the operating system may corrupt their index, which then hides rows of a range. Or
their operators belong to an extension, which the session's empty ``search_path`` does not find.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

from pgsluice.catalog import Connection
from pgsluice.sql import quote_identifier, quote_literal

# fmt: off
_TYPES = [
    "bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "uuid", "bytea", "bit",
    "varbit", "pg_lsn", "date", "time", "timetz", "timestamp", "timestamptz", "interval", "inet",
    "macaddr", "macaddr8",
]
# fmt: on
# The first column of the primary key.
_BOUNDS = """
SELECT c.oid, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       s.histogram_bounds::text::text[]
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
JOIN pg_catalog.pg_type t ON t.oid = CASE d.typtype WHEN 'd' THEN d.typbasetype ELSE d.oid END
JOIN pg_catalog.pg_stats s
  ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
WHERE c.oid = ANY (%s::oid[]) AND s.histogram_bounds IS NOT NULL
  AND s.inherited = (c.relkind = 'p')
  AND (t.typtype = 'e'
       OR t.typname = ANY (%s) AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace)
"""


def key_ranges(connection: Connection, counts: Mapping[int, int]) -> dict[int, tuple[str, ...]]:
    """Conditions that divide a table: each row fulfils exactly one of them.

    Args:
        counts: tables by OID, leaf partitions or partitioned tables, and the number of ranges for
            each.

    Returns:
        the conditions by table; tables without statistics of the key, or with a key that our role
        may not read, are missing.
    """
    rows = connection.execute(_BOUNDS, [list(counts), _TYPES]).fetchall() if counts else []
    return {
        int(oid): conditions
        for oid, column, type_name, bounds in rows
        if (conditions := _conditions(column, type_name, bounds, counts[int(oid)]))
    }


def _conditions(
    column: str, type_name: str, bounds: Collection[str], count: int
) -> tuple[str, ...]:
    inner = list(dict.fromkeys(bounds))[1:-1]
    chosen = [inner[len(inner) * number // count] for number in range(1, count)] if inner else []
    starts = [f"{quote_literal(bound)}::{type_name}" for bound in dict.fromkeys(chosen)]
    if not starts:
        return ()
    key = quote_identifier(column)
    return (
        f"{key} < {starts[0]}",
        *(f"{key} >= {start} AND {key} < {end}" for start, end in pairwise(starts)),
        f"{key} >= {starts[-1]}",
    )
