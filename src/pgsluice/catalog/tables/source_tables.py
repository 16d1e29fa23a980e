"""A snapshot of the source's relations, for pgsluice's own publications.

It has everything that ``CREATE PUBLICATION`` looks at: names, kinds, columns, partitions,
inheritance, replica identity. Of views, sequences and system tables it has only the name and the
kind, so that the error for one that cannot be published has the reason.

Source: pg_class, pg_attribute, pg_inherits, pg_index, pg_namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgsluice.catalog.tables.keys import keys_cte
from pgsluice.catalog.text_rules import ANY_LOCALE, TextRules, text_rules

Connection = psycopg.Connection[Any]

FIRST_NORMAL_OID = 16384
"""initdb created the objects with smaller OIDs."""

FIRST_UNPINNED_OID = 12000
"""Relations with smaller OIDs are the system catalog."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column.

    Attributes:
        collation: its OID in pg_collation, 0 for a type without collation.
        generated: ``""``, ``"s"`` stored, ``"v"`` virtual.
        identity: ``""``, ``"a"`` always, ``"d"`` by default.
        display_type: as format_type() prints it.
        display_collation: the collation's name, empty for the type's own collation.
        display_default: the DEFAULT or generation expression, where it is read, or empty.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int = -1
    collation: int = 0
    not_null: bool = False
    generated: str = ""
    identity: str = ""
    display_type: str = ""
    display_collation: str = ""
    display_default: str = ""


