"""What one Spark task does for one table: decode, net, apply; and what it reports.

A task never raises for its table's error: the batch has to go on for the other tables. What
happened comes back as one row with the error's remedy, which the driver follows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgsluice.changes.net import net_changes
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.errors import Failure, PgsluiceError, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher, publish_all
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Applied, TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions
from pgsluice.spark.tasks import result_batches, result_types
from pgsluice.spool import SpoolReader
from pgsluice.subscription.planning import NO_TABLE, TableWork
from pgsluice.subscription.target_columns import columns_of, due_columns


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One row of a batch's results.

    Attributes:
        relation_oid: the table; NO_TABLE for the row of a batch without work.
        planned_end: the batch's end.
        through: up to which position it is applied now, if ``error`` is None.
        committed: position of pgsluice's newest commit at the target; 0 when unknown.
        version: the target's version.
        changes: how many changes were decoded.
        remedy: what to do about ``error``; None when the work is done.
        error: the message.
        details, reason: see :class:`pgsluice.errors.Failure`.
        is_altered: the target has the columns that were due.
        left_out: a JSON array: columns that the source's table has no longer, and that the target
            did not get.
    """

    relation_oid: int
    planned_end: int = 0
    through: int = 0
    committed: int = 0
    version: int = -1
    changes: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    bytes_written: int = 0
    skipped: bool = False
    decode_s: float = 0.0
    net_s: float = 0.0
    apply_s: float = 0.0
    maintain_s: float = 0.0
    remedy: Remedy | None = None
    error: str | None = None
    details: str | None = None
    reason: str | None = None
    is_altered: bool = False
    left_out: str | None = None


RESULT_SCHEMA, RESULT_DDL = result_types(TaskResult)


class RulesMissing(PgsluiceError):
    """The task's rules predate a partition."""

    remedy = Remedy.LOOK


@dataclass(frozen=True, slots=True)
class ApplyTables:
    """The function that ``mapInArrow`` runs in the tasks; it pickles.

    Attributes:
        spool_path: the spool, as the executors see it.
        spool_id: which spool it has to be.
        sink: the sink's configuration.
        options: how tables travel.
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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from result_batches(self.run, RESULT_SCHEMA, batches)

    def run(self, payload: bytes) -> TaskResult:
        """Apply one table's changes up to its work's end."""
        work = TableWork.from_bytes(payload)
        if work.relation_oid == NO_TABLE:
            result = TaskResult(NO_TABLE, through=int(work.through), skipped=True)
        else:
            result = self._guarded(work)
        return replace(result, planned_end=int(work.through))

    def _guarded(self, work: TableWork) -> TaskResult:
        try:
            return self._apply(work)
        except Exception as error:
            failure = Failure.of(error)
            return TaskResult(
                work.relation_oid,
                remedy=failure.remedy,
                error=failure.message,
                details=failure.details,
                reason=failure.reason,
            )

    def _writer(self, work: TableWork) -> TableWriter:
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number)
        shell = TargetTable(work.namespace, work.name, pa.schema([]), ())
        return TableWriter(make_sink(self.sink), shell, identity)

    def _apply(self, work: TableWork) -> TaskResult:
        # The target is asked first: after a crash between its commit and our record it may
        # be further than the record says, and only what is past it may be applied.
        writer = self._writer(work)
        reached = writer.position()
        if (reached or 0) < work.committed:
            where = "is gone" if reached is None else f"was rolled back to {reached}"
            raise TableError(
                f"{work.title}: the target {where}, before our commit at {work.committed}",
                hint="copy the table again: pgsluice copy CONFIG " + work.title,
                table=work.title,
            )
        done_before = TaskResult(
            work.relation_oid,
            through=int(work.through),
            committed=int(reached or 0),
            version=writer.version(),
            skipped=True,
        )
        after = max(work.after, reached or Lsn(0))
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

    def _alter(self, work: TableWork, writer: TableWriter, done_before: TaskResult) -> TaskResult:
        """Give the target the columns that a look found, though no change has brought them."""
        started = time.monotonic()
        added = due_columns(work, writer.schema(), self.options)
        applied = writer.alter(added, ())
        return replace(
            done_before,
            version=applied.version,
            bytes_written=applied.bytes_written,
            skipped=applied.skipped,
            apply_s=time.monotonic() - started,
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
            decoded = time.monotonic()
            altered = writer.alter(columns.added, columns.widened)
            net = net_changes(
                runs,
                schema=columns.table.schema,
                key=columns.table.key,
                is_complete=work.is_complete and self.sends_all_origins,
                missing=columns.missing,
            )
            netted = time.monotonic()
            last = Lsn(max(int(run.positions[-1]) for run in runs))
            # Through the writer that was asked for the position: should another attempt of this
            # task have moved the target since, it is seen.
            applied = writer.apply(net, last)
            done = time.monotonic()
            writer.maintain(self.keep_versions.get(work.relation_oid, ()))
            applied = replace(applied, bytes_written=applied.bytes_written + altered.bytes_written)
            changes = sum(len(run) for run in runs)
            times = (started, decoded, netted, done, time.monotonic())
            piece = _result(work, last, changes, applied, times)
            piece = replace(piece, left_out=json.dumps(sorted(columns.left_out)))
            result = piece if result is None else _sum(result, piece)
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
            raise RulesMissing(f"{work.title}: what publishes a partition is not known yet")
        texts = frozenset[str]().union(*(rules[oid].filter_columns for oid in work.oids))
        return publish_all(rules, list(self._decode(work, after, through, texts)))

    def _decode(
        self, work: TableWork, after: Lsn, through: Lsn, texts: frozenset[str]
    ) -> Iterator[RelationChanges]:
        reader = SpoolReader(Path(self.spool_path))
        overrides = self.options.column_overrides(work.namespace, work.name)
        for view in reader.views_between(after, through):
            yield from decode_segment(view, work.oids, self.options.types, overrides, texts)


def _result(
    work: TableWork,
    last: Lsn,
    changes: int,
    applied: Applied,
    times: tuple[float, float, float, float, float],
) -> TaskResult:
    started, decoded, netted, done, maintained = times
    return TaskResult(
        relation_oid=work.relation_oid,
        through=int(work.through),
        committed=int(last),
        version=applied.version,
        changes=changes,
        rows_inserted=applied.rows_inserted,
        rows_updated=applied.rows_updated,
        rows_deleted=applied.rows_deleted,
        rows_skipped=applied.rows_skipped,
        bytes_written=applied.bytes_written,
        skipped=applied.skipped,
        decode_s=decoded - started,
        net_s=netted - decoded,
        apply_s=done - netted,
        maintain_s=maintained - done,
    )


_COUNTED = (
    "changes", "rows_inserted", "rows_updated", "rows_deleted", "rows_skipped", "bytes_written",
    "decode_s", "net_s", "apply_s", "maintain_s",
)  # fmt: skip


def _sum(before: TaskResult, after: TaskResult) -> TaskResult:
    """Two pieces of one table's work as one result."""
    names = sorted({*json.loads(before.left_out or "[]"), *json.loads(after.left_out or "[]")})
    return replace(
        after,
        skipped=before.skipped and after.skipped,
        left_out=json.dumps(names),
        **{name: getattr(before, name) + getattr(after, name) for name in _COUNTED},
    )
