"""Users' tables: their names, the keys that identify their rows, their files and comments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import below_cte
from pgsluice.catalog.tables.keys import ROOTS_CTE, keys_cte
from pgsluice.definitions.source_tables import TableComments

#: The schema of pgsluice's own tables on a PostgreSQL target; never published.
OUR_SCHEMA = "pgsluice"


@dataclass(frozen=True, slots=True)
class UserTable:
    """A permanent table of a user: plain, partitioned, or a partition.

    Attributes:
        kind: ``r`` table, ``p`` partitioned table.
        root_oid: see :class:`pgsluice.facts.RelationFacts`.
        root: schema and name of that table.
        replica_identity: ``d``, ``n``, ``f`` or ``i``.
        identity_key: the columns of the replica identity's index.
        has_identity: UPDATE and DELETE can be published. For a partitioned table, this is true for
            every leaf partition, and for new ones, which inherit the primary key.
        may_publish: our role owns the table and so can add it to a publication.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    is_partition: bool
    root_oid: int
    root: tuple[str, str]
    replica_identity: str
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]
    has_identity: bool
    may_publish: bool


# Not system tables (OIDs below 16384, or in schemas of the system), nor temporary, unlogged and
# foreign tables, which are not in the WAL, nor tables that belong to an extension.
_TABLES = """
WITH RECURSIVE wanted AS (
    SELECT c.oid
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', %s) AND n.nspname !~ '^pg_'
    AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::regclass
        AND d.objid = c.oid AND d.deptype = 'e')
), {roots}, {keys}
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relispartition, roots.root,
       c.relreplident::text, k.primary_key, k.identity_key,
       pg_catalog.pg_has_role(c.relowner, 'USAGE')
FROM wanted w
JOIN roots ON roots.oid = w.oid
JOIN pg_catalog.pg_class c ON c.oid = w.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN keys k ON k.relid = c.oid
ORDER BY n.nspname, c.relname
"""


def user_tables(connection: Connection) -> tuple[UserTable, ...]:
    """All tables of users in the database, including partitioned tables and partitions."""
    query = _TABLES.format(roots=ROOTS_CTE, keys=keys_cte(connection.info.server_version))
    rows = connection.execute(query, [OUR_SCHEMA]).fetchall()
    roots_without_identity = {
        int(row[5])
        for row in rows
        if row[4] and row[3] == "r" and not _has_identity(row[6], row[8])
    }
    names = {int(row[0]): (row[1], row[2]) for row in rows}
    tables = []
    for row in rows:
        oid, kind = int(row[0]), row[3]
        if kind == "p":
            # A new partition has REPLICA IDENTITY DEFAULT, even if its parent has another.
            has_identity = oid not in roots_without_identity and _has_identity("d", row[7])
        else:
            has_identity = _has_identity(row[6], row[8])
        tables.append(
            UserTable(
                oid=oid,
                namespace=row[1],
                name=row[2],
                kind=kind,
                is_partition=row[4],
                root_oid=int(row[5]),
                root=names.get(int(row[5]), names[oid]),
                replica_identity=row[6],
                primary_key=tuple(row[7] or ()),
                identity_key=tuple(row[8] or ()),
                has_identity=has_identity,
                may_publish=row[9],
            )
        )
    return tuple(tables)


def _has_identity(replica_identity: str, key: list[str] | None) -> bool:
    return replica_identity == "f" or (replica_identity != "n" and bool(key))


def has_name(connection: Connection, oid: int, namespace: str, name: str) -> bool:
    """Whether a table currently has this name, regardless of the connection's snapshot.

    Call this after locking the name: a statement resolves a name when it starts.
    """
    quoted = sql.Identifier(namespace, name).as_string(connection)
    row = connection.execute("SELECT pg_catalog.to_regclass(%s)::oid", [quoted]).fetchone()
    return row is not None and row[0] == oid


def is_in_snapshot(connection: Connection, oid: int) -> bool:
    """Whether the connection's snapshot has a table. A query of a newer table returns no rows."""
    query = "SELECT 1 FROM pg_catalog.pg_class WHERE oid = %s"
    return connection.execute(query, [oid]).fetchone() is not None


_COLUMNS = """
SELECT a.attnum, CASE WHEN t.typtype <> 'd' THEN a.atttypid::bigint END
FROM pg_catalog.unnest(%s::text[]) WITH ORDINALITY AS wanted (name, place)
JOIN pg_catalog.pg_attribute a ON a.attname = wanted.name AND NOT a.attisdropped
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s ORDER BY wanted.place
"""


