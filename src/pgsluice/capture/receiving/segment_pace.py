"""Decides when waiting whole transactions become a segment; without socket or disk.

A transaction after a pause is written at once. If more follow, segments are spaced out, because
each one costs an fsync and a batch in Spark.
"""

from __future__ import annotations


class SegmentPace:
    """Decides when a segment is written.

    Args:
        segment_bytes: write a segment when this many bytes wait.
        apart_s: the time between two segments in seconds, and the longest time that a transaction
            waits.
        now: the current time by the caller's clock; the first segment is written ``apart_s`` later
            at the earliest.
    """

    def __init__(self, segment_bytes: int, apart_s: float, now: float) -> None:
        self._segment_bytes = segment_bytes
        self._apart_s = apart_s
        self._next_at = now + apart_s

    def is_due(self, now: float, since: float, size_bytes: int, *, is_drained: bool) -> bool:
        """Whether to write the waiting transactions now.

        Args:
            since: when the oldest waiting transaction was received.
            size_bytes: the size of all waiting transactions.
            is_drained: the socket is empty; otherwise the same segment can take more.
        """
        if size_bytes >= self._segment_bytes or now - since >= self._apart_s:
            return True
        return is_drained and now >= self._next_at

    def wrote(self, now: float) -> None:
        """Note that a segment was handed over."""
        self._next_at = now + self._apart_s

    def next_in(self, now: float) -> float:
        """Seconds until a segment of the waiting transactions is due, if nothing more is
        received."""
        return max(0.0, self._next_at - now)
