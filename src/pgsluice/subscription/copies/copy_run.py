"""One copy run: the copies of some tables under one snapshot, from its claim to their commits.

1. *Claim* the tables that are next (:mod:`pgsluice.subscription.copies.pending`), and set state
   ``d``.
2. *Snapshot* (:mod:`pgsluice.subscription.copies.snapshots`).
3. *Plan* what to read of each table (:mod:`pgsluice.subscription.copies.plan`). Adopt targets that
   already equal the source (:mod:`pgsluice.subscription.copies.adoption`). Apply changes up to the
   snapshot to targets of which only some partitions are replaced
   (:mod:`pgsluice.subscription.copies.partitions`).
4. *Stage* portions as Spark tasks (:mod:`pgsluice.subscription.copies.staging`).
5. *Commit* each table that is staged (:mod:`pgsluice.subscription.copies.results`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

from pgsluice.copy.job import CopyTables
from pgsluice.errors import Failure, Remedy, SourceUnreachable, SpoolFull, TargetUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.snapshots.snapshot import Snapshot, SnapshotGone
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import Spool
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.base.options import rejects_place, sink_options, table_options
from pgsluice.subscription.copies.adoption import Adoption
from pgsluice.subscription.copies.kept import (
    HeldSnapshot,
    KeptCopies,
    ReadSnapshot,
    SnapshotAge,
    are_worth_keeping,
)
from pgsluice.subscription.copies.partitions import catch_up_to, log_full_copy
from pgsluice.subscription.copies.pending import awaits_copy, is_planned
from pgsluice.subscription.copies.plan import (
    SourceTables,
    plan_copies,
    read_source,
    restored_copies,
)
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.results import finish_copy, is_wanted
from pgsluice.subscription.copies.scheduler import CopySlots
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.copies.snapshots import copy_snapshot
from pgsluice.subscription.copies.staging import Staging
from pgsluice.subscription.lifecycle.table_events import (
    COPY_ATTEMPTS,
    CopyBegun,
    CopyWaits,
    HoldReleased,
)

logger = logging.getLogger(__name__)


class CopyRun:
    """Copies some of a subscription's tables under one snapshot.

    Args:
        number: a number that no other active copy run of the subscription has; part of the names of
            the journal and of the snapshot holder's file.
        stop: the copy run ends soon after it is set.
        is_alone: the run applies no changes until the copies are done.

    Attributes:
        kept: what a later run can resume.
    """

    def __init__(
        self, site: CopySite, number: int, stop: threading.Event, *, is_alone: bool = False
    ) -> None:
        self.number = number
        self._site = site
        self._stop = stop
        self._is_alone = is_alone
        self._oids: frozenset[int] = frozenset()
        self._settings = site.share.settings
        folder = subscription_folder(site.config.spool.folder, self._settings.name)
        self.kept = KeptCopies(folder, number)

    # Claim

    @property
    def is_begun(self) -> bool:
        """Whether an earlier run has started copies under a snapshot that is still held."""
        return bool(self._begun_before())

    def _begun_before(self) -> frozenset[int]:
        kept = self.kept.begun_before()
        return frozenset() if kept is None else kept[1].tables

    def claim(self, *, resumes: bool = True) -> None:
        """Claim the tables that are next; a run that resumes claims only its own tables."""
        with self._site.tables.lock:
            # A user may have changed the settings before asking for a copy.
            self._settings = self._site.share.settings
            only = self._begun_before() if resumes else frozenset[int]()
            following = frozenset(self._site.pending.next(self.number))
            self._oids = following & only or following
            self._site.pending.claim(self.number, self._oids)

    def _begin(self) -> None:
        """Set state ``d`` durably before the snapshot: the spool keeps the changes after it."""
        tables = self._site.tables
        with tables.changing():
            for oid, table in tables.record.tables.items():
                if oid in self._oids and awaits_copy(table) and not table.replaces_partitions:
                    tables.apply(oid, CopyBegun(tables.position))

    # Snapshots

    def copy_all(self, first: HeldSnapshot | None) -> None:
        """Copy the claimed tables, then the next ones; copy tables again that had to wait for an
        external cause.

        Args:
            first: the snapshot of the new slot, for the very first copies.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be taken.
            SourceUnreachable, TargetUnreachable: no connection, or the store fails.
        """
        tables = self._site.tables
        self.resume()
        for number in range(1, COPY_ATTEMPTS + 1):
            with tables.lock:
                self.claim(resumes=False)
                if not self._oids or self._stop.is_set():
                    return
                self._begin()
                if first is not None and first.snapshot.position < tables.position:
                    # Copies have begun again, and the spool need not have what follows it.
                    first = None
            with ExitStack() as connection:
                try:
                    if (held := first) is None:
                        taking = copy_snapshot(self._site, self._oids, self._stop)
                        if (snapshot := connection.enter_context(taking)) is None:
                            return
                        held = HeldSnapshot(snapshot, connection)
                except SpoolFull as error:
                    self._give_way(error)
                    return
                failure = self._copy_under(held)
                held.let_go()
            first = None
            if failure is not None and number == COPY_ATTEMPTS:
                kind = TargetUnreachable if failure.is_of_target else SourceUnreachable
                raise kind.of_text(failure.message)

    def _give_way(self, full: SpoolFull) -> None:
        """Unpin the spool for these tables until it has room again."""
        tables = self._site.tables
        with tables.changing():
            for oid in self._oids:
                before = tables.get(oid)
                table = tables.apply(oid, HoldReleased(str(full))).table
                if before is not None and before.replaces_partitions:
                    log_full_copy(table, Failure.of(full))

    # Plan

    def resume(self) -> None:
        """Resume the copies of the claimed tables that an earlier run has staged, if its snapshot
        is still held.
        """
        if (kept := self.kept.begun_before()) is None:
            return
        snapshot, journal = kept
        task = self._task(snapshot)
        with self.kept.needed():
            try:
                source, _ = read_source(self._site, snapshot, self._oids)
            except SnapshotGone as error:
                logger.info("the copies restart: %s", error.what)
                self.kept.release()
                return
            copies = restored_copies(self._site, source, task, journal, self._oids)
            self._stage(ReadSnapshot(self.kept, task, copies, journal), source)

    def _copy_under(self, held: HeldSnapshot) -> Failure | None:
        """Copy the claimed tables under a snapshot; returns why a table has to wait, if one has."""
        site = self._site
        self.kept.release()
        source, snapshot = read_source(site, held.snapshot, self._oids, self._settings.copy_workers)
        known = site.tables.durable.tables
        if any(source.awaits_look(oid, known[oid]) for oid in self._oids & known.keys()):
            site.looks.look()
        task = self._task(snapshot)
        planned = plan_copies(site, source, task, self._oids)
        adoption = Adoption(site, self._settings, task, self._stop.is_set)
        copies = adoption.take_over(planned, source.now)
        waiting = next((copy.failure for copy in planned if copy.failure is not None), None)
        read = ReadSnapshot(self.kept, task, copies)
        if are_worth_keeping(copies, self._settings.copy_rate):
            read.keep(held, site.share.waits.keeper_after_s)
        try:
            with self.kept.needed():
                return self._stage(read, source) or waiting
        finally:
            if self.kept.begun_before() is None:
                self._discard(read)

    def _task(self, snapshot: Snapshot) -> CopyTables:
        config = self._site.config
        spool_id = Spool.open(config.spool.place).identity.spool_id
        return CopyTables(
            config.source.conninfo,
            snapshot,
            spool_id,
            sink_options(self._settings),
            table_options(self._settings),
            rejects_place(config, self._settings, spool_id),
        )

    # Stage

    def _stage(self, read: ReadSnapshot, source: SourceTables) -> Failure | None:
        site = self._site
        site.counts.wait(self._oids, "")  # also those that are not copied now
        site.pending.begin(self.number, (copy.work for copy in read.copies))
        try:
            position = read.task.snapshot.position
            copies = catch_up_to(site, position, read.copies, source.in_snapshot, self._stop)
            site.pending.begin(self.number, (copy.work for copy in copies))
            site.counts.begin(copies)
            try:
                waiting = self._stage_each(read, copies)
            finally:
                if not self._stop.is_set():
                    site.counts.given_up(copies)
        finally:
            read.end()
        if not self._stop.is_set():  # what is staged serves the next run, if it comes soon
            self.kept.release()
        return waiting

    def _stage_each(self, read: ReadSnapshot, copies: Sequence[TableCopy]) -> Failure | None:
        site, snapshot = self._site, read.task.snapshot
        every_s = site.share.waits.warn_every_s
        age = SnapshotAge(self._settings.name, snapshot.taken_at, every_s)
        waiting = [self._finish(read.task, copy) for copy in copies if copy.is_staged]
        slots = site.share.join(self._settings.copy_workers, is_alone=self._is_alone)
        staging = Staging(read, copies, slots)
        try:
            while staging.is_unfinished:
                if self._stop.is_set():
                    staging.drop_rest()
                else:
                    self._tend(read, age, slots)
                    staging.begin(lambda copy: is_wanted(site, copy.work, snapshot))
                for copy, number in staging.ended():
                    self._note(read, copy, number)
                    if copy.failure is not None or copy.is_staged:
                        waiting.append(self._finish(read.task, copy))
                waiting += [self._finish(read.task, copy) for copy in staging.give_up()]
        finally:
            for copy, number in staging.close():
                with suppress(Exception):  # the error that ended the copy run counts
                    self._note(read, copy, number)
        return next((failure for failure in reversed(waiting) if failure is not None), None)

    def _tend(self, read: ReadSnapshot, age: SnapshotAge, slots: CopySlots) -> None:
        """Keep the snapshot held, and the progress figures up to date."""
        read.look()
        age.look()
        pending, counts = self._site.pending, self._site.counts
        counts.wait(pending.begun(self.number), slots.waits_for)
        counts.tend()

    def _note(self, read: ReadSnapshot, copy: TableCopy, number: int) -> None:
        """Record in the journal that a chunk is staged, or why it has to wait."""
        oid, tables = copy.work.facts.oid, self._site.tables
        why = None if copy.locked is None else copy.locked.message
        if why is None and number not in copy.staged:
            return
        with tables.changing():
            table = tables.get(oid)
            if table is not None and table.error != why and is_planned(table, copy.work):
                tables.apply(oid, CopyWaits(why))
        if why is None:
            read.staged(copy, number)
            self._site.counts.staged(copy, number)
            failpoint("copy.staged")

    def _finish(self, task: CopyTables, copy: TableCopy) -> Failure | None:
        """Commit a table, or record its failure; returns the external cause if it has to wait."""
        result = finish_copy(self._site, task, copy)
        return result if isinstance(result, Failure) and result.remedy is Remedy.WAIT else None

    def _discard(self, read: ReadSnapshot) -> None:
        """Delete the staged rows of unfinished copies: they restart and would need the same room
        again. If a target fails once, the others are not tried.

        No later run can use these rows, because there is no journal of them. Rows that an earlier
        run has staged stay, because that run may have committed them.
        """
        for copy in read.copies:
            if self._stop.is_set():
                return
            if copy.staged and not copy.is_offered:
                discard = partial(read.task.discard, copy.work)
                if isinstance(attempt(discard, [*copy.staged.values()]), Failure):
                    return
