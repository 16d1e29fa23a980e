"""Makes sure that capture has received a position, or has a new connection, for copies of
partitions.

Without ``--once``, capture receives all the time. With ``--once``, it ends at the server's position
at its start; pgsluice then restarts it until it has received the requested position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pgsluice.capture import CaptureProcess
from pgsluice.catalog import Connection
from pgsluice.catalog.publications.publications import notices_publications
from pgsluice.catalog.server import insert_lsn, slot_info
from pgsluice.config import Config
from pgsluice.errors import SourceUnreachable, SpoolFull
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql
from pgsluice.snapshots.snapshot import temporary_snapshot
from pgsluice.spool import SpoolReader
from pgsluice.spool.segments.retention import limit_words
from pgsluice.subscription.base.waits import WAITS

logger = logging.getLogger(__name__)

IsStopping = Callable[[], bool]

_POLL_S = 0.05
_OPEN_S = 300.0
"""How long transactions may stay open that a new connection waits for, in seconds."""
_STARTS = 30
"""How often pgsluice starts capture to reach a position, which the server may flush seconds
later."""
_START_S = 1.0
_FULL_S = 3.0
"""How long the spool has to be full, in seconds: capture checks for room each second."""


class Received(Protocol):
    """The requests of copies to capture. All calls end soon after ``is_stopping`` is true."""

    def come_to(self, position: Lsn, is_stopping: IsStopping) -> bool:
        """Wait until the spool has everything that was committed up to a position.

        Returns:
            True if the spool has it; False if the run ends before that.

        Raises:
            SourceUnreachable: capture did not reach the position in time; a later attempt may
                succeed.
            SpoolFull: capture did not reach it because the spool has no room.
        """

    def connect_again(self, is_stopping: IsStopping) -> None:
        """Make capture receive everything past the spool's end over a new connection.

        Raises:
            SourceUnreachable, SourceRefused: the old connection could not be ended.
        """


def connect_behind_changes(dsn: str, received: Received, is_stopping: IsStopping) -> bool:
    """Make capture receive what was committed until now, and then connect again.

    Returns:
        False: the run is stopping.

    Raises:
        SourceUnreachable, SourceRefused, SpoolFull: see :class:`Received`.
    """
    with connect_sql(
        dsn, "asking for the server's position", application="changes before copies"
    ) as connection:
        end = insert_lsn(connection)  # a commit is seen before it is flushed, if it does not wait
    if not received.come_to(end, is_stopping) or is_stopping():
        return False
    logger.info(
        "capture gets a new connection: this version of PostgreSQL does not notice in a "
        "connection that partitions or publications change"
    )
    received.connect_again(is_stopping)
    return True


def connect_behind_publications(dsn: str, received: Received, is_stopping: IsStopping) -> bool:
    """Give capture a connection that knows the publications as they are now, where it may not.

    It begins after all transactions that are open now, because such a server decides by their start
    (:func:`.notices_publications`).

    Returns:
        False: the run is stopping.

    Raises:
        SourceUnreachable, SourceRefused, SpoolFull: see :class:`Received`; or a transaction stays
            open.
    """
    with connect_sql(dsn, application="publications") as connection:
        if notices_publications(connection):
            return True
    with temporary_snapshot(dsn, _OPEN_S, is_stopping):
        pass
    return connect_behind_changes(dsn, received, is_stopping)


class ReceivedLive:
    """The capture of a run without ``--once``, which receives all the time.

    Args:
        wait_s: how long capture may take to receive up to a current position, and the server to end
            a connection, in seconds.
    """

    def __init__(self, config: Config, wait_s: float = WAITS.capture_s) -> None:
        self._wait_s = wait_s
        self._source = config.source
        self._reader = SpoolReader(config.spool.place)

    def come_to(self, position: Lsn, is_stopping: IsStopping) -> bool:
        """See :class:`Received`."""
        ends_by = time.monotonic() + self._wait_s
        while self._reader.frontier() < position:
            if is_stopping():
                return False
            if time.monotonic() > ends_by:
                raise _not_received(f"within {self._wait_s:g} s")
            time.sleep(_POLL_S)
        return True

    def connect_again(self, is_stopping: IsStopping) -> None:
        """End capture's session on the server; capture then connects again."""
        with connect_sql(
            self._source.conninfo,
            "ending the connection of capture",
            application="connection of capture",
        ) as connection:
            pid = self._sender(connection)
            if pid is None:
                return
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", [pid])
            ends_by = time.monotonic() + self._wait_s
            while self._sender(connection) == pid and not is_stopping():
                if time.monotonic() > ends_by:
                    raise SourceUnreachable(
                        f"pgsluice asked the server's process {pid}, which sends the stream, to "
                        f"end, but the process has not ended within {self._wait_s:g} s",
                        hint="nothing to do: pgsluice tries again. Before it copies partitioned "
                        "tables, it connects anew, since some versions of the server do not "
                        "notice new partitions on an open connection",
                    )
                time.sleep(_POLL_S)

    def _sender(self, connection: Connection) -> int | None:
        info = slot_info(connection, self._source.slot)
        return None if info is None else info.active_pid


