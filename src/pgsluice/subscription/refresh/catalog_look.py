"""One catalog refresh: what it means for each table of a subscription.

It compares what the publications send now with the tables that the subscription knows, and applies
events to each table: discovered, published again, not sent or unpublished, and what
:mod:`pgsluice.schema_rules` decides about its fingerprint.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.new_partitions import (
    NewPartitions,
    inspect_new_partitions,
    notices_partitions,
)
from pgsluice.catalog.publications.publications import notices_publications
from pgsluice.catalog.rights import TableRights, table_rights
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.catalog.tables.tables import tables_with_fresh_files
from pgsluice.errors import ParkReason, TableError
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules.known import SourceFingerprint, added_columns, cause_of_copy
from pgsluice.schema_rules.look import (
    Look,
    added_partitions,
    emptied_leaves,
    other_attachments,
    renewed_leaves,
)
from pgsluice.schema_rules.source import reconcile_source
from pgsluice.schema_rules.verdicts import (
    ColumnsAdded,
    CopyAgain,
    ReplacePartitions,
    Same,
    SourceVerdict,
    Verify,
)
from pgsluice.sinks.target import TableOptions, check_hidden, key_columns, target_table
from pgsluice.spool import OldTarget, SpoolIdentity, TableRecord, UnseenLeaf
from pgsluice.subscription.base.options import has_same_options
from pgsluice.subscription.lifecycle.look_events import (
    Discovered,
    Looked,
    LookedAside,
    NotSent,
    PublishedAgain,
    ReasonEnded,
    Renamed,
    TargetFreed,
    Unpublished,
)
from pgsluice.subscription.lifecycle.table_events import CopyNeeded
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.lifecycle.transitions import TableEvent
from pgsluice.subscription.refresh.naming import TargetChanges, assign_targets

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Differences:
    """Details that are read only for tables that differ.

    Attributes:
        partitions: what is known of the rows that new partitions had when they were attached.
        missing: leaf partitions of tables with a new column: column -> the value of older rows.
        fresh: leaf partitions with a new relfilenode whose rows the server has not counted yet.
        rights: privileges on the tables that are parked because the role lacks them.
    """

    partitions: NewPartitions
    missing: Mapping[int, Mapping[str, str]]
    fresh: frozenset[int]
    rights: Mapping[int, TableRights]


@dataclass(frozen=True, slots=True)
class SourceState:
    """What the publications send now.

    Attributes:
        wal_end, timeline: the end of the server's WAL after they were read, and its timeline.
        has_rules: whether pgsluice's own publications select from what the server sends.
    """

    tables: Sequence[ReplicatedTable]
    wal_end: Lsn
    timeline: int
    has_rules: bool = False


class CatalogLook:
    """One catalog refresh.

    Args:
        connection: a connection with the snapshot in which ``source`` was read.
        identity: the spool's identity, with the timelines that it followed.
        settled: tables that were parked because of rewrites during their copies, and that were not
            rewritten since the last refresh.

    Attributes:
        is_whole: no table was skipped because its copy was planned meanwhile.
    """

    def __init__(
        self,
        connection: Connection,
        identity: SpoolIdentity,
        source: SourceState,
        known: Mapping[int, TableRecord],
        options: TableOptions,
        settled: Collection[int] = (),
    ) -> None:
        self._settled = settled
        self._looked = source.wal_end, source.timeline
        self._connection = connection
        self._identity = identity
        self._source = {table.facts.oid: table for table in source.tables}
        self._options = options
        self._has_rules = source.has_rules
        self.is_whole = True
        self._copy_numbers = {oid: table.copy_number for oid, table in known.items()}
        self._unseen = {
            oid: frozenset(leaf.oid for leaf in table.pending.unseen_leaves)
            for oid, table in known.items()
            if table.pending.unseen_leaves
        }
        # Asks the server, and is not to be done under the tables' lock.
        self._differences = self._look_closer(known)

    def record(
        self,
        tables: SubscriptionTables,
        new_record: Callable[[ReplicatedTable], TableRecord],
        *,
        copy_data: bool,
    ) -> None:
        """Record the outcome for a subscription's tables, durably."""
        with tables.changing():
            before = tables.record
            older = {oid for oid, table in before.tables.items() if self._is_older(oid, table)}
            self.is_whole = not older
            known = {**before.unpublished, **before.tables}
            sent = {oid: (t.facts.namespace, t.facts.name) for oid, t in self._source.items()}
            targets = assign_targets(known, before.former, sent)
            events = {
                oid: self._compare(before.tables[oid], table)
                for oid, table in self._source.items()
                if oid in before.tables and oid not in older
            }
            self._assign(tables, known, targets, events, new_record)
            for oid, table in self._source.items():
                if oid in before.unpublished:
                    tables.apply(oid, PublishedAgain())
                elif oid in events:
                    tables.apply(oid, events[oid])
                elif oid not in before.tables:
                    discovered = Discovered(copy_data, targets.predecessors[oid])
                    tables.discover(oid, new_record(table), discovered)
                now = tables.get(oid)
                if now is not None and not self._identity.has(
                    now.copied.timeline, now.copied.position
                ):
                    why = "it has rows that the promoted server never had"
                    tables.apply(oid, CopyNeeded(why))
            for oid, gone in before.tables.items():
                is_gone = oid not in self._source and oid not in targets.forgotten
                if is_gone and oid not in older:
                    self._remove(tables, oid, gone)

    def _assign(
        self,
        tables: SubscriptionTables,
        known: Mapping[int, TableRecord],
        targets: TargetChanges,
        events: Mapping[int, TableEvent],
        new_record: Callable[[ReplicatedTable], TableRecord],
    ) -> None:
        """Apply the changes of targets' names before any other event of their tables."""
        for oid in targets.forgotten:
            tables.forget(oid)
        renamed = {}
        for oid in targets.renamed:
            new = new_record(self._source[oid])
            event = events.get(oid)
            is_same = isinstance(event, Looked) and event.keeps_columns_and_partitions
            may_move = (is_same and not known[oid].pending.columns) and has_same_options(
                self._options, known[oid].target_name, new.target_name
            )
            renamed[oid] = _renamed(known[oid], new, targets.predecessors[oid], may_move=may_move)
            logger.info("%s is called %s now", known[oid].title, new.title)
        for oid in known.keys() & self._source.keys() - renamed.keys():
            before = SourceFingerprint.parse(known[oid].source.fingerprint)
            if before is None or before.names != self._source[oid].fingerprint.names:
                new = new_record(self._source[oid])
                if new.target != known[oid].target:
                    claimed = known[oid].claim.predecessor_oids
                    renamed[oid] = _renamed(known[oid], new, claimed, may_move=False)
                    logger.info("%s: its target is %s now", new.title, new.target)
        tables.rename(renamed)
        tables.keep_former(targets.former)
        for oid in targets.freed:
            tables.apply(oid, TargetFreed(targets.predecessors[oid]))

    def _is_older(self, oid: int, table: TableRecord) -> bool:
        """Whether a copy was planned during the refresh: the next one compares with its rows."""
        return self._copy_numbers.get(oid, table.copy_number) != table.copy_number

    def _look_closer(self, known: Mapping[int, TableRecord]) -> _Differences:
        """Read more details of the tables that differ, in one query for all of them."""
        added: set[int] = set()
        published_later: set[int] = set()
        leaves: set[int] = set()
        renewed: set[int] = set()
        parked: defaultdict[str, set[int]] = defaultdict(set)
        for oid, table_record in known.items():
            if table_record.is_parked:
                parked[table_record.parked_for].add(oid)
        for oid, table in self._source.items():
            record = known.get(oid)
            before = (
                SourceFingerprint.parse(record.source.fingerprint) if record is not None else None
            )
            unseen = self._unseen.get(oid, frozenset()) & table.fingerprint.filenodes.keys()
            if before is None or (before == table.fingerprint and not unseen):
                continue
            new = added_partitions(before, table.fingerprint) | unseen
            added |= new | other_attachments(before, table.fingerprint)
            renewed |= renewed_leaves(before, table.fingerprint)
            if table.fingerprint.listings - before.listings:
                published_later |= new
            if added_columns(before, table.fingerprint):
                leaves |= table.fingerprint.filenodes.keys()
        return _Differences(
            partitions=inspect_new_partitions(
                self._connection,
                added,
                published_later,
                emptied_are_sent=notices_partitions(self._connection),
                published_are_sent=notices_publications(self._connection),
            ),
            missing={
                oid: {each.name: each.missing for each in facts.columns if each.missing is not None}
                for oid, facts in fetch_many(self._connection, leaves).items()
            },
            fresh=tables_with_fresh_files(self._connection, renewed),
            rights=table_rights(self._connection, parked[ParkReason.RIGHTS]),
        )

    def _compare(self, known: TableRecord, table: ReplicatedTable) -> TableEvent:
        """The event for a table's fingerprint. Before a copy there is none to compare with; a
        harmless difference, such as a new file after VACUUM FULL, becomes the new baseline."""
        if not known.is_published:
            return PublishedAgain()
        if known.is_parked and self._has_ended(known, table):
            cause = cause_of_copy(known.parked_for, table.fingerprint.to_text())
            if cause != known.copied.cause or known.parked_for == ParkReason.REWRITTEN:
                logger.info("%s is taken up again: it is copied", known.title)
                return ReasonEnded(cause)
        try:
            check_hidden(table.facts, self._options)
        except TableError as error:
            return CopyNeeded(error.what)  # which parks it, with words
        before, now = SourceFingerprint.parse(known.source.fingerprint), table.fingerprint
        if before is None:
            return Looked("", known.source.relations, *self._looked)
        if known.replaces_partitions and now.filenodes.keys() - before.filenodes.keys():
            return LookedAside(before.with_leaves_of(now).to_text())
        # Those that batches have brought during the look may be newer than what it has read.
        asked = self._unseen.get(table.facts.oid, frozenset())
        unseen = [leaf for leaf in known.pending.unseen_leaves if leaf.oid in asked]
        look = Look(
            known.title,
            before,
            now,
            server_version=self._connection.info.server_version,
            came_empty=self._differences.partitions.empty,
            perhaps_empty=self._differences.partitions.unknown,
            created=self._differences.partitions.created,
            unseen=_rows_of_unseen(unseen, before, now),
            has_some_leaves=bool(known.source.relations),
            missing={leaf: self._differences.missing.get(leaf, {}) for leaf in now.filenodes},
            fresh=self._differences.fresh,
        )
        verdict = self._unless_void(known, reconcile_source(look))
        if isinstance(verdict, CopyAgain):
            return CopyNeeded(verdict.why)
        baseline = now.following(
            before,
            verdict.values if isinstance(verdict, ColumnsAdded) else None,
            is_caught_up=known.applied_through >= known.source.lsn,
            looked_at=self._looked[0],
            emptied=emptied_leaves(look),
        )
        seen = frozenset(leaf.oid for leaf in unseen)
        looked = Looked(baseline.to_text(), table.relations, *self._looked, seen)
        match verdict:
            case ReplacePartitions(came, gone, why):
                return replace(looked, leaves=came, gone=gone, doubt=why)
            case Verify(why):
                if known.is_active:
                    logger.info("%s: it is verified", why)
                return replace(looked, doubt=why)
            case ColumnsAdded():
                return replace(looked, facts=table.facts.to_json())
            case Same():
                return looked

    def _unless_void(self, known: TableRecord, verdict: SourceVerdict) -> SourceVerdict:
        """The verdict, if the refresh that it compares with is still valid.

        A promotion undoes what a refresh saw past the switch point. The new primary may have given
        other catalog rows the same OIDs and xmins.
        """
        if self._identity.has(known.source.timeline, known.source.lsn):
            return verdict
        why = f"{known.title} was refreshed on a primary that was replaced since"
        if isinstance(verdict, ColumnsAdded) or known.pending.columns:
            return CopyAgain(f"{why}, and has columns that its target gets")
        if isinstance(verdict, ReplacePartitions):
            return CopyAgain(f"{why}, and has other partitions since")
        return Verify(why) if isinstance(verdict, Same) else verdict

    def _has_ended(self, known: TableRecord, table: ReplicatedTable) -> bool:
        """Whether the reason for parking a table has ended, so that a copy could succeed."""
        try:
            check_hidden(table.facts, self._options)
            target = target_table(table.facts, self._options, table.columns)
            key = target.key
            if known.parked_for == ParkReason.KEY:  # a log's target has none
                key = key_columns(table.facts, self._options)
        except TableError:
            return False
        match known.parked_for:
            case ParkReason.KEY:
                return bool(key) and {*key} <= {*target.schema.names, *table.excluded}
            case ParkReason.COLUMNS:
                return bool(target.schema.names)
            case ParkReason.RIGHTS:
                rights = self._differences.rights.get(table.facts.oid)
                if rights is None or not rights.sees_all_rows:
                    return False
                return rights.to_read(table.columns_read).may_read
            case ParkReason.REWRITTEN:
                return table.facts.oid in self._settled
        return False

    def _remove(self, tables: SubscriptionTables, oid: int, known: TableRecord) -> None:
        """A table is no longer published. Changes that the server sent before are still applied; an
        exclusion by pgsluice's own publications takes effect at once."""
        if self._has_rules or known.source.relations:
            logger.info("%s is not published any more", known.title)
            tables.apply(oid, Unpublished())
        elif known.is_published or not known.is_active:
            tables.apply(oid, NotSent())


