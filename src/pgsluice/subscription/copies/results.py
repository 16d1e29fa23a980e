"""What the result of a copy means for its table."""

from __future__ import annotations

from pgsluice.copy import CopyResult, CopyWork
from pgsluice.errors import Failure
from pgsluice.snapshots import Snapshot
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.lifecycle.leaf_events import LeavesFailed, LeavesLoaded
from pgsluice.subscription.lifecycle.table_events import CopyFailed, CopyFinished, CopySuperseded
from pgsluice.subscription.lifecycle.transitions import TableEvent


def copy_event(
    result: CopyResult | Failure, copy_number: int, snapshot: Snapshot, *, of_leaves: bool = False
) -> TableEvent:
    """The event of a copy's result.

    Args:
        copy_number: the number that the copy was given.
        snapshot: under which it read.
        of_leaves: only rows of partitions were replaced.
    """
    if isinstance(result, Failure):
        return failed_event(result, of_leaves=of_leaves)
    if of_leaves:
        return LeavesLoaded(snapshot.position, snapshot.timeline, result.version, result.rows)
    if result.copy_number > copy_number:
        return CopySuperseded(result.copy_number)
    return CopyFinished(snapshot.position, snapshot.timeline, result.version, result.rows)


def failed_event(failure: Failure, *, of_leaves: bool) -> TableEvent:
    """The event of a copy that failed.

    Args:
        of_leaves: only rows of partitions were to be replaced.
    """
    return LeavesFailed(failure) if of_leaves else CopyFailed(failure)


def is_planned(table: TableRecord | None, work: CopyWork) -> bool:
    """Whether a table's record still says that this copy is made.

    A look may have found another name, or that the table is not sent any more; a user may have
    asked for another copy.
    """
    return (
        table is not None
        and table.state is TableState.DATA_COPY
        and table.copy_number == work.copy_number
        and table.partitions.load == work.leaves
        and table.partitions.gone_bounds == work.gone_bounds
        and table.target_name == (work.namespace, work.name)
    )
