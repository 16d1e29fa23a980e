"""Targets that pgsluice wrote before, from another spool perhaps, and that need no copy.

A table whose target has exactly the rows of the copies' snapshot is taken over by one commit, which
has the new spool's marker and the snapshot's position. The comparison is that of ``verify``: the
server and this process hash all rows. Whatever is not equal, or cannot be compared, is copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import CopyResult, CopyTables, CopyWork
from pgsluice.errors import PgsluiceError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.replication import connect_sql
from pgsluice.sinks.contract import Overtaken, TargetContent
from pgsluice.sinks.fence import TableWriter
from pgsluice.snapshots import Snapshot, import_snapshot
from pgsluice.subscription.base.comparing import Session, compare_standing, failure_reason
from pgsluice.subscription.base.options import table_options
from pgsluice.subscription.copies.plan import adopts
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.threads import WorkThread

logger = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class EqualTarget:
    """A target with the snapshot's rows, open at the version that was compared.

    Attributes:
        rows: how many it has.
        position: the snapshot's.
    """

    title: str
    rows: int
    position: Lsn
    writer: TableWriter

    def take_over(self) -> CopyResult | None:
        """Commit it under the new spool's name; None: that failed, and the table is copied."""
        try:
            applied = self.writer.take_over(self.position)
        except Overtaken:
            logger.warning("%s is copied: another program wrote into its target", self.title)
            return None
        except PgsluiceError as error:
            logger.warning("%s is copied: its target cannot be taken over: %s", self.title, error)
            return None
        failpoint("copy.adopted")
        logger.info(
            "%s: its target is equal to the source at %s, %s rows, and taken over without a copy",
            self.title,
            self.position,
            self.rows,
        )
        return CopyResult(self.rows, applied.version)


class Adoption:
    """Compares tables with the targets that they may take over.

    Args:
        config: the whole configuration.
        task: the copies under a snapshot that somebody holds.
        counts: say what the tables wait for meanwhile.
        is_stopping: a comparison ends soon after it is true.
    """

    def __init__(
        self,
        config: Config,
        subscription: SubscriptionConfig,
        task: CopyTables,
        counts: CopyCounts,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._dsn = config.source.dsn
        self._subscription = subscription
        self._task = task
        self._counts = counts
        self._is_stopping = is_stopping

    def left(
        self,
        copies: Sequence[TableCopy],
        published: Mapping[int, ReplicatedTable],
        tables: SubscriptionTables,
        waits_for: Callable[[CopyWork, Snapshot], bool],
        finish: Callable[[CopyTables, TableCopy, CopyResult], object],
    ) -> list[TableCopy]:
        """Take over the targets that are equal; the copies that have to be made.

        Args:
            published: the tables that are sent.
            waits_for: whether a table still waits for this copy.
            finish: records a table that needs no copy.
        """
        left = []
        for copy in copies:
            oid, target = copy.work.facts.oid, None
            record = tables.get(oid)
            if record is not None and adopts(record, self._subscription):
                target = self._equal_target(copy.work, published[oid])
            with tables.lock:
                is_wanted = target is not None and waits_for(copy.work, self._task.snapshot)
                result = target.take_over() if target is not None and is_wanted else None
                if result is None:
                    left.append(copy)
                else:
                    finish(self._task, copy, result)
        return left

    def _equal_target(self, work: CopyWork, source: ReplicatedTable) -> EqualTarget | None:
        """The table's target, if it has the snapshot's rows; None: the table is copied."""
        is_stopping = self._is_stopping
        title = f"{work.namespace}.{work.name}"
        oids = [work.facts.oid]
        self._counts.wait(oids, "the comparison with the target that is there")
        try:
            writer = self._task.writer(work)
            content = writer.adoptable()
            if content is None:
                if writer.version() >= 0:
                    logger.info("%s is copied: no copy would make its target as it is", title)
                return None
            with self._sessions() as (session, *helpers):
                comparison = compare_standing(
                    session,
                    source,
                    _Rows(content, is_stopping),
                    table_options(self._subscription),
                    max_keys=0,
                    helpers=helpers,
                )
        except Exception as error:  # a damaged target, say: the copy replaces it
            if not is_stopping():
                reason = failure_reason(error)
                logger.warning("%s is copied: its target is not compared: %s", title, reason)
            return None
        finally:
            self._counts.wait(oids, "")
        if not comparison.equal:
            logger.info("%s is copied: its target differs: %s", title, comparison.differences)
            return None
        return EqualTarget(title, comparison.source_rows, self._task.snapshot.position, writer)

    @contextmanager
    def _sessions(self) -> Iterator[Sequence[Session]]:
        """Sessions in the snapshot; a stop cancels what they do."""
        ended = threading.Event()
        with ExitStack() as stack:
            sessions = []
            for _ in range(self._subscription.copy_workers):
                session = stack.enter_context(
                    connect_sql(self._dsn, application="adopt", silence_s=None)
                )
                import_snapshot(session, self._task.snapshot)
                sessions.append(session)

            def watch() -> None:
                while not ended.wait(_POLL_S):
                    self._counts.tend()  # or what is said would be taken for old
                    if self._is_stopping():
                        for session in sessions:
                            with suppress(psycopg.Error):
                                session.cancel_safe()

            watcher = WorkThread("pgsluice adoption", watch)
            stack.callback(watcher.join)
            stack.callback(ended.set)
            watcher.start()
            yield sessions


@dataclass(frozen=True, slots=True)
class _Rows:
    """A target's rows, read once; a stop ends that."""

    content: TargetContent
    is_stopping: Callable[[], bool]

    @property
    def schema(self) -> pa.Schema:
        return self.content.schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self.content.rows:
            if self.is_stopping():
                raise PgsluiceError("asked to stop")
            yield batch.select(list(columns))
