"""The values of metrics: of the status, of Spark's jobs, and of the processes of a run."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from itertools import accumulate
from typing import NamedTuple

from pgsluice.config import Config
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.monitor.problems import ProblemKind, find_problems
from pgsluice.monitor.source_status import CaptureStatus, SourceStatus
from pgsluice.monitor.status import Status, SubscriptionStatus
from pgsluice.monitor.wording import STATES, as_word
from pgsluice.spark.jobs.totals import job_totals
from pgsluice.spool import TableRecord
from pgsluice.system.processes import lost_processes

_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of times."""


class Histogram:
    """How many times were in each bucket; the last one has no upper bound."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration in its bucket."""
        self._counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Histogram:
        """A copy of the histogram, which later observations do not change."""
        copied = Histogram()
        copied._counts, copied.sum_s = list(self._counts), self.sum_s
        return copied

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Each upper bound as Prometheus writes it, with how many were at most that long."""
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class Sample(NamedTuple):
    """One value of a family, with the values of the family's labels in their order."""

    family: str
    value: float | Histogram | None
    labels: tuple[str, ...] = ()


def samples(status: Status, config: Config) -> Iterator[Sample]:
    """The values of the status, as ``pgsluice status`` shows it; those not known are None."""
    yield Sample("pgsluice_build_info", 1, (version("pgsluice"),))
    yield Sample("pgsluice_status_timestamp_seconds", status.read_at)
    yield Sample("pgsluice_lag_limit_seconds", config.monitor.max_lag_s)
    yield Sample("pgsluice_slot_limit_bytes", config.monitor.max_slot_bytes)
    problems = find_problems(status, config)
    counts = Counter(problem.kind for problem in problems)
    for kind in ProblemKind:
        yield Sample("pgsluice_problems", counts[kind], (kind.value,))
    yield Sample("pgsluice_ready", not any(problem.prevents_ready for problem in problems))
    yield from _slot(status.source, status.capture)
    yield from _capture(status)
    yield from _spool(status, config)
    for subscription in status.subscriptions:
        yield from _subscription(subscription)
        yield from _copies(subscription)
        if config.monitor.tables:
            for table in subscription.tables:
                yield from _table(subscription, table)


def _slot(source: SourceStatus, capture: CaptureStatus) -> Iterator[Sample]:
    slot = source.slot
    if source.is_known:
        yield Sample("pgsluice_slot_exists", slot is not None)
    yield Sample("pgsluice_slot_read_timestamp_seconds", source.read_at)
    if slot is None:
        return
    is_active = capture.is_streaming or slot.active_pid is not None
    yield Sample("pgsluice_slot_active", is_active)
    yield Sample("pgsluice_slot_retained_wal_bytes", slot.retained_bytes)
    yield Sample("pgsluice_slot_safe_wal_bytes", slot.safe_wal_bytes)
    if slot.wal_status is not None:  # from 13 on
        for name in _WAL_STATUSES:
            yield Sample("pgsluice_slot_wal_status", name == slot.wal_status, (name,))


def _capture(status: Status) -> Iterator[Sample]:
    capture, counts = status.capture, status.capture.counts
    yield Sample("pgsluice_capture_running", capture.is_running)
    for phase in CapturePhase:
        is_now = phase == (capture.phase if capture.is_running else CapturePhase.STOPPED)
        yield Sample("pgsluice_capture_phase", is_now, (phase.name.lower(),))
    yield Sample("pgsluice_capture_report_timestamp_seconds", capture.reported_at)
    yield Sample("pgsluice_capture_last_commit_timestamp_seconds", capture.last_commit_at)
    frontier, end = status.spool.frontier, capture.server_end
    yield Sample("pgsluice_capture_received_through_lsn", frontier)
    yield Sample("pgsluice_capture_received_behind_bytes", _behind(end, frontier))
    yield Sample("pgsluice_capture_acknowledged_behind_bytes", _behind(end, capture.acknowledged))
    if not capture.is_running:
        return
    yield Sample("pgsluice_capture_stream_bytes_total", counts.stream_bytes)
    yield Sample("pgsluice_capture_transactions_total", counts.transactions)
    yield Sample("pgsluice_capture_rows_total", counts.rows)
    for outcome, count in counts.connections.items():
        yield Sample("pgsluice_capture_connections_total", count, (outcome,))


def _behind(end: Lsn | None, position: Lsn | None) -> int | None:
    """Bytes of WAL after a position; None while capture does not know where the server is."""
    return None if end is None or position is None else max(end - position, 0)


