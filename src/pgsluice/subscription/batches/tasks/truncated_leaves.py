"""The task's side of batches in which single partitions were truncated under their own names.

The partition's bound tells which rows of the target a TRUNCATE removes. Bounds are SQL, and only
the source's catalog says what their types and collations mean. Few batches need them. So a task
that finds such a TRUNCATE names the partitions, and the driver runs it again with their bounds
(:mod:`pgsluice.subscription.batches.truncated_bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.changes.net import NetChanges
from pgsluice.changes.truncates import Truncates
from pgsluice.copy.partition_rows import deletes_of_rows
from pgsluice.errors import Remedy, TableError
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.subscription.base.work import TableWork


def deletes_of_truncated(
    work: TableWork, truncates: Truncates, writer: TableWriter, table: TargetTable
) -> Iterator[NetChanges] | None:
    """What deletes the rows that the target has of truncated leaves, before other changes.

    Args:
        truncates: among the changes of one commit.
        writer: of the target; it has to stage what is given back.
        table: the target.

    Returns:
        None: nothing has to be deleted.

    Raises:
        TableError: bounds of leaves are needed; or the table has to be copied.
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
