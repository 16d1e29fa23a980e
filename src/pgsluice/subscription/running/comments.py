"""Gives targets the comments that their tables have at the source.

The stream has no message for COMMENT ON. So one query asks for the comments of all tables, and only
a target whose comments differ gets a commit, at its position.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from pgsluice.catalog import fetch_comments
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.definitions.comments import TableComments
from pgsluice.errors import Failure, PgsluiceError
from pgsluice.replication import connect_sql, source_errors
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity, TargetMode
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import Spool, TableRecord
from pgsluice.subscription.base.options import sink_options, target_mode

logger = logging.getLogger(__name__)


class TargetComments:
    """The comments of a subscription's targets, as far as this run has compared them."""

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
            with (
                connect_sql(self._dsn, application="comments") as connection,
                source_errors("asking for comments"),
            ):
                found = fetch_comments(connection, tables.keys())
        except PgsluiceError as error:
            logger.debug("comments are asked for later: %s", error)
            return
        sink = make_sink(sink_options(subscription))
        for oid, comments in found.items():
            table = tables[oid]
            compared = (table.copy_number, comments)
            if not comments or self._compared.get(oid) == compared:
                continue
            mode = target_mode(subscription, table.target_name)
            result = attempt(partial(self._write, sink, mode, oid, table), comments)
            if not isinstance(result, Failure):
                self._compared[oid] = compared
                if result:
                    logger.info("%s: its target has the comments of the source", table.title)
            elif self._logged.get(oid) != result.message:
                self._logged[oid] = result.message
                logger.warning("%s: its comments are not written: %s", table.title, result.message)

    def _write(
        self, sink: Sink, mode: TargetMode, oid: int, table: TableRecord, comments: TableComments
    ) -> bool:
        spool_id = Spool.open(self._spool).identity.spool_id
        identity = TargetIdentity(spool_id, oid, table.copy_number, mode)
        shell = TargetTable(table.namespace, table.name, pa.schema([]), ())
        return TableWriter(sink, shell, identity).comment(comments)
