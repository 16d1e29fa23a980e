"""The results of tasks that have committed changes."""

from __future__ import annotations

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied
from pgsluice.subscription.base.work import TaskResult
from pgsluice.subscription.batches.tasks.target_columns import TargetColumns


def result_of(
    applied: Applied,
    last: Lsn,
    changes: int,
    decode_s: float = 0.0,
    columns: TargetColumns | None = None,
) -> TaskResult:
    """The result of a task after its commit.

    Args:
        last: the position of the last change.
        changes: how many there were.
        decode_s: how long it took to make the net changes, in seconds.
        columns: the target's columns, for the changes that were applied; None: there were none.
    """
    return TaskResult(
        committed=last,
        version=applied.version,
        changes=changes,
        rows_skipped=applied.rows_skipped,
        skipped=applied.skipped,
        decode_s=decode_s,
        doubt="" if columns is None else columns.doubt,
        has_key=columns is None or bool(columns.table.key),
        rows_inserted=applied.rows_inserted,
        rows_updated=applied.rows_updated,
        rows_deleted=applied.rows_deleted,
        bytes_written=applied.bytes_written,
    )
