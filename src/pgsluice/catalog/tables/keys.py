"""The keys that identify a row, primary key and replica identity, as SQL.

The replica identity's index is chosen as RelationGetIndexList (relcache.c) does: the primary key
under DEFAULT unless it is deferrable, or the named index; the index must be valid.
"""

from __future__ import annotations


def keys_cte(server_version: int) -> str:
    """``keys(relid, primary_key, identity_key)``, a CTE over the relations ``wanted(oid)``.

    Both are text[] in the index's order, NULL for none. There is no identity key under REPLICA
    IDENTITY FULL and NOTHING.
    """
    # Columns beside the key (INCLUDE) exist since 11.
    key_length = "i.indnkeyatts" if server_version >= 110000 else "i.indnatts"
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
    CROSS JOIN LATERAL (
        SELECT array_agg(a.attname::text ORDER BY n.position) AS columns
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS n(attnum, position)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = n.attnum
        WHERE n.position <= {key_length}
    ) k
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
