"""Registers the targets of a subscription in the catalog of the run's Spark session.

Each table is registered once in a session: after its first copy, and at each start. Replication
does not wait for it: if the catalog refuses a table, pgsluice logs it, keeps the reason for
``status``, and tries again later. Before that, and then once a minute, the targets get the comments
of the source.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from operator import is_

from pgsluice.catalog.tables.tables import fetch_comments
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.config.values.target_names import CatalogTable
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import Failure, PgsluiceError
from pgsluice.replication import connect_sql
from pgsluice.spark.errors import is_without_jvm, spark_errors, summarize_error
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spark.session.catalog import register
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool import Spool, SubscriptionRecord, TableRecord
from pgsluice.spool.notes import write_catalog_problems
from pgsluice.subscription.base.options import target_writer
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.system.threads import WorkThread

logger = logging.getLogger(__name__)

RETRY_S = 300.0
"""The pause before another attempt to register tables, in seconds."""
COMMENTS_S = 60.0
"""The pause between two queries for the comments of the source, in seconds."""
_OTHER = (
    "\n  → drop or rename that table in the catalog, or set register in the sink to another name; "
    "pgsluice does not replace tables of the catalog"
)
_REFUSED = (
    "\n  → `pgsluice check CONFIG` shows the settings that [spark] lacks; replication continues"
)

_NOT_A_NAME = "INVALID_SCHEMA_OR_RELATION_NAME"


class TargetComments:
    """Gives targets the comments that their tables have at the source.

    The stream has no message for COMMENT ON. So one query asks for the comments of all tables, and
    only a target whose comments differ gets a commit, at its position.
    """

    def __init__(self, config: Config) -> None:
        self._dsn = config.source.conninfo
        self._spool = config.spool.place
        self._compared: dict[int, tuple[int, TableComments]] = {}
        self._logged: dict[int, str] = {}

    def bring(self, subscription: SubscriptionConfig, tables: Mapping[int, TableRecord]) -> None:
        """Give targets the comments of their tables. What fails is logged, and tried again at the
        next call.

        Args:
            tables: by OID; their targets exist.
        """
        try:
            with connect_sql(
                self._dsn, "asking for comments", application="comments"
            ) as connection:
                found = fetch_comments(connection, tables.keys())
            spool_id = Spool.open(self._spool).identity.spool_id
        except PgsluiceError as error:
            logger.debug("comments are asked for later: %s", error)
            return
        for oid, comments in found.items():
            table = tables[oid]
            compared = (table.copy_number, comments)
            if not comments or self._compared.get(oid) == compared:
                continue
            writer = target_writer(subscription, spool_id, oid, table)
            result = attempt(writer.comment, comments)
            if not isinstance(result, Failure):
                self._compared[oid] = compared
                if result:
                    logger.info("%s: its target has the comments of the source", table.title)
            elif self._logged.get(oid) != result.message:
                self._logged[oid] = result.message
                logger.warning("%s: its comments are not written: %s", table.title, result.message)


class CatalogTables:
    """Registers the tables of one subscription in the catalog.

    Args:
        spark: gives Spark's context; called when there is a table to register.
    """

    def __init__(
        self,
        spark: ContextOnDemand,
        config: Config,
        subscription: SubscriptionConfig,
        tables: SubscriptionTables,
    ) -> None:
        self.subscription = subscription
        self._spark = spark
        self._spool = config.spool.folder
        self._tables = tables
        self._comments = TargetComments(config)
        self._comments_at = 0.0
        self._done: set[CatalogTable] = set()
        self._problems: dict[str, str] = {}
        self._thread: WorkThread | None = None
        self._stopped = threading.Event()
        self._retry_at = 0.0
        self._seen: tuple[SubscriptionRecord, SubscriptionConfig] | None = None

    def tend(self) -> None:
        """Register waiting tables in a separate thread, if there are any; returns at once.

        If Spark itself fails meanwhile, the run's other threads also notice it.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        waiting = self.waiting()
        if waiting or (self._done and time.monotonic() >= self._comments_at):
            self._thread = WorkThread("pgsluice catalog", partial(self._register, waiting))
            self._thread.start()

    def stop(self) -> None:
        """Say nothing of statements that fail from now on: Spark ends."""
        self._stopped.set()

    def register_now(self) -> None:
        """Register waiting tables.

        Raises:
            PgsluiceError: Spark does not start.
            Exception: Spark's JVM has ended.
        """
        self._register(self.waiting())

    def waiting(self) -> Mapping[str, CatalogTable]:
        """The tables that this session has not registered yet, by ``schema.table``."""
        now, seen = time.monotonic(), (self._tables.durable, self.subscription)
        is_due = bool(self._problems) and now >= self._retry_at
        if self._seen is not None and not is_due and all(map(is_, seen, self._seen)):
            return {}
        waiting = {}
        for table in seen[0].tables.values():
            if not _exists(table):
                continue
            entry = self.subscription.sink.catalog_table(
                *self.subscription.names.table(table.namespace, table.name)
            )
            if entry is None:
                break
            if entry not in self._done and (is_due or table.title not in self._problems):
                waiting[table.title] = entry
        if not waiting:  # else they are asked for again until they are registered
            self._seen = seen
        return waiting

    def _register(self, waiting: Mapping[str, CatalogTable]) -> None:
        tables = self._tables.durable.tables
        existing = {oid: each for oid, each in tables.items() if _exists(each)}
        self._comments.bring(self.subscription, existing)
        self._comments_at = time.monotonic() + COMMENTS_S
        for title, entry in waiting.items():
            problem = self._attempt(title, entry)
            if problem is not None and self._stopped.is_set():
                return
            if problem is None:
                self._done.add(entry)
                self._problems.pop(title, None)
                logger.info("%s: the catalog has it as %s", title, ".".join(entry.name))
            elif problem != self._problems.get(title):
                self._problems[title] = problem
                logger.warning("%s: %s", title, problem)
        if waiting:
            self._retry_at = time.monotonic() + RETRY_S
            write_catalog_problems(self._spool, self.subscription.name, self._problems)

    def _attempt(self, title: str, entry: CatalogTable) -> str | None:
        """Register a table; returns why the catalog refuses it, as text for the user."""
        context = self._spark()
        try:
            other = register(context, entry)
        except spark_errors() as error:
            if is_without_jvm(error):
                raise
            what = f"pgsluice cannot register the target in the catalog: {summarize_error(error)}"
            if _NOT_A_NAME in what:
                return (
                    f"{what}\n  → give the target another name and folder: rename = "
                    f'{{ "{title}" = "…" }} in [[subscription]]; replication continues'
                )
            return f"{what}{_REFUSED}"
        return None if other is None else f"{other}{_OTHER}"


def _exists(table: TableRecord) -> bool:
    """Whether the table's target is there."""
    return table.is_active and table.version >= 0
