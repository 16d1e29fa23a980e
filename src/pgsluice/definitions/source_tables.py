"""The source's relations, as pgsluice's own publications see them.

They have everything that ``CREATE PUBLICATION`` uses: names, kinds, columns, partitions,
inheritance, replica identity. Views, sequences and system tables have only a name and a kind, so
that the error for an unpublishable relation has the reason. Beside them: a table's comments, and
the sizes of its leaf partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgsluice.definitions.text_rules import ANY_LOCALE, TextRules

FIRST_NORMAL_OID = 16384
"""Objects with smaller OIDs were created by initdb."""

FIRST_UNPINNED_OID = 12000
"""Relations with smaller OIDs belong to the system catalog."""


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
    """A type: one row of pg_type. The last four fields are read of built-in types only.

    Attributes:
        kind: typtype: ``b`` base, ``d`` domain, ``e`` enum, ``c`` composite, ``p`` pseudo,
            ``r`` range, ``m`` multirange.
        element: the element type of an array, else 0; ``array`` is the array of this type.
        base: the base type of a domain, else 0.
        display: as format_type() prints it without a modifier.
        labels: the labels of an enum.
        subtype: the type of a range's bounds, else 0; ``multirange`` is that of this range.
    """

    oid: int
    name: str
    kind: str = "b"
    category: str = "U"
    element: int = 0
    array: int = 0
    base: int = 0
    collation: int = 0
    display: str = ""
    labels: tuple[str, ...] = ()
    is_preferred: bool = False
    subtype: int = 0
    multirange: int = 0
    is_subscriptable: bool = False


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
        """The table's column with this name; None if it has none."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class SourceCatalog:
    """All relations of one database.

    Attributes:
        tables: by OID.
        schemas: the names of all schemas, also of those without tables.
        search_path: the schemas to search for an unqualified name, after pg_catalog.
        text_rules: the encoding and collations that row filters use.
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
        """The relation with this schema and name; None if there is none."""
        return self._by_name.get((namespace, name))

    def visible(self, name: str) -> SourceTable | None:
        """The first relation with this name on the search path; None if there is none."""
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


@dataclass(frozen=True, slots=True)
class LeafSize:
    """A leaf partition; a plain table is its own leaf.

    Attributes:
        size_bytes: its size with its TOAST table, without indexes.
        pages: the pages of the table itself, without TOAST.
        is_readable: our role can query the leaf itself, and sees all of its rows.
        is_heap: its access method is heap: a row's ctid has its page, so no row is after the last
            page.
    """

    oid: int
    namespace: str
    name: str
    size_bytes: int
    pages: int
    is_readable: bool = True
    is_heap: bool = True


@dataclass(frozen=True, slots=True)
class TableComments:
    """The comments of a table.

    Attributes:
        table: the comment of the table itself; empty: it has none.
        columns: the comments of its columns, by name; a column without a comment has no entry.
    """

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def over(self, others: TableComments, names: Collection[str]) -> TableComments:
        """These, and where there is none, what others say.

        Args:
            names: the names of the columns to keep.
        """
        columns = {**others.columns, **self.columns}
        known = {name: text for name, text in columns.items() if name in names}
        return TableComments(self.table or others.table, known)

    def __bool__(self) -> bool:
        return bool(self.table or self.columns)
