"""Copies tables: tasks read chunks of tables under one snapshot and stage them, and the driver
commits each table once.

The code that reads tables is imported only in tasks that read one, not in workers that apply
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgsluice.copy.partition_rows import (
    StagedPartitionRows,
    deletes_of_rows,
    portions_in,
    stage_partition_rows,
    stage_ranges,
)
from pgsluice.copy.priority import stand_back
from pgsluice.errors import Failure, ParkReason, PgsluiceError, Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.hints import COPIES_AGAIN
from pgsluice.lsn import Lsn
from pgsluice.rejects.copied import CopiedRejects
from pgsluice.rejects.keys import table_key
from pgsluice.rejects.table import RejectsPlace
from pgsluice.row_filter import FilterEvaluator
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import StagedChanges, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.target import TableOptions, check_hidden, column_type, target_table
from pgsluice.sinks.writers import refuse_deleted_column, refuse_history, table_writer
from pgsluice.snapshots.ranges import Portion
from pgsluice.spark.jobs.tasks import attempt

if TYPE_CHECKING:
    from pgsluice.snapshots.read_session import ReadSession
    from pgsluice.snapshots.reader import TableQuery, TableReader
    from pgsluice.snapshots.snapshot import Snapshot
    from pgsluice.verification import KeyRanges

_TABLE_S = 2.0


@dataclass(frozen=True, slots=True)
class CopyWork:
    """One table to copy.

    Attributes:
        facts: the metadata of the table or partition root.
        columns: the columns that the server's publications send; None: all that are not generated.
        row_filter: the server's row filters, combined with OR; None: all rows.
        unlisted: column -> leaf partitions in whose rows it is NULL, because their column lists
            lack it.
        is_key_proved: the source guarantees that two rows never have the same key.
        copy_number: the number for the target, higher than all before; with ``leaves``, its current
            number.
        leaves: the partitions whose rows are loaded into the existing target.
        gone_bounds: SQL conditions on rows of removed partitions; the source's rows with these
            conditions replace those of the target. Without these and ``leaves``, all rows of the
            table make a new copy.
        is_gone: functions that compute the same conditions on the target's rows.
        predecessor_oids, may_replace_foreign_target: see
            :class:`pgsluice.sinks.contract.TargetTable`.
    """

    facts: RelationFacts
    namespace: str
    name: str
    columns: tuple[str, ...] | None
    row_filter: str | None
    copy_number: int
    predecessor_oids: tuple[int, ...] = ()
    may_replace_foreign_target: bool = False
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_key_proved: bool = True
    leaves: tuple[int, ...] = ()
    gone_bounds: tuple[str, ...] = ()
    is_gone: FilterEvaluator | None = field(default=None, compare=False, repr=False)

    @property
    def title(self) -> str:
        """The target's name for messages."""
        return f"{self.namespace}.{self.name}"

    @property
    def replaces_partitions(self) -> bool:
        """Whether only the rows of some partitions are replaced at the target."""
        return bool(self.leaves or self.gone_bounds)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of one copy.

    Attributes:
        copy_number: the target's copy number; higher than the work's if the copy came too late.
        rejects: how many rejects are open afterwards; None: as many as before.
    """

    rows: int
    version: int
    copy_number: int = 0
    rejects: int | None = None


@dataclass(frozen=True, slots=True)
class CopyTables:
    """Copies tables under one snapshot; picklable.

    What the driver calls may raise anything; :class:`pgsluice.errors.Failure` says what an error
    means for the table.

    Attributes:
        dsn: the source's connection string on the executors.
        snapshot: the snapshot for all tables, with its position.
        spool_id: the id of the spool whose stream continues the copies.
        rejects: where values that do not fit go; None: they are errors.
        table_s: after this time, a task starts no other chunk of a table, to give its core to other
            work.
    """

    dsn: str
    snapshot: Snapshot
    spool_id: str
    sink: dict[str, Any]
    options: TableOptions
    rejects: RejectsPlace | None = None
    table_s: float = _TABLE_S

    def stage_all(
        self, portions: Sequence[tuple[CopyWork, Portion]], stands_back: bool = False
    ) -> list[StagedRows | Failure | None]:
        """The task's part: read chunks of tables, and write their rows where no reader sees them.

        A second attempt stages them again; the files of the first one are never committed.

        Args:
            portions: the chunks; those of one table are consecutive.
            stands_back: run at low priority, behind other work that needs the core. Loads of
                partitions are merges, whose libraries keep their threads, so they always run at
                normal priority.

        Returns:
            the result of each chunk. After a failed chunk, or after some seconds, the remaining
            chunks of the table are not read, and their result is None.
        """
        if stands_back and not any(work.replaces_partitions for work, _ in portions):
            # The threads that a sink's library keeps have to begin before: batches use them, too.
            attempt(self.can_stage, portions[0][0])
            return stand_back(self.stage_all, portions)
        from pgsluice.snapshots.read_session import ReadSession

        results: list[StagedRows | Failure | None] = []
        with closing(ReadSession(self.dsn)) as session:
            for _, of_table in groupby(portions, lambda one: one[0].facts.oid):
                (work, first), *more = of_table
                of_work = [first, *(portion for _, portion in more)]
                results += self._stage_table(session, work, of_work)
        return results

    def _stage_table(
        self, session: ReadSession, work: CopyWork, portions: Sequence[Portion]
    ) -> list[StagedRows | Failure | None]:
        from pgsluice.snapshots.reader import table_reader

        results: list[StagedRows | Failure | None] = []
        ends_at = time.monotonic() + self.table_s
        try:
            table = self._table(work)
            if self.options.mode.history is not None:
                refuse_history(table, self.options.mode.history)
            if self.options.mode.deleted_column is not None:
                refuse_deleted_column(table, self.options.mode.deleted_column)
            _refuse_without_columns(work, table)
            query = self._query(work, table)
            with table_reader(self.dsn, self.snapshot, query, portions, session=session) as reader:
                for portion in portions:
                    if not results or time.monotonic() < ends_at:
                        results.append(self._stage(work, table, reader, portion))
        except Exception as error:
            results.append(Failure.of(error))
        return results + [None] * (len(portions) - len(results))

    def _query(self, work: CopyWork, table: TargetTable) -> TableQuery:
        from pgsluice.snapshots.reader import TableQuery

        by_name = {column.name: column for column in work.facts.columns}
        return TableQuery(
            facts=work.facts,
            columns=tuple(table.schema.names),
            types=tuple(
                column_type(by_name[name], work.facts, self.options) for name in table.schema.names
            ),
            row_filter=work.row_filter,
            unlisted=work.unlisted,
        )

    def _stage(
        self, work: CopyWork, table: TargetTable, reader: TableReader, portion: Portion
    ) -> StagedRows:
        rejects = self._rejects(work)
        rows = rejects.batches(reader, portion, table.schema)
        writer = self._writer(work, table)
        if work.replaces_partitions:
            is_gone = work.is_gone if any(read.is_of_gone for read in portion) else None
            loaded: StagedRows = stage_partition_rows(writer, table, rows, is_gone, rejects)
        else:
            sizes: list[int] = []

            def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
                sizes.append(len(batch))
                return batch

            # A map keeps no batch.
            staged = writer.stage_load(map(counted, rows), self.snapshot.position)
            loaded = replace(staged, rows=sum(sizes))
        rejects.write()
        return loaded

    def _rejects(self, work: CopyWork, *, of_ranges: bool = False) -> CopiedRejects:
        return CopiedRejects(
            self.rejects,
            work.facts.oid,
            work.copy_number,
            self.snapshot.position,
            table_key(work.facts, self.options),
            is_copy=not work.replaces_partitions and not of_ranges,
        )

    def commit(self, work: CopyWork, staged: Sequence[StagedRows]) -> CopyResult:
        """The driver's part: in one commit, make all staged chunks the content of a table, or
        replace the rows of partitions by them."""
        writer = self.writer(work)
        if work.replaces_partitions:
            applied = writer.commit_changes(_changes_of(staged), self.snapshot.position)
            if applied.skipped:
                _refuse_past(writer.position(), self.snapshot.position, work.title)
        else:
            applied = writer.commit_load(staged, self.snapshot.position)
        return CopyResult(sum(part.rows for part in staged), applied.version, applied.copy_number)

    def stage_ranges(
        self,
        work: CopyWork,
        writer: TableWriter,
        ranges: KeyRanges,
        portions: Sequence[Portion],
        is_stopping: Callable[[], bool],
    ) -> StagedChanges:
        """Read the rows of some ranges of keys, and stage them in place of those of the target.

        Args:
            writer: a writer of the target, open at the version in which the ranges were found.
            portions: all of the table.
            is_stopping: it ends with an error soon after this is true.
        """
        from pgsluice.snapshots.reader import table_reader

        def until_stop() -> Iterator[Portion]:
            for portion in read:
                if is_stopping():
                    raise PgsluiceError("asked to stop")
                yield portion

        table, read = self._table(work), portions_in(ranges, portions)
        with table_reader(self.dsn, self.snapshot, self._query(work, table), read) as reader:
            rejects = self._rejects(work, of_ranges=True)
            staged = stage_ranges(
                writer,
                rejects.deleting(deletes_of_rows(writer, table, [ranges])),
                (rejects.batches(reader, portion, table.schema) for portion in until_stop()),
                table.key,
            )
            rejects.write()
            return staged

    def writer(self, work: CopyWork) -> TableWriter:
        """The writer of a table's target."""
        return self._writer(work, self._table(work))

    def kept_columns(self, work: CopyWork) -> frozenset[str]:
        """The columns that the table does not have, and that its target keeps through a copy: none
        of a target of current rows."""
        mode = self.options.mode_of(work.facts.root_namespace, work.facts.root_name)
        if not mode.own_columns:
            return frozenset()
        schema = self.writer(work).schema()
        there = frozenset(() if schema is None else schema.names)
        return there - {*mode.own_columns, *(column.name for column in work.facts.columns)}

    def discard(self, work: CopyWork, staged: Sequence[StagedRows]) -> None:
        """Delete staged chunks for which no commit was started or will be."""
        writer = self.writer(work)
        if work.replaces_partitions:
            writer.discard_changes(_changes_of(staged))
        else:
            writer.discard_load(staged)

    def can_stage(self, work: CopyWork) -> bool:
        """Whether several tasks can stage the table; otherwise one task has to load all of it."""
        return self.writer(work).can_stage()

    def _table(self, work: CopyWork) -> TargetTable:
        check_hidden(work.facts, self.options)
        return replace(
            target_table(work.facts, self.options, work.columns),
            namespace=work.namespace,
            name=work.name,
            predecessor_oids=work.predecessor_oids,
            may_replace_foreign_target=work.may_replace_foreign_target,
            is_key_proved=work.is_key_proved,
        )

    def _writer(self, work: CopyWork, table: TargetTable) -> TableWriter:
        mode = self.options.mode_of(work.facts.root_namespace, work.facts.root_name)
        identity = TargetIdentity(self.spool_id, work.facts.oid, work.copy_number, mode)
        return table_writer(make_sink(self.sink), table, identity)


