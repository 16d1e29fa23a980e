"""The tables of a subscription: what the server's publications send, by partition root.

A partitioned table has one target, whose columns follow from its leaf partitions; the copy reads
the root. A lower partitioned table that is published with publish_via_partition_root has a separate
target, under the server's name. With pgsluice's own publications, a table is whatever they publish:
the root, a partition, or a partitioned table in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.bounds import PartitionBound, partition_bounds
from pgsluice.catalog.partitions.leaves import partition_columns_of, partition_trees
from pgsluice.catalog.publications.published import FilterTexts, PublishedCatalog
from pgsluice.catalog.rights import columns_to_read
from pgsluice.catalog.tables.keys import prove_keys, unique_indexes
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.catalog.tables.tables import Filenode, leaf_filenodes
from pgsluice.catalog.tables.witnesses import CatalogWitnesses, fetch_witnesses
from pgsluice.definitions.published import PublishedBy, PublishedRelation
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.publication import Publisher, fingerprint
from pgsluice.published.leaf_keys import KeyProblem, find_key_problem, key_of, with_leaves_key
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.schema_rules.known import ALL_ACTIONS, ColumnState, SourceFingerprint
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.content import published_content
from pgsluice.sql import any_of


@dataclass(frozen=True, slots=True)
class ReplicatedTable:
    """A table to replicate; a partition root stands for all of its leaf partitions.

    Attributes:
        facts: the metadata of the table or root.
        columns: the sent columns; None: all columns that are not generated.
        row_filter: the rows that a copy has to read, as an SQL condition; None: all rows.
        fingerprint: the baseline for later catalog refreshes.
        rules: the rules of pgsluice's own publications, by the relation that the server sends; None
            without.
        unlisted: column -> leaf partitions whose changes lack it: it is NULL in their rows.
        key_problem: why no key is valid for all leaf partitions; None if one is, or if none is
            needed.
        unsent: columns that pgsluice's own publications publish but the server does not send.
        relations: the relations whose changes belong to this table; empty: all with this root.
        foreign_partitions: its partitions that are foreign tables, whose rows are not sent.
        unique_index: for a table without a key: an index that can be its replica identity; empty:
            there is none.
        publications: the server's publications that send it.
        excluded: columns that the target does not have by the configuration.
    """

    facts: RelationFacts
    columns: tuple[str, ...] | None
    row_filter: str | None
    fingerprint: SourceFingerprint
    rules: Mapping[int, Publisher] | None = None
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    key_problem: KeyProblem | None = None
    unsent: tuple[str, ...] = ()
    relations: tuple[int, ...] = ()
    foreign_partitions: tuple[str, ...] = ()
    unique_index: str = ""
    publications: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns on which a copy needs SELECT."""
        sent = _plain(self.facts) if self.columns is None else self.columns
        columns = [name for name in sent if name not in self.excluded]
        by_leaf = bool(self.unlisted)
        return columns_to_read(self.facts, columns, [self.row_filter], by_leaf=by_leaf)


@dataclass(frozen=True, slots=True)
class _Found:
    """The catalog's data of all tables, read in one query for each kind; by the table's OID, but
    ``facts`` by that of the published relation."""

    facts: Mapping[int, RelationFacts]
    leaves: Mapping[int, Mapping[int, Filenode]]
    bounds: Mapping[int, Mapping[int, PartitionBound]]
    foreign: Mapping[int, Mapping[int, str]]
    partition_columns: Mapping[int, Collection[str | None]]
    rules: Mapping[int, Mapping[int, Publisher]] | None
    witnesses: CatalogWitnesses
    options: TableOptions


