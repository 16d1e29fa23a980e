"""The keys that identify a row: primary key, replica identity, and keys that unique indexes prove.

The replica identity's index is chosen as RelationGetIndexList (relcache.c) does: the primary key
under DEFAULT unless it is deferrable, or the named index; the index must be valid.

A unique index is a proof if it covers all rows at any moment: it is valid, not deferrable, without
predicate and expression, and its columns are NOT NULL. It proves every key that contains its
columns. For a partitioned table without such an index, an index on each partition proves a key that
also contains the partition columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import partition_columns_of

_FIRST_WITH_UNCHECKED_NOT_NULL = 180000


def _index_columns(server_version: int, others: str = "") -> str:
    """A join of the columns of an index ``i`` as ``k.columns``, in its order, without INCLUDE.

    Args:
        others: more aggregates of these columns ``a``.
    """
    # Columns beside the key (INCLUDE) exist since 11.
    key_length = "i.indnkeyatts" if server_version >= 110000 else "i.indnatts"
    return f"""
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text ORDER BY n.position) AS columns {others}
    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS n(attnum, position)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = n.attnum
    WHERE n.position <= {key_length}
) k"""  # noqa: S608 - fragments are constants of ours


def keys_cte(server_version: int) -> str:
    """``keys(relid, primary_key, identity_key)``, a CTE over the relations ``wanted(oid)``.

    Both are text[] in the index's order, NULL for none. There is no identity key under REPLICA
    IDENTITY FULL and NOTHING.
    """
    return f"""
keys AS (
    SELECT i.indrelid AS relid,
           max(k.columns) FILTER (WHERE i.indisprimary) AS primary_key,
           max(k.columns) FILTER (
               WHERE i.indimmediate AND i.indisvalid AND i.indisunique
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                       WHEN 'i' THEN i.indisreplident ELSE false END
           ) AS identity_key
    FROM wanted w
    JOIN pg_catalog.pg_class c ON c.oid = w.oid
    JOIN pg_catalog.pg_index i ON i.indrelid = w.oid
    {_index_columns(server_version)}
    WHERE i.indisprimary OR i.indisreplident
    GROUP BY i.indrelid
)"""  # noqa: S608 - the fragment is one of two constants


#: ``roots(oid, root)``: for each leaf of ``wanted(oid)`` the topmost partitioned table above it.
#: Any other relation is its own: the server sends a partitioned table by its name or not at all.
#: Needs WITH RECURSIVE.
ROOTS_CTE = """
ancestors(oid, ancestor, depth) AS (
    SELECT w.oid, w.oid, 0 FROM wanted w
    UNION ALL
    SELECT a.oid, i.inhparent, a.depth + 1
    FROM ancestors a
    JOIN pg_catalog.pg_class c ON c.oid = a.ancestor AND c.relispartition
        AND (a.depth > 0 OR c.relkind <> 'p')
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.ancestor
),
roots AS (
    SELECT DISTINCT ON (oid) oid, ancestor AS root FROM ancestors ORDER BY oid, depth DESC
)"""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index that proves a key.

    Attributes:
        columns: the columns in the index's order, without those of INCLUDE.
    """

    name: str
    columns: tuple[str, ...]


def unique_indexes(
    connection: Connection, oids: Collection[int]
) -> dict[int, tuple[UniqueIndex, ...]]:
    """The unique indexes of relations that prove a key, the smallest first; other indexes are
    missing."""
    if not oids:
        return {}
    found: defaultdict[int, list[UniqueIndex]] = defaultdict(list)
    for oid, name, columns in connection.execute(_query(connection), [list(oids)]).fetchall():
        found[int(oid)].append(UniqueIndex(name, tuple(columns)))
    return {
        oid: tuple(sorted(each, key=lambda index: (len(index.columns), index.name)))
        for oid, each in found.items()
    }


def prove_keys(
    connection: Connection,
    keys: Mapping[int, Sequence[str]],
    leaves: Mapping[int, Collection[int]],
) -> dict[int, str]:
    """The name of an index that proves each table's key; tables without a proof are missing.

    Args:
        keys: table -> its key.
        leaves: partitioned table -> the leaf partitions below it. A plain table may be its own
            leaf.
    """
    proved: dict[int, str] = {}
    own = unique_indexes(connection, [oid for oid, key in keys.items() if key])
    partitioned: list[int] = []
    for oid, key in keys.items():
        if (name := _proof(own.get(oid, ()), key)) is not None:
            proved[oid] = name
        elif key and {*leaves.get(oid, ())} - {oid}:
            partitioned.append(oid)
    columns = partition_columns_of(connection, partitioned)
    by_leaf = [oid for oid in partitioned if columns.get(oid, {None}) <= {*keys[oid]}]
    of_leaves = unique_indexes(connection, [leaf for oid in by_leaf for leaf in leaves[oid]])
    for oid in by_leaf:
        names = [_proof(of_leaves.get(leaf, ()), keys[oid]) for leaf in sorted(leaves[oid])]
        if names[0] is not None and None not in names:
            proved[oid] = names[0] if len(names) == 1 else f"{names[0]} and those like it"
    return proved


def _proof(indexes: Sequence[UniqueIndex], key: Sequence[str]) -> str | None:
    return next((index.name for index in indexes if {*index.columns} <= {*key}), None)


def _query(connection: Connection) -> bytes:
    version = connection.info.server_version
    # From 18 on, attnotnull is true as well for a constraint that existing rows may break.
    is_checked = (
        """AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_constraint n
            WHERE n.conrelid = a.attrelid AND n.contype = 'n' AND n.conkey = ARRAY[a.attnum]
            AND NOT n.convalidated)"""
        if version >= _FIRST_WITH_UNCHECKED_NOT_NULL
        else ""
    )
    return f"""
SELECT i.indrelid, c.relname::text, k.columns
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
{_index_columns(version, f", bool_and(a.attnotnull {is_checked}) AS are_never_null")}
WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indimmediate AND i.indisvalid
AND i.indpred IS NULL AND i.indexprs IS NULL AND k.are_never_null
""".encode()  # noqa: S608 - fragments are constants of ours
