"""Counts what a run reports. These figures are of this process, and begin at 0 with it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pgsluice.events import BatchFailed, BatchFinished, CopyProgress, MetricsEvent, TableApplied
from pgsluice.monitor.metrics.samples import Histogram, Sample

_ACTIONS = ("insert", "update", "delete")


@dataclass(slots=True)
class _Rows:
    """Rows by action, in the order of ``_ACTIONS``."""

    counts: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, event: TableApplied) -> None:
        changed = (event.rows_inserted, event.rows_updated, event.rows_deleted)
        self.counts = [count + more for count, more in zip(self.counts, changed, strict=True)]


@dataclass(slots=True)
class _Subscription:
    rows: _Rows = field(default_factory=_Rows)
    skipped: int = 0
    batches: int = 0
    failures: int = 0
    merges: int = 0
    merge_s: float = 0.0
    merge_bytes: int = 0
    visible: Histogram = field(default_factory=Histogram)
    copied_tables: int = 0
    copied_rows: int = 0
    copied_bytes: int = 0


class RunCounters:
    """A metrics callback that counts; safe from any thread.

    Args:
        names: the names of the subscriptions, which have series from the start.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._subscriptions = defaultdict[str, _Subscription](_Subscription)
        self._tables = defaultdict[tuple[str, str, str], _Rows](_Rows)
        for name in names:
            self._subscriptions[name] = _Subscription()

    def __call__(self, event: MetricsEvent) -> None:
        """Count an event."""
        with self._lock:
            match event:
                case TableApplied():
                    self._applied(event)
                case BatchFinished():
                    self._subscriptions[event.subscription].batches += 1
                case BatchFailed():
                    self._subscriptions[event.subscription].failures += 1
                case CopyProgress(is_done=True):
                    counts = self._subscriptions[event.subscription]
                    counts.copied_tables += 1
                    counts.copied_rows += event.amount.rows
                    counts.copied_bytes += event.amount.bytes

    def _applied(self, event: TableApplied) -> None:
        counts = self._subscriptions[event.subscription]
        counts.rows.add(event)
        self._tables[event.subscription, event.schema, event.table].add(event)
        counts.skipped += event.rows_skipped
        counts.merges += 1
        counts.merge_s += event.merge_s
        counts.merge_bytes += event.bytes_written
        if event.visible_after_s is not None:
            counts.visible.observe(event.visible_after_s)

    def samples(self, *, with_tables: bool) -> Iterator[Sample]:
        """The counts now.

        Args:
            with_tables: also those of each table.
        """
        with self._lock:
            found = [sample for name in self._subscriptions for sample in self._of(name)]
            for table, rows in self._tables.items() if with_tables else ():
                found += _rows("pgsluice_table_rows_total", table, rows)
        yield from found

    def _of(self, name: str) -> Iterator[Sample]:
        counts, labels = self._subscriptions[name], (name,)
        yield from _rows("pgsluice_subscription_rows_total", labels, counts.rows)
        for family, value in (
            ("subscription_skipped_rows_total", counts.skipped),
            ("subscription_batches_total", counts.batches),
            ("subscription_batch_failures_total", counts.failures),
            ("subscription_merges_total", counts.merges),
            ("subscription_merge_seconds_total", counts.merge_s),
            ("subscription_merge_bytes_total", counts.merge_bytes),
            ("copied_tables_total", counts.copied_tables),
            ("copied_rows_total", counts.copied_rows),
            ("copied_bytes_total", counts.copied_bytes),
        ):
            yield Sample(f"pgsluice_{family}", value, labels)
        yield Sample(
            "pgsluice_subscription_commit_to_visible_seconds", counts.visible.copy(), labels
        )


def _rows(family: str, labels: tuple[str, ...], rows: _Rows) -> Iterator[Sample]:
    for action, count in zip(_ACTIONS, rows.counts, strict=True):
        yield Sample(family, count, (*labels, action))
