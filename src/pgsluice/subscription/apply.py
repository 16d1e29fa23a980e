"""What is done for one table of a batch: decode, net, apply; and what is reported.

It is done in a Spark task, for several tables (:mod:`pgsluice.subscription.batch_work`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgsluice.changes.events import Place, truncated_leaves
from pgsluice.changes.net import net_changes
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.errors import Failure, PgsluiceError, Remedy, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher, publish_all
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions
from pgsluice.spark.tasks import attempt
from pgsluice.spool import SpoolReader
from pgsluice.subscription.planning import TableWork, TaskResult
from pgsluice.subscription.target_columns import columns_of, due_columns

_SMALL_BYTES = 1 << 20
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
    """

    spool_path: str
    spool_id: str
    sink: dict[str, Any]
    options: TableOptions
    keep_versions: dict[int, tuple[int, ...]]
    rules: Mapping[int, Mapping[int, Publisher]] | None = None
    sends_all_origins: bool = True

    def run_all(self, works: Sequence[TableWork]) -> list[TaskResult | Failure]:
        """Apply several tables' work; one that fails leaves the others alone.

        Tables with few changes wait for the target's file system most of the time: several are
        applied at once. The others come one by one, so that memory holds the changes of one.
        """
        small = [work for work in works if work.size_bytes <= _SMALL_BYTES]
        large = [work for work in works if work.size_bytes > _SMALL_BYTES]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            results = [*threads.map(partial(attempt, self.run), small)]
        results += [attempt(self.run, work) for work in large]
        by_oid = {
            work.relation_oid: result for work, result in zip(small + large, results, strict=True)
        }
        return [by_oid[work.relation_oid] for work in works]

    def run(self, work: TableWork) -> TaskResult:
        """Apply one table's changes up to its work's end.

        Raises:
            Exception: anything; :class:`pgsluice.errors.Failure` says what it means for the table.
        """
        # The target is asked first: after a crash between its commit and our record it may
        # be further than the record says, and only what is past it may be applied.
        writer = self._writer(work)
        reached = writer.position()
        if (reached or 0) < work.committed:
            where = "is gone" if reached is None else f"was rolled back to {reached}"
            raise TableError(
                f"{work.title}: the target {where}, before our commit at {work.committed}",
                hint=f"copy the table again: {copy_again(work.title)}",
                table=work.title,
            )
        committed = reached or Lsn(0)
        done_before = TaskResult(committed, writer.version(), skipped=True)
        after = max(work.after, committed)
        if after >= work.through and not work.alter_facts:
            return done_before
        if (copy_number := writer.copy_number()) not in (None, work.copy_number):
            raise PgsluiceError(
                f"the target of {work.title} has copy {copy_number}, these changes are for "
                f"copy {work.copy_number}"
            )
        if work.alter_facts:
            return self._alter(work, writer, done_before)
        return self._apply_pieces(work, writer, after) or done_before

    def _writer(self, work: TableWork) -> TableWriter:
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number)
        shell = TargetTable(work.namespace, work.name, pa.schema([]), ())
        return TableWriter(make_sink(self.sink), shell, identity)

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

    def _apply_pieces(self, work: TableWork, writer: TableWriter, after: Lsn) -> TaskResult | None:
        """Apply the changes; None: there are none.

        Where a column comes that rows from before it have a value in, the changes before it are
        applied first, in a commit of their own: then all rows of the target get the value.
        """
        result: TaskResult | None = None
        while after < work.through:
            started = time.monotonic()
            runs = [run for run in self._published(work, after, work.through) if len(run)]
            if not runs:
                break
            columns = columns_of(work, runs, writer.schema(), self.options)
            if columns.through is not None:
                runs = [run for run in self._published(work, after, columns.through) if len(run)]
            runs = [run.without(columns.left_out) for run in runs]
            writer.alter(columns.added, columns.widened)
            net = net_changes(
                runs,
                schema=columns.table.schema,
                key=columns.table.key,
                is_complete=work.is_complete and self.sends_all_origins,
                missing=columns.missing,
                truncates=_whole_truncates(work, runs),
            )
            netted = time.monotonic()
            last = Lsn(max(int(run.positions[-1]) for run in runs))
            # Through the writer that was asked for the position: should another attempt of this
            # task have moved the target since, it is seen.
            applied = writer.apply(net, last)
            writer.maintain(self.keep_versions.get(work.relation_oid, ()))
            piece = TaskResult(
                committed=last,
                version=applied.version,
                changes=sum(len(run) for run in runs),
                rows_skipped=applied.rows_skipped,
                skipped=applied.skipped,
                decode_s=netted - started,
                merge_s=time.monotonic() - netted,
                left_out=columns.left_out,
            )
            result = piece if result is None else piece.after(result)
            if columns.through is None:
                break
            after = max(last, columns.through)
            writer = self._writer(work)
            writer.position()
        return result

    def _published(self, work: TableWork, after: Lsn, through: Lsn) -> list[RelationChanges]:
        if self.rules is None:
            return list(self._decode(work, after, through, frozenset()))
        rules = self.rules.get(work.relation_oid, {})
        if not rules.keys() >= set(work.oids):
            why = f"{work.title}: what publishes a partition is not known yet"
            raise PgsluiceError(why, remedy=Remedy.LOOK)
        texts = frozenset[str]().union(*(rules[oid].filter_columns for oid in work.oids))
        return publish_all(rules, list(self._decode(work, after, through, texts)))

    def _decode(
        self, work: TableWork, after: Lsn, through: Lsn, texts: frozenset[str]
    ) -> Iterator[RelationChanges]:
        reader = SpoolReader(Path(self.spool_path))
        overrides = self.options.column_overrides(work.namespace, work.name)
        for view in reader.views_between(after, through):
            yield from decode_segment(view, work.oids, self.options.types, overrides, texts)


def _whole_truncates(work: TableWork, runs: Sequence[RelationChanges]) -> list[Place]:
    """Where all leaves were truncated that may have rows at the target.

    A leaf that no look has found may have sent rows, too.

    Raises:
        TableError: leaves were truncated after the last look.
    """
    truncated = truncated_leaves(runs)
    if any(position > work.looked_through for position, _ in truncated):
        raise TableError(
            f"{work.title}: partitions were truncated, and a look has to find all that there are",
            table=work.title,
            remedy=Remedy.LOOK,
        )
    return [place for place, leaves in truncated.items() if work.leaves and work.leaves <= leaves]