def source_tables(
    connection: Connection,
    publications: Collection[str],
    publication_rules: PublicationRules | None = None,
    options: TableOptions = TableOptions(),  # noqa: B008 - frozen
    filters: FilterTexts | None = None,
    only: Collection[int] | None = None,
) -> list[ReplicatedTable]:
    """The tables that the publications send now, ordered by name.

    Args:
        publication_rules: pgsluice's own publications, which select from what the server's send;
            None: everything.
        options: the configured keys, masks and exclusions.
        filters: caches the texts of the server's row filters between calls.
        only: OIDs of tables; others are ignored, except those of the same partition trees. What
            the server and this process spend grows with their number. None: all tables.

    Raises:
        ConfigError, TableError: see :meth:`PublicationRules.publishers`.
    """
    catalog = PublishedCatalog.read(connection, publications, filters)
    published = catalog.published(connection)
    if only is not None:
        trees = partition_trees(connection, only)
        published = {oid: relation for oid, relation in published.items() if oid in trees}
    facts = fetch_many(connection, published)
    rules = None if publication_rules is None else publication_rules.publishers(connection, facts)
    by_table: dict[int, dict[int, Publisher]] = {}
    for oid, publisher in (rules or {}).items():
        by_table.setdefault(publisher.published_as.oid, {})[oid] = publisher
    groups: dict[int, list[PublishedRelation]] = {}
    for oid, relation in published.items():
        if rules is not None and oid in rules:
            groups.setdefault(rules[oid].published_as.oid, []).append(relation)
        elif rules is None and relation.sent_as in facts:
            groups.setdefault(facts[relation.sent_as].root_oid, []).append(relation)
    targets = {**facts, **fetch_many(connection, [oid for oid in groups if oid not in facts])}
    partitioned_relations = [
        relation.oid for relation in published.values() if relation.kind == "p"
    ]
    keyless = [oid for oid in groups if oid in targets and not key_of(targets[oid])]
    types = {
        definition.oid for oid in groups if oid in targets for definition in targets[oid].types
    }
    found = _Found(
        facts,
        leaf_filenodes(connection, {*groups, *partitioned_relations}),
        partition_bounds(connection, groups),
        {oid: catalog.foreign_below(oid) for oid in groups},
        partition_columns_of(connection, keyless),
        None if rules is None else by_table,
        fetch_witnesses(connection, catalog, types),
        options,
    )
    tables = [
        _table(found, targets[oid], relations)
        for oid, relations in groups.items()
        if oid in targets
    ]
    used = {table.facts.oid: table.fingerprint.key or () for table in tables}
    proved = prove_keys(connection, used, found.leaves)
    plain = [oid for oid in keyless if targets[oid].kind == "r"]
    unique = {oid: indexes[0].name for oid, indexes in unique_indexes(connection, plain).items()}
    tables = [
        replace(
            table,
            fingerprint=replace(table.fingerprint, key_index=proved.get(table.facts.oid, "")),
            unique_index=unique.get(table.facts.oid, ""),
        )
        for table in tables
    ]
    return sorted(tables, key=lambda table: (table.facts.namespace, table.facts.name))


def _table(
    found: _Found, table: RelationFacts, relations: Sequence[PublishedRelation]
) -> ReplicatedTable:
    """One table, from what the server publishes of it and what pgsluice's own publications
    select."""
    leaves, foreign = found.leaves, found.foreign[table.oid]
    published = [
        found.facts[oid] for oid in sorted(each.oid for each in relations) if oid in found.facts
    ]
    partition_columns = found.partition_columns.get(table.oid, frozenset())
    facts = with_leaves_key(table, published, partition_columns)
    files = leaves[facts.oid]
    mine = None if found.rules is None else found.rules[facts.oid]
    actions = {relation.oid: _actions(relation, mine) for relation in relations}
    content = published_content(facts, relations, leaves)
    columns, rows = content.columns, content.row_filter
    keyed = facts
    unsent: tuple[str, ...] = ()
    if mine is not None:
        # What acts on them is the same for all that are published as one table.
        own = next(iter(mine.values())).resolution
        sent = _plain(facts) if columns is None else columns
        columns = tuple(column for column in own.published_columns if column in sent)
        if own.columns is not None or own.generated_columns == "stored":
            unsent = tuple(column for column in own.published_columns if column not in sent)
        keyed = facts.with_published_keys(columns)
        rows = _all_of(any_of(own.copy_filters), rows)
    if foreign:
        rows = _all_of(rows, f"tableoid NOT IN ({', '.join(map(str, sorted(foreign)))})")
    key = (
        found.options.keys.get(f"{facts.root_namespace}.{facts.root_name}")
        or keyed.primary_key
        or keyed.identity_key
    )
    bounds = found.bounds.get(table.oid, {})
    keyed_bounds = {oid: each for oid, each in bounds.items() if each.columns <= {*key}}
    source_fingerprint = SourceFingerprint(
        filenodes={leaf: file.in_snapshot for leaf, file in files.items()},
        toast_tables={leaf: file.toast_table for leaf, file in files.items() if file.toast_table},
        columns=_column_states(facts, columns),
        actions=frozenset[str]().union(*actions.values()),
        lacking=frozenset(
            f"{oid}:{action}" for oid, sent in actions.items() for action in ALL_ACTIONS - sent
        ),
        rules=_rules_fingerprint(facts, relations, mine, found.options),
        names=found.options.names.described(facts.root_namespace, facts.root_name),
        sent=frozenset[int]().union(
            *(
                leaves.get(relation.oid, (relation.oid,))
                for relation in relations
                if relation.kind != "f"
            )
        ),
        truncates=_truncates(relations, mine),
        key=key,
        bounds={oid: each.condition for oid, each in keyed_bounds.items()},
        fixed=frozenset(oid for oid, each in keyed_bounds.items() if each.is_fixed),
        parents={oid: each.parent for oid, each in keyed_bounds.items() if each.parent},
    )
    source_fingerprint = found.witnesses.add_to(
        source_fingerprint, facts.oid, (definition.oid for definition in facts.types)
    )
    has_changes = not source_fingerprint.actions.isdisjoint({"update", "delete"})
    key_problem = find_key_problem(facts, published, partition_columns) if has_changes else None
    return ReplicatedTable(
        facts,
        columns,
        rows,
        source_fingerprint,
        mine,
        content.unlisted,
        key_problem,
        unsent,
        _relations(facts, published, mine),
        tuple(foreign.values()),
        publications=tuple(sorted({by.publication for one in relations for by in one.by})),
        excluded=found.options.excluded_columns(facts.root_namespace, facts.root_name),
    )


