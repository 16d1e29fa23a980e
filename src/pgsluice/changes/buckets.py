"""Divides a table's changes into buckets that can be netted separately.

All changes of a key are in one bucket. An update that changes the key links the buckets of both
keys: linked buckets have to be netted together, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from pgsluice.changes.key_numbers import numbers_of, spread
from pgsluice.columnar.changes import TRUNCATE, Int64s, RelationChanges
from pgsluice.columnar.row_pool import RowPool

BUCKETS = 64
EVERY_BUCKET = -1
"""The bucket of changes that every bucket needs: a TRUNCATE ends the rows of all keys."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The buckets of n changes.

    Attributes:
        buckets: n numbers; EVERY_BUCKET for a TRUNCATE.
        links: pairs of buckets that connect all buckets linked by changed keys; fewer than BUCKETS.
    """

    buckets: Int64s
    links: frozenset[tuple[int, int]]


def place(run: RelationChanges, key: tuple[str, ...]) -> Placement:
    """The bucket of each change of one relation.

    Args:
        key: the table's key; empty for a table that only takes inserts, whose changes are divided
            evenly. All changes of a relation that lacks a key column are in one bucket.

    Raises:
        TableError: a key column's type cannot be a key.
    """
    count = len(run)
    is_truncate = run.actions == TRUNCATE
    if not key:
        evenly = np.arange(count) * BUCKETS // max(count, 1)
        return Placement(np.where(is_truncate, EVERY_BUCKET, evenly), frozenset())
    if not {*key} <= {*run.schema.names}:
        return Placement(np.where(is_truncate, EVERY_BUCKET, 0), frozenset())
    pool = RowPool.of(run)
    columns = [run.schema.names.index(name) for name in key]
    rows = np.arange(pool.new_rows)
    new = pa.table(
        [pool.values(column, pool.completed(column, rows)) for column in columns], list(key)
    )
    old = pa.table([run.old.columns[column] for column in columns], list(key))
    # A last EVERY_BUCKET is what index -1 (no tuple) gives.
    after = np.append(_buckets(new), EVERY_BUCKET)[run.new_index]
    before = np.append(_buckets(old), EVERY_BUCKET)[run.old_index]
    moves = (after != before) & (after != EVERY_BUCKET) & (before != EVERY_BUCKET)
    pairs = np.unique(np.stack([after[moves], before[moves]], axis=1), axis=0)
    groups = linked(map(tuple, pairs.tolist()))
    return Placement(
        np.where(after == EVERY_BUCKET, before, after),
        frozenset(chain.from_iterable(map(pairwise, groups))),
    )


def linked(links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """All buckets, grouped by their links."""
    groups = [[bucket] for bucket in range(BUCKETS)]
    for first, second in links:
        one, other = groups[first], groups[second]
        if one is not other:
            one += other
            for bucket in other:
                groups[bucket] = one
    return [sorted(group) for bucket, group in enumerate(groups) if min(group) == bucket]


def _buckets(keys: pa.Table) -> Int64s:
    buckets: Int64s = (spread(numbers_of(keys).numbers) % np.uint64(BUCKETS)).astype(np.int64)
    return buckets
