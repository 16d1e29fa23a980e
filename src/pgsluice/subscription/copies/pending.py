"""Which tables are copied next, and why the others wait.

A table is next if its record says that it waits for a copy from the source, no copy run has claimed
it, and nothing blocks it (another session's lock, or a full spool). A blocked table is in state
``i`` and pins nothing in the spool. Its record has the reason, and it waits only as long as the
record has one: a user's request for a copy starts it at once. A new run tries all of them.

All tables that are next join one copy run, which reads small ones first
(:mod:`pgsluice.subscription.copies.portion_queue`). Of several copy runs, the scheduler chooses
(:mod:`pgsluice.subscription.copies.scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from threading import Lock

from pgsluice.catalog.tables.locks import locked_tables
from pgsluice.copy.job import CopyWork
from pgsluice.replication import connect_sql
from pgsluice.snapshots.reader import TableLocked
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.base.waits import WAITS
from pgsluice.subscription.lifecycle.table_events import CopyWaits
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.system.threads import Backoff

_ROOM_PAUSES_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0)
"""The pauses after copies that were given up because the spool was full; the last one repeats."""


def awaits_copy(record: TableRecord) -> bool:
    """Whether a table waits for a copy from the source, not from its previous target."""
    return record.is_to_copy and record.old_target is None


def is_planned(table: TableRecord | None, work: CopyWork) -> bool:
    """Whether this copy is still the one that the table's record asks for.

    A catalog refresh may have found another name, or that the table is unpublished; a user may have
    asked for another copy.
    """
    return (
        table is not None
        and table.state is TableState.DATA_COPY
        and table.copy_number == work.copy_number
        and table.partitions.load == work.leaves
        and table.partitions.gone_bounds == work.gone_bounds
        and table.target_name == (work.namespace, work.name)
    )


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    room: Backoff | None = None

    @property
    def is_for_lock(self) -> bool:
        return self.room is None


@dataclass(slots=True)
class _Claim:
    """The tables that a copy run is about to copy, and the copies that it makes."""

    oids: frozenset[int] = frozenset()
    works: dict[int, CopyWork] = field(default_factory=dict)


class PendingCopies:
    """The tables of a subscription that wait for copies; all methods are thread-safe."""

    def __init__(self, tables: SubscriptionTables, lock_poll_s: float = WAITS.lock_poll_s) -> None:
        self._tables = tables
        self._lock_poll_s = lock_poll_s
        self._lock = Lock()
        self._pauses: dict[int, _Pause] = {}
        self._claims: dict[int, _Claim] = {}

    # Which are next

    def all(self) -> list[int]:
        """The tables that wait for a copy from the source, or whose copy runs."""
        return [oid for oid, table in self._tables.unfinished.items() if awaits_copy(table)]

    def next(self, run: int | None = None) -> list[int]:
        """The tables whose copies may start now.

        Args:
            run: the copy run that asks; tables of other copy runs are excluded.
        """
        return [
            oid
            for oid, table in self._tables.unfinished.items()
            if awaits_copy(table)
            and not self._is_paused(oid, table)
            and not self._is_claimed(oid, run)
        ]

    def _is_claimed(self, oid: int, run: int | None) -> bool:
        """Whether a copy run has claimed a table."""
        # Asked for each table that waits, ten times a second: nothing is read from the disk.
        for number, claim in list(self._claims.items()):
            if number == run:
                continue
            work = claim.works.get(oid)
            is_read = work is not None and is_planned(self._tables.get(oid), work)
            if oid in claim.oids or is_read:
                return True
        return False

    # What copy runs have

    def claim(self, run: int, oids: Collection[int]) -> None:
        """Claim tables for a copy run; the caller holds the tables' lock."""
        self._claims[run] = _Claim(frozenset(oids))

    def begin(self, run: int, works: Iterable[CopyWork]) -> None:
        """Set the copies that a copy run makes; it gives up its claim to other tables."""
        self._claims[run] = _Claim(works={work.facts.oid: work for work in works})

    def begun(self, run: int) -> Collection[int]:
        """The tables that a copy run copies."""
        return list(self._claims[run].works)

    def drop(self, work: CopyWork) -> None:
        """Release the table of a copy that has ended; it can be tried again before its copy run
        ends."""
        for claim in list(self._claims.values()):
            if claim.works.get(work.facts.oid) is work:
                del claim.works[work.facts.oid]

    def end(self, run: int) -> None:
        """Release all tables of a copy run that has ended."""
        self._claims.pop(run, None)

    # What keeps tables back

    def wait_for_lock(self, oid: int) -> None:
        """Let a table wait until another session's lock is released."""
        with self._lock:
            self._pauses[oid] = _Pause(time.monotonic() + self._lock_poll_s)

    def wait_for_room(self, oid: int) -> float:
        """Let a table wait after its copy was given up at the spool's size limit; longer each time.

        Returns:
            the pause in seconds.
        """
        with self._lock:
            before = self._pauses.get(oid)
            room = (before and before.room) or Backoff(_ROOM_PAUSES_S)
            pause_s = room.failed()
            self._pauses[oid] = _Pause(time.monotonic() + pause_s, room)
        return pause_s

    def resume(self, oids: Collection[int]) -> None:
        """End the wait of tables that are copied, or can be copied now."""
        with self._lock:
            for oid in oids:
                self._pauses.pop(oid, None)

    def locked(self) -> frozenset[int]:
        """The tables that wait for a lock."""
        return frozenset(oid for oid, pause in dict(self._pauses).items() if pause.is_for_lock)

    def ask_for_locks(self, dsn: str) -> None:
        """Ask the server which of the tables that wait for a lock can be read now.

        Raises:
            SourceUnreachable: no connection.
        """
        now, tables, pauses = time.monotonic(), self._tables.durable.tables, dict(self._pauses)
        is_time = any(pause.is_for_lock and now >= pause.until for pause in pauses.values())
        to_ask = self.locked() if is_time else frozenset()
        waiting = {
            oid: tables[oid]
            for oid in to_ask & tables.keys()
            if tables[oid].is_to_copy and self._is_paused(oid, tables[oid])
        }
        self.resume(to_ask - waiting.keys())
        if not waiting:
            return
        with connect_sql(dsn, "asking for locks", application="locked tables") as connection:
            locked = locked_tables(connection, waiting)
        self.resume(waiting.keys() - locked.keys())
        with self._tables.changing():
            for oid, sentence in locked.items():
                self.wait_for_lock(oid)
                table, why = self._tables.get(oid), str(TableLocked.by(sentence))
                if table == waiting[oid] and table.error != why:
                    self._tables.apply(oid, CopyWaits(why))

    def _is_paused(self, oid: int, table: TableRecord) -> bool:
        """Whether a table that needs a copy has to wait."""
        pause = self._pauses.get(oid)
        if pause is None or table.error is None:
            return False
        return pause.is_for_lock or time.monotonic() < pause.until
