"""What one Spark task does for one table: decode, net, apply; and what it reports.

A task never raises for its table's error: the batch has to go on for the other tables. What
happened comes back as one row with the error's remedy, which the driver follows.
"""

from __future__ import annotations

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
from pgsluice.schema_rules import raise_unless_possible, reconcile_key
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Applied, TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.spark.tasks import result_batches, result_types
from pgsluice.spool import SpoolReader
from pgsluice.subscription.planning import NO_TABLE, TableWork


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
        details: see :class:`pgsluice.errors.Failure`.
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
            )

    def _apply(self, work: TableWork) -> TaskResult:
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number)
        # The target is asked first: after a crash between its commit and our record it may
        # be further than the record says, and only what is past it may be applied.
        shell = TargetTable(work.namespace, work.name, pa.schema([]), ())
        writer = TableWriter(make_sink(self.sink), shell, identity)
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
        if after >= work.through:
            return done_before
        if (copy_number := writer.copy_number()) not in (None, work.copy_number):
            raise PgsluiceError(
                f"the target of {work.title} has copy {copy_number}, these changes are for "
                f"copy {work.copy_number}"
            )
        started = time.monotonic()
        runs = [run for run in self._published(work, after) if len(run)]
        decoded = time.monotonic()
        changes = sum(len(run) for run in runs)
        if not changes:
            return done_before
        table = _target(work, runs, writer, self.options)
        net = net_changes(
            runs,
            schema=table.schema,
            key=table.key,
            is_complete=work.is_complete and self.sends_all_origins,
        )
        netted = time.monotonic()
        last = Lsn(max(int(run.positions[-1]) for run in runs if len(run)))
        # Through the writer that was asked for the position: should another attempt of this
        # task have moved the target since, it is seen.
        applied = writer.apply(net, last)
        done = time.monotonic()
        writer.maintain(self.keep_versions.get(work.relation_oid, ()))
        return _result(
            work, last, changes, applied, (started, decoded, netted, done, time.monotonic())
        )

    def _published(self, work: TableWork, after: Lsn) -> list[RelationChanges]:
        if self.rules is None:
            return list(self._decode(work, after, frozenset()))
        rules = self.rules.get(work.relation_oid, {})
        if not rules.keys() >= set(work.oids):
            raise RulesMissing(f"{work.title}: what publishes a partition is not known yet")
        texts = frozenset[str]().union(*(rules[oid].filter_columns for oid in work.oids))
        return publish_all(rules, list(self._decode(work, after, texts)))

    def _decode(
        self, work: TableWork, after: Lsn, texts: frozenset[str]
    ) -> Iterator[RelationChanges]:
        reader = SpoolReader(Path(self.spool_path))
        overrides = self.options.column_overrides(work.namespace, work.name)
        for view in reader.views_between(after, work.through):
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


def _target(
    work: TableWork,
    runs: list[RelationChanges],
    writer: TableWriter,
    options: TableOptions,
) -> TargetTable:
    """The target as it has to be after the batch: what it has, and columns that were added.

    Whether those can be added, and whether types still agree, is asked where the changes are
    laid out and where the sink adds them, both times of :mod:`pgsluice.schema_rules`.

    Raises:
        TableError: the table's facts are not known, or its key changed.
    """
    existing = writer.schema()
    merged = {column.name: column for column in existing} if existing is not None else {}
    key: tuple[str, ...] | None = None
    for run in runs:
        if run.facts is None:
            raise TableError(
                f"{work.title}: what the catalog says of it could not be found any more",
                hint="if the table still exists, copy it again; if it was dropped, its target "
                "stays as it is",
                table=work.title,
            )
        table = target_table(run.facts, options, [c.name for c in run.relation.columns])
        if key is not None:
            raise_unless_possible(reconcile_key(work.title, key, table.key), work.title)
        key = table.key
        for column in table.schema:
            merged.setdefault(column.name, column)
    return TargetTable(work.namespace, work.name, pa.schema(merged.values()), key or ())
