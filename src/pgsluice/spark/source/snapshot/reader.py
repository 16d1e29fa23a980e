"""``spark.read`` with ``snapshot``: the rows of a table at one position.

The snapshot is taken when Spark plans the query, so each action has a separate one, unless Spark
reuses a plan. Its position is in ``_commit_version`` of every row.

- A small table is read by one task, which takes the snapshot itself.
- A large table is read by several tasks, one for each chunk. A process holds their snapshot
  (:mod:`pgsluice.snapshots.keeper`) until it has had no readers for a while.

Spark's filters are passed to the server if no row can get lost. Spark evaluates them on each row
again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pgsluice.catalog.partitions.leaves import leaf_sizes
from pgsluice.replication import connect_sql
from pgsluice.snapshots.keeper import FIRST_READER_S, IDLE_S, keep_for_readers
from pgsluice.snapshots.plan import plan_portions
from pgsluice.snapshots.ranges import PORTION_BYTES, WHOLE, Portion
from pgsluice.snapshots.reader import TableQuery
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot, temporary_snapshot
from pgsluice.spark.source.api import arrow_schema
from pgsluice.spark.source.options import SnapshotOptions
from pgsluice.spark.source.schema import change_columns, columns_before
from pgsluice.spark.source.snapshot.rows import SnapshotRows
from pgsluice.spark.source.snapshot.table import (
    TableSelection,
    find_table,
    hints_of_a_read,
    refuse_standby,
)
from pgsluice.types import TypeOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SLOT_TIMEOUT_S = 300.0
"""How long a snapshot waits for the end of open writing transactions, in seconds."""
_GONE = (
    f"a snapshot is kept for {FIRST_READER_S:.0f} s until a task reads under it, and for "
    f"{IDLE_S:.0f} s after the last one. Call load() again for a newer snapshot; cache() or write "
    "the rows if they are needed more than once"
)
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass
class SnapshotPartition(InputPartition):
    """The work of one task.

    Attributes:
        number: the partition's number.
        portion: the chunk of the table; None: the whole table, under a snapshot of the task's own.
    """

    number: int = 0
    portion: Portion | None = None
    rows: SnapshotRows | None = None


def snapshot_reader(options: SnapshotOptions, schema: StructType) -> SnapshotReader:
    """The reader of a query; it accepts filters if Spark's setting allows it."""
    # Spark refuses a reader that takes filters while they are turned off, and says only by the
    # worker that it runs whether they are.
    name = getattr(sys.modules["__main__"].__spec__, "name", "")
    pushes = name == _PUSHING_WORKER or _PUSHING_WORKER in sys.modules
    if not pushes:
        return SnapshotReader(options, schema)
    # Spark 4.0 lacks the classes of filters.
    from pgsluice.spark.source.snapshot.pushed_filters import FilteringSnapshotReader

    return FilteringSnapshotReader(options, schema)


class SnapshotReader(DataSourceReader):
    """Plans the tasks of a snapshot, and reads its partitions in tasks.

    Args:
        idle_s: how long to hold the snapshot of several tasks without readers.

    Raises:
        ConfigError: the user gave a schema that lacks columns of every row.
    """

    def __init__(
        self, options: SnapshotOptions, schema: StructType, idle_s: float = IDLE_S
    ) -> None:
        self._idle_s = idle_s
        self._dsn = options.dsn
        self._workers = options.copy_workers
        self._declared = arrow_schema(schema)
        self._selection = TableSelection(
            options.table,
            columns_before(self._declared.names, change_columns(options.change_column_prefix)),
            TypeOptions(numeric=options.numeric),
            options.publications,
        )

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query; a snapshot is taken for them if there are several.

        Raises:
            PgsluiceError: the table cannot be read, or no snapshot can be made.
        """
        if self._size_bytes() <= PORTION_BYTES:
            return [SnapshotPartition()]
        with temporary_snapshot(self._dsn, SLOT_TIMEOUT_S) as of_slot:
            query, portions = self._plan(of_slot)
            snapshot = keep_for_readers(self._dsn, of_slot, self._idle_s)
        rows = SnapshotRows(self._dsn, snapshot, query, self._declared)
        return [
            SnapshotPartition(number, portion, rows)
            for number, portion in enumerate(gathered(portions, self._workers))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows.

        Raises:
            PgsluiceError: the table cannot be read, or the snapshot is gone.
        """
        assert isinstance(partition, SnapshotPartition)
        with hints_of_a_read(_GONE):
            if partition.rows is None or partition.portion is None:
                yield from self._read_alone()
            else:
                yield from partition.rows.read(partition.portion, partition.number)

    def _read_alone(self) -> Iterator[pa.RecordBatch]:
        """Read the whole table under a separate snapshot."""
        with temporary_snapshot(self._dsn, SLOT_TIMEOUT_S) as snapshot:
            query, portions = self._plan(snapshot)
            (portion,) = gathered(portions, 1)
            batches = SnapshotRows(self._dsn, snapshot, query, self._declared).read(portion, 0)
            first = next(batches, None)
        # The reader has imported the snapshot: the slot, which keeps WAL, is not needed any more.
        if first is not None:
            yield first
            yield from batches

    def _size_bytes(self) -> int:
        with (
            connect_sql(self._dsn, f"planning the read of {self._selection.table}") as connection,
            connection.transaction(),
        ):
            refuse_standby(connection)
            facts = find_table(connection, self._selection.table)
            leaves = leaf_sizes(connection, [facts.oid]).get(facts.oid)
        if leaves is None:  # it is locked
            return 0
        return sum(leaf.size_bytes for leaf in leaves)

    def _plan(self, snapshot: Snapshot) -> tuple[TableQuery, tuple[Portion, ...]]:
        with connect_sql(self._dsn, f"planning the read of {self._selection.table}") as connection:
            import_snapshot(connection, snapshot)
            query = self._selection.query(connection)
            portions = plan_portions(connection, [query.facts]).get(query.facts.oid, WHOLE)
        return query, portions


def gathered(portions: Sequence[Portion], most: int) -> list[Portion]:
    """Combine neighbouring chunks, so that there are at most ``most``."""
    count = min(most, len(portions))
    starts = [len(portions) * number // count for number in range(count + 1)]
    return [
        tuple(read for portion in portions[start:end] for read in portion)
        for start, end in pairwise(starts)
    ]
