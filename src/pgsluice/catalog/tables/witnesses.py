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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pgsluice.catalog import Connection
from pgsluice.catalog.publications.published import PublishedCatalog

if TYPE_CHECKING:
    from pgsluice.schema_rules.known import SourceFingerprint


@dataclass(frozen=True, slots=True)
class CatalogWitnesses:
    """The row versions at one catalog refresh.

    Attributes:
        types: type OID -> part of the type -> the part's version.
    """

    types: Mapping[int, Mapping[str, str]]
    _catalog: PublishedCatalog
    _row_types: Mapping[int, str]

    def add_to(
        self, fingerprint: SourceFingerprint, oid: int, types: Iterable[int] = ()
    ) -> SourceFingerprint:
        """A table's fingerprint with the row versions of the table.

        Args:
            types: OIDs of the user-defined types that its columns need.
        """
        catalog, infos = self._catalog, self._catalog.infos.values()
        above = catalog.above(oid)
        partitions = [one for one in catalog.below(oid) if catalog.relations[one].kind != "f"]
        attached = [*partitions, *[oid, *above][:-1]]
        relations = {
            one: catalog.relations[one]
            for one in (oid, *partitions, *above)
            if one in catalog.relations
        }
        listings = {f"all:{info.oid}:": info.version for info in infos if info.all_tables}
        for one in (oid, *partitions, *above):
            listings |= {} if self._is_listed_above(one) else self._listed(one)
        namespaces = {relation.namespace_oid for relation in relations.values()}
        for info in infos:
            schemas = catalog.schemas.get(info.oid, {})
            listings |= {f"namespace:{schemas[n]}": info.version for n in namespaces & {*schemas}}
        row_types = {one: row for one in relations if (row := self._row_types.get(one))}
        return replace(
            fingerprint,
            attnums=catalog.relations[oid].attnums if oid in catalog.relations else 0,
            types={
                f"{type_oid}:{part}": version
                for type_oid in types
                for part, version in self.types.get(type_oid, {}).items()
            },
            listings=frozenset(listings),
            of_partitions={
                one: rows
                for one in partitions
                if (rows := (*self._listed(one), *((row_types[one],) if one in row_types else ())))
            },
            attachments={one: catalog.parents[one][1] for one in attached},
            publications=frozenset(listings.values()),
            row_types=frozenset(row_types.values()),
            kept_logged=frozenset(one for one in (oid, *partitions) if self._listed(one)),
            written=_digest(
                f"{one} {relations[one].version}" for one in (oid, *partitions) if one in relations
            ),
        )

    def _listed(self, oid: int) -> dict[str, str]:
        """The rows that list one relation by its name -> the row of their publication."""
        return {
            f"rel:{row.version}": info.version
            for info in self._catalog.infos.values()
            if (row := self._catalog.listed.get(info.oid, {}).get(oid)) is not None
        }

    def _is_listed_above(self, oid: int) -> bool:
        """Whether each publication that lists a partition lists a table above it, too."""
        above = [
            publication
            for one in self._catalog.above(oid)
            for publication in self._listed(one).values()
        ]
        return {*self._listed(oid).values()} <= {*above}


def _digest(rows: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:16]


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
    connection: Connection, catalog: PublishedCatalog, types: Collection[int]
) -> CatalogWitnesses:
    """Read the rows in the connection's snapshot.

    Args:
        catalog: the rows of the publications that the stream requests, read in the same snapshot.
        types: OIDs of the user-defined types that columns need.
    """
    schemas = [schema for of_one in catalog.schemas.values() for schema in of_one]
    row_types = connection.execute(_ROW_TYPES, [schemas]).fetchall() if schemas else []
    parts: defaultdict[int, dict[str, str]] = defaultdict(dict)
    if types:
        for oid, part, version in connection.execute(_TYPES, {"types": list(types)}).fetchall():
            parts[oid][part] = version
    return CatalogWitnesses(parts, catalog, {int(oid): row for oid, row in row_types})
