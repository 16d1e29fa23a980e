"""Which tables' copies wait, because another session locked them or the spool had no room.

Such a table is in state ``i`` and holds nothing of the spool. Its record says what it waits for,
and it waits only as long as the record says so: a user who asks for the copy begins it at once. A
run that starts tries all of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

from pgsluice.spool import TableRecord

LOCK_POLL_S = 5.0
"""How often the server is asked whether a table is still locked."""
_ROOM_FIRST_S = 60.0
_ROOM_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    is_for_lock: bool
    number: int = 0


class CopyPauses:
    """The tables of a subscription whose copies wait; any thread may ask and tell."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pauses: dict[int, _Pause] = {}

    def for_lock(self, oid: int) -> None:
        """A table is locked: it waits until the lock is gone."""
        with self._lock:
            self._pauses[oid] = _Pause(time.monotonic() + LOCK_POLL_S, is_for_lock=True)

    def for_room(self, oid: int) -> float:
        """A copy was given up at the spool's size limit; each time it waits for longer.

        Returns:
            for how many seconds it waits.
        """
        with self._lock:
            before = self._pauses.get(oid)
            number = 0 if before is None else before.number + 1
            pause_s = min(_ROOM_FIRST_S * float(2**number), _ROOM_MOST_S)
            self._pauses[oid] = _Pause(time.monotonic() + pause_s, False, number)
        return pause_s

    def waits(self, oid: int, table: TableRecord) -> bool:
        """Whether a table that is to be copied has to wait."""
        pause = self._pauses.get(oid)
        if pause is None or table.error is None:
            return False
        return pause.is_for_lock or time.monotonic() < pause.until

    def locked(self) -> frozenset[int]:
        """The tables that wait for a lock."""
        return frozenset(oid for oid, pause in dict(self._pauses).items() if pause.is_for_lock)

    def to_ask(self) -> frozenset[int]:
        """The tables that wait for a lock, if it is time to ask the server for them."""
        now = time.monotonic()
        pauses = dict(self._pauses).items()
        is_time = any(pause.is_for_lock and now >= pause.until for _, pause in pauses)
        return self.locked() if is_time else frozenset()

    def end(self, oids: Collection[int]) -> None:
        """These tables are copied, or can be."""
        with self._lock:
            for oid in oids:
                self._pauses.pop(oid, None)
