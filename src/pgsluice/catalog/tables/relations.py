"""Reads relation metadata, and the types that the columns need.

For any number of relations: one query for the relations, one for their columns, and one for
each level of nested types (an array of a domain over an enum has three).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pgsluice.catalog import Connection
from pgsluice.catalog.tables.keys import ROOTS_CTE, keys_cte
from pgsluice.facts import ColumnFacts, DroppedColumn, RelationFacts
from pgsluice.types.definition import TypeDefinition, TypeField

#: Types with OIDs below are the same on every server; definitions of others are looked up.
FIRST_UNKNOWN_TYPE_OID = 10000
_Type = TypeVar("_Type")

_RELATIONS = """
WITH RECURSIVE wanted AS (SELECT unnest(%s::oid[]) AS oid), {roots}, {keys}
SELECT c.oid, n.nspname, c.relname, c.relkind::text, r.oid, rn.nspname, r.relname,
       k.primary_key, k.identity_key, c.relreplident::text,
       CASE c.relkind WHEN 'p' THEN 0 ELSE c.relfilenode::bigint END -- 10 has one
FROM roots
JOIN pg_catalog.pg_class c ON c.oid = roots.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = roots.root
JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
LEFT JOIN keys k ON k.relid = c.oid
"""


def fetch_relation_facts(connection: Connection, oid: int) -> RelationFacts | None:
    """The metadata of one relation in the connection's snapshot; None if it does not exist."""
    return fetch_many(connection, [oid]).get(oid)


def fetch_many(connection: Connection, oids: Collection[int]) -> dict[int, RelationFacts]:
    """The metadata of several relations by OID; relations that do not exist are missing."""
    if not oids:
        return {}
    wanted = sorted(set(oids))
    columns = _columns(connection, wanted)
    type_oids = {column.type_oid for some in columns.values() for column in some.kept}
    types = fetch_types(connection, type_oids)
    facts = {}
    query = _RELATIONS.format(roots=ROOTS_CTE, keys=keys_cte(connection.info.server_version))
    for row in connection.execute(query, [wanted]).fetchall():
        oid = int(row[0])
        facts[oid] = RelationFacts(
            oid=oid,
            namespace=row[1],
            name=row[2],
            kind=row[3],
            root_oid=int(row[4]),
            root_namespace=row[5],
            root_name=row[6],
            primary_key=tuple(row[7] or ()),
            identity_key=tuple(row[8] or ()),
            replica_identity=row[9],
            filenode=int(row[10]),
            columns=tuple(columns[oid].kept),
            types=needed_types(types, (c.type_oid for c in columns[oid].kept), _referred_types),
            dropped=tuple(columns[oid].dropped),
            above=columns[oid].numbers_above(),
        )
    return facts


