"""Targets that pgsluice wrote before, perhaps from another spool, and that it takes over.

A target is compared with the source under the copies' snapshot, as ``verify`` does: the server and
this process hash all rows, by ranges of keys. Of the ranges that differ, the rows are read again,
and replace those of the target. One commit has them, the new spool's marker and the snapshot's
position. It succeeds only at the version that was compared: if another program commits in between,
the comparison begins again. A table of which too much differs, or that cannot be compared, is
copied. After a kill before the commit, the next run compares again.

A repair of a table that differs from the source begins in the same way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from pgsluice.config import SubscriptionConfig
from pgsluice.copy.job import CopyResult, CopyTables
from pgsluice.errors import Failure, PgsluiceError, Remedy
from pgsluice.failpoints import failpoint
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.replication import connect_sql, table_errors
from pgsluice.sinks.contract import Overtaken, StagedChanges
from pgsluice.sinks.fence import TableWriter
from pgsluice.snapshots.snapshot import import_snapshot
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.subscription.base.comparing import (
    InterruptibleRows,
    Session,
    compare_standing,
    failure_reason,
)
from pgsluice.subscription.base.options import table_options
from pgsluice.subscription.copies.plan import adopts
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.results import finish_copy, is_wanted
from pgsluice.subscription.copies.site import CopySite
from pgsluice.system.threads import WorkThread

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_MOST_DIFFERING = 0.25
"""If ranges that differ have a larger part of the rows, a copy is made: tasks read it side by side,
and this process reads alone."""
_ATTEMPTS = 3
"""If other programs commit each time, the table is copied."""


@dataclass(frozen=True, slots=True)
class _ComparedTarget:
    """A target at the version that was compared, with staged rows of ranges that differ."""

    rows: int
    writer: TableWriter
    staged: tuple[StagedChanges, ...]
    outcome: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """Compares tables with the targets that they may take over.

    Attributes:
        settings: the subscription's settings for this copy run.
        task: the copies under a snapshot that somebody holds.
        is_stopping: a comparison ends soon after it is true.
    """

    site: CopySite
    settings: SubscriptionConfig
    task: CopyTables
    is_stopping: Callable[[], bool]

    def take_over(
        self, copies: Sequence[TableCopy], published: Mapping[int, ReplicatedTable]
    ) -> list[TableCopy]:
        """Take over the targets that already have their table's rows, and return the copies that
        are still needed.

        A copy gets a failure if the source or the target was away: a later run compares again.
        """
        left = []
        for copy in copies:
            oid = copy.work.facts.oid
            record = self.site.tables.get(oid)
            may_adopt = record is not None and (
                adopts(record, self.settings) or record.claim.repairs
            )
            if not may_adopt or not self._takes_over(copy, published[oid]):
                if copy.failure is None:
                    left.append(copy)
                else:
                    finish_copy(self.site, self.task, copy)
        return left

    def _takes_over(self, copy: TableCopy, source: ReplicatedTable) -> bool:
        """Take over the table's target, if it needs no copy."""
        title, snapshot = copy.work.title, self.task.snapshot
        for _ in range(_ATTEMPTS):
            target = self._matching(copy, source)
            if target is None:
                return False
            with self.site.tables.lock:  # nobody else changes the table's record meanwhile
                if not is_wanted(self.site, copy.work, snapshot):
                    if target.staged:
                        attempt(target.writer.discard_changes, target.staged)
                    return False
                try:
                    applied = target.writer.take_over(snapshot.position, target.staged)
                except Overtaken:
                    logger.warning("%s: another program wrote into its target meanwhile", title)
                    continue
                except PgsluiceError as error:
                    logger.warning("%s is copied: its target is not taken over: %s", title, error)
                    return False
                failpoint("copy.adopted")
                logger.info("%s: its target %s", title, target.outcome)
                result = CopyResult(target.rows, applied.version)
                finish_copy(self.site, self.task, copy, result)
                return True
        logger.warning("%s is copied: other programs keep writing into its target", title)
        return False

    def _matching(self, copy: TableCopy, source: ReplicatedTable) -> _ComparedTarget | None:
        """The table's target, with what makes it equal to the snapshot; None: it is copied."""
        oids = [copy.work.facts.oid]
        self.site.counts.wait(oids, "the comparison with the target that is there")
        try:
            return self._compared(copy, source)
        except Exception as error:
            failure = Failure.of(error)
            if self.is_stopping():
                return None
            if failure.remedy is Remedy.WAIT:
                copy.failure = failure
            else:  # a damaged target, say: the copy replaces it
                reason = failure_reason(error)
                logger.warning(
                    "%s is copied: its target is not compared: %s", copy.work.title, reason
                )
            return None
        finally:
            self.site.counts.wait(oids, "")

    def _compared(self, copy: TableCopy, source: ReplicatedTable) -> _ComparedTarget | None:
        title, position = copy.work.title, self.task.snapshot.position
        writer = self.task.writer(copy.work)
        if not copy.work.may_replace_foreign_target:  # a repair
            writer.refuse_foreign_target()
        content = writer.adoptable()
        if content is None:
            if writer.version() >= 0:
                logger.info("%s is copied: no copy would make its target as it is", title)
            return None

        def rows_of(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return (batch.select(list(columns)) for batch in writer.content().rows)

        # The sessions are inside: one may break before it has the snapshot.
        with table_errors(f"comparing {title}", title), self._sessions() as (session, *helpers):
            failpoint("copy.comparing")
            comparison = compare_standing(
                session,
                source,
                InterruptibleRows(content.schema, rows_of, self.is_stopping),
                table_options(self.settings),
                max_keys=0,
                most_in_ranges=_MOST_DIFFERING if writer.can_stage_changes() else 0.0,
                has_small_ranges=content.rewrites_files,
                helpers=helpers,
            )
        rows, ranges = comparison.source.rows, comparison.ranges
        if comparison.equal:
            outcome = f"is equal to the source at {position}, {rows} rows"
            return _ComparedTarget(rows, writer, (), f"{outcome}, and taken over without a copy")
        if ranges is None:
            logger.info("%s is copied: its target differs: %s", title, comparison.differences)
            return None
        self.site.counts.wait([copy.work.facts.oid], "the rows of its target that differ")
        staged = self.task.stage_ranges(copy.work, writer, ranges, copy.portions, self.is_stopping)
        failpoint("copy.ranges_staged")
        outcome = (
            f"is taken over at {position}: {ranges} differed, and {staged.rows_inserted} of"
            f" {rows} rows were read again"
        )
        return _ComparedTarget(rows, writer, (staged,), outcome)

    @contextmanager
    def _sessions(self) -> Iterator[Sequence[Session]]:
        """Sessions in the snapshot; a stop cancels what they do."""
        ended, dsn = threading.Event(), self.site.config.source.conninfo
        with ExitStack() as stack:
            sessions = []
            for _ in range(self.settings.copy_workers):
                session = stack.enter_context(connect_sql(dsn, application="adopt", silence_s=None))
                import_snapshot(session, self.task.snapshot)
                sessions.append(session)

            def watch() -> None:
                while not ended.wait(_POLL_S):
                    self.site.counts.tend()  # or what is said would be taken for old
                    if self.is_stopping():
                        for session in sessions:
                            with suppress(psycopg.Error):
                                session.cancel_safe()

            watcher = WorkThread("pgsluice adoption", watch)
            stack.callback(watcher.join)
            stack.callback(ended.set)
            watcher.start()
            yield sessions
