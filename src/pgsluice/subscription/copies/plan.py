"""What a round of copies reads: the tables that are sent, and what a snapshot has of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from pgsluice.catalog import locked_tables
from pgsluice.config import Config
from pgsluice.copy import CopyCounts, CopyTables, CopyWork, TableCopy
from pgsluice.errors import SourceRefused, SourceUnreachable
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.published.partition_rows import evaluators_of
from pgsluice.replication import connect_sql, source_errors
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules import SourceFingerprint, is_key_proved
from pgsluice.snapshots import Snapshot, import_snapshot, plan_portions, temporary_snapshot
from pgsluice.snapshots.ranges import Portion
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import TableRecord, TargetName
from pgsluice.subscription.refresh.looks import CatalogLooks

_SNAPSHOT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class SourceTables:
    """What the publications send.

    Attributes:
        now: the tables by OID.
        fingerprints, names: those of the tables that a copy's snapshot has.
        portions: of the tables to copy, in that snapshot.
        locked: those of them that another session keeps us from reading, with who does.
        is_gone: of the tables that lost partitions, what finds these partitions' rows; tables of
            which that cannot be computed exactly are left out.
    """

    now: Mapping[int, ReplicatedTable]
    fingerprints: Mapping[int, SourceFingerprint]
    names: Mapping[int, TargetName]
    portions: Mapping[int, tuple[Portion, ...]]
    locked: Mapping[int, str]
    is_gone: Mapping[int, FilterEvaluator]

    def awaits_look(self, oid: int, record: TableRecord) -> bool:
        """Whether a table has a name, now and in the snapshot, that no look has found yet: what it
        has under that name does not belong to the target of the old one."""
        now, in_snapshot = self.now.get(oid), self.names.get(oid)
        if now is None or in_snapshot is None:
            return False
        return record.target_name not in (in_snapshot, (now.facts.namespace, now.facts.name))


@contextmanager
def new_snapshot(
    dsn: str, counts: CopyCounts, oids: Collection[int], is_stopping: Callable[[], bool]
) -> Iterator[Snapshot]:
    """A snapshot for as long as the block lasts; meanwhile the counts say what tables wait for.

    Args:
        oids: the tables that it is for.

    Raises:
        SourceRefused, SourceUnreachable: as :func:`pgsluice.snapshots.temporary_snapshot`.
    """

    def tend() -> bool:
        # Only now: a server that refuses at once, again and again, has nothing of these.
        counts.wait(oids, "a snapshot, which follows the transactions open now")
        counts.tend()  # or what is said would be taken for old
        return is_stopping()

    with ExitStack() as held:
        try:
            snapshot = held.enter_context(temporary_snapshot(dsn, _SNAPSHOT_TIMEOUT_S, tend))
        except (SourceRefused, SourceUnreachable) as error:
            counts.wait(oids, f"a snapshot; the last try failed: {error.what}")
            raise
        yield snapshot


def read_source(
    config: Config,
    looks: CatalogLooks,
    snapshot: Snapshot,
    to_divide: Collection[int],
    workers: int,
    gone_bounds: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[SourceTables, Snapshot]:
    """What is sent now, and what the snapshot has.

    Args:
        to_divide: the tables whose portions are asked for.
        workers: how many portions are read side by side, at most.
        gone_bounds: of the tables of which partitions are gone, the conditions on their rows.

    Returns:
        it, and the snapshot with what it sees.
    """
    with (
        connect_sql(config.source.dsn) as connection,
        source_errors("looking at the tables to copy"),
    ):
        now = {table.facts.oid: table for table in looks.source_tables(connection)}
        # What changes after the snapshot has to be seen by the next look.
        seen = import_snapshot(connection, snapshot)
        in_snapshot = {table.facts.oid: table for table in looks.source_tables(connection)}
        fingerprints = {oid: table.fingerprint for oid, table in in_snapshot.items()}
        names = {oid: (t.facts.namespace, t.facts.name) for oid, t in in_snapshot.items()}
        locked = locked_tables(connection, to_divide)
        wanted = [now[oid].facts for oid in to_divide if oid in now and oid not in locked]
        portions = plan_portions(connection, wanted, at_once=workers)
        is_gone = evaluators_of(
            connection, {oid: (oid, bounds) for oid, bounds in gone_bounds.items()}
        )
        return SourceTables(now, fingerprints, names, portions, locked, is_gone), seen


def copy_of(task: CopyTables, work: CopyWork, portions: tuple[Portion, ...]) -> TableCopy:
    """A table's copy, in one portion if its sink cannot stage."""
    if len(portions) > 1 and attempt(task.can_stage, work) is not True:
        reads = tuple(read for portion in portions for read in portion)
        portions = (reads,)
    return TableCopy(work, portions)


def awaits_copy(record: TableRecord) -> bool:
    """Whether a table waits for a copy from the source, and not from the target that it had."""
    return record.is_to_copy and record.old_target is None


def copy_work(table: ReplicatedTable, record: TableRecord) -> CopyWork:
    """What a table's copy reads, and which target it makes."""
    return CopyWork(
        facts=table.facts,
        namespace=record.namespace,
        name=record.name,
        columns=table.columns,
        row_filter=table.row_filter,
        unlisted=table.unlisted,
        is_key_proved=is_key_proved(record.source.fingerprint, 0),
        key_problem=table.key_problem,
        copy_number=record.copy_number,
        predecessor_oids=record.claim.predecessor_oids,
        may_replace_foreign_target=record.claim.any_source,
        leaves=record.partitions.load,
        gone_bounds=record.partitions.gone_bounds,
    )
