"""The source's relations as publications need them: one frozen picture of the catalog.

Everything that ``CREATE PUBLICATION`` looks at: names, kinds, columns, partitions, inheritance,
replica identity. Views, sequences and the server's own tables are in it by name and kind only,
so that what cannot be published is refused with the reason.

Source: pg_class, pg_attribute, pg_inherits, pg_index, pg_namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgsluice.catalog.keys import keys_cte

Connection = psycopg.Connection[Any]

FIRST_NORMAL_OID = 16384
"""Objects below it were made by initdb."""

FIRST_UNPINNED_OID = 12000
"""Relations below it are the server's own catalog."""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column.

    Attributes:
        collation: its OID in pg_collation, 0 for a type without.
        generated: ``""``, ``"s"`` stored, ``"v"`` virtual.
        identity: ``""``, ``"a"`` always, ``"d"`` by default.
        display_type: as format_type() prints it.
        display_collation: its name where it is not the type's own, else empty.
        display_default: its DEFAULT or generation expression, else empty.
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
    """One row of pg_type, of a user.

    Attributes:
        kind: typtype: ``b`` base, ``d`` domain, ``e`` enum, ``c`` composite, ``r`` range.
        element: of an array, else 0; ``array`` is the array of this type.
        base: of a domain, else 0.
        display: as format_type() prints it.
        labels: of an enum.
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
        columns: in attnum order, without dropped ones; of the users' relations only.
        types: those of users that its columns have, with their arrays, elements and bases.
        replica_identity: ``d``, ``n``, ``f`` or ``i``.
        identity_columns: the columns of the index that the replica identity names; none under
            FULL and NOTHING.
        ancestors: partitioned tables that it is a partition of, nearest first, by OID.
        children: tables that inherit from it or are its partitions, direct ones, by OID.
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
        """A table of the server's catalog, or one of its TOAST tables."""
        return self.oid < FIRST_UNPINNED_OID or self.namespace == "pg_toast"

    @property
    def is_publishable(self) -> bool:
        """What FOR ALL TABLES takes (pg_relation_is_publishable)."""
        return (
            self.kind in "rp"
            and self.persistence == "p"
            and not self.is_system
            and self.oid >= FIRST_NORMAL_OID
        )

    def column(self, name: str) -> SourceColumn | None:
        """A column by its name."""
        return next((one for one in self.columns if one.name == name), None)


@dataclass(frozen=True)
class SourceCatalog:
    """All relations of one database.

    Attributes:
        tables: by OID.
        schemas: all names, those without a table too.
        search_path: where names without a schema are looked for, after pg_catalog.
    """

    tables: Mapping[int, SourceTable]
    schemas: frozenset[str] = frozenset({"public"})
    database: str = ""
    search_path: tuple[str, ...] = ("public",)
    _by_name: dict[tuple[str, str], SourceTable] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._by_name.update(((one.namespace, one.name), one) for one in self.tables.values())

    @classmethod
    def of(cls, tables: Iterable[SourceTable], **facts: Any) -> SourceCatalog:
        """A catalog of these tables, and their schemas unless ``schemas`` says otherwise."""
        found = {one.oid: one for one in tables}
        facts.setdefault(
            "schemas", frozenset({"public", *(one.namespace for one in found.values())})
        )
        return cls(found, **facts)

    def table(self, namespace: str, name: str) -> SourceTable | None:
        """A relation by its full name."""
        return self._by_name.get((namespace, name))

    def visible(self, name: str) -> SourceTable | None:
        """A relation by its name alone, as the search path finds it."""
        for namespace in ("pg_catalog", *self.search_path):
            if found := self.table(namespace, name):
                return found
        return None

    def below(self, table: SourceTable) -> list[SourceTable]:
        """All that inherit from a table or are its partitions, at any depth, without it."""
        found: dict[int, SourceTable] = {}
        waiting = list(table.children)
        while waiting:
            one = self.tables.get(waiting.pop(0))
            if one is not None and one.oid not in found:
                found[one.oid] = one
                waiting += one.children
        return list(found.values())


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
       pg_catalog.pg_get_expr(d.adbin, d.adrelid, true)
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


def source_catalog(connection: Connection) -> SourceCatalog:
    """Read the whole picture, in one snapshot: the open transaction's, else one of its own.

    The search path is the database's or the role's default, as far as it names schemas that
    are there; ``"$user"`` stands for the role.
    """
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return _read(connection)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _read(connection)


def _read(connection: Connection) -> SourceCatalog:
    version = connection.info.server_version
    columns: dict[int, list[SourceColumn]] = {}
    generated = "a.attgenerated::text" if version >= 120000 else "''"
    for row in connection.execute(_COLUMNS.format(generated=generated).encode()):
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
    return SourceCatalog(tables, schemas, database, _search_path(connection, schemas))


def _types(connection: Connection) -> dict[int, SourceType]:
    rows = connection.execute(_TYPES).fetchall()
    return {int(oid): SourceType(int(oid), *facts) for oid, *facts in rows}


def _needed(
    types: Mapping[int, SourceType], columns: Iterable[SourceColumn]
) -> tuple[SourceType, ...]:
    """The types of users that columns have, and those that belong to them."""
    found: dict[int, SourceType] = {}
    waiting = [column.type_oid for column in columns]
    while waiting:
        one = types.get(waiting.pop())
        if one is not None and one.oid not in found:
            found[one.oid] = one
            waiting += (one.element, one.array, one.base)
    return tuple(found[oid] for oid in sorted(found))


def _inheritance(connection: Connection) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The partitioned table of each partition, and all children of each parent."""
    parents: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for child, parent, is_partition in connection.execute(_INHERITS).fetchall():
        children.setdefault(int(parent), []).append(int(child))
        if is_partition:
            parents[int(child)] = int(parent)
    return parents, children


def _ancestors(oid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    found: list[int] = []
    while (parent := parents.get(found[-1] if found else oid)) is not None:
        found.append(parent)
    return tuple(found)


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
    """Our sessions have an empty search path; the statements mean the usual one."""
    row = connection.execute(_SEARCH_PATH.encode()).fetchone()
    text = '"$user", public' if row is None else str(row[0]).partition("=")[2]
    role = connection.execute("SELECT current_user").fetchone()
    names = (one.strip().replace('""', '"').strip('"') for one in text.split(","))
    meant = (str(role[0]) if one == "$user" and role else one for one in names)
    return tuple(one for one in meant if one in schemas)
