"""Plans and reads a range of the spool as rows, for streaming and batch queries.

A partition is a range of LSNs. A task gets only this range from the planning process, and reads
the segments from the spool itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pgsluice.columnar import decode_segment
from pgsluice.columnar.definitions import Definition
from pgsluice.errors import ConversionError, TableError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.api import arrow_schema
from pgsluice.spark.source.lookup import is_of, oids_of
from pgsluice.spark.source.messages import message_batches
from pgsluice.spark.source.options import SourceOptions, TableName
from pgsluice.spark.source.rows import envelope_batches, table_batches
from pgsluice.spark.source.schema import (
    CHANGE_COLUMNS,
    ENVELOPE_COLUMNS,
    change_columns,
    columns_before,
)
from pgsluice.spool import SegmentInfo, SegmentView, SpoolReader
from pgsluice.system.machine import begin_task
from pgsluice.types import TypeOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARTITION_BYTES = 16 * 1024 * 1024
"""Small neighbouring segments share a task up to this size, in bytes."""
_LEAVE_OUT = (
    "read the other tables with the option exclude_tables, or report the value's type as a bug"
)


@dataclass
class ChangePartition(InputPartition):
    """The LSNs (after, through], which are in neighbouring segments.

    Attributes:
        parts: the first part of a large transaction, and the one after the last; None: all.
    """

    after: int
    through: int
    parts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads partitions as rows; picklable.

    Attributes:
        spool: the spool's folder, which the executors can read under the same path.
        table: the table to read; None: envelope rows of all tables.
        excluded: tables that are excluded from envelope rows.
        driver: the machine that planned the query.
    """

    spool: Path
    table: TableName | None
    excluded: tuple[TableName, ...]
    declared: pa.Schema
    types: TypeOptions
    driver: str = field(default_factory=socket.gethostname)

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> RowReader:
        """The reader for a query's options and schema.

        Raises:
            ConfigError: the user gave a schema that lacks columns of every row.
        """
        declared = arrow_schema(schema)
        required = [] if options.table is not None else [name for name, _ in ENVELOPE_COLUMNS]
        columns_before(declared.names, [*required, *change_columns(options.change_column_prefix)])
        types = TypeOptions(numeric=options.numeric)
        return cls(options.spool, options.table, options.exclude_tables, declared, types)

    def read(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows; the rows of each table are in commit order."""
        begin_task(self.driver)
        reader = SpoolReader(self.spool)
        after, through = Lsn(partition.after), Lsn(partition.through)
        for view in reader.views_between(after, through, partition.parts):
            yield from self._rows(view)

    def _rows(self, view: SegmentView) -> Iterator[pa.RecordBatch]:
        if self.table is None:
            yield from message_batches(view, self.declared)
        oids = oids_of(view, self._is_wanted) if self.table or self.excluded else None
        if oids is not None and not oids:
            return
        batches = envelope_batches if self.table is None else table_batches
        try:
            for changes in decode_segment(
                view, oids, self.types, unfit_texts=True, columns=self._columns
            ):
                # A renamed relation belongs to a table only while it has the table's name.
                if self._is_wanted(Definition(changes.relation, changes.facts)):
                    yield from batches(changes, self.declared)
        except ConversionError as error:
            raise TableError(error.what, hint=error.hint or _LEAVE_OUT, **error.facts) from error

    @property
    def _columns(self) -> Sequence[str] | None:
        """The columns to decode: the declared ones; for envelope rows, all."""
        if self.table is None:
            return None
        names: list[str] = self.declared.names
        return names[: -len(CHANGE_COLUMNS)]

    def _is_wanted(self, definition: Definition) -> bool:
        if self.table is not None:
            return is_of(definition, self.table)
        return not any(is_of(definition, table) for table in self.excluded)


def plan(infos: Sequence[SegmentInfo], start: Lsn, end: Lsn) -> list[ChangePartition]:
    """Divide segments, in order, into partitions of about PARTITION_BYTES.

    Segments without changes are in no partition. The parts of a large transaction are divided
    as well.
    """
    partitions: list[ChangePartition] = []
    size_bytes, reached = PARTITION_BYTES, start
    for info in infos:
        after, through = reached, min(end, info.end)
        reached = through
        if not info.header.counts.changes:
            continue
        if info.size_bytes > PARTITION_BYTES and len(info.parts) > 1:
            partitions.extend(
                ChangePartition(int(after), int(through), parts)
                for parts in _ranges([part.size_bytes for part in info.parts])
            )
            size_bytes = PARTITION_BYTES
        elif size_bytes + info.size_bytes <= PARTITION_BYTES:
            partitions[-1].through = int(through)
            size_bytes += info.size_bytes
        else:
            partitions.append(ChangePartition(int(after), int(through)))
            size_bytes = info.size_bytes
    return partitions


def _ranges(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide parts of these sizes, in order, into ranges of about PARTITION_BYTES."""
    first, total = 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > PARTITION_BYTES:
            yield first, index
            first, total = index, 0
        total += size
    yield first, len(sizes)