def _spool(status: Status, config: Config) -> Iterator[Sample]:
    spool = status.spool
    yield Sample("pgsluice_spool_readable", spool.error is None)
    yield Sample("pgsluice_spool_limit_bytes", config.spool.max_bytes)
    if spool.frontier is None:
        return
    yield Sample("pgsluice_spool_bytes", spool.bytes)
    yield Sample("pgsluice_spool_segments", spool.segments)
    for keeper, size in spool.kept.items():
        yield Sample("pgsluice_spool_kept_bytes", size, (keeper.value,))
    with suppress(OSError):  # the spool was removed meanwhile
        disk = shutil.disk_usage(config.spool.folder)
        yield Sample("pgsluice_spool_disk_free_bytes", disk.free)
        yield Sample("pgsluice_spool_disk_size_bytes", disk.total)


def _subscription(subscription: SubscriptionStatus) -> Iterator[Sample]:
    labels = (subscription.name,)
    yield Sample("pgsluice_subscription_running", subscription.is_running, labels)
    yield Sample("pgsluice_subscription_lag_seconds", subscription.lag_s, labels)
    yield Sample("pgsluice_subscription_lag_bytes", subscription.lag_bytes, labels)
    tables = subscription.tables
    states = Counter(subscription.state_of(table, table.shown_state) for table in tables)
    for state, words in STATES.items():
        yield Sample("pgsluice_subscription_tables", states[state], (*labels, as_word(words)))
    failing = sum(table.is_active and table.error is not None for table in tables)
    yield Sample("pgsluice_subscription_failing_tables", failing, labels)
    yield Sample("pgsluice_subscription_rejects", sum(table.rejects for table in tables), labels)


def _copies(subscription: SubscriptionStatus) -> Iterator[Sample]:
    copies, labels = subscription.copies, (subscription.name,)
    if not copies.tables:
        return
    yield Sample("pgsluice_copies_tables", copies.all_tables, labels)
    yield Sample("pgsluice_copies_done_tables", copies.done, labels)
    yield Sample("pgsluice_copies_rows", copies.amount.rows, labels)
    yield Sample("pgsluice_copies_bytes", copies.amount.bytes, labels)
    yield Sample("pgsluice_copies_expected_bytes", copies.amount.all_bytes, labels)
    yield Sample("pgsluice_copies_left_seconds", copies.amount.left_s, labels)


def _table(subscription: SubscriptionStatus, table: TableRecord) -> Iterator[Sample]:
    labels = (subscription.name, table.namespace, table.name)
    state = subscription.state_of(table, table.shown_state)
    lag, copy = subscription.lag_of(table), subscription.copies.tables.get(table.target_name)
    yield Sample("pgsluice_table_state", 1, (*labels, as_word(STATES[state])))
    yield Sample("pgsluice_table_lag_seconds", lag.seconds, labels)
    yield Sample("pgsluice_table_lag_bytes", lag.bytes, labels)
    yield Sample("pgsluice_table_changes_total", table.rows, labels)
    yield Sample("pgsluice_table_skipped_rows_total", table.rows_skipped, labels)
    yield Sample("pgsluice_table_rejects", table.rejects, labels)
    yield Sample("pgsluice_table_last_merge_seconds", table.merge_s or None, labels)
    if (verified := subscription.verified.get(table.target_name)) is not None:
        yield Sample("pgsluice_table_verified_timestamp_seconds", verified.at, labels)
    if copy is not None and copy.amount is not None:
        yield Sample("pgsluice_table_copy_rows", copy.amount.rows, labels)
        yield Sample("pgsluice_table_copy_bytes", copy.amount.bytes, labels)
        yield Sample("pgsluice_table_copy_expected_bytes", copy.amount.all_bytes, labels)


def spark_samples() -> Iterator[Sample]:
    """How many jobs and tasks this process has given to Spark."""
    for name, total in job_totals().items():
        yield Sample(f"pgsluice_spark_{name}_total", total)


def process_samples(capture_pid: int | None) -> Iterator[Sample]:
    """The figures of this process, of capture if it runs, and of Spark with its workers."""
    import psutil

    groups: dict[str, list[psutil.Process]] = {}
    own = psutil.Process()
    groups["capture" if own.pid == capture_pid else "run"] = [own]
    for child in own.children(recursive=True):
        groups.setdefault("capture" if child.pid == capture_pid else "spark", []).append(child)
    for name, processes in groups.items():
        cpu_s = memory = 0.0
        for process in processes:
            with suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                cpu_s += times.user + times.system
                if name == "spark":  # of workers that have ended, which another one has waited for
                    cpu_s += times.children_user + times.children_system
                memory += process.memory_info().rss
        yield Sample("pgsluice_process_cpu_seconds_total", cpu_s, (name,))
        yield Sample("pgsluice_process_resident_memory_bytes", memory, (name,))
    if own.pid != capture_pid:
        for part, count in lost_processes().items():
            yield Sample("pgsluice_processes_lost_total", count, (part.name.lower(),))
