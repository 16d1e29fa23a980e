"""Versions of catalog rows, which show that a table changed even if the result is the same as
before.

A row that was deleted and recreated has another OID. A row that was updated, even back to its old
content, has another ``xmin``. Both stay the same after VACUUM, VACUUM FULL and REINDEX of the
catalog itself. Statements that change no data often update the rows of columns and relations, so
the content of those is compared. The rows here change only if something changes that a catalog
refresh has to know:

* ``pg_publication_rel`` and ``pg_publication_namespace``: what a publication lists;
* ``pg_inherits``: what is attached;
* ``pg_enum`` and the attributes of composite types: how stored values are printed.

Other rows change for relevant and irrelevant reasons, so their change only makes the table
suspicious:

* ``pg_publication``: other actions for a while, or ``SET`` to the same ones, or a new name;
* ``pg_type``, the row of a table's row type, where a schema is published: ``SET SCHEMA`` there
  and back, or a new name or owner.

Each kind is one query, regardless of the number of tables.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from pgsluice.catalog.partitions.leaves import attached

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class TableWitnesses:
    """The row versions of one table.

    Attributes:
        attnums: the number of attnums assigned to its columns so far, including dropped columns.
        attachments: it and those above it that are partitions, and all below it -> xmin of their
            rows in pg_inherits.
        listings: the rows that put it, its ancestors or its partitions into the publications,
            as ``catalog:OID:xmin``; without those of partitions that the same publications send
            anyway, since they list a table above.
        of_partitions: partitions below it -> those of ``listings`` and ``row_types`` that disappear
            with the partition.
        publications: the rows of these publications, as ``OID:xmin``.
        row_types: the rows of the row types of it, its ancestors and its partitions, as
            ``OID:xmin``, of those whose schema is published.
        listed: those of it and its partitions that a publication lists by name. The server does not
            let these become UNLOGGED.
        written: a text that changes when the pg_class row of it or of a partition is written, or
            when their key is another index. GRANT also writes such rows.
    """

    attnums: int
    attachments: Mapping[int, int]
    listings: frozenset[str]
    of_partitions: Mapping[int, tuple[str, ...]]
    publications: frozenset[str]
    row_types: frozenset[str]
    listed: frozenset[int]
    written: str


class _Listing(NamedTuple):
    row: str
    publication: str


@dataclass(frozen=True, slots=True)
class CatalogWitnesses:
    """The row versions at one catalog refresh.

    Attributes:
        types: type OID -> part of the type -> the part's version.
    """

    types: Mapping[int, Mapping[str, str]]
    _relations: Mapping[int, tuple[int, int, str]]  # attnums, namespace, what was written
    _parents: Mapping[int, tuple[int, int]]  # parent, xmin
    _children: Mapping[int, list[int]]
    _listings: Mapping[tuple[str, int], list[_Listing]]
    _row_types: Mapping[int, str]

    def of(self, oid: int) -> TableWitnesses:
        """The row versions of one table."""
        attachments: dict[int, int] = {}
        waiting = list(self._children.get(oid, ()))
        while waiting:
            child = waiting.pop()
            attachments[child] = self._parents[child][1]
            waiting += self._children.get(child, ())
        partitions = [*attachments]
        below = {oid, *partitions}
        relations = set(below)
        partition = oid
        while partition in self._parents:
            parent, attachments[partition] = self._parents[partition]
            relations.add(parent)
            partition = parent
        namespaces = {self._relations[one][1] for one in relations if one in self._relations}
        listed = [one for one in relations if not self._is_listed_above(one)]
        keys = [("all", 0), *(("rel", one) for one in listed)]
        keys += (("namespace", namespace) for namespace in namespaces)
        listings = [listing for key in keys for listing in self._listings.get(key, ())]
        return TableWitnesses(
            attnums=self._relations[oid][0] if oid in self._relations else 0,
            attachments=attachments,
            listings=frozenset(listing.row for listing in listings),
            of_partitions={one: rows for one in partitions if (rows := self._own_rows(one))},
            publications=frozenset(listing.publication for listing in listings),
            row_types=frozenset(
                self._row_types[one] for one in relations if one in self._row_types
            ),
            listed=frozenset(one for one in below if ("rel", one) in self._listings),
            written=_digest(
                f"{one} {self._relations[one][2]}" for one in below if one in self._relations
            ),
        )

    def _own_rows(self, oid: int) -> tuple[str, ...]:
        """The rows that list one relation and nothing else, and that of its row type."""
        listed = [listing.row for listing in self._listings.get(("rel", oid), ())]
        return (*listed, *(self._row_types[one] for one in (oid,) if one in self._row_types))

    def _is_listed_above(self, oid: int) -> bool:
        """Whether each publication that lists a partition lists a table above it, too."""
        own = {listing.publication for listing in self._listings.get(("rel", oid), ())}
        while own and oid in self._parents:
            oid = self._parents[oid][0]
            own -= {listing.publication for listing in self._listings.get(("rel", oid), ())}
        return not own


def _digest(rows: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:16]


_RELATIONS = """
SELECT c.oid, c.relnatts, c.relnamespace::bigint, c.xmin::text || ARRAY(
    SELECT i.indexrelid FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) ORDER BY 1
)::text
FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384
"""
_ATTACHMENTS = """
SELECT i.inhrelid, i.inhparent, i.xmin::text::bigint
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition AND c.relkind IN ('r', 'p')
    {attached}
