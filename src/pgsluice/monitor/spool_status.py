"""The spool for ``status``, and which subscription or table keeps its oldest changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader
from pgsluice.spool.segments.retention import ALL_TABLES, Hold


@dataclass(frozen=True, slots=True)
class HeldSpool:
    """The subscription or table that needs the spool's oldest changes.

    Attributes:
        subscription: its name.
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

    def to_json(self) -> dict[str, Any]:
        return {
            "subscription": self.subscription,
            "table": self.table,
            "position": str(self.position),
            "since": self.since,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """The spool's side. Positions are None without a spool, or if it cannot be read (``error``).

    Attributes:
        bytes: the size of the segments.
        open_bytes: the size of the parts of transactions whose end was not received yet.
        held: the subscription or table that needs the oldest changes; None if none does.
    """

    position: Lsn | None = None
    frontier: Lsn | None = None
    bytes: int = 0
    segments: int = 0
    open_bytes: int = 0
    held: HeldSpool | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "position": None if self.position is None else str(self.position),
            "frontier": None if self.frontier is None else str(self.frontier),
            "bytes": self.bytes,
            "segments": self.segments,
            "open_bytes": self.open_bytes,
            "held": self.held.to_json() if self.held is not None else None,
            "error": self.error,
        }


def read_spool(reader: SpoolReader, holds: Sequence[Hold]) -> SpoolStatus:
    """The state of a spool that exists.

    Args:
        holds: all retention pins.

    Raises:
        SpoolError: a state file cannot be read.
    """
    if reader.spool.chain_start() is None:
        return SpoolStatus()
    segments = reader.all_segments()
    return SpoolStatus(
        position=reader.position(),
        frontier=reader.frontier(),
        bytes=_bytes(segments),
        segments=len(segments),
        open_bytes=_open_bytes(reader, segments),
        held=_held(reader, segments, holds),
    )


def _bytes(segments: Sequence[SegmentInfo]) -> int:
    total = 0
    for segment in segments:
        with suppress(PgsluiceError):  # retention removed the file after it was listed
            total += segment.size_bytes
    return total


def _held(
    reader: SpoolReader, segments: Sequence[SegmentInfo], holds: Sequence[Hold]
) -> HeldSpool | None:
    lowest = min(holds, key=lambda hold: hold.lsn, default=None)
    if lowest is None or not (kept := [each for each in segments if each.end > lowest.lsn]):
        return None
    record = reader.spool.subscription(lowest.subscription)
    table = None
    if record is not None and lowest.table != ALL_TABLES:
        held = record.tables.get(int(lowest.table))
        table = held.title if held is not None else None
    return HeldSpool(lowest.subscription, table, lowest.lsn, kept[0].committed_from, _bytes(kept))


def _open_bytes(reader: SpoolReader, segments: Sequence[SegmentInfo]) -> int:
    """The size of the parts without a reference."""
    sizes = reader.parts()
    try:
        named = {part.name for segment in segments for part in segment.parts}
    except PgsluiceError:
        named = set()  # retention removed a file after it was listed
    return sum(size for name, size in sizes.items() if name not in named)