@dataclass(slots=True)
class _Columns:
    """The columns of one relation.

    Attributes:
        above: for each of ``kept``, its attnum in the partitioned tables above, by their OIDs.
    """

    kept: list[ColumnFacts] = field(default_factory=list)
    dropped: list[DroppedColumn] = field(default_factory=list)
    above: list[dict[int, int]] = field(default_factory=list)

    def numbers_above(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """See :class:`pgsluice.facts.RelationFacts`."""
        above = self.above[0] if self.above else {}
        return tuple((oid, tuple(numbers.get(oid, 0) for numbers in self.above)) for oid in above)


def _columns(connection: Connection, oids: list[int]) -> dict[int, _Columns]:
    """The columns, in one query, so that the names in a leaf partition and above it are from one
    snapshot."""
    version = connection.info.server_version
    generated = "a.attgenerated::text" if version >= 120000 else "''"
    # The array has one element; array_to_string() returns that element's text.
    missing = (
        "CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END"
        if version >= 110000
        else "NULL::text"
    )
    query = f"""
WITH RECURSIVE wanted AS (SELECT unnest(%s::oid[]) AS oid),
{ROOTS_CTE},
numbers AS (
    SELECT x.oid, p.attname, array_agg(x.ancestor::bigint ORDER BY x.depth) AS oids,
           array_agg(p.attnum::int ORDER BY x.depth) AS attnums
    FROM ancestors x
    JOIN pg_catalog.pg_attribute p ON p.attrelid = x.ancestor AND p.attnum > 0
    WHERE x.depth > 0
    GROUP BY x.oid, p.attname
)
SELECT a.attrelid, a.attisdropped, a.attlen, a.attalign::text, n.oids, n.attnums,
       a.attname, a.attnum, a.atttypid, a.atttypmod, a.attnotnull,
       {generated}, a.attidentity::text, {missing}, a.xmin::text::bigint
FROM pg_catalog.pg_attribute a
LEFT JOIN numbers n ON n.oid = a.attrelid AND n.attname = a.attname
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0
ORDER BY a.attrelid, a.attnum
"""  # noqa: S608 - fragments are constants of ours
    columns: defaultdict[int, _Columns] = defaultdict(_Columns)
    for oid, is_dropped, length, align, above, numbers, *column in connection.execute(
        query, [oids, oids]
    ).fetchall():
        if is_dropped:
            columns[oid].dropped.append(DroppedColumn(column[1], length, align))
            continue
        columns[oid].kept.append(ColumnFacts(*column))  # in the order of the fields
        columns[oid].above.append(dict(zip(above or (), numbers or (), strict=True)))
    return columns


_TYPES = """
SELECT t.oid, n.nspname, t.typname, t.typtype::text,
       CASE WHEN t.typlen = -1 THEN t.typelem::bigint ELSE 0 END, t.typdelim::text,
       t.typbasetype::bigint, t.typtypmod,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e
             WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
             AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
             AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT a.atttypmod FROM pg_catalog.pg_attribute a
             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
             AND NOT a.attisdropped ORDER BY a.attnum),
       CASE t.typtype
       WHEN 'r' THEN (SELECT r.rngsubtype::bigint FROM pg_catalog.pg_range r
                      WHERE r.rngtypid = t.oid)
       -- Through JSON, since only 14 and later have the column.
       WHEN 'm' THEN (SELECT r.rngtypid::bigint FROM pg_catalog.pg_range r
                      WHERE pg_catalog.to_jsonb(r) ->> 'rngmultitypid' = t.oid::text)
       ELSE 0 END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid = ANY (%s::oid[])
"""


def fetch_types(connection: Connection, oids: Iterable[int]) -> dict[int, TypeDefinition]:
    """The definitions of the types in ``oids`` that are not built in, and of all types that they
    use."""
    definitions: dict[int, TypeDefinition] = {}
    wanted = {oid for oid in oids if oid >= FIRST_UNKNOWN_TYPE_OID}
    while wanted:
        rows = connection.execute(_TYPES, [sorted(wanted)]).fetchall()
        level = {int(row[0]): _definition(row) for row in rows}
        definitions.update(level)
        wanted = {
            oid
            for definition in level.values()
            for oid in _referred_types(definition)
            if oid >= FIRST_UNKNOWN_TYPE_OID and oid not in definitions
        }
    return definitions


def _definition(row: tuple[Any, ...]) -> TypeDefinition:
    return TypeDefinition(
        oid=int(row[0]),
        namespace=row[1],
        name=row[2],
        kind=row[3],
        element_oid=row[4],
        delimiter=row[5],
        base_oid=row[6],
        base_typmod=row[7],
        enum_labels=tuple(row[8]),
        fields=tuple(TypeField(*field) for field in zip(row[9], row[10], row[11], strict=True)),
        subtype_oid=row[12],
    )


def _referred_types(definition: TypeDefinition) -> list[int]:
    """The OIDs of the types that a type refers to; 0 for none."""
    fields = [field.type_oid for field in definition.fields]
    return [definition.element_oid, definition.base_oid, definition.subtype_oid, *fields]


def needed_types(
    types: Mapping[int, _Type], oids: Iterable[int], referred: Callable[[_Type], Iterable[int]]
) -> tuple[_Type, ...]:
    """Of the definitions ``types``, those with these OIDs and all that they refer to, ordered by
    OID.

    Args:
        referred: the OIDs of the types that one definition refers to directly.
    """
    needed: dict[int, _Type] = {}
    waiting = list(oids)
    while waiting:
        oid = waiting.pop()
        if oid in types and oid not in needed:
            needed[oid] = types[oid]
            waiting += referred(types[oid])
    return tuple(needed[oid] for oid in sorted(needed))
