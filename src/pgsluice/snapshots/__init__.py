"""Reads tables under a snapshot whose place in the WAL is known.

The snapshot is that of a new replication slot, and its position is the slot's consistent point:
what committed before it is in the snapshot, and what committed after it comes with the stream.
``pg_export_snapshot`` has no such point.

A table is divided into portions, which may be read side by side and by different processes.
"""

from pgsluice.snapshots.keeper import SnapshotFile, keep_for_readers
from pgsluice.snapshots.plan import plan_portions
from pgsluice.snapshots.published_content import PublishedContent, published_content
from pgsluice.snapshots.ranges import PORTION_BYTES, WHOLE, Portion, Read
from pgsluice.snapshots.reader import (
    ReadRows,
    TableLocked,
    TableQuery,
    TableRewritten,
    read_portion,
    read_rows,
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
    "TableLocked",
    "TableQuery",
    "TableRewritten",
    "export_again",
    "import_snapshot",
    "keep_for_readers",
    "plan_portions",
    "published_content",
    "read_portion",
    "read_rows",
    "temporary_snapshot",
]
