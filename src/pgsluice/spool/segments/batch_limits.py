"""How many segments one batch of a reader includes: the limits on its rows, bytes and segments."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.lsn import Lsn
from pgsluice.spool.segments.reader import SegmentInfo


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits at which a batch includes no further segment; infinity: no limit.

    Attributes:
        rows: changes in the segments.
        size_bytes: the size of the segments' files.
        segments: their number.
    """

    rows: float = math.inf
    size_bytes: float = math.inf
    segments: float = math.inf

    def take(
        self, start: Lsn, infos: Iterable[SegmentInfo]
    ) -> tuple[Lsn, SegmentInfo | None, float]:
        """The whole segments that a batch includes, of those after its start, in order: the end of
        the last one, the next segment if it alone exceeds the remaining rows, and the number of
        remaining rows."""
        rows, size_bytes, segments = self.rows, self.size_bytes, self.segments
        end = start
        for info in infos:
            if info.header.counts.changes > rows:
                return end, info, rows
            rows -= info.header.counts.changes
            size_bytes -= info.size_bytes
            segments -= 1
            end = info.end
            if rows <= 0 or size_bytes <= 0 or segments <= 0:
                break
        return end, None, rows
