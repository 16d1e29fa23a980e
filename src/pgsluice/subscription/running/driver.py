"""One active subscription: its batches, its copies, and the work between them.

:mod:`pgsluice.subscription.lifecycle.tables` owns its record and the record's lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.events import MetricsEvent
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.spool import RecordStore, SpoolReader, TableState
from pgsluice.spool.layout import STAGING, subscription_folder, tasks_path
from pgsluice.stores.contract import StoreError
from pgsluice.subscription.base.options import too_many_copy_cores
from pgsluice.subscription.base.received import Received
from pgsluice.subscription.base.waits import WAITS, Waits
from pgsluice.subscription.batches.batches import Batches
from pgsluice.subscription.batches.results import BatchResults
from pgsluice.subscription.batches.tasks.shared_batch import clear, staging_folder
from pgsluice.subscription.copies.pending import PendingCopies
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.copies.scheduler import CopyScheduler
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.copies.table_copies import TableCopies
from pgsluice.subscription.lifecycle.table_events import HoldReleased
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.looks import CatalogLooks
from pgsluice.subscription.running.catalog_tables import CatalogTables
from pgsluice.subscription.verifying.suspicious_tables import SuspiciousTables

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ProblemLog:
    """Logs a kind of problem of a subscription once while it lasts."""

    _name: str
    _logged: str | None = None

    def __call__(self, message: str | None) -> None:
        """Log a problem, unless it is the one that lasts; None: the problem is over.

        Only the first line tells problems apart: others may quote a log that grows.
        """
        what = None if message is None else message.partition("\n")[0]
        if what is not None and what != self._logged:
            logger.warning("%s: %s", self._name, message)
        if what is None and self._logged is not None:
            logger.warning("%s: resolved: %s", self._name, self._logged)
        self._logged = what


class SubscriptionDriver:
    """Runs one subscription as jobs of a Spark context.

    Args:
        store: has the durable record of one of its subscriptions; from now on nothing else may
            write it.
        scheduler: schedules the copies of all subscriptions of the run; gives Spark's context when
            it is needed.

    Attributes:
        is_look_due: set from any thread to let the next turn read the whole catalog.
        looks: refreshes the catalog: finds new tables, and those that need a copy or a
            verification.
        suspicious: verifies the tables that may differ from the source.
        catalog: registers the targets in the catalog of Spark's session.
    """

    def __init__(
        self,
        config: Config,
        store: RecordStore,
        report: Callable[[MetricsEvent], None],
        scheduler: CopyScheduler,
        received: Received,
        waits: Waits = WAITS,
    ) -> None:
        subscription = config.subscription(store.record.name)
        self.subscription = subscription
        self.waits = waits
        self.report = report
        self.log_once = ProblemLog(subscription.name)
        self.is_look_due = threading.Event()
        self.tables = SubscriptionTables(store, report)
        self.reader = SpoolReader(config.spool.place)
        self._rules = PublicationRules.of(config, subscription)
        self.results = BatchResults(subscription, self.tables, self.reader, report, waits)
        self.looks = CatalogLooks(config, subscription, self.tables, self._rules)
        self.batches = Batches(
            scheduler.spark, config, subscription, self.tables, self._rules, self.results
        )
        folder = subscription_folder(config.spool.folder, subscription.name)
        rate = subscription.copy_rate
        self.copies = TableCopies(
            CopySite(
                config,
                self.tables,
                self.looks,
                received,
                self.batches,
                PendingCopies(self.tables, waits.lock_poll_s),
                scheduler.share(subscription, self.tables, waits),
                CopyCounts(subscription.name, folder, report, most_bytes_per_s=rate),
            )
        )
        self.suspicious = SuspiciousTables(
            config,
            self.tables,
            self._rules,
            received,
            ProblemLog(subscription.name),
            waits.verification_retry_s,
        )
        self.catalog = CatalogTables(scheduler.spark, config, subscription, self.tables)
        # What a run left that was killed: it may be as large as a transaction.
        place = config.spool.place
        clear(staging_folder(place, tasks_path(place, subscription.name, STAGING)))
        if sentence := too_many_copy_cores(config, subscription):
            logger.warning("%s: %s", subscription.name, sentence)

    def reread_publications(self, config: Config) -> Callable[[], None]:
        """Read the statements of pgsluice's publications from another configuration.

        Returns:
            a function that puts them in force, for the next catalog refresh.

        Raises:
            ConfigError: they cannot be read.
        """
        if self._rules is None:
            return lambda: None
        return self._rules.reread(config, self.subscription.name)

    def take_over(self, subscription: SubscriptionConfig) -> None:
        """Use other settings from now on; active batches and copies keep theirs.

        Args:
            subscription: the settings, as :func:`pgsluice.config.in_force.taken_over` made them.
        """
        self.subscription = subscription
        for user in (self.results, self.looks, self.batches, self.suspicious, self.catalog):
            user.subscription = subscription
        self.copies.take_over(subscription)

    # Between batches

    def copy_released(self) -> None:
        """Request copies of tables whose changes the spool no longer has.

        The size limit dropped them, or the subscription was missing in the configuration for a
        while.
        """
        tables = self.tables
        with tables.changing():
            released = self.reader.spool.released().get(self.subscription.name, {})
            floor = self.reader.start()
            is_whole = tables.position < floor
            tables.advance(floor)
            for oid, table in tables.record.tables.items():
                if table.applied_through >= floor or not (is_whole or str(oid) in released):
                    continue
                if table.state is TableState.DATA_COPY and not is_whole:
                    self.copies.put_off(oid)
                else:
                    tables.apply(oid, HoldReleased())

    def raise_failure(self) -> None:
        """Raise the error after which another attempt at a failed batch would be useless, if there
        is one.

        Raises:
            SpoolHole: the segment after the position cannot be read.
            SinkError: the target as a whole cannot be used.
        """
        with suppress(StoreError):  # whether it can be read will be known when the store answers
            for info in self.reader.segments(self.tables.position):
                _ = info.header
        self.tables.raise_failure()
