"""Starts a capture for a streaming query, and stops it when the query ends.

With the option ``dsn``, the process that plans the query makes sure that a capture writes to the
spool. It does not touch a running capture, and starts its own when that one ends. It never starts a
capture for the spool of a configuration: only ``pgsluice run`` knows all subscriptions of that
spool. The query's own capture uses the query's options of START_REPLICATION; any other capture has
to use the same options.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pgsluice.capture import CaptureProcess, read_health
from pgsluice.catalog.publications.managed import publish_for_stream, stream_publication
from pgsluice.catalog.publications.publications import notices_publications
from pgsluice.catalog.server import insert_lsn, server_info, slot_info
from pgsluice.config import Config
from pgsluice.errors import ConfigError, PgsluiceError, SlotInUse, SpoolBusy, SpoolError
from pgsluice.events import CapturePhase
from pgsluice.hints import for_query
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql
from pgsluice.snapshots.snapshot import temporary_snapshot
from pgsluice.spark.source.lookup import is_sent
from pgsluice.spark.source.options import DEFAULT_SLOT, NOW, SNAPSHOT
from pgsluice.spark.source.snapshot.reader import SLOT_TIMEOUT_S
from pgsluice.spark.source.walsender_options import (
    named_by_users,
    refuse_other_options,
    refuse_other_slot,
)
from pgsluice.spool import Owner, Spool, SpoolReader

if TYPE_CHECKING:
    import psycopg

    from pgsluice.spark.source.options import SourceOptions

_LOG = logging.getLogger("pgsluice.spark")
_CHECK_INTERVAL_S = 0.2
_RETRY_INTERVAL_S = 5.0
_NO_CAPTURE_TIMEOUT_S = 60.0
_POLL_S = 0.02
_LOG_AFTER_S = 15.0
"""A longer wait is logged, in seconds: a query shows nothing of it."""
_LOG_AGAIN_S = 300.0
_KEPT = frozenset({"messages", "origin", "two_phase"})
"""The options that decide what is sent."""
_BOOLEANS = {"true": True, "false": False}


class CaptureKeeper:
    """Makes sure that a capture runs; used in the planning process only.

    Args:
        options: the query's options, with a ``dsn``.
        once: capture up to the server's current position and then end.
        patience_s: how long to wait for a capture that this query may not start.
        log_after_s: from when on a wait is logged.

    Raises:
        ConfigError: the spool belongs to another slot than the query's.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        once: bool = False,
        patience_s: float = _NO_CAPTURE_TIMEOUT_S,
        log_after_s: float = _LOG_AFTER_S,
    ) -> None:
        assert options.dsn is not None
        self._patience_s = patience_s
        self._log_after_s = log_after_s
        self._path = options.spool
        self._options = options
        self._config = self._configure()
        self._once = once
        self._precedes_slot = not Spool.exists(options.spool)
        """The slot is made after the publications have the table of a new stream."""
        self._process: CaptureProcess | None = None
        self._next_check_at = 0.0
        self._last_alive_at = time.monotonic()

    def _configure(self) -> Config:
        """The configuration of the query's own capture, with the slot and publications of the
        spool, which another query may have made meanwhile. If other queries read the spool, too,
        what is sent to it stays as it is.

        Raises:
            ConfigError: the spool belongs to another slot than the query's, or other queries read
                it with other options.
        """
        options, kept = self._options, dict[str, object]()
        slot, publications = options.slot or DEFAULT_SLOT, options.publications
        if Spool.exists(self._path):
            spool = Spool.open(self._path)
            identity = spool.identity
            refuse_other_slot(options, identity)
            slot = identity.slot
            publications = publications or named_by_users(identity)
            if any(record.name != options.subscription for record in spool.subscriptions()):
                refuse_other_options(options, identity)
                kept = {
                    name: _BOOLEANS.get(value, value)
                    for name, value in identity.options.items()
                    if name in _KEPT
                }
        return Config.model_validate(
            {
                "source": {
                    "dsn": options.dsn,
                    "slot": slot,
                    "publications": publications or (stream_publication(slot),),
                    **kept,
                    **options.walsender,
                },
                "spool": {"path": str(self._path)},
            }
        )

    def publish(self) -> None:
        """Have the table of a new stream published, if the publications are those of streams.

        Raises:
            SourceUnreachable, SourceRefused: it cannot be published.
        """
        self._config = self._configure()
        table, source = self._options.table, self._config.source
        streamed = stream_publication(source.slot)
        if source.publications != (streamed,) or self._is_registered():
            return
        with connect_sql(
            source.conninfo, "publishing the stream's table", timeout_s=source.connect_timeout_s
        ) as connection:
            # A slot that others made may be older than publications that are made now: capture
            # refuses it. A capture makes its spool before its slot: look for the slot first.
            if slot_info(connection, source.slot) is None or Spool.exists(self._path):
                wanted = None if table is None else (table.namespace, table.name)
                for statement in publish_for_stream(connection, streamed, wanted):
                    _LOG.warning("the query gets no changes of a table before: %s", statement)
                self._precedes_slot = slot_info(connection, source.slot) is None

    def await_publications(self) -> None:
        """Before a new stream begins: wait until the server sends whole transactions of its table.

        The server does not send what a transaction wrote to the table before the table was
        published. So transactions that are open end first, and capture receives them. Some servers
        decide by the start of such transactions (:func:`.notices_publications`), and keep the
        decision: then capture connects again.

        Raises:
            ConfigError: the publications do not send the table.
            SourceUnreachable, SourceRefused: the server cannot be queried, or a transaction stays
                open.
            PgsluiceError: as :meth:`require` does.
        """
        if self._is_registered():
            return
        source, begins = self._config.source, self._options.starting_position
        with connect_sql(
            source.conninfo,
            "asking for the server's position",
            application="publications of a stream",
        ) as connection:
            if begins in (None, NOW):
                self._refuse_unsent(connection)
            if self._precedes_slot or self._belongs_to_configuration():
                return
            # On a standby, the publications of its primary cannot be waited for.
            notices = notices_publications(connection)
            if (notices and begins == SNAPSHOT) or server_info(connection).is_standby:
                return  # the table's snapshot waits for the same transactions
            with temporary_snapshot(source.conninfo, SLOT_TIMEOUT_S):
                end = insert_lsn(connection)
            self._receive(end)
            if not notices:
                self._end_connection(connection)

    def _refuse_unsent(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a stream that would get nothing."""
        table, identity = self._options.table, Spool.open(self._path).identity
        names = {*identity.publications, *self._config.source.publications}
        if table is None or is_sent(connection, table, names):
            return
        raise ConfigError(
            f"the server sends no changes of table {table} by the publications "
            f"{', '.join(sorted(names))}",
            hint="add the table to one of these publications; a partition's changes may be sent as "
            "those of its root or of its own partitions: set the option table to one of these",
            option="table",
        )

    def _receive(self, end: Lsn) -> None:
        """Wait until capture has received everything up to a position."""
        reader = SpoolReader(self._path)

        def has_come() -> bool:
            if self._once and self._process is None:
                self._next_check_at = 0.0  # one that has ended at an earlier position starts again
            return reader.frontier() >= end

        self.wait_until(has_come, f"the changes up to {end}")

    def _end_connection(self, connection: psycopg.Connection[Any]) -> None:
        """End the server's process that sends the stream now, if there is one."""

        def sender() -> int | None:
            info = slot_info(connection, self._config.source.slot)
            return None if info is None else info.active_pid

        pid = sender()
        if pid is not None:
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", [pid])
            self.wait_until(lambda: sender() != pid, "the end of a connection")

    def _is_registered(self) -> bool:
        name = self._options.subscription
        if name is None or not Spool.exists(self._path):
            return False
        return Spool.open(self._path).subscription(name) is not None

    def look_after(self) -> None:
        """Start a capture if none runs, or restart our own if it failed. Calls are cheap.

        Raises:
            PgsluiceError: our capture failed, and a restart would not help.
            ConfigError: another capture runs with other options.
        """
        now = time.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + _CHECK_INTERVAL_S
        if self._process is None:
            if self._other_capture_runs(now) or self._belongs_to_configuration():
                return
            self._config = self._configure()
            self._process = CaptureProcess(self._config, once=self._once)  # check() starts it
        try:
            if not self._process.check():
                self.close()
                self._next_check_at = math.inf  # a capture with `once` is done
            self._last_alive_at = now
        except (SpoolBusy, SlotInUse):
            # Another capture started first. Ours starts when that one has ended.
            self.close()
            self._next_check_at = now + _RETRY_INTERVAL_S
        except PgsluiceError as error:
            if error.hint:
                error.hint = for_query(error.hint, self._config.source.slot, self._path)
            raise

    def wait_for_spool(self) -> None:
        """Wait until the spool has a start position, which it gets when the slot is created.

        Raises:
            PgsluiceError: as :meth:`require` does.
        """

        def has_start() -> bool:
            return Spool.exists(self._path) and Spool.open(self._path).chain_start() is not None

        self.wait_until(has_start, "the slot, and the start of the spool")

    def wait_until(self, has_come: Callable[[], bool], what: str) -> None:
        """Wait for something that capture brings, and log after a while what the query waits for.

        A server may need hours until it sends a change, so only :meth:`require` ends the wait.

        Args:
            what: the same in words.

        Raises:
            PgsluiceError: as :meth:`require` does.
        """
        log_at = time.monotonic() + self._log_after_s
        while not has_come():
            self.require()
            if time.monotonic() >= log_at:
                log_at += _LOG_AGAIN_S
                _LOG.warning("the query waits for %s; %s", what, self._capture_state())
            time.sleep(_POLL_S)

    def _capture_state(self) -> str:
        health = read_health(self._path)
        if health is None:
            return "capture has not reported anything yet"
        state = f"capture: {health.phase}, received through {health.frontier}"
        return f"{state}: {health.message}" if health.message else state

    def require(self) -> None:
        """Call :meth:`look_after` while something waits for new data.

        Raises:
            SpoolError: no capture has run for a while, and this query cannot start one.
        """
        self.look_after()
        if time.monotonic() - self._last_alive_at > self._patience_s:
            raise SpoolError(
                f"no process writes changes to the spool {self._path}",
                hint="start `pgsluice run CONFIG` or `pgsluice capture CONFIG` with the "
                "configuration of this spool",
                path=str(self._path),
            )

    def close(self) -> None:
        """End the query's own capture cleanly, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _other_capture_runs(self, now: float) -> bool:
        health = read_health(self._path)
        if health is None or health.phase is CapturePhase.STOPPED or not health.is_alive():
            return False
        self._last_alive_at = now
        if health.phase in (CapturePhase.STREAMING, CapturePhase.WAITING):
            # In earlier phases the spool still has the options of the previous capture.
            refuse_other_options(self._options, Spool.open(self._path).identity)
        return True

    def _belongs_to_configuration(self) -> bool:
        if not Spool.exists(self._path):
            return False
        records = Spool.open(self._path).subscriptions()
        return any(record.owner is Owner.CONFIG for record in records)
