"""The spool for ``status``: which subscription or table keeps its oldest changes, and the progress
of the copies, whose changes it keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any

from pgsluice.errors import PgsluiceError
from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader, SubscriptionRecord, TableState, TargetName
from pgsluice.spool.notes import amount_json, read_copy_status
from pgsluice.spool.segments.retention import ALL_TABLES, Hold


class Keeper(StrEnum):
    """Who keeps changes in the spool."""

    SUBSCRIPTIONS = "subscriptions"
    """Changes that are not applied yet."""
    COPIES = "copies"
    """Changes after the snapshot of a table that is being copied."""
    PARKED = "parked_tables"
    DISABLED = "disabled_subscriptions"
    OPEN = "open_transactions"
    """Parts of transactions whose end was not received yet."""


@dataclass(frozen=True, slots=True)
class HeldSpool:
    """The subscription or table that needs the spool's oldest changes.

    Attributes:
        table: the table that needs them; None: the subscription as a whole.
        position: changes after this LSN are kept.
        since: when the oldest of them was committed, in seconds since 1970.
        bytes: the size of the kept segments.
    """

    subscription: str
    table: str | None
    position: Lsn
    since: float
    bytes: int


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """The spool's side. Positions are None without a spool, or if it cannot be read (``error``).

    Attributes:
        bytes: the size of the segments.
        open_bytes: the size of the parts of transactions whose end was not received yet.
        held: the subscription or table that needs the oldest changes; None if none does.
        kept: the bytes that each kind of keeper needs; several may need the same bytes.
    """

    position: Lsn | None = None
    frontier: Lsn | None = None
    bytes: int = 0
    segments: int = 0
    open_bytes: int = 0
    held: HeldSpool | None = None
    kept: Mapping[Keeper, int] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(
            self,
            dict_factory=lambda pairs: {
                name: str(each) if isinstance(each, Lsn) else each for name, each in pairs
            },
        )


def read_spool(reader: SpoolReader, holds: Sequence[Hold]) -> SpoolStatus:
    """The state of a spool that exists, with all retention pins.

    Raises:
        SpoolError: a state file cannot be read.
    """
    if reader.spool.chain_start() is None:
        return SpoolStatus()
    segments = reader.all_segments()
    held, open_bytes = HeldBytes(segments), _open_bytes(reader, segments)
    return SpoolStatus(
        position=reader.position(),
        frontier=reader.frontier(),
        bytes=held.after(Lsn(0)),
        segments=len(segments),
        open_bytes=open_bytes,
        held=_held(reader, segments, holds, held),
        kept={**_kept(holds, held), Keeper.OPEN: open_bytes},
    )


class HeldBytes:
    """How many bytes of the spool's segments follow a position."""

    def __init__(self, segments: Sequence[SegmentInfo]) -> None:
        sizes = []
        self._ends: list[Lsn] = []
        for segment in segments:
            with suppress(PgsluiceError):  # retention removed the file after it was listed
                sizes.append(segment.size_bytes)
                self._ends.append(segment.end)
        self._through = [0, *accumulate(sizes)]

    def after(self, position: Lsn) -> int:
        """Bytes of the segments that have changes after a position."""
        return self._through[-1] - self._through[bisect_right(self._ends, position)]


def _kept(holds: Sequence[Hold], held: HeldBytes) -> dict[Keeper, int]:
    lowest = dict[Keeper, Lsn]()
    for hold in holds:
        keeper = _keeper_of(hold)
        lowest[keeper] = min(lowest.get(keeper, hold.lsn), hold.lsn)
    kinds = (Keeper.SUBSCRIPTIONS, Keeper.COPIES, Keeper.PARKED, Keeper.DISABLED)
    return {kind: held.after(lowest[kind]) if kind in lowest else 0 for kind in kinds}


def _keeper_of(hold: Hold) -> Keeper:
    if hold.is_disabled:
        return Keeper.DISABLED
    if hold.is_parked:
        return Keeper.PARKED
    return Keeper.COPIES if hold.is_copied else Keeper.SUBSCRIPTIONS


def _held(
    reader: SpoolReader, segments: Sequence[SegmentInfo], holds: Sequence[Hold], held: HeldBytes
) -> HeldSpool | None:
    lowest = min(holds, key=lambda hold: hold.lsn, default=None)
    if lowest is None or not (kept := [each for each in segments if each.end > lowest.lsn]):
        return None
    record = reader.spool.subscription(lowest.subscription)
    table = None
    if record is not None and lowest.table != ALL_TABLES:
        holder = record.tables.get(int(lowest.table))
        table = holder.title if holder is not None else None
    since, size = kept[0].committed_from, held.after(lowest.lsn)
    return HeldSpool(lowest.subscription, table, lowest.lsn, since, size)


def _open_bytes(reader: SpoolReader, segments: Sequence[SegmentInfo]) -> int:
    """The size of the parts without a reference."""
    sizes = reader.parts()
    try:
        named = {part.name for segment in segments for part in segment.parts}
    except PgsluiceError:
        named = set()  # retention removed a file after it was listed
    return sum(size for name, size in sizes.items() if name not in named)


@dataclass(frozen=True, slots=True)
class TableCopyStatus:
    """A table that is being copied (state ``d``).

    Attributes:
        amount: the progress; None before its chunks are planned.
        waits_for: why it waits, as text for the user; empty: it does not wait.
        held_bytes: the size of the spool's segments with changes after its snapshot.
    """

    amount: CopyAmount | None
    waits_for: str
    held_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.amount is None else amount_json(self.amount)),
            "waits_for": self.waits_for or None,
            "held_bytes": self.held_bytes,
        }


@dataclass(frozen=True, slots=True)
class CopiesStatus:
    """The copies of a subscription.

    Attributes:
        tables: the tables that are being copied, by their targets' names.
        done, all_tables: how many tables are copied since the first of these copies started, and
            how many there are; 0 of 0 before chunks are planned.
        amount: the progress of all of them.
    """

    tables: Mapping[TargetName, TableCopyStatus] = field(default_factory=dict)
    done: int = 0
    all_tables: int = 0
    amount: CopyAmount = field(default_factory=CopyAmount)

    def to_json(self) -> dict[str, Any] | None:
        """The copies as JSON; None if no table is being copied."""
        if not self.tables:
            return None
        amount = amount_json(self.amount)
        return {"tables": self.done, "all_tables": self.all_tables, **amount}


def read_copies(reader: SpoolReader, record: SubscriptionRecord) -> CopiesStatus:
    """The progress of a subscription's copies, as its run last wrote it."""
    status = read_copy_status(reader.spool.path, record)
    held = HeldBytes(reader.all_segments())
    tables = {
        table.target_name: TableCopyStatus(
            status.tables.get(oid), status.waits_for.get(oid, ""), held.after(table.applied_through)
        )
        for oid, table in record.tables.items()
        if table.state is TableState.DATA_COPY
    }
    return CopiesStatus(tables, status.done, status.all_tables, status.amount)