def _all_of(*conditions: str | None) -> str | None:
    """A condition that combines them with AND; None: there are none."""
    known = [condition for condition in conditions if condition is not None]
    return " AND ".join(f"({condition})" for condition in known) or None


def _relations(
    facts: RelationFacts,
    published: Sequence[RelationFacts],
    mine: Mapping[int, Publisher] | None,
) -> tuple[int, ...]:
    """See :class:`ReplicatedTable`."""
    is_root = facts.kind == "p" and all(one.root_oid == facts.oid for one in published)
    # A plain table may become a partition: its changes then name that table's root.
    return () if mine is None or is_root else tuple(sorted(mine))


def _actions(relation: PublishedRelation, mine: Mapping[int, Publisher] | None) -> frozenset[str]:
    """The sent actions of one relation."""
    if mine is None:
        return relation.actions
    if relation.oid not in mine:
        return frozenset()
    return relation.actions & frozenset[str](mine[relation.oid].resolution.published)


def _column_states(facts: RelationFacts, columns: tuple[str, ...] | None) -> dict[int, ColumnState]:
    sent = frozenset(_plain(facts) if columns is None else columns)
    types = {column.attnum: _base_type(column, facts) for column in facts.columns}
    return {
        column.attnum: ColumnState(
            name=column.name,
            version=column.row_version,
            type_oid=types[column.attnum][0],
            typmod=types[column.attnum][1],
            is_sent=column.name in sent,
        )
        for column in facts.columns
    }


def _base_type(column: ColumnFacts, facts: RelationFacts) -> tuple[int, int]:
    """A column's type and typmod; for a domain, those of its base type."""
    definitions = facts.type_definitions()
    type_oid, typmod = column.type_oid, column.typmod
    while (definition := definitions.get(type_oid)) is not None and definition.kind == "d":
        type_oid, typmod = definition.base_oid, max(typmod, definition.base_typmod)
    return type_oid, typmod


def _rules_fingerprint(
    facts: RelationFacts,
    relations: Sequence[PublishedRelation],
    mine: Mapping[int, Publisher] | None,
    options: TableOptions,
) -> str:
    """The filters and column lists for the relations of one table, as a part of its fingerprint,
    and its masked and excluded columns."""
    resolutions = {oid: publisher.resolution for oid, publisher in (mine or {}).items()}
    acting = {
        fingerprint(resolutions.get(relation.oid), [_listed(by, facts) for by in relation.by])
        for relation in relations
    }
    names = [column.name for column in facts.columns]
    hiding = options.hiding(facts.root_namespace, facts.root_name, names)
    return " ".join([*sorted(acting), *([f"hides {hiding}"] if hiding else [])])


def _truncates(
    relations: Sequence[PublishedRelation], mine: Mapping[int, Publisher] | None
) -> frozenset[int]:
    """The leaf partitions whose TRUNCATEs are all in the stream: those that are sent under their
    own names.

    Under a root's name, publications send only a TRUNCATE of the root.
    """
    return frozenset(
        relation.oid
        for relation in relations
        if relation.kind == "r" and "truncate" in relation.actions
        if mine is None
        or (
            relation.oid in mine
            and mine[relation.oid].published_as.oid == relation.oid
            and "truncate" in mine[relation.oid].resolution.published
        )
    )


def _plain(facts: RelationFacts) -> tuple[str, ...]:
    """The sent columns if no list and no option selects others."""
    return tuple(column.name for column in facts.columns if not column.generated)


def _listed(by: PublishedBy, facts: RelationFacts) -> PublishedBy:
    """The sent columns with a column list, but only if the list excludes something or adds a
    generated column.

    Servers from 15 on report a list of all columns if there is no list: then an added column would
    look like a changed list.
    """
    if by.columns is None or set(by.columns) < set(_plain(facts)):
        return by
    generated = tuple(name for name in by.columns if name not in _plain(facts))
    return replace(by, columns=generated or None)
