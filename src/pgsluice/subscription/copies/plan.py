"""Plans a copy run: which tables are published, and how to read them in a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pgsluice.catalog import one_snapshot
from pgsluice.catalog.tables.locks import locked_tables
from pgsluice.config import SubscriptionConfig
from pgsluice.copy.job import CopyTables, CopyWork
from pgsluice.errors import Failure
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.published.partition_rows import evaluators_of
from pgsluice.replication import connect_sql
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules.known import is_key_proved
from pgsluice.snapshots.plan import plan_portions
from pgsluice.snapshots.ranges import WHOLE, Portion
from pgsluice.snapshots.reader import TableLocked
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.copies.kept import CopyJournal
from pgsluice.subscription.copies.partitions import portions_of_partitions
from pgsluice.subscription.copies.pending import awaits_copy
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.lifecycle.look_events import LeavesFailed, NotSent
from pgsluice.subscription.lifecycle.table_events import CopyAbandoned, CopyFailed, CopyPlanned
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTables:
    """What the publications send.

    Attributes:
        now, in_snapshot: the published tables by OID, now and in a copy's snapshot. Tables that are
            not copied may be missing here, and in the other attributes.
        portions: the chunks of the tables to copy, in that snapshot.
        locked: tables that another session's lock blocks, with the blocking sessions.
        is_gone: for tables that lost partitions, what finds the rows of these partitions; without
            tables for which that cannot be computed exactly.
    """

    now: Mapping[int, ReplicatedTable]
    in_snapshot: Mapping[int, ReplicatedTable]
    portions: Mapping[int, tuple[Portion, ...]]
    locked: Mapping[int, str]
    is_gone: Mapping[int, FilterEvaluator]

    def awaits_look(self, oid: int, record: TableRecord) -> bool:
        """Whether a table has a name, now or in the snapshot, that no catalog refresh has found
        yet: its rows under that name do not belong to the target of the old name."""
        known = [tables[oid] for tables in (self.now, self.in_snapshot) if oid in tables]
        names = [(table.facts.namespace, table.facts.name) for table in known]
        return len(names) == 2 and record.target_name not in names


def read_source(
    site: CopySite, snapshot: Snapshot, oids: Collection[int], workers: int | None = None
) -> tuple[SourceTables, Snapshot]:
    """Read what is published of some tables now, and what the snapshot contains of them.

    Args:
        oids: the tables to copy.
        workers: how many chunks are read at the same time, at most; None: the tables are not
            divided into chunks, because an earlier run has done so.

    Returns:
        the tables, and the snapshot with its view of them.
    """
    to_divide = () if workers is None else oids
    gone_bounds = {
        oid: (oid, table.partitions.gone_bounds)
        for oid in to_divide
        if (table := site.tables.get(oid)) is not None and table.partitions.gone_bounds
    }
    with connect_sql(site.config.source.conninfo, "looking at the tables to copy") as connection:
        with one_snapshot(connection):
            now = {table.facts.oid: table for table in site.looks.source_tables(connection, oids)}
        # What changes after the snapshot has to be seen by the next look.
        seen = import_snapshot(connection, snapshot)
        tables = site.looks.source_tables(connection, oids)
        in_snapshot = {table.facts.oid: table for table in tables}
        locked = locked_tables(connection, to_divide)
        wanted = [now[oid].facts for oid in to_divide if oid in now and oid not in locked]
        portions = plan_portions(connection, wanted, at_once=workers or 1)
        is_gone = evaluators_of(connection, gone_bounds)
        return SourceTables(now, in_snapshot, portions, locked, is_gone), seen


def waiting_tables(
    site: CopySite, source: SourceTables, oids: Collection[int]
) -> Iterator[tuple[ReplicatedTable, TableRecord]]:
    """The tables among these whose copy was started, and that are published under a known name."""
    for oid, record in site.tables.record.tables.items():
        is_begun = record.state is TableState.DATA_COPY and awaits_copy(record)
        is_known = oid in source.now and not source.awaits_look(oid, record)
        if is_begun and oid in oids and is_known:
            yield source.now[oid], record


def plan_copies(
    site: CopySite, source: SourceTables, task: CopyTables, oids: Collection[int]
) -> list[TableCopy]:
    """Give copy numbers to tables whose copies were started.

    Tables that are no longer published, or that are locked, are skipped.
    """
    tables, settings, works = site.tables, site.share.settings, []
    with tables.changing():
        for oid in oids - source.now.keys():
            record = tables.get(oid)
            if record is not None and record.state is TableState.DATA_COPY:
                tables.apply(oid, NotSent())
        for table, record in list(waiting_tables(site, source, source.locked)):
            locked = Failure.of(TableLocked.by(source.locked[table.facts.oid]))
            site.pending.wait_for_lock(table.facts.oid)
            failed = LeavesFailed if record.replaces_partitions else CopyFailed
            tables.apply(table.facts.oid, failed(locked))
        for table, record in list(waiting_tables(site, source, oids - source.locked.keys())):
            work = copy_work(table, record, settings)
            if record.replaces_partitions:
                work = replace(work, is_gone=source.is_gone.get(table.facts.oid))
            else:
                # A table that is newer than the snapshot is refused by the copy's task.
                fingerprint = source.in_snapshot.get(table.facts.oid, table).fingerprint
                try:
                    fingerprint = fingerprint.with_kept(task.kept_columns(work))
                except Exception as error:
                    tables.apply(table.facts.oid, CopyFailed(Failure.of(error)))
                    continue
                planned = CopyPlanned(fingerprint.to_text(), table.relations)
                record = tables.apply(table.facts.oid, planned).table
                work = copy_work(table, record, settings)
            works.append(work)
            site.looks.put_rules_in_force(table)
    copies = [_copy_of(task, work, source.portions.get(work.facts.oid, WHOLE)) for work in works]
    return _plan_partitions(tables, copies, source)


def restored_copies(
    site: CopySite,
    source: SourceTables,
    task: CopyTables,
    journal: CopyJournal,
    oids: Collection[int],
) -> list[TableCopy]:
    """The copies that an earlier run has started, with their staged chunks."""
    copies = []
    with site.tables.changing():
        for table, record in waiting_tables(site, source, oids):
            copy = journal.restore(task, copy_work(table, record, site.share.settings))
            if copy is not None:
                copies.append(copy)
                site.looks.put_rules_in_force(table)
    for copy in copies:
        staged, portions = len(copy.staged), len(copy.portions)
        logger.info(
            "%s: its copy resumes, %s of %s chunks staged", copy.work.title, staged, portions
        )
    return copies


def _plan_partitions(
    tables: SubscriptionTables, copies: Sequence[TableCopy], source: SourceTables
) -> list[TableCopy]:
    """The copies to make now, limited to partitions; else the whole table is copied later."""
    planned = []
    for copy in copies:
        if copy.work.replaces_partitions:
            oid, record = copy.work.facts.oid, tables.get(copy.work.facts.oid)
            known = "" if record is None else record.source.fingerprint
            in_snapshot = source.in_snapshot.get(oid)
            seen = None if in_snapshot is None else in_snapshot.fingerprint
            portions = portions_of_partitions(copy.work, copy.portions, known, seen)
            # Through the table, rows of foreign partitions would be read as well.
            has_foreign = bool(source.now[oid].foreign_partitions)
            if portions is None or (copy.work.gone_bounds and has_foreign):
                tables.apply(oid, CopyAbandoned())
                continue
            copy.portions = portions
        planned.append(copy)
    return planned


def _copy_of(task: CopyTables, work: CopyWork, portions: tuple[Portion, ...]) -> TableCopy:
    """A table's copy; a single chunk if its sink cannot stage."""
    if len(portions) > 1 and attempt(task.can_stage, work) is not True:
        reads = tuple(read for portion in portions for read in portion)
        portions = (reads,)
    return TableCopy(work, portions)


def adopts(record: TableRecord, subscription: SubscriptionConfig) -> bool:
    """Whether a table can adopt a target that pgsluice wrote before: only if it was never
    copied."""
    was_copied = record.copied.position > 0
    return subscription.adopt and not was_copied and not record.claim.any_source


def copy_work(
    table: ReplicatedTable, record: TableRecord, subscription: SubscriptionConfig
) -> CopyWork:
    """What a table's copy reads, and the target that it writes."""
    return CopyWork(
        facts=table.facts,
        namespace=record.namespace,
        name=record.name,
        columns=table.columns,
        row_filter=table.row_filter,
        unlisted=table.unlisted,
        is_key_proved=is_key_proved(record.source.fingerprint, 0),
        copy_number=record.copy_number,
        predecessor_oids=record.claim.predecessor_oids,
        may_replace_foreign_target=record.claim.any_source or adopts(record, subscription),
        leaves=record.partitions.load,
        gone_bounds=record.partitions.gone_bounds,
    )
