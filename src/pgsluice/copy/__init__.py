"""Initial copies: tasks stage portions of tables, and the stream continues them without a gap.

Every copy reads under the snapshot of a new replication slot (:mod:`pgsluice.snapshots`), and its
position is that slot's consistent point.

A table that was renamed is copied from the target that it had, without a snapshot.

What this package exports is imported when one of its names is first used: a batch deletes rows of
partitions by :mod:`pgsluice.copy.partition_rows`, and needs nothing else of a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
    from pgsluice.copy.journal import CopyJournal
    from pgsluice.copy.progress import CopyCounts
    from pgsluice.copy.renamed import CopyRenamed
    from pgsluice.copy.tasks import LOCK_PATIENCE_S, Stage, TableCopy, stage_tables
    from pgsluice.copy.turns import CopyPace, CopyTurn, CopyTurns

__all__ = [
    "LOCK_PATIENCE_S",
    "CopyCounts",
    "CopyJournal",
    "CopyPace",
    "CopyRenamed",
    "CopyResult",
    "CopyTables",
    "CopyTurn",
    "CopyTurns",
    "CopyWork",
    "Stage",
    "TableCopy",
    "stage_tables",
]

__getattr__ = on_demand(__name__, ("job", "journal", "progress", "renamed", "tasks", "turns"))
