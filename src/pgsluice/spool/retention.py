"""What the spool may forget, and what happens when it grows too large.

A *hold* keeps everything past its LSN. Each subscription holds at its own position and at the
``applied_through`` of each of its tables; a table that waits for a copy (``i``) needs nothing,
since its snapshot is still to come. Subscriptions of the configuration count before their
first start and hold everything; those that are not in it count only if they belong to the
``pgoutput`` source. With no hold at all nothing is released but by the size limit.

At the size limit holds are let go in this order: parked tables, disabled subscriptions. What
was let go stands in ``released.json`` until the subscription's driver, the only one who may
write its record, takes it up: the tables become ``i``. If that does not make room, the spool
is full: capture stops reading and acknowledging until there is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pgsluice.lsn import Lsn
from pgsluice.spool.record import Owner, SubscriptionRecord, TableState
from pgsluice.spool.writer import SpoolWriter

DISK_SHARE = 0.9
"""Without ``max_bytes``, the share of the disk that may be in use (by anyone)."""
_ROOM_SHARE = 0.95
"""Once full, the spool has room again below this share of the limit."""
ALL_TABLES = "*"


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that still needs what is past ``lsn``.

    Attributes:
        table: the relation's OID, or ALL_TABLES for the subscription's own position.
        is_parked: the table is parked.
        is_disabled: the subscription is disabled.
    """

    subscription: str
    table: str
    lsn: Lsn
    is_parked: bool = False
    is_disabled: bool = False

    def __str__(self) -> str:
        what = "" if self.table == ALL_TABLES else f" table {self.table}"
        why = " (parked)" if self.is_parked else " (disabled)" if self.is_disabled else ""
        return f"subscription {self.subscription}{what}{why} at {self.lsn}"


Released = Mapping[str, Mapping[str, str]]


def find_holds(
    records: Sequence[SubscriptionRecord], configured: Mapping[str, bool], released: Released
) -> list[Hold]:
    """All holds that count.

    Args:
        records: of every subscription that registered.
        configured: subscription -> enabled, as the configuration has them.
        released: what was let go, as in ``released.json``.
    """
    known = {record.name for record in records}
    holds = [
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
        if table.state is TableState.INITIALISE or (table.is_parked and str(oid) in released):
            continue
        holds.append(
            Hold(record.name, str(oid), table.applied_through, table.is_parked, is_disabled)
        )
    return holds


def still_released(
    records: Sequence[SubscriptionRecord], released: Released, floor: Lsn
) -> dict[str, dict[str, str]]:
    """What was let go and not taken up yet by the subscription's driver."""
    by_name = {record.name: record for record in records}
    result: dict[str, dict[str, str]] = {}
    for name, entries in released.items():
        record = by_name.get(name)
        kept = {
            table: lsn
            for table, lsn in entries.items()
            if (record is None and table == ALL_TABLES)
            or (record is not None and not _is_taken_up(record, table, floor))
        }
        if kept:
            result[name] = kept
    return result


def _is_taken_up(record: SubscriptionRecord, table: str, floor: Lsn) -> bool:
    if table != ALL_TABLES:
        known = record.tables.get(int(table))
        return known is None or not known.is_parked
    return record.position >= floor and all(
        one.state is TableState.INITIALISE or one.applied_through >= floor
        for one in record.tables.values()
    )


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What the configuration says of keeping.

    Attributes:
        configured: subscription -> enabled.
        retention_s: how long segments stay after everyone has applied them.
        max_bytes: the size limit; None: DISK_SHARE of the disk.
    """

    configured: Mapping[str, bool] = field(default_factory=dict)
    retention_s: float = 0.0
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionState:
    """After one step.

    Attributes:
        size_bytes: what the spool weighs.
        is_full: there is no room, and nothing more to let go.
        waiting_bytes: of that, what transactions in progress weigh: it goes only when they
            end, which a full spool does not hear of.
        lowest: the hold that keeps the most; None without any.
    """

    size_bytes: int
    is_full: bool
    lowest: Hold | None
    waiting_bytes: int = 0


class Retention:
    """Keeps one spool small; lives in its writer's process.

    Args:
        writer: the spool's.
        policy: what to keep.
        warn: called with a sentence when something is let go.
    """

    def __init__(
        self, writer: SpoolWriter, policy: RetentionPolicy, warn: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._spool = writer.spool
        self._policy = policy
        self._warn = warn
        self._is_full = False

    def step(self) -> RetentionState:
        """Release what nobody needs; let go of holds when it grew too large.

        Raises:
            SpoolError: a record or file cannot be read or deleted.
        """
        records = self._spool.subscriptions()
        released = self._spool.released()
        kept = still_released(records, released, self._writer.reader.start())
        if kept != released:
            self._spool.write_released(kept)
        holds = find_holds(records, self._policy.configured, kept)
        if holds:
            self._writer.release(
                min(hold.lsn for hold in holds),
                written_before=time.time() - self._policy.retention_s,
            )
        if self._is_over():
            holds = self._relieve(holds, kept)
        self._is_full = self._is_over()
        lowest = min(holds, key=lambda hold: hold.lsn, default=None)
        waiting_bytes = self._writer.parts.waiting_bytes
        return RetentionState(self._writer.size_bytes(), self._is_full, lowest, waiting_bytes)

    def _is_over(self) -> bool:
        share = _ROOM_SHARE if self._is_full else 1.0
        if self._policy.max_bytes is not None:
            return self._writer.size_bytes() >= self._policy.max_bytes * share
        usage = shutil.disk_usage(self._spool.path)
        return 1 - usage.free / usage.total >= DISK_SHARE * share

    def _relieve(self, holds: list[Hold], released: Released) -> list[Hold]:
        """Let go of holds, the oldest of each kind first, until there is room."""
        entries = {name: dict(tables) for name, tables in released.items()}
        if holds:  # the time that applied segments stay is the first thing to go
            self._writer.release(min(hold.lsn for hold in holds))
        while self._is_over():
            going = _next_to_go(holds)
            if going is None:
                break
            if going.is_parked and not going.is_disabled:
                holds = [hold for hold in holds if hold is not going]
                entries.setdefault(going.subscription, {})[going.table] = str(going.lsn)
                what = f"the parked table {going.table} of subscription {going.subscription}"
            else:
                holds = [hold for hold in holds if hold.subscription != going.subscription]
                entries.setdefault(going.subscription, {})[ALL_TABLES] = str(going.lsn)
                what = f"the disabled subscription {going.subscription}"
            self._spool.write_released(entries)
            self._warn(
                f"the spool is at its size limit: changes that {what} would need are dropped; "
                "it has to be copied again"
            )
            if holds:
                self._writer.release(min(hold.lsn for hold in holds))
        if not holds:
            self._drop_oldest()
        return holds

    def _drop_oldest(self) -> None:
        """Nobody needs anything: the size limit alone decides, segment by segment."""
        for info in list(self._writer.reader.all_segments()):
            if not self._is_over():
                return
            self._writer.release(info.end)


def _next_to_go(holds: Sequence[Hold]) -> Hold | None:
    """The hold to let go next: parked tables, then disabled subscriptions; the oldest first."""
    parked = [hold for hold in holds if hold.is_parked and not hold.is_disabled]
    disabled = [hold for hold in holds if hold.is_disabled]
    candidates = parked or disabled
    return min(candidates, key=lambda hold: hold.lsn) if candidates else None
