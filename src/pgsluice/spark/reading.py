"""Plans and reads a range of the spool as rows, for streaming and batch queries.

A partition is a range of LSNs. A task gets only this range from the planning process, and reads
the segments from the spool itself.
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
from pgsluice.columnar.definitions import Definition
from pgsluice.errors import ConfigError
from pgsluice.lsn import Lsn
from pgsluice.spark.lookup import is_of, oids_of
from pgsluice.spark.messages import message_batches
from pgsluice.spark.options import SourceOptions, TableName
from pgsluice.spark.rows import envelope_batches, table_batches
from pgsluice.spark.schema import CHANGE_COLUMNS, ENVELOPE_COLUMNS
from pgsluice.spool import SegmentInfo, SegmentView, SpoolReader
from pgsluice.types import TypeOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARTITION_BYTES = 16 * 1024 * 1024
"""Small neighbouring segments share a task up to this size."""


@dataclass
class ChangePartition(InputPartition):
    """The LSNs (after, through], which lie in neighbouring segments."""

    after: int
    through: int


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads partitions as rows; it can be pickled.

    Attributes:
        spool: the spool's folder, which the executors can read under the same path.
        table: the table to read; None: envelope rows of all tables.
    """

    spool: Path
    table: TableName | None
    declared: pa.Schema
    types: TypeOptions

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> RowReader:
        """Make a reader for a query's options and schema.

        Raises:
            ConfigError: the user gave a schema that lacks columns of every row.
        """
        declared = to_arrow_schema(schema, timezone="UTC")
        prefix = options.change_column_prefix
        required = [] if options.table is not None else [name for name, _ in ENVELOPE_COLUMNS]
        required += [prefix + name for name, _ in CHANGE_COLUMNS]
        if declared.names[len(declared) - len(required) :] != required:
            raise ConfigError(
                "the given schema does not end with " + ", ".join(required),
                hint="remove .schema(...): the source declares its columns itself",
            )
        return cls(options.spool, options.table, declared, TypeOptions(numeric=options.numeric))

    def read(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows; the rows of each table are in commit order."""
        reader = SpoolReader(self.spool)
        for view in reader.views_between(Lsn(partition.after), Lsn(partition.through)):
            yield from self._rows(view)

    def _rows(self, view: SegmentView) -> Iterator[pa.RecordBatch]:
        if self.table is None:
            yield from message_batches(view, self.declared)
            for changes in decode_segment(view, None, self.types):
                yield from envelope_batches(changes, self.declared)
            return
        oids = oids_of(view, self.table)
        for changes in decode_segment(view, oids, self.types) if oids else ():
            # A renamed relation belongs to the table only while it has the table's name.
            if is_of(Definition(changes.relation, changes.facts), self.table):
                yield from table_batches(changes, self.declared)


def plan(infos: Sequence[SegmentInfo], start: Lsn, end: Lsn) -> list[ChangePartition]:
    """Divide segments, in order, into partitions of about PARTITION_BYTES.

    Segments without changes are in no partition.
    """
    partitions: list[ChangePartition] = []
    size_bytes, reached = 0, start
    for info in infos:
        after, through = reached, min(end, info.end)
        reached = through
        if not info.header.counts.changes:
            continue
        if partitions and size_bytes + info.size_bytes <= PARTITION_BYTES:
            partitions[-1].through = through
            size_bytes += info.size_bytes
        else:
            partitions.append(ChangePartition(int(after), int(through)))
            size_bytes = info.size_bytes
    return partitions
