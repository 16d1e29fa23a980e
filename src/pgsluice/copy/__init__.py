"""What the tasks of initial copies do: they read chunks of tables, and stage their rows.

Every copy reads under the snapshot of a new replication slot (:mod:`pgsluice.snapshots`), and its
position is that slot's consistent point. Which table is copied when is decided in
:mod:`pgsluice.subscription.copies`.

A table that was renamed is copied from the target that it had, without a snapshot.

What this package exports is imported when one of its names is first used: a batch deletes rows of
partitions by :mod:`pgsluice.copy.partition_rows`, and needs nothing else of a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
    from pgsluice.copy.renamed import CopyRenamed

__all__ = ["CopyRenamed", "CopyResult", "CopyTables", "CopyWork"]

__getattr__ = on_demand(__name__, ("job", "renamed"))