class ReceivedOnce:
    """The capture of a run with ``--once``; its subscriptions share it."""

    def __init__(self, config: Config, capture: CaptureProcess, stop: threading.Event) -> None:
        self._max_bytes = config.spool.max_bytes
        self._place = config.spool.place
        self._reader = SpoolReader(config.spool.place)
        self._capture = capture
        self._stop = stop
        self._starting = threading.Lock()

    def come_to(self, position: Lsn, is_stopping: IsStopping) -> bool:
        """Start capture until it has received past a position: see :class:`Received`."""

        def is_over() -> bool:  # the run is asked to stop a moment before its work is
            return is_stopping() or self._stop.is_set()

        for number in range(_STARTS):
            if not self._await(lambda: is_over() or not self._capture.check()):
                raise self.full("the copy of a partitioned table waits for later changes")
            if is_over():
                return False
            if self._reader.frontier() >= position:
                return True
            if number:
                self._stop.wait(_START_S)
            with self._starting:
                if not self._capture.check():  # nor has another subscription started it
                    self._capture.start_again()
        raise _not_received(f"although pgsluice started it {_STARTS} times")

    def connect_again(self, is_stopping: IsStopping) -> None:
        """Do nothing: the connection has ended together with capture."""

    def reached(self, target: Lsn) -> bool:
        """Wait until the spool has reached the target position, without starting capture again.

        Returns:
            False when the spool has no room for it.
        """
        # After a promotion, capture has all that the new primary had then, and that may be less.
        return self._await(lambda: self._reader.frontier() >= target or not self._capture.check())

    def start_again(self) -> None:
        """Start capture once more, up to the server's current position; not if the run has to stop.

        Raises:
            SpoolFull: the spool is full, so capture waits and does not end.
        """
        if not self._await(lambda: not self._capture.check()):
            raise self.full("the verification of tables waits for later changes")
        with self._starting:
            if not self._stop.is_set() and not self._capture.check():
                self._capture.start_again()

    def full(self, effect: str) -> SpoolFull:
        """The error for a spool without room."""
        health = self._capture.health()
        full, more_room = limit_words(self._max_bytes)
        said = None if health is None else health.message
        return SpoolFull(
            f"{full}, and {effect}",
            details=[said] if said else [],
            hint=f"{more_room}: the spool has to hold the largest transaction, and the changes "
            "that slower subscriptions have not applied yet",
            path=str(self._place),
        )

    def _await(self, is_done: Callable[[], bool]) -> bool:
        """Wait for a condition while watching capture; False if the spool is full."""
        full_since: float | None = None
        while not is_done():
            if self._stop.wait(_POLL_S):
                return True
            health = self._capture.health()
            if (
                health is None
                or health.pid != self._capture.pid  # of a capture that was killed
                or health.phase is not CapturePhase.WAITING
            ):
                full_since = None
            elif full_since is None:
                full_since = time.monotonic()
            elif time.monotonic() - full_since >= _FULL_S:
                return False
        return True


def _not_received(condition: str) -> SourceUnreachable:
    return SourceUnreachable(
        "the capture process has not received the changes that were committed before a copy, "
        f"{condition}",
        hint="pgsluice retries the copy, and the target tables keep their rows meanwhile; "
        "`pgsluice status CONFIG` shows the state of capture",
    )
