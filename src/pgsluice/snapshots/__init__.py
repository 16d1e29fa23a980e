"""Reads tables under a snapshot whose place in the WAL is known.

The snapshot is that of a new replication slot, and its position is the slot's consistent point:
what committed before it is in the snapshot, and what committed after it comes with the stream.
``pg_export_snapshot`` has no such point.

A table is divided into portions, which may be read side by side and by different processes.

What this package exports is imported when one of its names is first used: a keeper needs neither
numpy nor Arrow, and is started in the way of each long copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.snapshots.content import PublishedContent, published_content
    from pgsluice.snapshots.keeper import SnapshotFile, StartedKeeper, keep_for_readers
    from pgsluice.snapshots.plan import plan_portions
    from pgsluice.snapshots.ranges import PORTION_BYTES, WHOLE, Portion, Read
    from pgsluice.snapshots.reader import (
        ReadRows,
        TableLocked,
        TableQuery,
        TableReader,
        TableRewritten,
        table_reader,
    )
    from pgsluice.snapshots.snapshot import (
        Snapshot,
        SnapshotGone,
        export_again,
        import_snapshot,
        temporary_snapshot,
    )

__all__ = [
    "PORTION_BYTES",
    "WHOLE",
    "Portion",
    "PublishedContent",
    "Read",
    "ReadRows",
    "Snapshot",
    "SnapshotFile",
    "SnapshotGone",
    "StartedKeeper",
    "TableLocked",
    "TableQuery",
    "TableReader",
    "TableRewritten",
    "export_again",
    "import_snapshot",
    "keep_for_readers",
    "plan_portions",
    "published_content",
    "table_reader",
    "temporary_snapshot",
]

__getattr__ = on_demand(__name__, ("keeper", "plan", "content", "ranges", "reader", "snapshot"))
