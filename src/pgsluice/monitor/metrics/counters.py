"""Counts what a run reports. These figures are of this process, and begin at 0 with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from pgsluice.events import BatchFailed, BatchFinished, CopyProgress, MetricsEvent, TableApplied
from pgsluice.monitor.metrics.samples import Histogram, Sample

_ACTIONS = ("insert", "update", "delete")
_FAMILIES = (
    "subscription_skipped_rows",
    "subscription_batches",
    "subscription_batch_failures",
    "subscription_merges",
    "subscription_merge_seconds",
    "subscription_merge_bytes",
    "copied_tables",
    "copied_rows",
    "copied_bytes",
)
"""The counters of a subscription that have no other label."""


class RunCounters:
    """A metrics callback that counts, from any thread; the names have series from the start."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[str, ...]], float] = {}
        """By family and labels, the subscription's name first."""
        self._visible: dict[str, Histogram] = {}
        for name in names:
            self._begin(name)

    def __call__(self, event: MetricsEvent) -> None:
        """Count an event."""
        with self._lock:
            match event:
                case TableApplied():
                    self._applied(event)
                case BatchFinished():
                    self._add(event.subscription, subscription_batches=1)
                case BatchFailed():
                    self._add(event.subscription, subscription_batch_failures=1)
                case CopyProgress(subscription=name, amount=copied, is_done=True):
                    self._add(
                        name, copied_tables=1, copied_rows=copied.rows, copied_bytes=copied.bytes
                    )

    def _applied(self, event: TableApplied) -> None:
        name = event.subscription
        self._add(
            name,
            subscription_skipped_rows=event.rows_skipped,
            subscription_merges=1,
            subscription_merge_seconds=event.merge_s,
            subscription_merge_bytes=event.bytes_written,
        )
        rows = (event.rows_inserted, event.rows_updated, event.rows_deleted)
        for action, count in zip(_ACTIONS, rows, strict=True):
            self._add(name, action, subscription_rows=count)
            self._add(name, event.schema, event.table, action, table_rows=count)
        if event.visible_after_s is not None:
            self._visible[name].observe(event.visible_after_s)

    def _add(self, name: str, *labels: str, **counts: float) -> None:
        """Add to a subscription's counters, by the names of their families."""
        if name not in self._visible:
            self._begin(name)
        for family, count in counts.items():
            series = family, (name, *labels)
            self._counts[series] = self._counts.get(series, 0) + count

    def _begin(self, name: str) -> None:
        """Give a subscription its series."""
        self._visible[name] = Histogram()
        self._add(name, **dict.fromkeys(_FAMILIES, 0.0))
        for action in _ACTIONS:
            self._add(name, action, subscription_rows=0)

    def samples(self, *, with_tables: bool) -> Iterator[Sample]:
        """The counts now, with those of each table if this is wanted."""
        visible = "pgsluice_subscription_commit_to_visible_seconds"
        with self._lock:
            found = [
                Sample(f"pgsluice_{family}_total", count, labels)
                for (family, labels), count in self._counts.items()
                if with_tables or family != "table_rows"
            ]
            found += [Sample(visible, each.copy(), (name,)) for name, each in self._visible.items()]
        yield from found
