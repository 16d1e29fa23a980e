"""Reads tables under a snapshot with a known position in the WAL.

A new replication slot exports the snapshot, and the snapshot's position is the slot's consistent
point: the snapshot has all earlier commits, and the stream has all later ones. Snapshots of
``pg_export_snapshot`` have no such position.

A table is divided into chunks (portions), which different processes can read at the same time.

The exported names are imported when first used: a snapshot holder needs neither numpy nor Arrow,
and each long copy waits for its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.snapshots.content import PublishedContent, published_content
    from pgsluice.snapshots.keeper import SnapshotFile, StartedKeeper, keep_for_readers
    from pgsluice.snapshots.plan import plan_portions
    from pgsluice.snapshots.ranges import PORTION_BYTES, WHOLE, Portion
    from pgsluice.snapshots.read_session import ReadSession
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

__getattr__ = on_demand(__name__, ("keeper", "plan", "content", "ranges", "reader", "snapshot"))
