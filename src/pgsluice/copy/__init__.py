"""Initial copies: a slot's snapshot, one COPY a table, joined to the stream without a gap.

Every copy takes its snapshot from CREATE_REPLICATION_SLOT, and its position is that slot's
consistent point: what committed before it is in the snapshot, what committed after it comes
with the stream. ``pg_export_snapshot`` has no such point.
"""

from pgsluice.copy.job import CopyResult, CopyTables, CopyWork
from pgsluice.copy.reader import TableQuery, TableRewritten, read_table
from pgsluice.copy.snapshot import Snapshot, import_snapshot, temporary_snapshot

__all__ = [
    "CopyResult",
    "CopyTables",
    "CopyWork",
    "Snapshot",
    "TableQuery",
    "TableRewritten",
    "import_snapshot",
    "read_table",
    "temporary_snapshot",
]
