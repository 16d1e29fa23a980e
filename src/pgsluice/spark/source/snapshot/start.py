"""A stream that starts with the rows of its table.

In addition to the position, its offsets have the progress (``snapshot``):

- ``staging N``: in N batches, tasks have written rows to the spool. Such a batch has no rows, so
  repeating it is harmless. If its snapshot is lost, or a row could not be read, the next batch
  starts again under a new snapshot. If all rows are written, another process of the query delivers
  them: with availableNow, Spark 4.0 and 4.1 start one for each batch.
- ``rows N``: N files of rows are delivered. The files are complete and do not change, so a repeated
  batch has the same rows.
- ``read``: all rows are delivered. The stream continues at the snapshot's position.

Only tasks read rows. The planning process holds the snapshot meanwhile.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pgsluice.capture.source.slot import check_identity
from pgsluice.errors import ConfigError, SourceUnreachable, SpoolFull, TableError
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection, connect_sql, source_errors
from pgsluice.snapshots.plan import plan_portions
from pgsluice.snapshots.ranges import Portion, size_bytes
from pgsluice.snapshots.reader import TableRewritten
from pgsluice.snapshots.snapshot import export_again, temporary_snapshot
from pgsluice.spark.source.options import SourceOptions, TableName
from pgsluice.spark.source.schema import change_columns, columns_before
from pgsluice.spark.source.snapshot.reader import SLOT_TIMEOUT_S
from pgsluice.spark.source.snapshot.rows import SnapshotRows
from pgsluice.spark.source.snapshot.table import TableSelection, hints_of_a_read, refuse_standby
from pgsluice.spool import SpoolIdentity
from pgsluice.spool.segments.batch_limits import BatchLimits
from pgsluice.spool.snapshot_files import Attempt, CompleteSnapshot, SnapshotFiles
from pgsluice.types import TypeOptions

if TYPE_CHECKING:
    from pgsluice.replication.session import SqlSession

MOST_ATTEMPTS = 5
"""How often a planning process tries to have the rows written before it gives up."""
_STAGING, _ROWS, _READ = "staging", "rows", "read"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stream's progress with its initial rows, as in its offsets."""

    kind: str = _STAGING
    number: int = 0

    @classmethod
    def of(cls, text: str) -> Stage:
        """The stage that an offset of the query has as text."""
        kind, _, number = text.partition(" ")
        return cls(kind, int(number or 0))

    def __str__(self) -> str:
        return self.kind if self.is_over else f"{self.kind} {self.number}"

    @property
    def is_over(self) -> bool:
        """Whether the stream has delivered all rows of its table."""
        return self.kind == _READ

    @property
    def delivered(self) -> int:
        """How many files of rows the stream has delivered."""
        return self.number if self.kind == _ROWS else 0


OVER = Stage(_READ)


@dataclass
class StagePartition(InputPartition):
    """The chunks that a task writes to the spool; it returns no rows."""

    attempt: str
    portions: tuple[tuple[int, Portion], ...]
    rows: SnapshotRows


@dataclass
class RowsPartition(InputPartition):
    """The work of a task that returns the rows of a file in the spool."""

    name: str