@dataclass(frozen=True, slots=True)
class SourceType:
    """One row of pg_type: a type of a user.

    Attributes:
        kind: typtype: ``b`` base, ``d`` domain, ``e`` enum, ``c`` composite, ``r`` range.
        element: the element type of an array, else 0; ``array`` is the array of this type.
        base: the base type of a domain, else 0.
        display: as format_type() prints it.
        labels: the labels of an enum.
    """

    oid: int
    name: str
    kind: str
    category: str
    element: int
    array: int
    base: int
    collation: int
    display: str
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One relation.

    Attributes:
        kind: pg_class.relkind: ``r`` table, ``p`` partitioned table, ``v`` view and so on.
        persistence: ``p`` permanent, ``u`` unlogged, ``t`` temporary.
        columns: in attnum order, without dropped columns; empty for system relations.
        types: the columns' user-defined types, with their arrays, elements and base types.
        replica_identity: ``d``, ``n``, ``f`` or ``i``.
        identity_columns: the columns of the replica identity's index; none under FULL and NOTHING.
        ancestors: the OIDs of the partitioned tables above, the parent first.
        children: the OIDs of the tables that directly inherit from it, and of its partitions.
    """

    oid: int
    namespace: str
    name: str
    kind: str = "r"
    persistence: str = "p"
    columns: tuple[SourceColumn, ...] = ()
    types: tuple[SourceType, ...] = ()
    replica_identity: str = "d"
    identity_columns: tuple[str, ...] = ()
    ancestors: tuple[int, ...] = ()
    children: tuple[int, ...] = ()

    @property
    def is_partitioned(self) -> bool:
        return self.kind == "p"

    @property
    def is_system(self) -> bool:
        """Whether it belongs to the system catalog, or is a TOAST table."""
        return self.oid < FIRST_UNPINNED_OID or self.namespace == "pg_toast"

    @property
    def is_publishable(self) -> bool:
        """Whether FOR ALL TABLES includes it (pg_relation_is_publishable)."""
        return (
            self.kind in "rp"
            and self.persistence == "p"
            and not self.is_system
            and self.oid >= FIRST_NORMAL_OID
        )

    def column(self, name: str) -> SourceColumn | None:
        """A column by its name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class SourceCatalog:
    """All relations of one database.

    Attributes:
        tables: by OID.
        schemas: the names of all schemas, also of those without tables.
        search_path: the schemas to search for an unqualified name, after pg_catalog.
        text_rules: what row filters compute text with.
    """

    tables: Mapping[int, SourceTable]
    schemas: frozenset[str] = frozenset({"public"})
    database: str = ""
    search_path: tuple[str, ...] = ("public",)
    text_rules: TextRules = ANY_LOCALE
    _by_name: dict[tuple[str, str], SourceTable] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._by_name.update(
            ((table.namespace, table.name), table) for table in self.tables.values()
        )

    @classmethod
    def of(cls, tables: Iterable[SourceTable], **facts: Any) -> SourceCatalog:
        """A catalog of these tables; its schemas are theirs unless ``facts`` has others."""
        by_oid = {table.oid: table for table in tables}
        facts.setdefault(
            "schemas", frozenset({"public", *(table.namespace for table in by_oid.values())})
        )
        return cls(by_oid, **facts)

    def table(self, namespace: str, name: str) -> SourceTable | None:
        """Find a relation by its qualified name."""
        return self._by_name.get((namespace, name))

    def visible(self, name: str) -> SourceTable | None:
        """Find a relation by its unqualified name on the search path."""
        for namespace in ("pg_catalog", *self.search_path):
            if table := self.table(namespace, name):
                return table
        return None

    def below(self, table: SourceTable) -> list[SourceTable]:
        """All descendants of a table by inheritance or partitioning."""
        descendants: dict[int, SourceTable] = {}
        waiting = list(table.children)
        while waiting:
            child = self.tables.get(waiting.pop(0))
            if child is not None and child.oid not in descendants:
                descendants[child.oid] = child
                waiting += child.children
        return list(descendants.values())


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
SELECT a.attrelid, a.attname, a.attnum, a.atttypid, a.atttypmod, a.attcollation::bigint,
       a.attnotnull, {generated}, a.attidentity::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attcollation <> t.typcollation THEN o.collname END,
       {default}
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
        connection: to the source.
        with_defaults: read :attr:`SourceColumn.display_default` too. To print an expression, the
            server opens its table, and waits for whoever has an ACCESS EXCLUSIVE lock.
        for_filters: ask the server which characters are letters, and their case.

    The search path is the default of the role or the database, without schemas that do not
    exist; ``"$user"`` stands for the role.
    """
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return _read(connection, with_defaults, for_filters)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _read(connection, with_defaults, for_filters)


def _read(connection: Connection, with_defaults: bool, for_filters: bool) -> SourceCatalog:
    version = connection.info.server_version
    columns: dict[int, list[SourceColumn]] = {}
    generated = "a.attgenerated::text" if version >= 120000 else "''"
    default = "pg_catalog.pg_get_expr(d.adbin, d.adrelid, true)" if with_defaults else "NULL"
    query = _COLUMNS.format(generated=generated, default=default)
    for row in connection.execute(query.encode()):
        known = (row[1], row[2], int(row[3]), row[4], row[5], row[6], row[7], row[8])
        shown = (row[9], row[10] or "", row[11] or "")
        columns.setdefault(int(row[0]), []).append(SourceColumn(*known, *shown))
    types = _types(connection)
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
            types=_needed(types, columns.get(int(row[0]), ())),
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


def _types(connection: Connection) -> dict[int, SourceType]:
    rows = connection.execute(_TYPES).fetchall()
    return {int(oid): SourceType(int(oid), *facts) for oid, *facts in rows}


def _needed(
    types: Mapping[int, SourceType], columns: Iterable[SourceColumn]
) -> tuple[SourceType, ...]:
    """The user-defined types of columns, with their arrays, elements and base types."""
    needed: dict[int, SourceType] = {}
    waiting = [column.type_oid for column in columns]
    while waiting:
        source_type = types.get(waiting.pop())
        if source_type is not None and source_type.oid not in needed:
            needed[source_type.oid] = source_type
            waiting += (source_type.element, source_type.array, source_type.base)
    return tuple(needed[oid] for oid in sorted(needed))


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
    """The default search path: our sessions have an empty one, which statements do not mean."""
    row = connection.execute(_SEARCH_PATH.encode()).fetchone()
    text = '"$user", public' if row is None else str(row[0]).partition("=")[2]
    role = connection.execute("SELECT current_user").fetchone()
    names = (name.strip().replace('""', '"').strip('"') for name in text.split(","))
    resolved = (str(role[0]) if name == "$user" and role else name for name in names)
    return tuple(name for name in resolved if name in schemas)
