"""Initial copies: tasks read portions of tables, and the stream continues them without a gap.

Every copy reads under the snapshot of a new replication slot, and its position is that slot's
consistent point: what committed before it is in the snapshot, and what committed after it comes
with the stream. ``pg_export_snapshot`` has no such point.

A table that was renamed is copied from the target that it had, without a snapshot.
"""

from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
from pgsluice.copy.journal import CopyJournal
from pgsluice.copy.keeper import SnapshotFile
from pgsluice.copy.plan import plan_portions
from pgsluice.copy.reader import TableRewritten
from pgsluice.copy.renamed import CopyRenamed
from pgsluice.copy.snapshot import Snapshot, SnapshotGone, import_snapshot, temporary_snapshot
from pgsluice.copy.tasks import TableCopy, stage_tables

__all__ = [
    "CopyJournal",
    "CopyRenamed",
    "CopyResult",
    "CopyTables",
    "CopyWork",
    "Snapshot",
    "SnapshotFile",
    "SnapshotGone",
    "TableCopy",
    "TableRewritten",
    "import_snapshot",
    "plan_portions",
    "stage_tables",
    "temporary_snapshot",
]