def _rows_of_unseen(
    leaves: Iterable[UnseenLeaf], before: SourceFingerprint, now: SourceFingerprint
) -> dict[int, str | None]:
    """A condition on the only rows that leaves added between two refreshes had; None: unknown."""
    rows: dict[int, str | None] = {}
    for leaf in leaves:
        has_key = {*leaf.columns} <= {*(now.key or ())}
        own = leaf.condition if leaf.condition and has_key else None
        above = before.rows_until(now, leaf.parent) if leaf.parent in before.attachments else None
        known = [f"({each})" for each in (above, own) if each is not None]
        rows[leaf.oid] = " AND ".join(known) or None
    return rows


def _renamed(
    known: TableRecord, new: TableRecord, predecessors: tuple[int, ...], *, may_move: bool
) -> Renamed:
    """How a renamed table gets its rows to the target of its new name.

    From its previous target, if that has the same rows and columns; else from the source.
    """
    is_unwritten = known.version < 0 and not known.committed and not predecessors
    old_target = known.old_target
    if known.is_active and known.version >= 0 and may_move:
        old_target = OldTarget(known.namespace, known.name, known.copy_number, known.version)
    has_rows = known.is_active or known.replaces_partitions
    return Renamed(
        new.target_name,
        new.target,
        predecessors,
        old_target,
        keeps_state=not has_rows or is_unwritten,
    )
