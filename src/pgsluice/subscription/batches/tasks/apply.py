"""Applies one table's share of a batch: decode, publish, net, write; and reports the result.

A Spark task does this for several tables (:mod:`pgsluice.subscription.batches.work`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pgsluice.changes.events import first_places
from pgsluice.errors import Failure, PgsluiceError, Remedy, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher
from pgsluice.rejects.table import RejectsPlace, rejected_values
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import StagedChanges, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.target import TableOptions
from pgsluice.sinks.writers import LogWriter, MarkingWriter, table_writer
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import SpoolReader
from pgsluice.stores.spool_place import SpoolPlace
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.tasks.large_batch import (
    LARGE_BYTES,
    PIECE_BYTES,
    Outline,
    net_pieces,
    read_twice,
)
from pgsluice.subscription.batches.tasks.table_changes import TableChanges
from pgsluice.subscription.batches.tasks.target_columns import (
    TargetColumns,
    columns_of,
    due_columns,
)
from pgsluice.subscription.batches.tasks.truncated_leaves import (
    deletes_of_truncated,
    refuse_truncated_leaves,
    truncated_at,
)

T = TypeVar("T")

_SMALL_BYTES = 1 << 20
_KEEP_BYTES = 64 << 20
"""How many bytes of segments stay mapped, or in memory if they are in a store, while a task applies
its tables: each table would read them again."""
_AT_ONCE = 4
"""How many tables with few changes one process applies at the same time."""


@dataclass(frozen=True, slots=True)
class ApplyTables:
    """Applies tables' work in tasks; picklable.

    Attributes:
        spool: where the spool is, on the executors, too.
        spool_id: the expected id of the spool.
        keep_versions: the target versions, by relation OID, that readers of consistent checkpoints
            need.
        rules: rules of pgsluice's own publications, by table and by the relation that the server
            sends; None: there are no own publications, and all changes are applied.
        sends_all_origins: the server also sends changes that it got by replication (``origin =
            any``).
        large_bytes: a table with more bytes of changes than this is read in pieces.
        commits_may_be_lost: other programs may overwrite commits in the target's store.
        rejects: where values that do not fit go; None: they are errors.
        staging_path: the subscription's folder for files that tasks of a batch exchange, in a store
            below the spool; None: tasks do not share one table's batch.
    """

    spool: SpoolPlace | Path
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
    rejects: RejectsPlace | None = None

    def run_all(self, works: Sequence[TableWork]) -> list[TaskResult | Failure]:
        """Apply several tables' work; a failure of one does not affect the others.

        Tables with few changes mostly wait for the target's file system, so several are applied at
        the same time. The others are applied one by one, so that only one table's changes are in
        memory.
        """
        small = [work for work in works if work.size_bytes <= _SMALL_BYTES]
        large = [work for work in works if work.size_bytes > _SMALL_BYTES]
        run = partial(self.run, reader=SpoolReader(self.spool, keep_bytes=_KEEP_BYTES))
        began = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            results = [*threads.map(partial(attempt, run), small)]
        results = shares_of(time.monotonic() - began, results)
        results += [attempt(run, work) for work in large]
        by_oid = {
            work.relation_oid: result for work, result in zip(small + large, results, strict=True)
        }
        return [by_oid[work.relation_oid] for work in works]

    def run(self, work: TableWork, reader: SpoolReader | None = None) -> TaskResult:
        """Apply one table's changes up to the end of its work.

        Raises:
            Exception: anything; :class:`pgsluice.errors.Failure` says what it means for the table.
        """
        writer, after, done_before = self.begin(work)
        if work.alter_facts:
            return self._alter(work, writer, done_before)
        return self._write_changes(self.changes(work, reader, after), writer, after) or done_before

    def begin(self, work: TableWork) -> tuple[TableWriter, Lsn, TaskResult]:
        """Ask the target for its position. After a crash between its commit and our record, it may
        be past the recorded one; only later changes may be applied.

        Returns:
            the target's writer, the position after which it lacks changes, and the result if it
            lacks none.

        Raises:
            TableError: the target's position or copy number is not the expected one.
        """
        writer = self._writer(work)
        reached = writer.position()
        if (reached or 0) < work.committed:
            if reached is not None and self.commits_may_be_lost:
                raise PgsluiceError(
                    f"table {work.title}: another program has overwritten the commit of position "
                    f"{work.committed} in the target's log, so the target is back at position "
                    f"{reached}",
                    hint="pgsluice applies the lost changes again. Let another program write to "
                    "this target only if its documentation says that several programs can write "
                    "to a table of this store at the same time",
                    table=work.title,
                    reached=int(reached),
                )
            event = "no longer exists" if reached is None else f"was rolled back to {reached}"
            raise TableError(
                f"the target of table {work.title} {event} after changes up to {work.committed}",
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
                f"the target of table {work.title} has the rows of copy {copy_number}, but these "
                f"changes follow copy {work.copy_number}"
            )
        return writer, after, done_before

    def _writer(self, work: TableWork, table: TargetTable | None = None) -> TableWriter:
        mode = self.options.mode_of(work.namespace, work.name)
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number, mode)
        shell = TargetTable(work.namespace, work.name, pa.schema([]), ())
        return table_writer(make_sink(self.sink), table or shell, identity)

    def _alter(self, work: TableWork, writer: TableWriter, done_before: TaskResult) -> TaskResult:
        """Add the columns that a catalog refresh has found, before any change has them."""
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

        If a new column has a value for older rows (ADD COLUMN … DEFAULT), the changes before it are
        applied first, in a separate commit. Then all rows of the target get the value.
        """
        work, mode = changes.work, self.options.mode
        is_large = work.size_bytes > self.large_bytes and writer.can_stage_changes()
        is_read_twice = is_large or mode.log is not None or mode.history is not None
        write = self._write_outlined if is_read_twice else self._write_at_once
        result: TaskResult | None = None
        while after < work.through:
            started = time.monotonic()
            applied = write(changes, writer, after)
            if applied is None:
                break
            columns, done = applied
            done = replace(
                done,
                merge_s=time.monotonic() - started - done.decode_s,
                doubt=columns.doubt,
                has_key=bool(columns.table.key),
            )
            writer.maintain(self.keep_versions.get(work.relation_oid, ()))
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
        """Apply changes in one piece, up to the point where the target needs other columns."""
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
        net, *others = changes.nets(runs, columns, truncates)
        if deletes is not None:
            deletes = changes.without_rejects(deletes, truncates, runs)
        decode_s = time.monotonic() - started
        last = Lsn(max(int(run.positions[-1]) for run in runs))
        if deletes is None:
            has_rejects = self.write_rejects(changes, after)
        else:  # known when they are read
            deletes, has_rejects = self._with_rejects(deletes, changes, after), True
        # Through the writer that was asked for the position: should another attempt of this
        # task have moved the target since, it is seen.
        if isinstance(writer, MarkingWriter) and (net.truncated or deletes is not None):
            time_us = truncated_at(runs)
            marked = [writer.marks(each, time_us) for each in deletes or ()]
            net_pieces = writer.truncation(net, time_us) if net.truncated else iter([net])
            applied = writer.apply_pieces(chain(marked, net_pieces), last)
        elif deletes is None and not others:
            applied = writer.apply(net, last)
        else:
            if others and not writer.can_stage_changes():
                raise TableError(
                    f"{work.title}: its columns changed between changes of whole rows, and the "
                    "target cannot take them one after the other",
                    table=work.title,
                    remedy=Remedy.COPY,
                )
            if writer.schema() is None:
                writer = self.prepare(work, columns, after, writer)
            applied = writer.apply_pieces(chain(deletes or (), [net], others), last)
        count = sum(map(len, runs))
        return columns, TaskResult.of(applied, last, count, decode_s, has_rejects=has_rejects)

    def write_rejects(self, changes: TableChanges, after: Lsn) -> bool:
        """Write the rejects of changes after a position durably, before they are committed; whether
        there are any."""
        work, events = changes.work, changes.rejected.take_events()
        if self.rejects is not None:
            self.rejects.files.write(work.relation_oid, work.copy_number, after, events)
        return bool(events)

    def _with_rejects(self, pieces: Iterable[T], changes: TableChanges, after: Lsn) -> Iterator[T]:
        """The pieces; after the last one, their rejects are written."""
        yield from pieces
        self.write_rejects(changes, after)

    def _write_outlined(
        self, changes: TableChanges, writer: TableWriter, after: Lsn
    ) -> tuple[TargetColumns, TaskResult] | None:
        """Apply changes of which an outline is read first, also in one commit: those that are too
        large for memory, piece by piece, and those of change logs and histories."""
        started, work, mode = time.monotonic(), changes.work, self.options.mode
        is_large = work.size_bytes > self.large_bytes
        if (found := read_twice(changes, writer.schema(), after, is_large=is_large)) is None:
            return None
        (read, columns), outline = found, found[0].outline
        begins = first_places(outline.runs, columns.missing)
        has_rejects, last = True, outline.last
        if mode.log is not None:
            assert isinstance(writer, LogWriter)
            refuse_truncated_leaves(work, outline.truncates)
            if writer.schema() is None:
                schema = mode.log.of_table(columns.table.schema, work.title)
                columns = replace(columns, table=replace(columns.table, schema=schema))
            writer.alter(columns.added, columns.widened)
            decode_s = time.monotonic() - started
            rows = (
                batch
                for runs in read.pieces()
                for batch in changes.log_rows(runs, columns, mode.log, begins).to_batches()
            )
            schema = columns.table.schema
            applied = writer.append(self._with_rejects(rows, changes, after), schema, last)
        elif mode.history is not None:
            refuse_truncated_leaves(work, outline.truncates)
            writer = self.prepare(work, columns, after, writer)
            pieces = chain.from_iterable(
                changes.versions(runs, columns, mode.history, outline.truncates, begins)
                for runs in read.pieces()
            )
            first = [*islice(pieces, 1 if is_large else 2)]
            decode_s = time.monotonic() - started
            if len(first) == 1 and not is_large:
                has_rejects = self.write_rejects(changes, after)
                applied = writer.apply(first[0], last)
            else:
                parts = self._with_rejects(chain(first, pieces), changes, after)
                applied = writer.apply_pieces(parts, last)
        else:
            deletes = deletes_of_truncated(work, outline.truncates, writer, columns.table)
            decode_s = time.monotonic() - started
            writer = self.prepare(work, columns, after, writer)
            if deletes is not None:
                deletes = changes.without_rejects(deletes, outline.truncates, outline.runs)
            nets = chain(deletes or (), net_pieces(read, columns, begins))
            applied = writer.apply_pieces(self._with_rejects(nets, changes, after), last)
        done = TaskResult.of(applied, last, outline.changes, decode_s, has_rejects=has_rejects)
        return columns, done

    def changes(
        self, work: TableWork, reader: SpoolReader | None = None, after: int = 0
    ) -> TableChanges:
        """The changes of a table's work, which begin at the target's position ``after``; without a
        reader, a new one is opened."""
        oid, is_ahead = work.relation_oid, after > work.after
        return TableChanges(
            work,
            reader or SpoolReader(self.spool),
            self.options,
            None if self.rules is None else self.rules.get(oid, {}),
            self.sends_all_origins,
            self.piece_bytes,
            rejected_values(self.rejects, oid, work.rejects, is_ahead=is_ahead),
        )

    def prepare(
        self,
        work: TableWork,
        columns: TargetColumns,
        after: Lsn,
        writer: TableWriter | None = None,
    ) -> TableWriter:
        """Add the columns to the target that changes after ``after`` need, or create it with them.

        Returns:
            the writer for these changes.
        """
        writer = writer or self._writer(work)
        if writer.schema() is None:
            self._writer(work, columns.table).load([], after)
            return self._writer(work)
        writer.alter(columns.added, columns.widened)
        return writer

    def commit(
        self,
        work: TableWork,
        staged: Sequence[StagedChanges],
        outline: Outline,
        may_discard: Callable[[], bool],
    ) -> TaskResult:
        """Commit the changes that tasks have staged; they start at the target's position.

        Args:
            may_discard: see :meth:`pgsluice.sinks.fence.TableWriter.commit_or_discard`.
        """
        writer = self._writer(work)
        applied = writer.commit_or_discard(staged, outline.last, may_discard)
        writer.maintain(self.keep_versions.get(work.relation_oid, ()))
        return TaskResult.of(applied, outline.last, outline.changes)


def shares_of(
    seconds: float, results: Sequence[TaskResult | Failure]
) -> list[TaskResult | Failure]:
    """The results of tables that were applied at the same time, each with its share of the time.

    Each table also waited for the others. But these times are used to plan the work of single
    tables: the pause until the next merge, and the division of tables among tasks.

    Args:
        seconds: how long all of them took together, in seconds.
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