def _changes_of(staged: Sequence[StagedRows]) -> list[StagedChanges]:
    """The changes that loads of partitions have staged."""
    changes = (part.changes for part in staged if isinstance(part, StagedPartitionRows))
    return [part for part in changes if part is not None]


def _refuse_past(reached: Lsn | None, position: Lsn, title: str) -> None:
    """Raise an error that leads to a new copy if the target is past the snapshot.

    An earlier attempt may have committed, unrecorded, with rows of a primary that a promotion has
    replaced since. Then the target has rows of the old primary, and would skip commits of the new
    primary at lower positions. A copy of the whole table gets a new copy number.
    """
    if reached is not None and reached > position:
        raise TableError(
            f"the target of table {title} is at {reached}, past the snapshot of the table's"
            f" partitions at {position}",
            hint=COPIES_AGAIN,
            table=title,
            remedy=Remedy.COPY,
        )


def _refuse_without_columns(work: CopyWork, table: TargetTable) -> None:
    title = work.title
    if not table.schema.names:
        raise TableError(
            f"the publications in use send no column of table {title}",
            hint="have a publication send a column: add one to the table, or to the publication's "
            "column list (a list without columns, or generated columns alone, send none); or "
            "remove the table from the publication. pgsluice then copies the table by itself",
            table=title,
            reason=ParkReason.COLUMNS,
        )
