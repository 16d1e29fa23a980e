"""What is done for one table of a batch: decode, net, apply; and what is reported.

It is done in a Spark task, for several tables (:mod:`pgsluice.subscription.batches.work`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgsluice.errors import Failure, PgsluiceError, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Applied, StagedChanges, TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import SpoolReader
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.tasks.large_batch import (
    LARGE_BYTES,
    PIECE_BYTES,
    Outline,
    net_pieces,
)
from pgsluice.subscription.batches.tasks.table_changes import TableChanges
from pgsluice.subscription.batches.tasks.target_columns import (
    TargetColumns,
    columns_of,
    due_columns,
)
from pgsluice.subscription.batches.tasks.truncated_leaves import deletes_of_truncated

_SMALL_BYTES = 1 << 20
_KEEP_BYTES = 64 << 20
"""So many bytes of segments stay mapped while a task applies tables with few changes."""
_AT_ONCE = 4
"""How many tables with few changes are applied at the same time in one process."""


@dataclass(frozen=True, slots=True)
class ApplyTables:
    """Applies tables' work in tasks; it pickles.

    Attributes:
        spool_path: the spool, as the executors see it.
        spool_id: which spool it has to be.
        keep_versions: target versions by relation OID that readers of cuts rely on.
        rules: of pgsluice's publications, by table and by the relation that the server sends;
            None: there are no such publications, and everything is taken.
        sends_all_origins: the server also sends what replication wrote there (``origin``).
        large_bytes: a table's changes that are larger than this are read in pieces.
        piece_bytes: how large a piece is.
        commits_may_be_lost: other programs may overwrite commits in the target's store.
        staging_path: the subscription's folder for files between the tasks of a batch; None: tasks
            do not share the batch of a table.
    """

    spool_path: str
    spool_id: str
    sink: dict[str, Any]
    options: TableOptions
    keep_versions: dict[int, tuple[int, ...]]
    rules: Mapping[int, Mapping[int, Publisher]] | None = None
    sends_all_origins: bool = True
    large_bytes: int = LARGE_BYTES
    piece_bytes: int = PIECE_BYTES
    commits_may_be_lost: bool = False
    staging_path: str | None = None

    def run_all(self, works: Sequence[TableWork]) -> list[TaskResult | Failure]:
        """Apply several tables' work; one that fails leaves the others alone.

        Tables with few changes wait for the target's file system most of the time: several are
        applied at once. The others come one by one, so that memory holds the changes of one.
        """
        small = [work for work in works if work.size_bytes <= _SMALL_BYTES]
        large = [work for work in works if work.size_bytes > _SMALL_BYTES]
        run = partial(self.run, reader=SpoolReader(Path(self.spool_path), keep_bytes=_KEEP_BYTES))
        began = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            results = [*threads.map(partial(attempt, run), small)]
        results = shares_of(time.monotonic() - began, results)
        results += [attempt(self.run, work) for work in large]
        by_oid = {
            work.relation_oid: result for work, result in zip(small + large, results, strict=True)
        }
        return [by_oid[work.relation_oid] for work in works]

    def run(self, work: TableWork, reader: SpoolReader | None = None) -> TaskResult:
        """Apply one table's changes up to its work's end.

        Args:
            reader: of the spool; None: a new one.

        Raises:
            Exception: anything; :class:`pgsluice.errors.Failure` says what it means for the table.
        """
        writer, after, done_before = self.begin(work)
        if work.alter_facts:
            return self._alter(work, writer, done_before)
        return self._write_changes(self.changes(work, reader), writer, after) or done_before

    def begin(self, work: TableWork) -> tuple[TableWriter, Lsn, TaskResult]:
        """Ask the target where it is: after a crash between its commit and our record it may be
        further than the record says, and only what is past it may be applied.

        Returns:
            its writer, where the changes start that it lacks, and the result if there are none.

        Raises:
            TableError: it is not where it has to be.
        """
        writer = self._writer(work)
        reached = writer.position()
        if (reached or 0) < work.committed:
            if reached is not None and self.commits_may_be_lost:
                raise self._lost_commit(work, reached)
            where = "is gone" if reached is None else f"was rolled back to {reached}"
            raise TableError(
                f"{work.title}: the target {where}, before our commit at {work.committed}",
                hint=f"copy the table again: {copy_again(work.title)}",
                table=work.title,
            )
        committed = reached or Lsn(0)
        done_before = TaskResult(committed, writer.version(), skipped=True)
        after = max(work.after, committed)
        is_done = after >= work.through and not work.alter_facts
        copy_number = writer.copy_number()
        if not is_done and copy_number not in (None, work.copy_number):
            raise PgsluiceError(
                f"the target of {work.title} has copy {copy_number}, these changes are for "
                f"copy {work.copy_number}"
            )
        return writer, after, done_before

    def _lost_commit(self, work: TableWork, reached: Lsn) -> PgsluiceError:
        return PgsluiceError(
            f"{work.title}: another program has overwritten our commit at {work.committed} in the "
            f"table's log, and the target is at {reached} again",
            hint="let only programs write to this table that create its log's files conditionally",
            table=work.title,
            reached=int(reached),
        )

    def _writer(self, work: TableWork, table: TargetTable | None = None) -> TableWriter:
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number)
        shell = TargetTable(work.namespace, work.name, pa.schema([]), ())
        return TableWriter(make_sink(self.sink), table or shell, identity)

    def _alter(self, work: TableWork, writer: TableWriter, done_before: TaskResult) -> TaskResult:
        """Give the target the columns that a look found, though no change has brought them."""
        started = time.monotonic()
        added = due_columns(work, writer.schema(), self.options)
        applied = writer.alter(added, ())
        return replace(
            done_before,
            version=applied.version,
            skipped=applied.skipped,
            merge_s=time.monotonic() - started,
            is_altered=True,
        )

    def _write_changes(
        self, changes: TableChanges, writer: TableWriter, after: Lsn
    ) -> TaskResult | None:
        """Apply the changes; None: there are none.

        Where a column comes that rows from before it have a value in, the changes before it are
        applied first, in a commit of their own: then all rows of the target get the value.
        """
        work = changes.work
        is_large = work.size_bytes > self.large_bytes and writer.can_stage_changes()
        write = self._write_in_pieces if is_large else self._write_at_once
        result: TaskResult | None = None
        while after < work.through:
            started = time.monotonic()
            applied = write(changes, writer, after)
            if applied is None:
                break
            columns, done = applied
            writer.maintain(self.keep_versions.get(work.relation_oid, ()))
            done = replace(done, merge_s=time.monotonic() - started - done.decode_s)
            result = done if result is None else done.after(result)
            if columns.through is None:
                break
            after = max(done.committed, columns.through)
            writer = self._writer(work)
            writer.position()
        return result

    def _write_at_once(
        self, changes: TableChanges, writer: TableWriter, after: Lsn
    ) -> tuple[TargetColumns, TaskResult] | None:
        """Apply changes up to where the target needs other columns."""
        started, work = time.monotonic(), changes.work
        runs = changes.all(after, work.through)
        if not runs:
            return None
        columns = columns_of(work, runs, writer.schema(), self.options)
        if columns.through is not None:
            runs = changes.all(after, columns.through)
        truncates = changes.truncates(runs)
        deletes = deletes_of_truncated(work, truncates, writer, columns.table)
        writer.alter(columns.added, columns.widened)
        net = changes.net(runs, columns, truncates)
        decode_s = time.monotonic() - started
        last = Lsn(max(int(run.positions[-1]) for run in runs))
        # Through the writer that was asked for the position: should another attempt of this
        # task have moved the target since, it is seen.
        if deletes is None:
            applied = writer.apply(net, last)
        else:
            applied = writer.apply_pieces(chain(deletes, [net]), last)
        return columns, _result(applied, last, sum(map(len, runs)), decode_s, columns)

    def _write_in_pieces(
        self, changes: TableChanges, writer: TableWriter, after: Lsn
    ) -> tuple[TargetColumns, TaskResult] | None:
        """The same for changes that memory would not hold; they are one commit, too."""
        started, work = time.monotonic(), changes.work
        outline = Outline.between(changes, after, work.through)
        if not outline.runs:
            return None
        columns = columns_of(work, outline.runs, writer.schema(), self.options)
        if columns.through is not None:
            outline = Outline.between(changes, after, columns.through)
        deletes = deletes_of_truncated(work, outline.truncates, writer, columns.table)
        decode_s = time.monotonic() - started
        if writer.schema() is None:
            self.prepare(work, columns, after)
            writer = self._writer(work)
        writer.alter(columns.added, columns.widened)
        pieces = net_pieces(changes, outline, columns, after)
        applied = writer.apply_pieces(chain(deletes or (), pieces), outline.last)
        return columns, _result(applied, outline.last, outline.changes, decode_s, columns)

    def changes(self, work: TableWork, reader: SpoolReader | None = None) -> TableChanges:
        """The changes of a table's work.

        Args:
            reader: of the spool; None: a new one.
        """
        rules = None if self.rules is None else self.rules.get(work.relation_oid, {})
        return TableChanges(
            work,
            reader or SpoolReader(Path(self.spool_path)),
            self.options,
            rules,
            self.sends_all_origins,
            self.piece_bytes,
        )

    def prepare(self, work: TableWork, columns: TargetColumns, after: Lsn) -> None:
        """Give the target the columns that changes from ``after`` on need, or make it with them."""
        writer = self._writer(work)
        if writer.schema() is None:
            self._writer(work, columns.table).load([], after)
        else:
            writer.alter(columns.added, columns.widened)

    def commit(
        self,
        work: TableWork,
        staged: Sequence[StagedChanges],
        outline: Outline,
        may_discard: Callable[[], bool],
    ) -> TaskResult:
        """Commit what tasks have staged of changes that start at the target's position.

        Args:
            may_discard: see :meth:`pgsluice.sinks.fence.TableWriter.commit_or_discard`.
        """
        writer = self._writer(work)
        applied = writer.commit_or_discard(staged, outline.last, may_discard)
        writer.maintain(self.keep_versions.get(work.relation_oid, ()))
        return TaskResult(
            committed=outline.last,
            version=applied.version,
            changes=outline.changes,
            rows_skipped=applied.rows_skipped,
            skipped=applied.skipped,
        )


def shares_of(
    seconds: float, results: Sequence[TaskResult | Failure]
) -> list[TaskResult | Failure]:
    """Results of tables that were applied at the same time, each with its share of that time.

    Each table waited for the others as well. What is planned by these times (the pause until the
    next merge, how tables are divided among tasks) is about the work of one table.

    Args:
        seconds: how long all of them took together.
    """
    waited = sum(
        result.decode_s + result.merge_s for result in results if not isinstance(result, Failure)
    )
    share = min(1.0, seconds / waited) if waited else 1.0
    return [
        result
        if isinstance(result, Failure)
        else replace(result, decode_s=share * result.decode_s, merge_s=share * result.merge_s)
        for result in results
    ]


def _result(
    applied: Applied, last: Lsn, changes: int, decode_s: float, columns: TargetColumns
) -> TaskResult:
    return TaskResult(
        committed=last,
        version=applied.version,
        changes=changes,
        rows_skipped=applied.rows_skipped,
        skipped=applied.skipped,
        decode_s=decode_s,
        doubt=columns.doubt,
    )
