"""Which relations the publications of the server send, computed from rows of the catalog tables.

It computes the content of the view ``pg_publication_tables``, by the rules of pg_publication.c. The
view itself is unsuitable: it opens every table, waits for ACCESS EXCLUSIVE locks, and shows the
current state instead of the caller's snapshot. Here the server opens a table only to print a row
filter for the first time (:class:`FilterTexts`).

The rules, for one publication:

- All tables: every permanent table and partition. With ``publish_via_partition_root``, those
  that are no partition, partitioned tables included.
- A listed table: itself. A partitioned one stands for its leaves, or with
  ``publish_via_partition_root`` for itself. Inheritance makes no difference: CREATE PUBLICATION
  has listed the children.
- A listed schema: its permanent tables, and its partitioned tables as if they were listed.
- With ``publish_via_partition_root``, a partition goes if one above it stays.
- A column list and a row filter act on the relation that is listed with them, unless its schema
  is listed too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import attached
from pgsluice.catalog.publications.publications import PublicationInfo, publications_of
from pgsluice.definitions.published import PublishedBy, PublishedRelation
from pgsluice.definitions.source_tables import FIRST_NORMAL_OID

_FIRST_WITH_PARTITIONED = 130000
_FIRST_WITH_LISTS = 150000
_FIRST_TO_COUNT_LIVE = 160000
"""From PostgreSQL 15 on, a list counts as a list of all columns only if it also has the dropped and
generated ones."""


class CatalogRelation(NamedTuple):
    """One row of pg_class.

    Attributes:
        attnums: the number of attnums assigned to its columns so far, including dropped columns.
        version: its xmin, and the indexes that may be its key.
    """

    namespace_oid: int
    namespace: str
    name: str
    kind: str
    persistence: str
    is_partition: bool
    attnums: int
    version: str


class Listed(NamedTuple):
    """One row of pg_publication_rel; ``version``: its OID and xmin."""

    attnums: list[int] | None
    row_filter: str | None
    version: str


_RELATIONS = """
SELECT c.oid, c.relnamespace::bigint, n.nspname, c.relname, c.relkind::text,
       c.relpersistence::text, c.relispartition, c.relnatts, c.xmin::text || ARRAY(
           SELECT i.indexrelid FROM pg_catalog.pg_index i
           WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) ORDER BY 1)::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't' AND c.oid >= 16384