class SnapshotStart:
    """Plans and reads the batches of the initial rows.

    One process plans; tasks get a pickled copy, which only reads.

    Args:
        options: the query's options.
        declared: the query's schema.
        identity: returns the spool's identity.
    """

    def __init__(
        self, options: SourceOptions, declared: pa.Schema, identity: Callable[[], SpoolIdentity]
    ) -> None:
        assert options.subscription is not None
        self._options = options
        self._declared = declared
        self._identity = identity
        self._files = SnapshotFiles(options.spool, options.subscription)
        self._session: SqlSession | None = None
        self._attempts = 0

    def next(
        self, start: Lsn, stage: Stage, registration: str, limits: BatchLimits
    ) -> tuple[Lsn, Stage]:
        """Where the next batch ends.

        Args:
            start: the end of the last batch.
            limits: the limits of a batch, which takes at least one file.
        """
        complete = self._complete(registration)
        if complete is None:
            return start, Stage(_STAGING, stage.number + 1)
        rows, size, files = limits.rows, limits.size_bytes, limits.segments
        number = stage.delivered
        for file in complete.files[stage.delivered :]:
            if number > stage.delivered and (rows < file.rows or size <= 0 or files <= 0):
                break
            rows, size, files = rows - file.rows, size - file.size_bytes, files - 1
            number += 1
        is_over = number == len(complete.files)
        return complete.position, OVER if is_over else Stage(_ROWS, number)

    def partitions(self, before: Stage, after: Stage, registration: str) -> list[InputPartition]:
        """The tasks of a batch.

        Raises:
            PgsluiceError: the table cannot be read, or rows that were written are missing.
        """
        if after.kind == _STAGING:
            complete = self._complete(registration)
            return [] if complete is not None else list(self._begin(registration))
        complete = self._files.complete(registration)
        if complete is None:
            raise ConfigError(
                f"the spool no longer has the rows of the first copy of table "
                f"{self._options.table}, and the query has not read all of them",
                hint="empty the table that the query writes, and start the query with another "
                "checkpointLocation",
            )
        last = len(complete.files) if after.is_over else after.number
        return [RowsPartition(file.name) for file in complete.files[before.delivered : last]]

    def read(self, partition: StagePartition | RowsPartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows; the rows of a chunk are written to the spool instead."""
        if isinstance(partition, RowsPartition):
            yield from self._files.read(partition.name, self._declared)
            return
        with hints_of_a_read("restart the query"):
            for number, portion in partition.portions:
                try:
                    rows = partition.rows.read(portion, number)
                    self._files.write(partition.attempt, number, rows, self._declared)
                except (SourceUnreachable, TableRewritten):
                    return  # the next batch begins again, under a new snapshot

    def clear(self) -> None:
        """Delete the files of the rows, all of which are delivered."""
        self._files.clear()

    def close(self) -> None:
        """End the session that holds the snapshot of the table's rows, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _complete(self, registration: str) -> CompleteSnapshot | None:
        """All rows, if they are completely written, also by an earlier process."""
        complete = self._files.complete(registration)
        if complete is not None:
            return complete
        attempt = self._files.attempt(registration)
        if attempt is None:
            return None
        written = self._files.written(attempt.name)
        if len(written) < attempt.chunks or not self._is_usable(attempt):
            return None
        files = tuple(written[number] for number in range(attempt.chunks))
        complete = CompleteSnapshot(attempt.position, files)
        self._files.finish(complete, registration)
        self.close()
        return complete

    def _is_usable(self, attempt: Attempt) -> bool:
        """Whether the stream can continue after an attempt's rows.

        The server is asked for its timeline: it may have been promoted since the attempt, at an
        earlier position, and capture may not have noticed yet.
        """
        dsn, identity = self._options.dsn, self._identity()
        if dsn is None or attempt.content != self._content(identity):
            return False
        with ReplicationConnection.connect(dsn) as walsender:
            system = walsender.identify_system()
        check_identity(identity, system)
        return system.timeline == attempt.timeline and identity.has(
            attempt.timeline, attempt.position
        )

    def _content(self, identity: SpoolIdentity) -> str:
        """A digest of the query's columns and of the publications that send its rows."""
        digest = hashlib.sha256(self._declared.serialize())
        digest.update(repr(sorted(identity.publications)).encode())
        return digest.hexdigest()

    def _begin(self, registration: str) -> Iterator[StagePartition]:
        """Take a snapshot, and plan the tasks that write its rows."""
        dsn, table = self._options.dsn, self._options.table
        if dsn is None or table is None:
            raise ConfigError(
                "the query has not read all rows of the table that its stream starts with, and "
                "reads the others from the server",
                hint="set the options dsn and table to the values of the query's first start",
                option="dsn",
            )
        self._attempts += 1
        if self._attempts > MOST_ATTEMPTS:
            raise TableError(
                f"the query tried to read the rows of table {table} in {MOST_ATTEMPTS} batches, "
                "and no attempt read all rows",
                hint="check that the function of foreachBatch reads all rows of the DataFrame that "
                "it gets, and that no program rewrites the table again and again (TRUNCATE, "
                "VACUUM FULL, ALTER TABLE); then start the query again",
                table=str(table),
            )
        self.close()
        self._files.begin()
        identity = self._identity()
        rows, portions = self._plan(dsn, table, identity)
        attempt, snapshot = secrets.token_hex(4), rows.snapshot
        plan = Attempt(
            attempt, snapshot.position, snapshot.timeline, len(portions), self._content(identity)
        )
        self._files.note(plan, registration)
        numbered = list(enumerate(portions))
        workers = min(self._options.copy_workers, len(portions))
        for worker in range(workers):
            yield StagePartition(attempt, tuple(numbered[worker::workers]), rows)

    def _plan(
        self, dsn: str, table: TableName, identity: SpoolIdentity
    ) -> tuple[SnapshotRows, tuple[Portion, ...]]:
        changes = change_columns(self._options.change_column_prefix)
        columns = columns_before(self._declared.names, changes)
        types = TypeOptions(numeric=self._options.numeric)
        selection = TableSelection(table, columns, types, identity.publications)
        with ReplicationConnection.connect(dsn) as walsender:
            check_identity(identity, walsender.identify_system())
        session = self._session = connect_sql(dsn, application="snapshot of a stream")
        with source_errors(f"planning the read of {table}"):
            refuse_standby(session)
            with temporary_snapshot(dsn, SLOT_TIMEOUT_S) as of_slot:
                snapshot = export_again(session, of_slot)
            query = selection.query(session)
            portions = plan_portions(session, [query.facts], at_once=self._options.copy_workers)[
                query.facts.oid
            ]
        needed, free = sum(map(size_bytes, portions)), shutil.disk_usage(self._files.folder).free
        if needed > free:
            raise SpoolFull(
                f"pgsluice writes the rows of table {table} (about {needed >> 20} MiB) "
                f"to the spool first, and the spool's disk has only {free >> 20} MiB free",
                hint="free disk space, or give the spool a larger disk",
                path=str(self._files.folder),
            )
        return SnapshotRows(dsn, snapshot, query, self._declared), portions
