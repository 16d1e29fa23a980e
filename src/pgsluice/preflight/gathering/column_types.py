"""Gathers the types of columns, down to the types inside arrays, ranges and composites."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from pgsluice.preflight.facts import ColumnType
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


def query_column_types(
    connection: psycopg.Connection[Any], relations: Collection[int]
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
            is_read=_is_read(int(oid), name, kind),
        )
        for relation, _, shown, column_type, oid, name, kind, is_sent, is_inside, column in (
            connection.execute(_COLUMN_TYPES, [sorted(relations)])
        )
    )


def _is_read(oid: int, name: str, kind: str) -> bool:
    definition = TypeDefinition(oid, "", name, kind)
    return resolve_type(oid, -1, {oid: definition}).reads_binary
