"""What a round of copies reads of a table of which only some partitions are replaced.

Partitions that came are read leaf by leaf. Where partitions are gone, what the source has in their
bounds is read through the table: of newer partitions, and of a default one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import psycopg

from pgsluice.catalog.source_tables import source_catalog
from pgsluice.copy import CopyWork
from pgsluice.publication import bind_filter
from pgsluice.row_filter import FilterEvaluator, plan_filters
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.sql import SqlRefused, any_of

T = TypeVar("T", int, tuple[int, int])


def evaluators_of(
    connection: psycopg.Connection[Any], wanted: Mapping[T, tuple[int, Sequence[str]]]
) -> dict[T, FilterEvaluator]:
    """What finds the rows of partitions.

    Args:
        connection: to the source.
        wanted: anything -> a table, and conditions on its rows, of which one has to be true.

    Returns:
        by the same keys, without those whose conditions cannot be computed exactly.
    """
    evaluators: dict[T, FilterEvaluator] = {}
    catalog = source_catalog(connection) if wanted else None
    for name, (oid, conditions) in wanted.items():
        table = catalog.tables.get(oid) if catalog is not None else None
        if catalog is None or table is None:
            continue
        try:
            bound = [bind_filter(text, table, catalog.text_rules) for text in conditions]
            evaluators[name] = plan_filters(bound)
        except SqlRefused:
            continue
    return evaluators


def portions_of_partitions(
    work: CopyWork, portions: Sequence[Portion], known: str, in_snapshot: SourceFingerprint | None
) -> tuple[Portion, ...] | None:
    """What is read of a table of which only some partitions are replaced.

    Args:
        work: its copy.
        portions: of the whole table.
        known: the fingerprint of the look that found the partitions.
        in_snapshot: that of the copy's snapshot.

    Returns:
        None if the table has to be copied.
    """
    before = SourceFingerprint.parse(known)
    if before is None or in_snapshot is None or _columns(before) != _columns(in_snapshot):
        return None
    came = _of_leaves(portions, work.leaves) if work.leaves else ()
    if came is None:
        return None
    if not work.gone_bounds:
        return came or ((Read(None, "false", 0),),)
    gone = any_of(work.gone_bounds)
    if work.is_gone is None or gone is None:
        return None
    others = tuple(tuple(_outside(read, gone) for read in portion) for portion in came)
    # Most often the source has nothing there.
    return (*others, (Read(None, gone, 0, is_of_gone=True),))


def _columns(fingerprint: SourceFingerprint) -> dict[int, str]:
    return {number: column.name for number, column in fingerprint.columns.items()}


def _of_leaves(portions: Sequence[Portion], leaves: Collection[int]) -> tuple[Portion, ...] | None:
    """What of a table's portions reads these leaves, without those that are gone by now, which the
    next look finds; None if that cannot be told."""
    reads = [read for portion in portions for read in portion]
    if any(read.leaf is None for read in reads):
        return None
    of_leaves = (
        tuple(read for read in portion if read.leaf is not None and read.leaf.oid in leaves)
        for portion in portions
    )
    return tuple(portion for portion in of_leaves if portion)


def _outside(read: Read, condition: str) -> Read:
    """What of a read does not fulfil a condition: no two tasks may stage the same keys."""
    outside = f"({condition}) IS NOT TRUE"
    return replace(
        read, condition=f"({read.condition}) AND {outside}" if read.condition else outside
    )
