"""With ``binary = true``: which published columns the server cannot send, or we cannot read.

The server sends a value in binary form when its type has a send function. An array, range or
composite always has one, which fails where a type inside has none (aclitem): pgoutput then
stops at that row, for ever. And some binary forms do not hold what the text form has (reg*
types are OIDs), or are known to their extension only.
Source: ``logicalrep_write_tuple`` in src/backend/replication/logical/proto.c; ``array_send``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgsluice.monitor.findings import Finding, error, ok, warning
from pgsluice.types import resolve_type
from pgsluice.types.definition import TypeDefinition

_TEXT = "leave binary away from [source]: in text form every type comes exactly"

# Every type that values of a column can hold inside, down to those that hold none. An array's
# output function tells it from types that only have elements (point, name, int2vector).
_INSIDE = """
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


@dataclass(frozen=True, slots=True)
class Inside:
    """A type that a column's values hold, or are of.

    Attributes:
        relation: the table's OID.
        column: its name.
        shown: schema, table and column, and the column's type.
        type_name: of what is inside.
        is_sent: it has a send function.
        is_inside: it is inside another type.
        is_read: we can tell its text form from its binary form.
    """

    relation: int
    column: str
    shown: str
    type_name: str
    is_sent: bool
    is_inside: bool
    is_read: bool


def find_inside(
    connection: psycopg.Connection[Any], relations: Collection[int]
) -> tuple[Inside, ...]:
    """All types in the columns of these relations; needs a server of 14 on, as ``binary`` does."""
    return tuple(
        Inside(
            relation=int(relation),
            column=column,
            shown=f"{shown} ({of})",
            type_name=name,
            is_sent=is_sent,
            is_inside=is_inside,
            is_read=_is_read(int(oid), name, kind),
        )
        for relation, _, shown, of, oid, name, kind, is_sent, is_inside, column in (
            connection.execute(_INSIDE, [sorted(relations)])
        )
    )


def _is_read(oid: int, name: str, kind: str) -> bool:
    definition = TypeDefinition(oid, "", name, kind)
    return resolve_type(oid, -1, {oid: definition}).reads_binary


def judge_binary(found: Sequence[Inside]) -> Iterator[Finding]:
    """What ``binary = true`` means for the published columns."""
    stopping = [one for one in found if one.is_inside and not one.is_sent]
    for one in stopping:
        yield error(
            "binary",
            f"{one.shown}: {one.type_name} inside another type has no binary form, and the "
            "server's stream stops at the first such row, for all tables and for good",
            _TEXT,
        )
    parking = [one for one in found if one.is_sent and not one.is_read]
    for one in parking:
        yield warning(
            "binary",
            f"{one.shown}: the binary form of {one.type_name} does not tell its text; the first "
            "value parks the table",
            _TEXT,
        )
    if not stopping and not parking:
        yield ok("binary", "every published column has an exact binary form, or comes as text")
