"""The task's part of batches in which single partitions were truncated under their own names.

A TRUNCATE of a partition removes the target's rows within the partition's bound. A bound is SQL,
and only the source can evaluate its types and collations. Few batches need bounds. So a task that
finds such a TRUNCATE reports the partitions, and the driver runs it again with their bounds
(:mod:`pgsluice.subscription.batches.truncated_bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pgsluice.changes.net import NetChanges
from pgsluice.changes.truncates import Truncates
from pgsluice.columnar import RelationChanges
from pgsluice.columnar.changes import TRUNCATE
from pgsluice.copy.partition_rows import deletes_of_rows
from pgsluice.errors import Remedy, TableError
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.subscription.base.work import TableWork


def truncated_at(runs: Sequence[RelationChanges]) -> int:
    """The commit time of the last TRUNCATE among changes, in microseconds since 1970."""
    times = [run.commit_timestamps[run.actions == TRUNCATE] for run in runs]
    return int(np.concatenate(times).max(initial=0))


def refuse_truncated_leaves(work: TableWork, truncates: Truncates) -> None:
    """Refuse a TRUNCATE of single partitions for a change log or a history: their rows do not say
    which of them were in these partitions, so a copy has to.

    Raises:
        TableError: there is one.
    """
    if truncates.of_leaves:
        raise TableError(
            f"{work.title}: partitions were truncated, and a change log or a history cannot show "
            "that without a copy",
            table=work.title,
            remedy=Remedy.COPY,
        )


def deletes_of_truncated(
    work: TableWork, truncates: Truncates, writer: TableWriter, table: TargetTable
) -> Iterator[NetChanges] | None:
    """The deletes for the target's rows of truncated partitions, to be applied before other
    changes.

    Args:
        writer: the target's writer, which has to stage the result.

    Returns:
        None if nothing has to be deleted.

    Raises:
        TableError: the bounds of partitions are needed, or the table has to be copied.
    """
    leaves = truncates.leaves
    if not leaves or writer.schema() is None:
        return None
    if lacking := leaves - work.leaf_bounds.keys():
        raise TableError(
            f"{work.title}: partitions were truncated, and their bounds are needed",
            table=work.title,
            remedy=Remedy.LOOK,
            leaves=frozenset(lacking),
        )
    if not table.key or not writer.can_stage_changes():
        raise TableError(
            f"{work.title}: partitions were truncated, and the target cannot take that alone",
            table=work.title,
            remedy=Remedy.COPY,
        )
    return deletes_of_rows(writer, table, [work.leaf_bounds[leaf] for leaf in sorted(leaves)])
