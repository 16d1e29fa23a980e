"""Leaf partitions that are known from changes only: the record keeps them until a catalog refresh
has handled them (ADR 0038).

The stream does not report DROP and DETACH of a partition. The rows of a partition that is created,
filled and dropped between two catalog refreshes would stay at the target for ever. If partitions
are sent under their own names, a batch knows whose changes it applies. Partitions that the
fingerprint lacks are recorded before, or together with, the end of the batch. A batch that is
repeated after a crash reads the same segments and finds the same partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from pgsluice.facts import LeafBound, RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.known import SourceFingerprint
from pgsluice.spool import (
    FACTS_TAG,
    RelationInForce,
    SpoolReader,
    TableRecord,
    UnseenLeaf,
    relations_after,
)


def unseen_leaves(
    reader: SpoolReader,
    oid: int,
    table: TableRecord,
    relations: Collection[int],
    through: Lsn,
) -> tuple[UnseenLeaf, ...]:
    """The leaf partitions among the relations of a table's changes that the last catalog refresh
    has not found.

    Args:
        reader: reads the spool, which has the changes from the table's position on.
        through: the position up to which changes are applied.

    Returns:
        these partitions, and those that the record already has.
    """
    known = SourceFingerprint.parse(table.source.fingerprint)
    if known is None:
        return table.pending.unseen_leaves
    leaves = frozenset(relations) - known.filenodes.keys() - {oid}
    at = known.emptied
    emptied = {leaf: at[leaf] for leaf in relations if at.get(leaf, 0) > table.applied_through}
    leaves |= _with_changes(reader, emptied, table.applied_through, through)
    if not leaves:
        return table.pending.unseen_leaves
    bounds: dict[int, set[LeafBound | None]] = {leaf: set() for leaf in leaves}
    for leaf, facts in _facts(reader, leaves, table.applied_through, through):
        is_below = facts is not None and facts.root_oid == oid
        bounds[leaf].add(facts.bound if is_below and facts is not None else None)
    return with_unseen(
        table.pending.unseen_leaves, [_leaf(leaf, bounds[leaf]) for leaf in sorted(bounds)]
    )


def with_unseen(leaves: Iterable[UnseenLeaf], more: Iterable[UnseenLeaf]) -> tuple[UnseenLeaf, ...]:
    """Merge two sets of leaf partitions; a partition with several different bounds gets none."""
    known = {leaf.oid: leaf for leaf in leaves}
    for leaf in more:
        known[leaf.oid] = leaf if known.get(leaf.oid, leaf) == leaf else UnseenLeaf(leaf.oid)
    return tuple(known.values())


def _leaf(oid: int, bounds: Collection[LeafBound | None]) -> UnseenLeaf:
    only = next(iter(bounds)) if len(bounds) == 1 else None
    if only is None or not only.is_only:
        return UnseenLeaf(oid)
    return UnseenLeaf(oid, only.parent, only.condition, only.columns)


def _with_changes(
    reader: SpoolReader, leaves: Mapping[int, int], after: Lsn, through: Lsn
) -> frozenset[int]:
    """The partitions with changes up to their own LSN, or in the segment that contains it."""
    found: set[int] = set()
    for leaf, at in leaves.items():
        infos = reader.segments(after, min(through, Lsn(at)))
        found |= {leaf} & {oid for info in infos for oid in info.header.counts.relations}
    return frozenset(found)


def _facts(
    reader: SpoolReader, leaves: Collection[int], after: Lsn, through: Lsn
) -> Iterator[tuple[int, RelationFacts | None]]:
    """The metadata of leaf partitions that was in force while their changes were received."""
    for info in reader.segments(after, through):
        if info.header.counts.relations.keys().isdisjoint(leaves):
            continue
        if info.reference is not None and info.reference.relations:
            # They were looked up at the commit, and hold for the whole transaction.
            yield from _in_force(info.reference.relations, leaves)
            continue
        for view in reader.views(info, after, through):
            yield from _in_force(view.relations, leaves)
            for row in np.flatnonzero(view.block.tags == FACTS_TAG).tolist():
                if (leaf := int(view.block.oids[row])) in leaves:
                    after_row = relations_after(view.relations, view.block, row + 1)
                    yield from _in_force(after_row, [leaf])


def _in_force(
    relations: Mapping[int, RelationInForce], leaves: Collection[int]
) -> Iterator[tuple[int, RelationFacts | None]]:
    return ((leaf, relations[leaf].facts) for leaf in leaves if leaf in relations)
