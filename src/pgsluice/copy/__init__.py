"""Initial copies: one COPY for each table, which the stream continues without a gap.

Every copy reads under the snapshot of a new replication slot, and its position is that slot's
consistent point: what committed before it is in the snapshot, and what committed after it comes
with the stream. ``pg_export_snapshot`` has no such point.

A table that was renamed is copied from the target that it had, without a snapshot.
"""

from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
from pgsluice.copy.reader import TableRewritten
from pgsluice.copy.renamed import CopyRenamed
from pgsluice.copy.snapshot import Snapshot, import_snapshot, temporary_snapshot

__all__ = [
    "CopyRenamed",
    "CopyResult",
    "CopyTables",
    "CopyWork",
    "Snapshot",
    "TableRewritten",
    "import_snapshot",
    "temporary_snapshot",
]
