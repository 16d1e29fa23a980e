"""Applies a subscription's own publications to decoded changes of one relation.

The rules are PostgreSQL's:

- Only published actions pass. A TRUNCATE has no filter. If changes of a partition are published
  under its root's name, its TRUNCATE is sent only if it empties the root. Where the server sends
  changes partition by partition, its Truncate message has the partitions, whatever the statement
  named; if it has all of the root's, the root is empty, and a TRUNCATE of the root is published.
- An UPDATE becomes an INSERT if only its new row passes the update filter, and a DELETE if only
  its old row does; if neither passes, nothing is sent. It does not matter whether INSERTs and
  DELETEs are published.
- An INSERT that was an UPDATE takes its unchanged values (TOAST) from the old tuple. Values that
  are missing there, too, stay absent; PostgreSQL sends them as unchanged, and its subscriber
  stores NULL.
- When an UPDATE or DELETE is published, the replica identity must hold every column of the
  filters, and the column lists must hold the replica identity. The server refuses the statement;
  here it has already happened, so the error parks the table.
- Tuples hold the published columns only. Changes of a partition that are published as its root's
  have the root's name, OID and order of columns; which columns an old tuple holds depends on the
  partition's own replica identity.

A published change keeps its position and ordinal.

Source: src/backend/replication/pgoutput/pgoutput.c (pgoutput_change, pgoutput_row_filter,
pgoutput_truncate).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Bytes,
    Int64s,
    Mask,
    RelationChanges,
)
from pgsluice.columnar.row_pool import RowPool
from pgsluice.definitions.publications import Action, Publication
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.definitions.text_rules import TextRules
from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.publication.publishing.filter_verdicts import check_plans, evaluate_filters
from pgsluice.publication.publishing.projection import Projection
from pgsluice.publication.publishing.replica_identity import ReplicaIdentity, check_replica_identity
from pgsluice.publication.publishing.resolution import Resolution, resolve
from pgsluice.publication.statements.filters import bind_filter
from pgsluice.row_filter import FilterEvaluator, plan_filters
from pgsluice.sql import SqlRefused, quote_title
from pgsluice.wire import ReplicaIdentity as WireIdentity

ChangePosition: TypeAlias = tuple[int, int]
"""The position and ordinal of a change."""

_ACTIONS: Final[dict[Action, int]] = {
    "insert": INSERT,
    "update": UPDATE,
    "delete": DELETE,
    "truncate": TRUNCATE,
}


@dataclass(frozen=True)
class Publisher:
    """Applies a subscription's publications to the changes of one relation. Picklable.

    The driver creates one for each relation, by its OID, at each catalog refresh; tasks use it::

        publisher = Publisher.of(publications, table, catalog)
        for changes in decode_segment(view, {oid}, texts=publisher.filter_columns):
            published = publisher.publish(changes)

    For the partitions of a root use :func:`publish_all`.

    Attributes:
        resolution: the rules for the relation, and the relation under whose name it is published.
        catalog: the relation and its ancestors.
        leaves: the tables that have the rows of ``published_as``, by OID.
        sends_root_truncates: whether a publication with ``publish_via_partition_root`` publishes
            TRUNCATE.
        filters: the filters combined with OR, by INSERT, UPDATE and DELETE; None: every row passes.
    """

    resolution: Resolution
    publications: tuple[Publication, ...]
    catalog: SourceCatalog
    leaves: frozenset[int]
    sends_root_truncates: bool
    filters: Mapping[int, FilterEvaluator | None]

    @classmethod
    def of(
        cls, publications: Sequence[Publication], table: SourceTable, catalog: SourceCatalog
    ) -> Publisher | None:
        """The publisher of a relation; None if no publication includes it.

        Args:
            publications: those of one subscription, in its order.
            table: the relation that the server sends.

        Raises:
            SqlRefused: the publications' columns do not agree, or a filter does not fit the
                relation's columns any more.
            FilterNotExact: a filter cannot be computed exactly.
            TableError: see :func:`~pgsluice.publication.publishing.resolution.resolve`.
        """
        resolution = resolve(publications, table, catalog)
        if resolution is None:
            return None
        family = [table, *(catalog.tables[oid] for oid in table.ancestors)]
        return cls(
            resolution,
            tuple(publications),
            SourceCatalog.of(family),
            _leaves_of(resolution.published_as, catalog),
            any(
                "truncate" in publication.publish and publication.publish_via_partition_root
                for publication in publications
                if resolve([publication], table, catalog) is not None
            ),
            _evaluators(resolution, catalog.text_rules),
        )

    @property
    def published_as(self) -> SourceTable:
        """The relation under whose name the changes are published."""
        return self.resolution.published_as

    @property
    def filter_columns(self) -> frozenset[str]:
        """The columns that the filters read, for the parameter ``texts`` of decoding."""
        return frozenset(
            name
            for evaluator in self.filters.values()
            if evaluator is not None
            for name in evaluator.columns
        )

    def publish(
        self, changes: RelationChanges, truncates: Collection[ChangePosition] = ()
    ) -> RelationChanges:
        """Publish changes.

        Args:
            changes: changes of the relation, decoded with ``texts=publisher.filter_columns``.
            truncates: the TRUNCATEs of a partition that count as a TRUNCATE of the root.

        Returns:
            the published changes, with their published name and columns; maybe none.

        Raises:
            EvaluationError: a filter fails for a row; it has the table, the names of the key
                columns and the position. No change of ``changes`` may be applied.
            TableError: the replica identity does not fit, or the server does not send what a filter
                reads.
        """
        check_plans(changes, self.filters.values())
        acting = self._acting(changes, truncates)
        self._check_identity(changes, acting)
        projection = Projection.of(self.resolution, changes)
        if not any(self.filters.values()) and acting.all():
            return projection.cut(changes)
        pool = RowPool.of(changes)
        chosen = changes if acting.all() else changes.select(acting)
        old, new = evaluate_filters(chosen, pool, self.filters)
        kept, actions = _transformed(changes.actions[acting], old, new)
        return _assembled(changes, pool, projection, np.flatnonzero(acting)[kept], actions[kept])

    def _acting(self, changes: RelationChanges, truncates: Collection[ChangePosition]) -> Mask:
        """The changes whose action is published."""
        published = [_ACTIONS[action] for action in self.resolution.published]
        acting: Mask = np.isin(changes.actions, published)
        if self.published_as.oid != self.resolution.table.oid:
            for change in np.flatnonzero(acting & (changes.actions == TRUNCATE)).tolist():
                truncate = int(changes.positions[change]), int(changes.ordinals[change])
                acting[change] = self.sends_root_truncates and truncate in truncates
        return acting

    def _check_identity(self, changes: RelationChanges, acting: Mask) -> None:
        relation = changes.relation
        is_full = relation.replica_identity is WireIdentity.FULL
        keys = (column.name for column in relation.columns if column.is_key and not is_full)
        identity = ReplicaIdentity(str(relation.replica_identity), frozenset(keys))
        verbs: tuple[Literal["update", "delete"], ...] = ("update", "delete")
        for verb in verbs:
            first = np.flatnonzero(acting & (changes.actions == _ACTIONS[verb]))[:1]
            if not len(first):
                continue
            table = self.resolution.table
            try:
                check_replica_identity(verb, self.publications, table, self.catalog, identity)
            except SqlRefused as error:
                raise _refused(error, changes, int(first[0])) from None


def publish_all(
    publishers: Mapping[int, Publisher], runs: Sequence[RelationChanges]
) -> list[RelationChanges]:
    """Publish the changes of several relations, including the partitions of a root.

    Args:
        publishers: publishers by the OID of the relation that the server sends. Changes of other
            relations are not published.
        runs: decoded changes; if they include changes of a root's partitions, all of them.

    Raises:
        EvaluationError, TableError: as :meth:`Publisher.publish`, for the first such change.
    """
    root_truncates = {
        publisher.published_as.oid: _whole_truncates(runs, publisher.leaves)
        for publisher in publishers.values()
        if publisher.published_as.oid != publisher.resolution.table.oid
    }
    published: list[RelationChanges] = []
    failures: list[tuple[ChangePosition, TableError]] = []
    for run in runs:
        publisher = publishers.get(run.relation.oid)
        if publisher is None:
            continue
        # The TRUNCATE of one partition counts as the root's; those of the others are not sent.
        is_first = run.relation.oid == min(publisher.leaves, default=0)
        truncates = root_truncates.get(publisher.published_as.oid, frozenset()) if is_first else ()
        try:
            published.append(publisher.publish(run, truncates))
        except TableError as error:
            facts = error.facts
            position = int(facts.get("lsn", run.positions[0])), int(facts.get("ordinal", 0))
            failures.append((position, error))
    if failures:
        raise min(failures, key=lambda publisher: publisher[0])[1]
    return published


def _evaluators(resolution: Resolution, text_rules: TextRules) -> dict[int, FilterEvaluator | None]:
    """The filters by action; actions with the same filters share one evaluator."""
    evaluators: dict[tuple[str, ...], FilterEvaluator | None] = {(): None}
    actions: tuple[Action, ...] = ("insert", "update", "delete")
    for action in actions:
        texts = resolution.filters(action)
        if texts not in evaluators:
            evaluators[texts] = plan_filters(
                [bind_filter(text, resolution.published_as, text_rules) for text in texts]
            )
    return {_ACTIONS[action]: evaluators[resolution.filters(action)] for action in actions}


def _transformed(actions: Bytes, old: Mask, new: Mask) -> tuple[Mask, Bytes]:
    """Which changes are published, and the action that each becomes, by their tuples' verdicts."""
    is_update = actions == UPDATE
    kept = np.where(actions == INSERT, new, old)
    kept[is_update] |= new[is_update]
    new_actions = actions.copy()
    new_actions[is_update & ~old] = INSERT
    new_actions[is_update & ~new] = DELETE
    return kept, new_actions