"""
_LISTED = """
SELECT r.prpubid, r.prrelid, NULL, r.oid, r.xmin::text, NULL
FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = ANY (%s::oid[])
"""
_FILTER_VERSION = """
r.oid::text || ':' || r.xmin::text || ' ' || (
    SELECT pg_catalog.string_agg(a.attnum::text || ':' || a.xmin::text, ' ' ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.prrelid AND a.attnum > 0)
"""
"""An SQL expression for everything that the text of a filter depends on; ``r`` is its row in
pg_publication_rel."""

_LISTED_15 = f"""
SELECT r.prpubid, r.prrelid, r.prattrs::int2[], r.oid, r.xmin::text,
       CASE WHEN r.prqual IS NOT NULL THEN {_FILTER_VERSION} END
FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = ANY (%s::oid[])
"""  # noqa: S608 - the fragment is a constant
_SCHEMAS = """
SELECT n.pnpubid, n.pnnspid, n.oid::text || ':' || n.xmin::text
FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = ANY (%s::oid[])
"""
_PARTITIONS = """
SELECT i.inhrelid, i.inhparent, i.xmin::text::bigint
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition {attached}
"""
_COLUMNS = """
SELECT a.attrelid, a.attnum, a.attname, {generated}
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""


def relations_of(
    connection: Connection, publications: Collection[str], filters: FilterTexts | None = None
) -> dict[int, PublishedRelation]:
    """The relations that the publications send, by OID.

    Args:
        connection: a connection to the source; if it has a snapshot, everything is read in it.
        publications: names; those that do not exist send nothing.
        filters: caches the texts of row filters between calls.
    """
    return PublishedCatalog.read(connection, publications, filters).published(connection)


@dataclass(frozen=True, slots=True)
class PublishedCatalog:
    """The catalog rows that decide which relations are sent.

    Attributes:
        infos: the publications, by name.
        relations: by OID: tables, partitioned tables and foreign tables.
        listed: publication -> relation -> the row that lists it.
        schemas: publication -> schema -> OID and xmin of the row that lists it.
        parents: partition -> the table directly above, and the xmin of the row that attaches it.
        children: the partitions directly below a table.
    """

    version: int
    infos: Mapping[str, PublicationInfo]
    relations: Mapping[int, CatalogRelation]
    listed: Mapping[int, Mapping[int, Listed]]
    schemas: Mapping[int, Mapping[int, str]]
    parents: Mapping[int, tuple[int, int]]
    children: Mapping[int, list[int]]

    @classmethod
    def read(
        cls,
        connection: Connection,
        publications: Collection[str],
        filters: FilterTexts | None = None,
    ) -> PublishedCatalog:
        """Read the rows; the arguments are those of :func:`relations_of`."""
        version = connection.info.server_version
        infos = publications_of(connection, publications)
        oids = [info.oid for info in infos.values()]
        listed: defaultdict[int, dict[int, Listed]] = defaultdict(dict)
        query = _LISTED_15 if version >= _FIRST_WITH_LISTS else _LISTED
        rows = connection.execute(query, [oids]).fetchall()
        printed = {int(row[3]): row[5] for row in rows if row[5] is not None}
        texts = (filters or FilterTexts()).of(connection, printed)
        for publication, oid, attnums, row, xmin, _ in rows:
            one = Listed(attnums, texts.get(int(row)), f"{row}:{xmin}")
            listed[int(publication)][int(oid)] = one
        schemas: defaultdict[int, dict[int, str]] = defaultdict(dict)
        if version >= _FIRST_WITH_LISTS:
            for publication, schema, row in connection.execute(_SCHEMAS, [oids]).fetchall():
                schemas[int(publication)][int(schema)] = row
        relations = {
            int(oid): CatalogRelation(*row)
            for oid, *row in connection.execute(_RELATIONS).fetchall()
        }
        parents: dict[int, tuple[int, int]] = {}
        children: defaultdict[int, list[int]] = defaultdict(list)
        query = _PARTITIONS.format(attached=attached(version))
        for child, parent, xmin in connection.execute(query.encode()).fetchall():
            parents[int(child)] = int(parent), xmin
            children[int(parent)].append(int(child))
        return cls(version, infos, relations, listed, schemas, parents, children)

    def published(self, connection: Connection) -> dict[int, PublishedRelation]:
        """The relations that the publications send, by OID, ordered by name."""
        sent = {name: self.sent_by(info) for name, info in self.infos.items()}
        columns, with_generated = _columns_of(connection, self, sent)
        by: defaultdict[int, list[PublishedBy]] = defaultdict(list)
        for name, info in self.infos.items():
            for oid in sent[name]:
                attnums, row_filter = self.listed_as(info, oid)
                sent_columns, sends_all = columns.get((name, oid), (None, True))
                has_choice = oid in with_generated and attnums is None
                generated = info.generated_columns if has_choice else None
                by[oid].append(
                    PublishedBy(name, info.actions, sent_columns, row_filter, sends_all, generated)
                )
        relations = {oid: self.relations[oid] for oid in by}
        return {
            oid: PublishedRelation(
                oid,
                one.namespace,
                one.name,
                one.kind,
                tuple(by[oid]),
                next((above for above in reversed(self.above(oid)) if above in by), oid),
            )
            for oid, one in sorted(relations.items(), key=lambda each: each[1][1:3])
        }

    def sent_by(self, info: PublicationInfo) -> set[int]:
        """The relations that one publication sends."""
        if info.all_tables:
            return {
                oid
                for oid in filter(self._is_publishable, self.relations)
                if self._stands_alone(oid, via_root=info.via_root)
            }
        sent: set[int] = set()
        for oid in self.listed.get(info.oid, ()):
            sent |= self._as_sent(oid, via_root=info.via_root)
        schemas = self.schemas.get(info.oid, {})
        for oid in filter(self._is_publishable, self.relations) if schemas else ():
            if self.relations[oid].namespace_oid in schemas:
                sent |= self._as_sent(oid, via_root=info.via_root)
        if info.via_root:
            sent = {oid for oid in sent if sent.isdisjoint(self.above(oid))}
        return sent

    def listed_as(self, info: PublicationInfo, oid: int) -> tuple[list[int] | None, str | None]:
        """The column list, as attnums, and the row filter that apply to a relation."""
        listed = self.listed.get(info.oid, {}).get(oid)
        schemas = self.schemas.get(info.oid, {})
        if info.all_tables or listed is None or self.relations[oid].namespace_oid in schemas:
            return None, None
        return listed.attnums, listed.row_filter

    def above(self, oid: int) -> list[int]:
        """The partitioned tables above a relation, the topmost last."""
        above = []
        while oid in self.parents:
            above.append(oid := self.parents[oid][0])
        return above

    def _is_publishable(self, oid: int) -> bool:
        """As is_publishable_class() in PostgreSQL."""
        relation = self.relations[oid]
        kinds = "rp" if self.version >= _FIRST_WITH_PARTITIONED else "r"
        return relation.kind in kinds and relation.persistence == "p" and oid >= FIRST_NORMAL_OID

    def _stands_alone(self, oid: int, *, via_root: bool) -> bool:
        relation = self.relations[oid]
        return not relation.is_partition if via_root else relation.kind == "r"

    def _as_sent(self, oid: int, *, via_root: bool) -> set[int]:
        """As GetPubPartitionOptionRelations() in PostgreSQL."""
        relation = self.relations.get(oid)
        if relation is None:
            return set()
        if relation.kind != "p" or via_root:
            return {oid}
        return {leaf for leaf in self.below(oid) if self.relations[leaf].kind != "p"}

    def below(self, oid: int) -> list[int]:
        """The partitions below a relation, at any level."""
        below = [child for child in self.children.get(oid, ()) if child in self.relations]
        for child in below:
            below += (each for each in self.children.get(child, ()) if each in self.relations)
        return below

    def foreign_below(self, oid: int) -> dict[int, str]:
        """The partitions below a relation that are foreign tables: schema and name by OID."""
        named = ((one, self.relations[one]) for one in self.below(oid))
        foreign = {one: f"{each.namespace}.{each.name}" for one, each in named if each.kind == "f"}
        return dict(sorted(foreign.items(), key=lambda item: item[1]))


def _columns_of(
    connection: Connection, catalog: PublishedCatalog, sent: Mapping[str, set[int]]
) -> tuple[dict[tuple[str, int], tuple[tuple[str, ...], bool]], set[int]]:
    """The published columns, for relations with a column list or generated columns.

    Returns:
        the columns of (publication, relation), and whether they are all that are not generated;
        then those of these relations that have generated columns.
    """
    wanted = {
        (name, oid)
        for name, info in catalog.infos.items()
        for oid in sent[name]
        if info.generated_columns == "stored" or catalog.listed_as(info, oid)[0] is not None
    }
    if not wanted:
        return {}, set()
    generated = "a.attgenerated::text" if catalog.version >= 120000 else "''"
    query = _COLUMNS.format(generated=generated)
    columns: defaultdict[int, list[tuple[int, str, str]]] = defaultdict(list)
    oids = list({oid for _, oid in wanted})
    for oid, *column in connection.execute(query.encode(), [oids]).fetchall():
        columns[int(oid)].append((column[0], column[1], column[2]))
    published = {}
    for name, oid in wanted:
        attnums, _ = catalog.listed_as(catalog.infos[name], oid)
        sends_stored = catalog.infos[name].generated_columns == "stored"
        listed = tuple(
            column
            for attnum, column, is_generated in columns[oid]
            if (
                attnum in attnums
                if attnums is not None
                else not is_generated or (is_generated == "s" and sends_stored)
            )
        )
        is_all = listed == tuple(column for _, column, generated in columns[oid] if not generated)
        if catalog.version < _FIRST_TO_COUNT_LIVE and attnums is not None:
            is_all = len(listed) == catalog.relations[oid].attnums
        published[name, oid] = listed, is_all
    return published, {oid for oid, each in columns.items() if any(kind for *_, kind in each)}


_PRINTED = """
SELECT r.oid, pg_catalog.pg_get_expr(r.prqual, r.prrelid)
FROM pg_catalog.pg_publication_rel r WHERE r.oid = ANY (%s::oid[])
"""


class FilterTexts:
    """The texts of the server's row filters in the last call, as a cache for the next one.

    To print a filter, the server opens its table, and waits for ACCESS EXCLUSIVE locks on it. The
    text depends on the filter's row in pg_publication_rel and on the names of the table's columns.
    So a text is reused as long as the xmin of all these rows stays the same.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def of(self, connection: Connection, versions: Mapping[int, str]) -> dict[int, str]:
        """The texts of row filters, by the OID of their rows in pg_publication_rel.

        Args:
            versions: for each of these OIDs, the xmin of the rows on which the filter's text
                depends. The server is asked only for texts whose versions are new.
        """
        known = self._texts
        new = {oid: version for oid, version in versions.items() if version not in known}
        printed = connection.execute(_PRINTED, [list(new)]).fetchall() if new else ()
        texts = {oid: known[version] for oid, version in versions.items() if version in known}
        texts |= {int(oid): text for oid, text in printed}
        # Printed from the newest rows, which may be newer than the snapshot: a text that is too
        # new is kept for a version that never comes again.
        self._texts = {versions[oid]: text for oid, text in texts.items()}
        return texts
