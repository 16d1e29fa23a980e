"""Copies renamed tables, from the target of the old name to that of the new one.

The source is not read: the old target has every row, up to the position of its version. It is read
at that version, so two tables can swap their targets, in any order, and a crash does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgsluice.failpoints import failpoint
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.opened_table import read_content
from pgsluice.sinks.target import TableOptions, check_names
from pgsluice.spool import TableRecord

RenamedWork = tuple[int, TableRecord]
"""A table's OID (the partition root's) and its record: the old target, the position up to which it
is applied (``committed``), and the copy number for the new name."""


@dataclass(frozen=True, slots=True)
class CopyRenamed:
    """Copies renamed tables in tasks, between targets of one spool; picklable."""

    spool_id: str
    sink: dict[str, Any]
    options: TableOptions

    def run(self, work: RenamedWork) -> int | None:
        """Copy one table.

        Returns:
            the new target's version; None if the old target no longer has the rows.

        Raises:
            Exception: anything; :class:`pgsluice.errors.Failure` says what it means for the table.
        """
        mode = self.options.mode
        if mode.log is not None or mode.history is not None:
            return None  # it stays under its old name; another one begins
        oid, record = work
        check_names(self.options.names, record.target_name, ())
        old, sink = record.old_target, make_sink(self.sink)
        assert old is not None
        old_table = TargetTable(old.namespace, old.name, pa.schema([]), ())
        had_mode = self.options.mode_of(old.namespace, old.name)
        had = TargetIdentity(self.spool_id, oid, old.copy_number, had_mode)
        content = read_content(sink, old_table, had, old.version, record.committed)
        if content is None:
            return None
        table = TargetTable(
            record.namespace,
            record.name,
            content.schema,
            (),
            record.claim.predecessor_oids,
            record.claim.any_source,
        )
        has = self.options.mode_of(*record.target_name)
        identity = TargetIdentity(self.spool_id, oid, record.copy_number, has)
        # In two halves: deltalake must not be asked for rows from inside of its own writing.
        writer = TableWriter(sink, table, identity)
        staged = writer.stage_load(content.rows, record.committed)
        applied = writer.commit_load([staged], record.committed)
        failpoint("copy.renamed")
        return applied.version if applied.copy_number in (0, record.copy_number) else None