def _assembled(
    changes: RelationChanges,
    pool: RowPool,
    projection: Projection,
    kept: Int64s,
    actions: Bytes,
) -> RelationChanges:
    """The published changes with their new actions."""
    was = changes.actions[kept]
    has_new = (actions == INSERT) | (actions == UPDATE)
    has_old = ((actions == UPDATE) | (actions == DELETE)) & (changes.old_index[kept] >= 0)
    turned = (actions == INSERT) & (was == UPDATE)
    new_rows = changes.new_index[kept][has_new]
    old_rows = changes.old_index[kept][has_old] + pool.new_rows
    complete = turned[has_new] if turned.any() else None
    return replace(
        changes.select(kept),
        relation=projection.relation,
        facts=projection.facts,
        schema=projection.schema,
        actions=actions,
        new=pool.tuples(projection.column_indexes, new_rows, complete),
        new_index=_index(has_new),
        old=pool.tuples(projection.column_indexes, old_rows),
        old_index=_index(has_old),
        old_kinds=changes.old_kinds[kept] * has_old,
    )


def _index(has: Mask) -> Int64s:
    """Row numbers 0, 1, 2 ... where there is a tuple, -1 elsewhere."""
    return np.where(has, np.cumsum(has) - 1, -1)


def _refused(error: SqlRefused, changes: RelationChanges, change: int) -> TableError:
    table = changes.title
    lsn = Lsn(int(changes.positions[change]))
    details = [f"DETAIL:  {error.detail}"] if error.detail else []
    return TableError(
        error.message,
        details=[*details, f"(a change of {table} in the transaction that ends at {lsn})"],
        hint=error.server_hint
        or f"change the publication, or ALTER TABLE {quote_title(table)} REPLICA IDENTITY, then"
        f" copy the table again: {copy_again(changes.table_title)}",
        table=table,
        lsn=lsn,
        ordinal=int(changes.ordinals[change]),
        message=error.message,
        detail=error.detail,
    )


def _leaves_of(root: SourceTable, catalog: SourceCatalog) -> frozenset[int]:
    """The OIDs of the tables that have a partitioned table's rows; a plain table's own OID."""
    if not root.is_partitioned:
        return frozenset((root.oid,))
    return frozenset(table.oid for table in catalog.below(root) if not table.is_partitioned)


def _whole_truncates(
    runs: Iterable[RelationChanges], leaves: Collection[int]
) -> frozenset[ChangePosition]:
    """The TRUNCATEs that empty all leaf partitions of a root."""
    emptied: dict[ChangePosition, set[int]] = {}
    for run in runs:
        if run.relation.oid not in leaves:
            continue
        for change in np.flatnonzero(run.actions == TRUNCATE).tolist():
            position = int(run.positions[change]), int(run.ordinals[change])
            emptied.setdefault(position, set()).add(run.relation.oid)
    return frozenset(position for position, oids in emptied.items() if oids == set(leaves))
