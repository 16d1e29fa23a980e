"""When the whole transactions that wait become a segment. No socket, no disk.

A transaction after a pause is written at once. While more of them come, segments are some time
apart, because each costs an fsync and a batch of Spark.
"""

from __future__ import annotations


class SegmentPace:
    """Decides when a segment is written.

    Args:
        segment_bytes: a segment is written when so much waits.
        apart_s: the time between two segments, and the longest time that a transaction waits.
        now: by the caller's clock, as everywhere here; the first segment is written ``apart_s``
            later at the earliest.
    """

    def __init__(self, segment_bytes: int, apart_s: float, now: float) -> None:
        self._segment_bytes = segment_bytes
        self._apart_s = apart_s
        self._next_at = now + apart_s

    def is_due(self, now: float, since: float, size_bytes: int, *, is_drained: bool) -> bool:
        """Whether what waits is written now.

        Args:
            since: when the oldest transaction that waits came.
            size_bytes: of all that wait.
            is_drained: nothing more has come; otherwise the same segment takes it, too.
        """
        if size_bytes >= self._segment_bytes or now - since >= self._apart_s:
            return True
        return is_drained and now >= self._next_at

    def wrote(self, now: float) -> None:
        """Note that a segment was handed over to be written."""
        self._next_at = now + self._apart_s

    def next_in(self, now: float) -> float:
        """Seconds until a segment of what waits is due, if nothing more comes."""
        return max(0.0, self._next_at - now)
