"""What a round of copies reads of a table of which only some partitions are replaced.

Partitions that came are read leaf by leaf. Where partitions are gone, what the source has in their
bounds is read through the table: of newer partitions, and of a default one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pgsluice.copy import CopyWork
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.snapshots.ranges import Portion, Read
from pgsluice.sql import any_of


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
