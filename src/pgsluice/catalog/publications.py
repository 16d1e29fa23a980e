"""The server's publications: their actions, and the relations that they publish."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

#: The COMMENT of the publications that pgsluice creates.
OUR_COMMENT = "Made and kept in step by pgsluice; `pgsluice drop` removes it."
_OUR_MARK = "Made and kept in step by pgsluice"


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """One row of pg_publication.

    Attributes:
        actions: the published actions: ``insert``, ``update``, ``delete``, ``truncate``.
        via_root: changes of partitions are published under their root's name.
        generated_columns: ``none`` or ``stored`` (18+).
        is_ours: the publication has our COMMENT; only such ones are altered or dropped.
        may_alter: our role owns the publication.
    """

    oid: int
    name: str
    all_tables: bool
    actions: frozenset[str]
    via_root: bool
    generated_columns: str
    is_ours: bool
    may_alter: bool


@dataclass(frozen=True, slots=True)
class PublishedBy:
    """How one publication publishes a relation.

    Attributes:
        columns: the column list (15+, which has all columns when there is no list); None: all.
        row_filter: the WHERE clause, as the server prints it.
    """

    publication: str
    actions: frozenset[str]
    columns: tuple[str, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """A relation that pgoutput sends: a table, a leaf, or with via_root a root."""

    oid: int
    namespace: str
    name: str
    kind: str
    by: tuple[PublishedBy, ...]

    @property
    def actions(self) -> frozenset[str]:
        """The actions that at least one of the publications publishes."""
        return frozenset().union(*(publication.actions for publication in self.by))


# As JSON, because 11, 13 and 18 added columns to the catalog.
_PUBLICATIONS = """
SELECT p.oid, to_jsonb(p), pg_catalog.obj_description(p.oid, 'pg_publication'),
       pg_catalog.pg_has_role(p.pubowner, 'USAGE')
FROM pg_catalog.pg_publication p
WHERE %(names)s::text[] IS NULL OR p.pubname = ANY (%(names)s::text[])
ORDER BY p.pubname
"""


def publications_of(
    connection: Connection, names: Collection[str] | None = None
) -> dict[str, PublicationInfo]:
    """The publications with these names, or all; missing ones are left out."""
    parameters = {"names": None if names is None else list(names)}
    publications = {}
    for oid, row, comment, may_alter in connection.execute(_PUBLICATIONS, parameters).fetchall():
        actions = {a for a in ("insert", "update", "delete", "truncate") if row.get(f"pub{a}")}
        publications[row["pubname"]] = PublicationInfo(
            oid=int(oid),
            name=row["pubname"],
            all_tables=row["puballtables"],
            actions=frozenset(actions),
            via_root=bool(row.get("pubviaroot")),
            generated_columns="stored" if row.get("pubgencols") == "s" else "none",
            is_ours=(comment or "").startswith(_OUR_MARK),
            may_alter=may_alter,
        )
    return publications


_RELATIONS = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, t.pubname,
       {columns}, to_jsonb(t) ->> 'rowfilter'
FROM pg_catalog.pg_publication_tables t
JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = ANY (%s::text[])
ORDER BY n.nspname, c.relname, t.pubname
"""
_COLUMNS = "to_jsonb(t) -> 'attnames'"
# The view of 15 also has generated columns, which are never sent.
_COLUMNS_15 = """(
    SELECT to_jsonb(array_agg(a.attname ORDER BY a.attnum)) FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attname = ANY (t.attnames) AND a.attgenerated = ''
)"""


def relations_of(
    connection: Connection, publications: Collection[str]
) -> dict[int, PublishedRelation]:
    """The relations that the publications send, by OID, as pgoutput will name them."""
    infos = publications_of(connection, publications)
    relations: dict[int, PublishedRelation] = {}
    is_15 = connection.info.server_version // 10000 == 15
    query = _RELATIONS.format(columns=_COLUMNS_15 if is_15 else _COLUMNS)
    for row in connection.execute(query.encode(), [list(publications)]).fetchall():
        oid, namespace, name, kind, publication, columns, row_filter = row
        by = PublishedBy(
            publication,
            infos[publication].actions,
            None if columns is None else tuple(columns),
            row_filter,
        )
        earlier = relations[int(oid)].by if int(oid) in relations else ()
        relations[int(oid)] = PublishedRelation(int(oid), namespace, name, kind, (*earlier, by))
    return relations