"""
_LISTINGS = """
SELECT 'rel', r.prrelid, r.oid, r.xmin::text, p.oid, p.xmin::text
FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = ANY (%(publications)s::text[])
UNION ALL
SELECT 'all', 0, p.oid, '', p.oid, p.xmin::text
FROM pg_catalog.pg_publication p
WHERE p.pubname = ANY (%(publications)s::text[]) AND p.puballtables
"""
_LISTINGS_15 = (
    _LISTINGS
    + """
UNION ALL
SELECT 'namespace', n.pnnspid, n.oid, n.xmin::text, p.oid, p.xmin::text
FROM pg_catalog.pg_publication_namespace n JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid
WHERE p.pubname = ANY (%(publications)s::text[])
"""
)
_ROW_TYPES = """
SELECT c.oid, t.oid::text || ':' || t.xmin::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_type t ON t.oid = c.reltype
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = ANY (%s::oid[])
"""
# Labels are rows of their own. A dropped attribute keeps its row, without a type.
_TYPES = """
SELECT e.enumtypid::bigint, e.oid::text, e.xmin::text
FROM pg_catalog.pg_enum e WHERE e.enumtypid = ANY (%(types)s::oid[])
UNION ALL
SELECT t.oid::bigint, 'attributes',
       pg_catalog.string_agg(a.atttypid::text || ':' || a.atttypmod, ' ' ORDER BY a.attnum)
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
WHERE t.oid = ANY (%(types)s::oid[]) AND t.typtype = 'c'
GROUP BY t.oid
"""


def fetch_witnesses(
    connection: Connection, publications: Collection[str], types: Collection[int]
) -> CatalogWitnesses:
    """Read the rows in the connection's snapshot.

    Args:
        publications: the server's publications that the stream requests.
        types: OIDs of the user-defined types that columns need.
    """
    relations = {
        int(oid): (attnums, namespace, written)
        for oid, attnums, namespace, written in connection.execute(_RELATIONS).fetchall()
    }
    parents: dict[int, tuple[int, int]] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    attachments = _ATTACHMENTS.format(attached=attached(connection.info.server_version)).encode()
    for child, parent, version in connection.execute(attachments).fetchall():
        parents[int(child)] = int(parent), version
        children[int(parent)].append(int(child))
    listings: defaultdict[tuple[str, int], list[_Listing]] = defaultdict(list)
    query = _LISTINGS_15 if connection.info.server_version >= 150000 else _LISTINGS
    names = {"publications": list(publications)}
    for catalog, of, oid, version, *publication in connection.execute(query, names).fetchall():
        row = f"{catalog}:{oid}:{version}"
        listings[catalog, int(of)].append(_Listing(row, ":".join(map(str, publication))))
    schemas = [of for catalog, of in listings if catalog == "namespace"]
    row_types = connection.execute(_ROW_TYPES, [schemas]).fetchall() if schemas else []
    parts: defaultdict[int, dict[str, str]] = defaultdict(dict)
    if types:
        for oid, part, version in connection.execute(_TYPES, {"types": list(types)}).fetchall():
            parts[oid][part] = version
    return CatalogWitnesses(
        parts, relations, parents, children, listings, {int(oid): row for oid, row in row_types}
    )


_MISSING_VALUES = """
SELECT a.attrelid, a.attname::text, pg_catalog.array_to_string(a.attmissingval, '')
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
"""


def missing_values(connection: Connection, tables: Collection[int]) -> dict[int, dict[str, str]]:
    """Each table's columns with a value for rows that are older than the column (11+), and the
    value as text."""
    if not tables or connection.info.server_version < 110000:
        return {}
    values: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for oid, column, value in connection.execute(_MISSING_VALUES, [list(tables)]).fetchall():
        values[int(oid)][column] = value
    return dict(values)
