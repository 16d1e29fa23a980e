"""Converts rows that were read under a snapshot to the stream's change rows.

A row becomes an insert at the snapshot's position, by the same code as in a stream. It belongs to
no transaction, so ``_xid`` and ``_commit_timestamp`` are NULL. ``_ordinal`` is unique within one
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from pgsluice.columnar import RelationChanges
from pgsluice.columnar.changes import INSERT, Tuples
from pgsluice.snapshots.ranges import Portion
from pgsluice.snapshots.reader import ReadRows, TableQuery, table_reader
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.source.rows import table_batches
from pgsluice.spark.source.schema import CHANGE_COLUMNS
from pgsluice.wire import Relation, RelationColumn, ReplicaIdentity

ORDINALS_OF_A_PORTION = 2**40
"""A number larger than the rows of any chunk."""
_LOCK_TIMEOUT_S = 30
_NAMES = [name for name, _ in CHANGE_COLUMNS]
_WITHOUT_TRANSACTION = ("commit_timestamp", "xid")


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Reads chunks of a table under a snapshot as rows of a query; picklable.

    Attributes:
        dsn: the server's connection string on the executors.
        declared: the query's schema: the columns of ``query``, then the change columns.
        lock_timeout_s: how long to wait for a lock on the table.
    """

    dsn: str
    snapshot: Snapshot
    query: TableQuery
    declared: pa.Schema
    lock_timeout_s: int = _LOCK_TIMEOUT_S

    def read(self, portion: Portion, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk.

        Args:
            number: the chunk's number, which makes its ordinals unique.

        Raises:
            PgsluiceError: as :func:`pgsluice.snapshots.reader.table_reader`.
        """
        ordinal = number * ORDINALS_OF_A_PORTION
        with table_reader(
            self.dsn, self.snapshot, self.query, [portion], lock_timeout_s=self.lock_timeout_s
        ) as reader:
            for rows in reader.rows(portion):
                changes = self._changes(rows, ordinal)
                for batch in table_batches(changes, self.declared, self._key):
                    yield _without_transaction(batch)
                ordinal += len(rows)

    @property
    def _key(self) -> tuple[str, ...]:
        """The columns that identify a row, as the stream has them."""
        facts = self.query.facts
        names = facts.primary_key if facts.replica_identity == "f" else facts.identity_key
        return tuple(column.name for column in facts.columns if column.name in names)

    def _changes(self, rows: ReadRows, ordinal: int) -> RelationChanges:
        count = len(rows)
        facts = self.query.facts
        names = self.query.columns
        columns = tuple(RelationColumn(0, name, 0, -1) for name in names)
        unfit = {n: rows.unfit(n) for n in rows.sent}
        values = tuple(each.values for each in rows.columns)
        nothing = np.zeros(count, np.int64)
        none = np.full(count, -1, np.int64)
        return RelationChanges(
            relation=Relation(
                facts.oid, facts.namespace, facts.name, ReplicaIdentity.NOTHING, columns
            ),
            facts=facts,
            schema=pa.schema(
                [pa.field(name, value.type) for name, value in zip(names, values, strict=True)]
            ),
            actions=np.full(count, INSERT, np.uint8),
            positions=np.full(count, int(self.snapshot.position), np.int64),
            ordinals=np.arange(ordinal, ordinal + count),
            commit_timestamps=nothing,
            xids=nothing,
            new=Tuples(values, {}, unfit, {n: partial(rows.text, n) for n in unfit}),
            new_index=np.arange(count),
            old=Tuples(tuple(value.slice(0, 0) for value in values), {}, {}),
            old_index=none,
            old_kinds=np.zeros(count, np.uint8),
        )


def _without_transaction(batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = batch.columns
    first = len(arrays) - len(_NAMES)
    for name in _WITHOUT_TRANSACTION:
        index = first + _NAMES.index(name)
        arrays[index] = pa.nulls(len(batch), arrays[index].type)
    return pa.record_batch(arrays, schema=batch.schema)
