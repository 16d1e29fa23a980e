"""Where a subscription's batches end: at limits, at barriers, at the spool's last segment.

Batches end where segments end, or at a barrier (:mod:`pgsluice.subscription.base.barrier`). A
batch's work is planned from each table's own position
(:mod:`pgsluice.subscription.batches.planning`), so its start does not matter.
"""

from __future__ import annotations

import time

from pgsluice.config import SubscriptionConfig
from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader
from pgsluice.spool.layout import SEGMENTS, subscription_folder
from pgsluice.spool.notices import FolderNotices
from pgsluice.spool.segments.batch_limits import BatchLimits
from pgsluice.spool.storage import make_folder
from pgsluice.subscription.base.barrier import BarrierWait

_SAVES_S = 1.0
"""The time from one batch to the next in seconds, at least, if the spool is in a store: each batch
saves the record there, by a paid request. A subscription that is behind does not wait."""


class BatchEnds:
    """Divides the spool into a subscription's batches; only one thread uses it."""

    def __init__(
        self, reader: SpoolReader, subscription: SubscriptionConfig, saves_s: float = _SAVES_S
    ) -> None:
        self._reader = reader
        self._limits = BatchLimits(
            subscription.max_rows_per_batch, subscription.max_bytes_per_batch
        )
        path = reader.spool.path
        self._apart_s = saves_s if reader.spool.place.is_remote else 0.0
        self._due_at = 0.0
        """No batch starts before this, by the monotonic clock."""
        if reader.spool.place.is_remote:  # capture on this machine announces segments there
            make_folder(path / SEGMENTS)
        self._notices = FolderNotices(path / SEGMENTS)
        self._barrier = BarrierWait(subscription_folder(path, subscription.name))

    def after(self, start: Lsn, wait_s: float = 0.0) -> Lsn:
        """The end of the batch that starts at ``start``; ``start`` itself if no batch can start
        yet.

        Args:
            wait_s: how long to wait for a segment, and then at a barrier.

        Raises:
            SpoolHole: the segment after the position cannot be read.
        """
        infos = self._segments(start, wait_s)
        end, next_segment, _ = self._limits.take(start, infos)
        if next_segment is not None:  # a batch ends where a segment ends
            end = next_segment.end
        if end == start:
            return start
        self._due_at = time.monotonic() + self._apart_s if end == infos[-1].end else 0.0
        # After the listing: a barrier is set before what it holds back can be listed.
        return self._barrier.limit(start, end, wait_s)

    def _segments(self, start: Lsn, wait_s: float) -> list[SegmentInfo]:
        deadline = time.monotonic() + wait_s
        while True:
            chain, now = self._reader.all_segments(), time.monotonic()
            has_more, left_s = bool(chain) and chain[-1].end > start, deadline - now
            if has_more and now >= self._due_at:
                return self._reader.segments(start)
            if left_s <= 0:
                return []
            if has_more:
                time.sleep(min(left_s, self._due_at - now))
            else:
                self._notices.wait(left_s)
