"""The place of a table that is not there yet, where ``merge = "auto"``: its first copy decides.

A table keeps the way of merging that it got. Otherwise somebody's reader, which cannot read
deletion vectors, would fail on the day when the table has grown enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, StagedRows, TargetIdentity, TargetTable
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.log import no_table
from pgsluice.sinks.delta.vector_handle import VectorHandle

if TYPE_CHECKING:
    from pgsluice.sinks.delta.sink import DeltaSink

LARGE_BYTES = 4 * 2**20
"""A MERGE of a few hundred keys anywhere in a larger table takes over 0.2 s: 45 ms a MB."""


class NewTableHandle(DeltaHandle):
    """Makes a table; one that is large has deletion vectors from the beginning.

    Args:
        folder: the table's, on a disk.
    """

    def __init__(
        self, sink: DeltaSink, table: TargetTable, identity: TargetIdentity, folder: Path
    ) -> None:
        super().__init__(sink, table, identity)
        self._folder = folder

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        return self.commit_load([self.stage_load(rows)], position)

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        size = sum(part.bytes_written for part in staged)
        # Rows of a table without a key are only added, which rewrites no file in any way.
        has_key = any(not field.nullable for field in self._table.schema)
        if self.version >= 0 or not has_key or size < LARGE_BYTES:
            return super().commit_load(staged, position)
        place = no_table(self._folder)
        made = VectorHandle(self._sink, self._table, self._identity, place)
        applied = made.commit_load(staged, position)
        self._delta = self._open()
        return applied