def has_columns_of_snapshot(
    connection: Connection, oid: int, relation: sql.Identifier, names: Sequence[str]
) -> bool:
    """Whether these columns of a table are still those in the connection's snapshot.

    A query resolves column names by the current catalog, but reads rows of the snapshot. The server
    reports the resolved columns when it describes the query. It does not report domains, so these
    are compared by position only.

    Args:
        relation: the table, which is locked.
    """
    before = connection.execute(_COLUMNS, [list(names), oid]).fetchall()
    query = sql.SQL("SELECT {} FROM ONLY {}").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), relation
    )
    result = connection.pgconn.prepare(b"", query.as_bytes(connection))
    if result.status != pq.ExecStatus.COMMAND_OK:
        error = psycopg.errors.error_from_result(result)
        if isinstance(error, psycopg.errors.UndefinedColumn):
            return False
        raise error
    now = connection.pgconn.describe_prepared(b"")
    return len(before) == now.nfields and all(
        now.ftablecol(place) == attnum and type_oid in (None, now.ftype(place))
        for place, (attnum, type_oid) in enumerate(before)
    )


@dataclass(frozen=True, slots=True)
class Filenode:
    """The relfilenode of a table.

    Attributes:
        in_snapshot: pg_class.relfilenode in the connection's snapshot.
        now: the current one; None when the table has been dropped. If it differs from
            ``in_snapshot``, the snapshot sees an empty table.
        toast_table: pg_class.reltoastrelid, 0 for a table without TOAST table.
    """

    in_snapshot: int
    now: int | None
    toast_table: int = 0


_FILENODES = """
WITH RECURSIVE {below}
SELECT b.root, c.oid, c.relfilenode::bigint, pg_catalog.pg_relation_filenode(c.oid)::bigint,
       c.reltoastrelid::bigint
FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relkind = 'r'
ORDER BY b.root, c.oid
"""


def leaf_filenodes(connection: Connection, oids: Collection[int]) -> dict[int, dict[int, Filenode]]:
    """The relfilenodes of each table's leaf partitions by their OIDs; a plain table is its own
    leaf."""
    query = _FILENODES.format(below=below_cte(connection.info.server_version))
    filenodes: dict[int, dict[int, Filenode]] = {oid: {} for oid in oids}
    for root, oid, *filenode in connection.execute(query, [list(oids)]).fetchall():
        filenodes[int(root)][int(oid)] = Filenode(*filenode)
    return filenodes


_NEW_FILES = """
SELECT c.oid FROM pg_catalog.pg_class c
WHERE c.oid = ANY (%s::oid[]) AND (c.reltuples < 0 OR (c.relpages = 0 AND c.reltuples = 0))
"""


def tables_with_fresh_files(connection: Connection, oids: Collection[int]) -> frozenset[int]:
    """Tables with a new relfilenode whose rows the server has not counted: the file after a
    TRUNCATE or ALTER TABLE, until ANALYZE or VACUUM. VACUUM FULL and CLUSTER count at once.

    Source: RelationSetNewRelfilenumber() in relcache.c, copy_table_data() in cluster.c.
    """
    if not oids:
        return frozenset()
    rows = connection.execute(_NEW_FILES, [list(oids)]).fetchall()
    return frozenset(int(oid) for (oid,) in rows)


_NAMED = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p')
AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""


def tables_named(
    connection: Connection, names: Collection[tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """The given names, as schema and table, that exist as tables."""
    if not names:
        return frozenset()
    namespaces, tables = zip(*names, strict=True)
    rows = connection.execute(_NAMED, [list(namespaces), list(tables)]).fetchall()
    return frozenset((namespace, table) for namespace, table in rows)


_COMMENTS = """
SELECT d.objoid, a.attname::text, d.description
FROM pg_catalog.pg_description d
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = ANY(%s::oid[])
"""


def fetch_comments(connection: Connection, oids: Collection[int]) -> dict[int, TableComments]:
    """The comments of tables, by OID; empty ones of tables that have none."""
    tables: dict[int, str] = {}
    columns: dict[int, dict[str, str]] = {oid: {} for oid in oids}
    for oid, column, text in connection.execute(_COMMENTS, [[*oids]]):
        if column is None:
            tables[oid] = text
        else:
            columns[oid][column] = text
    return {oid: TableComments(tables.get(oid, ""), columns[oid]) for oid in oids}
