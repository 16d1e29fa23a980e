"""Which segments the spool may delete, and what happens when it reaches its size limit.

A *hold* (retention pin) keeps every change after its LSN. Each subscription has a hold at its own
position, and one at the ``applied_through`` of each of its tables. A table that waits for a copy
(``i``) has no hold, because its snapshot is taken later. A configured subscription holds everything
until its first start. A subscription that is not configured has holds only if it belongs to the
``pgoutput`` source. An unreadable record holds everything. Without any hold, only the size limit
deletes segments.

At the size limit, holds of parked tables, of tables that are being copied, and of disabled
subscriptions are dropped, the lowest first, and only if that lets a segment be deleted.
``released.json`` lists dropped holds until the subscription's driver, the only writer of its
record, has turned them into copies: the tables become ``i``. If dropping holds does not make room,
the spool is full, and capture stops receiving and acknowledging.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool.layout import subscription_names
from pgsluice.spool.records.record import Owner, SubscriptionRecord, TableState
from pgsluice.spool.segments.writer import SpoolWriter

DISK_SHARE = 0.9
"""The share of the disk that may be in use if ``max_bytes`` is not set: see :func:`used_share`."""
_ROOM_SHARE = 0.95
"""A full spool counts as full until its size is below this share of the limit."""
_PAUSE_S, _REMOTE_PAUSE_S = 1.0, 15.0
ALL_TABLES = "*"


class Hold(NamedTuple):
    """A retention pin: a subscription or table that still needs the changes after ``lsn``. A tuple,
    since each reading of a status makes one for every table.

    Attributes:
        table: the relation's OID, or ALL_TABLES for the subscription's own position.
        is_copied: the table is being copied; the copy can be restarted.
    """

    subscription: str
    table: str
    lsn: Lsn
    is_parked: bool = False
    is_disabled: bool = False
    is_copied: bool = False

    @property
    def is_droppable(self) -> bool:
        """Whether this hold on old changes ends when the spool is at its size limit."""
        return self.is_parked or self.is_disabled or self.is_copied

    def __str__(self) -> str:
        table = "" if self.table == ALL_TABLES else f" table {self.table}"
        states = {"parked": self.is_parked, "disabled": self.is_disabled, "copied": self.is_copied}
        state = next((f" ({state})" for state, holds in states.items() if holds), "")
        return f"subscription {self.subscription}{table}{state} at {self.lsn}"


Released = Mapping[str, Mapping[str, str]]


def limit_words(max_bytes: int | None) -> tuple[str, str]:
    """Why the spool is full, and how to make room, by the size limit; None: DISK_SHARE of the
    disk."""
    if max_bytes is None:
        percent = round(100 * DISK_SHARE)
        return f"the spool's disk is {percent} % full", "free space on the disk"
    return (
        "the spool is at its size limit",
        "raise spool.max_bytes and start pgsluice again",
    )


def used_share(used_bytes: int, free_bytes: int) -> float:
    """The share of a disk that programs have used of what they may use, as ``df`` prints it.

    ``free_bytes`` are those of an unprivileged program: blocks that the file system reserves for
    root count neither as used nor as free, or a disk with room would look full.
    """
    return used_bytes / max(used_bytes + free_bytes, 1)


def find_holds(
    records: Sequence[SubscriptionRecord],
    configured: Mapping[str, bool],
    released: Released,
    unreadable: Collection[str] = (),
) -> list[Hold]:
    """All holds that are in effect.

    Args:
        records: the records of registered subscriptions.
        configured: whether each subscription of the configuration is enabled, by name.
        released: dropped holds, as ``released.json`` lists them.
        unreadable: subscriptions whose record cannot be read.
    """
    known = {*unreadable, *(record.name for record in records)}
    holds = [Hold(name, ALL_TABLES, Lsn(0)) for name in unreadable]
    holds += [
        Hold(name, ALL_TABLES, Lsn(0), is_disabled=not enabled)
        for name, enabled in configured.items()
        if name not in known and (enabled or ALL_TABLES not in released.get(name, {}))
    ]
    for record in records:
        if record.name in configured or record.owner is Owner.SOURCE:
            is_disabled = not configured.get(record.name, True)
            holds.extend(_holds_of(record, is_disabled, released.get(record.name, {})))
    return holds


def _holds_of(
    record: SubscriptionRecord, is_disabled: bool, released: Mapping[str, str]
) -> list[Hold]:
    if is_disabled and ALL_TABLES in released:
        return []
    holds = [Hold(record.name, ALL_TABLES, record.position, is_disabled=is_disabled)]
    for oid, table in record.tables.items():
        is_copied = table.state is TableState.DATA_COPY
        is_dropped = (table.is_parked or is_copied) and str(oid) in released
        if table.state is not TableState.INITIALISE and not is_dropped:
            is_parked, lsn = table.is_parked, table.applied_through
            holds.append(Hold(record.name, str(oid), lsn, is_parked, is_disabled, is_copied))
    return holds


def still_released(
    records: Sequence[SubscriptionRecord],
    released: Released,
    floor: Lsn,
    unreadable: Collection[str] = (),
) -> dict[str, dict[str, str]]:
    """Dropped holds that the driver has not yet turned into copies, as far as known."""
    by_name = {record.name: record for record in records}
    result = {name: dict(released[name]) for name in unreadable if name in released}
    for name, entries in released.items():
        if name in unreadable:
            continue
        record = by_name.get(name)
        kept = {
            table: lsn
            for table, lsn in entries.items()
            if (record is None and table == ALL_TABLES)
            or (record is not None and not _is_settled(record, table, floor))
        }
        if kept:
            result[name] = kept
    return result


def _is_settled(record: SubscriptionRecord, oid: str, floor: Lsn) -> bool:
    """Whether the driver has handled the dropped hold of a table (or of ALL_TABLES)."""
    if oid != ALL_TABLES:
        table = record.tables.get(int(oid))
        if table is None or table.state is TableState.INITIALISE:
            return True
        return not table.is_parked and table.applied_through >= floor
    return record.position >= floor and all(
        table.state is TableState.INITIALISE or table.applied_through >= floor
        for table in record.tables.values()
    )


@dataclass(frozen=True, slots=True)
class RetentionState:
    """The spool's size and holds after one step.

    Attributes:
        size_bytes: the size of all segments and parts.
        is_full: the spool is at its size limit, and no droppable hold is left.
        waiting_bytes: how much of the size belongs to open and prepared transactions.
        lowest: the hold with the lowest LSN; None without any.
        problem: why nothing can be deleted; None: no problem.
    """

    size_bytes: int
    is_full: bool
    lowest: Hold | None
    waiting_bytes: int = 0
    problem: str | None = None


class Retention:
    """Deletes the segments of one spool that no reader needs; runs in the writer's process.

    Args:
        warn: called with a sentence for each dropped hold.
        configured: whether each subscription of the configuration is enabled, by name.
        retention_s: how long to keep a segment after it was written, even if no hold needs it.
        max_bytes: the size limit; None: DISK_SHARE of the disk.
    """

    def __init__(
        self,
        writer: SpoolWriter,
        warn: Callable[[str], None],
        configured: Mapping[str, bool],
        retention_s: float = 0.0,
        max_bytes: int | None = None,
    ) -> None:
        self._writer = writer
        self._spool = writer.spool
        self._configured = configured
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._warn = warn
        self._is_full = False
        self._found: tuple[list[SubscriptionRecord], object, list[Hold]] = [], None, []
        """The holds of the last step, after the records and the rest that they were found from."""

    @property
    def pause_s(self) -> float:
        """The time between two steps, in seconds: in a store, each has a price."""
        return _REMOTE_PAUSE_S if self._spool.place.is_remote and not self._is_full else _PAUSE_S

    def step(self) -> RetentionState:
        """Delete segments that no hold needs; at the size limit, drop holds and delete more. Raises
        SpoolTaken if another process writes the spool, and SpoolError if a file of the spool's
        writer cannot be read or deleted."""
        self._writer.check_epoch()
        records, errors = self._read_records()
        released = self._spool.released()
        kept = still_released(records, released, self._writer.reader.start(), errors)
        if kept != released:
            self._spool.write_released(kept)
        holds = self._find_holds(records, kept, errors)
        lowest = next(iter(holds), None)
        if lowest is not None:
            self._writer.release(lowest.lsn, written_before=time.time() - self._retention_s)
        if self._is_over_limit():
            lowest = next(iter(self._drop_holds(holds, kept)), None)
        self._is_full = self._is_over_limit()
        return RetentionState(
            self._writer.size_bytes(),
            self._is_full,
            lowest,
            sum(transaction.size_bytes for transaction in self._writer.parts.waiting()),
            "; ".join(f"nothing is deleted: {error.what}" for error in errors.values()) or None,
        )

    def _find_holds(
        self, records: list[SubscriptionRecord], released: Released, unreadable: Collection[str]
    ) -> list[Hold]:
        """All holds, the lowest first; visits thousands of tables only if something has changed."""
        known, rest, holds = self._found
        # An unchanged record is the same object.
        is_same = len(records) == len(known) and all(map(is_, records, known))
        if not is_same or rest != (released, {*unreadable}):
            found = find_holds(records, self._configured, released, unreadable)
            holds = sorted(found, key=lambda hold: hold.lsn)
            self._found = records, (released, {*unreadable}), holds
        return holds

    def _read_records(self) -> tuple[list[SubscriptionRecord], dict[str, SpoolError]]:
        """The records, and errors of unreadable ones: they must not stop capture, or the server's
        WAL grows."""
        records: list[SubscriptionRecord] = []
        errors: dict[str, SpoolError] = {}
        for name in subscription_names(self._spool.place):
            try:
                if (record := self._spool.subscription(name)) is not None:
                    records.append(record)
            except SpoolError as error:
                errors[name] = error
        return records, errors

    def _is_over_limit(self) -> bool:
        share = _ROOM_SHARE if self._is_full else 1.0
        if self._max_bytes is not None:
            return self._writer.size_bytes() >= self._max_bytes * share
        if self._spool.place.is_remote:
            return False
        usage = shutil.disk_usage(self._spool.path)
        return used_share(usage.used, usage.free) >= DISK_SHARE * share

    def _drop_holds(self, holds: list[Hold], released: Released) -> list[Hold]:
        """Drop holds, the lowest first, until there is room; returns the remaining holds."""
        entries = {name: dict(tables) for name, tables in released.items()}
        if holds:  # first give up retention_s: delete what no hold needs, however young it is
            self._writer.release(holds[0].lsn)
        while self._is_over_limit():
            victim = self._next_droppable(holds)
            if victim is None:
                break
            dropped = entries.setdefault(victim.subscription, {})
            if not victim.is_disabled:
                holds = [hold for hold in holds if hold is not victim]
                dropped[victim.table] = str(victim.lsn)
                state = "parked" if victim.is_parked else "copied"
                reader = f"the {state} table {victim.table} of subscription {victim.subscription}"
            else:
                holds = [hold for hold in holds if hold.subscription != victim.subscription]
                dropped[ALL_TABLES] = str(victim.lsn)
                reader = f"the disabled subscription {victim.subscription}"
            self._spool.write_released(entries)
            full, _ = limit_words(self._max_bytes)
            self._warn(
                f"{full}: changes that {reader} would need are dropped; it has to be copied again"
            )
            if holds:
                self._writer.release(holds[0].lsn)
        if not holds:
            for info in list(self._writer.reader.all_segments()):
                if not self._is_over_limit():
                    break
                self._writer.release(info.end)
        return holds

    def _next_droppable(self, holds: Sequence[Hold]) -> Hold | None:
        """The lowest hold, if dropping it, and perhaps others, lets a segment be deleted.

        Dropping a higher hold frees nothing. A hold that is dropped without freeing anything would
        be recreated and dropped again and again.
        """
        oldest = next(iter(self._writer.reader.all_segments()), None)
        needed = next((hold.lsn for hold in holds if not hold.is_droppable), None)
        if oldest is None or (needed is not None and oldest.end > needed):
            return None
        return next((hold for hold in holds if hold.is_droppable), None)
