"""Counts the progress of a subscription's copies; all displays use these counts.

The live view gets events. ``status`` reads the file of :mod:`pgsluice.spool.notes`,
which is written after each chunk of a table with several chunks, and otherwise once a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgsluice.events import CopiesProgress, CopyAmount, CopyProgress, MetricsEvent
from pgsluice.snapshots.ranges import size_bytes
from pgsluice.spool.notes import CopyStatus, write_copy_status
from pgsluice.subscription.copies.portion_queue import TableCopy

_RATE_OVER_S = 30.0
_RATE_OVER_RANGES = 2
"""The time over which a rate is measured, in seconds; or the last two chunks if these took longer:
with a slow disk or ``copy_rate``, a chunk may take minutes."""
_SAVE_EVERY_S = 1.0
_SHARE_OF_SAVES = 0.05
"""Of the time; more only by a save each second."""


@dataclass(slots=True)
class _Count:
    """The amount that was copied, and when.

    Attributes:
        sums: the fields of :class:`pgsluice.events.CopyAmount` that are not rates.
        since: when the first chunk in the rate started, at the latest: when the chunk before it
            ended.
        recent: when each recent chunk ended, with its rows and bytes.
    """

    copy: TableCopy | None = None
    sums: Counter[str] = field(default_factory=Counter)
    since: float = 0.0
    recent: deque[tuple[float, int, int]] = field(default_factory=deque)

    def plan(self, copy: TableCopy) -> None:
        """Add a table. Chunks that an earlier run has staged count, but not for the rate."""
        self.sums.update(
            ranges=len(copy.staged),
            all_ranges=len(copy.portions),
            rows=copy.rows,
            bytes=sum(size_bytes(copy.portions[number]) for number in copy.staged),
            all_bytes=copy.size_bytes,
        )

    def add(self, rows: int, bytes_: int, now: float) -> None:
        """Add a finished chunk."""
        self.sums.update(ranges=1, rows=rows, bytes=bytes_)
        self.recent.append((now, rows, bytes_))

    def amount(self, now: float, most_bytes_per_s: float) -> CopyAmount:
        """The amount in the form that is displayed."""
        old = now - _RATE_OVER_S
        while len(self.recent) > _RATE_OVER_RANGES and self.recent[0][0] <= old:
            self.since, _, _ = self.recent.popleft()
        rows, bytes_ = (sum(each) for each in list(zip(*self.recent, strict=True))[1:] or [(), ()])
        seconds = max(now - self.since, bytes_ / most_bytes_per_s, 1e-3)
        return CopyAmount(**self.sums, rows_per_s=rows / seconds, bytes_per_s=bytes_ / seconds)


class CopyCounts:
    """Counts the copies of one subscription; thread-safe.

    Args:
        most_bytes_per_s: the rate limit of the copies, although each chunk is read faster.
    """

    def __init__(
        self,
        subscription: str,
        folder: Path,
        report: Callable[[MetricsEvent], None],
        clock: Callable[[], float] = time.monotonic,
        most_bytes_per_s: float | None = None,
    ) -> None:
        self._subscription = subscription
        self._most_bytes_per_s = most_bytes_per_s or math.inf
        self._folder = folder
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[int, _Count] = {}
        self._waits_for: dict[int, str] = {}
        self._all = _Count()
        self._done = 0
        self._all_tables = 0
        self._ended_at = 0.0
        self._saved_at = float("-inf")
        self._save_took_s = 0.0

    def wait(self, oids: Iterable[int], waits_for: str) -> None:
        """Note what tables wait for, as text for the user; empty: they no longer wait."""
        with self._lock:
            self._forget_ended()
            before = dict(self._waits_for)
            self._set_waiting(oids, waits_for)
            if self._waits_for != before:
                self._save_soon(self._clock())

    def begin(self, copies: Sequence[TableCopy]) -> None:
        """Note that copies of tables are about to start."""
        with self._lock:
            now = self._clock()
            self._forget_ended()
            for copy in copies:
                oid = copy.work.facts.oid
                if (earlier := self._tables.get(oid)) is not None:
                    self._take_back(earlier)  # its tasks may not have ended yet
                count = self._tables[oid] = _Count(copy)
                count.plan(copy)
                self._all.plan(copy)
            self._all_tables += len(copies)
            self._set_waiting((copy.work.facts.oid for copy in copies), "")
            self._save(now)

    def staged(self, copy: TableCopy, number: int) -> None:
        """Note that a chunk of a table is staged."""
        rows, bytes_ = copy.staged[number].rows, size_bytes(copy.portions[number])
        with self._lock:
            now = self._clock()
            if (count := self._of(copy)) is None:
                return
            if not count.recent:
                count.since = self._ended_at  # it waited for other tables until then
            self._ended_at = now
            count.add(rows, bytes_, now)
            self._all.add(rows, bytes_, now)
            amount = count.amount(now, self._most_bytes_per_s)
            if count.sums["all_ranges"] > 1:
                self._save_soon(now)
            elif self._is_due(now):
                self._save(now)
        if amount.ranges < amount.all_ranges:
            self._report_table(copy, amount)

    def committed(self, copy: TableCopy) -> None:
        """Note that a table's copy is committed."""
        with self._lock:
            if (count := self._of(copy)) is None:
                return
            self._done += 1
            self._remove(copy)
            amount = count.amount(self._clock(), self._most_bytes_per_s)
        self._report_table(copy, amount, is_done=True)

    def given_up(self, copies: Iterable[TableCopy]) -> None:
        """Note that copies were cancelled or restart; finished ones are not affected."""
        with self._lock:
            for copy in copies:
                if (count := self._of(copy)) is not None:
                    self._take_back(count)
                    self._remove(copy)

    def tend(self) -> None:
        """Keep the rates up to date; called repeatedly while tables are copied."""
        with self._lock:
            if self._is_due(now := self._clock()):
                self._save(now)

    def _forget_ended(self) -> None:
        """Remove ended copies from the totals when a new set of copies starts."""
        if not self._tables:
            now = self._ended_at = self._clock()
            self._all, self._done, self._all_tables = _Count(since=now), 0, 0

    def _of(self, copy: TableCopy) -> _Count | None:
        """The count of this very copy; None: it has ended, or a later copy run has the table."""
        count = self._tables.get(copy.work.facts.oid)
        return None if count is None or count.copy is not copy else count

    def _take_back(self, count: _Count) -> None:
        self._all_tables -= 1
        self._all.sums.subtract(count.sums)

    def _remove(self, copy: TableCopy) -> None:
        del self._tables[copy.work.facts.oid]
        self._waits_for.pop(copy.work.facts.oid, None)
        if not self._tables:
            self._save(self._clock())

    def _set_waiting(self, oids: Iterable[int], waits_for: str) -> None:
        for oid in oids:
            if waits_for:
                self._waits_for[oid] = waits_for
            else:
                self._waits_for.pop(oid, None)

    def _report_table(self, copy: TableCopy, amount: CopyAmount, *, is_done: bool = False) -> None:
        name, work = self._subscription, copy.work
        self._report(CopyProgress(name, work.namespace, work.name, amount, is_done=is_done))

    def _is_due(self, now: float) -> bool:
        return now >= self._saved_at + _SAVE_EVERY_S

    def _save_soon(self, now: float) -> None:
        """Save now, if the last save is long enough ago; else :meth:`tend` does it. A save costs
        time for each table, and among hundreds of small ones something changes all the time."""
        if now >= self._saved_at + self._save_took_s / _SHARE_OF_SAVES:
            self._save(now)

    def _save(self, now: float) -> None:
        self._saved_at = now
        most = self._most_bytes_per_s
        amount = self._all.amount(now, most)
        tables = {oid: count.amount(now, most) for oid, count in self._tables.items()}
        waits_for = dict(self._waits_for)
        status = CopyStatus(tables, waits_for, self._done, self._all_tables, amount)
        write_copy_status(self._folder, status if tables or waits_for else None)
        waiting = tuple(sorted(set(self._waits_for.values())))
        done, all_tables = self._done, self._all_tables
        self._report(CopiesProgress(self._subscription, done, all_tables, amount, waiting))
        self._save_took_s = self._clock() - now
