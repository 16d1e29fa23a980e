"""Planning and reading a range of the spool as rows, for the stream and the batch side alike.

A partition names segments; a task reads them from the spool by itself. Nothing else that the
planning process knows reaches a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from pgsluice.columnar import decode_segment
from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.lookup import Definition, oids_of
from pgsluice.spark.messages import message_batches
from pgsluice.spark.options import SourceOptions, TableName
from pgsluice.spark.rows import envelope_batches, table_batches
from pgsluice.spark.schema import CHANGE_COLUMNS, ENVELOPE_COLUMNS
from pgsluice.spool import SegmentInfo, SegmentView, SpoolReader
from pgsluice.types import TypeOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARTITION_BYTES = 16 * 1024 * 1024
"""Small segments share a task until together they reach this."""


@dataclass
class ChangePartition(InputPartition):
    """Neighbouring segments, (after, through] of them."""

    after: int
    through: int


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads partitions as rows; it pickles.

    Attributes:
        spool: the folder, as the executors see it.
        table: the one table, or None for envelope rows.
        declared: the Arrow schema that Spark was told.
        types: how types travel.
    """

    spool: Path
    table: TableName | None
    declared: pa.Schema
    types: TypeOptions

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> RowReader:
        """For a query's options and its declared schema.

        Raises:
            ConfigError: a schema of the user's own lacks what every row has.
        """
        declared = to_arrow_schema(schema, timezone="UTC")
        prefix = options.change_column_prefix
        needed = [] if options.table is not None else [name for name, _ in ENVELOPE_COLUMNS]
        needed += [prefix + name for name, _ in CHANGE_COLUMNS]
        if declared.names[len(declared) - len(needed) :] != needed:
            raise ConfigError(
                "the schema that was given does not end with " + ", ".join(needed),
                hint="leave .schema() out; the source knows its columns",
            )
        return cls(options.spool, options.table, declared, TypeOptions(numeric=options.numeric))

    def read(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows, each table's in commit order."""
        reader = SpoolReader(self.spool)
        reached, through = Lsn(partition.after), Lsn(partition.through)
        for info in reader.segments(reached, through):
            # Segments may overlap: what an earlier one had is not read again.
            for view in reader.views(info, reached, through):
                yield from self._rows(view)
            reached = info.end

    def _rows(self, view: SegmentView) -> Iterator[pa.RecordBatch]:
        if self.table is None:
            yield from message_batches(view, self.declared)
            for changes in decode_segment(view, None, self.types):
                yield from envelope_batches(changes, self.declared)
            return
        oids = oids_of(view, self.table)
        for changes in decode_segment(view, oids, self.types) if oids else ():
            # A relation that was renamed counts while it has the name.
            if Definition(changes.relation, changes.facts).is_of(self.table):
                yield from table_batches(changes, self.declared)


def plan(infos: Sequence[SegmentInfo], start: Lsn, end: Lsn) -> list[ChangePartition]:
    """Segments in order as partitions of about PARTITION_BYTES; those without changes have
    none."""
    partitions: list[ChangePartition] = []
    filled, reached = 0, start
    for info in infos:
        after, through = reached, min(end, info.end)
        reached = through
        if not info.header.counts.changes:
            continue
        if partitions and filled + info.size_bytes <= PARTITION_BYTES:
            partitions[-1].through = through
            filled += info.size_bytes
        else:
            partitions.append(ChangePartition(int(after), int(through)))
            filled = info.size_bytes
    return partitions
