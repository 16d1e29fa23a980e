"""The metrics that pgsluice serves: name, kind, words and labels of each family, and their text.

Names follow Prometheus: base units (bytes, seconds), ``_total`` for counters, times as seconds
since 1970. docs/monitoring.md has this list, and the alerts of deploy/ may only name what is in it.
A label has a bounded set of values: names of the configuration, of tables (with ``[monitor]
tables``), or words of pgsluice's own. No label and no value comes from a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pgsluice.monitor.metrics.samples import Histogram, Sample


class Kind(StrEnum):
    """The types of metrics that Prometheus knows."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its series: a counter's name ends with ``_total``; its help is a sentence."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_KINDS: Mapping[Kind, Any] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
_SUBSCRIPTION = ("subscription",)
_TABLE = ("subscription", "schema", "table")


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(f"pgsluice_{name}", Kind.GAUGE, help_, labels)


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(f"pgsluice_{name}_total", Kind.COUNTER, help_, labels)


def _with(labels: tuple[str, ...], *families: Family) -> tuple[Family, ...]:
    """Families with these labels before their own."""
    return tuple(replace(each, labels=(*labels, *each.labels)) for each in families)


GENERAL = (
    _gauge("build_info", "1, with the version of pgsluice.", "version"),
    _gauge("status_timestamp_seconds", "When the status was read that these metrics show."),
    _gauge("ready", "1: /readyz says yes."),
    _gauge("problems", "Problems that `status --check` prints, by kind.", "kind"),
    _gauge("lag_limit_seconds", "[monitor] max_lag_s."),
    _gauge("slot_limit_bytes", "[monitor] max_slot_bytes."),
)
SLOT = (
    _gauge("slot_exists", "1: the server has the slot; 0: it has not."),
    _gauge("slot_active", "1: a walsender uses the slot."),
    _gauge("slot_retained_wal_bytes", "WAL that the server keeps for the slot."),
    _gauge(
        "slot_safe_wal_bytes",
        "WAL that can still be written before the slot may be lost; only with "
        "max_slot_wal_keep_size.",
    ),
    _gauge("slot_wal_status", "1 for the slot's wal_status, 0 for the others.", "wal_status"),
    _gauge("slot_read_timestamp_seconds", "When capture read the slot's state last."),
)
CAPTURE = (
    _gauge("capture_running", "1: the process of capture exists."),
    _gauge("capture_phase", "1 for what capture does, 0 for the other phases.", "phase"),
    _gauge("capture_report_timestamp_seconds", "When capture wrote its state last."),
    _gauge("capture_last_commit_timestamp_seconds", "Commit time of the last transaction."),
    _gauge(
        "capture_received_through_lsn",
        "The received-through LSN as a number; its rate is that of the WAL in bytes.",
    ),
    _gauge(
        "capture_received_behind_bytes",
        "The server's WAL position, as it said last, minus the received-through LSN.",
    ),
    _gauge(
        "capture_acknowledged_behind_bytes",
        "The server's WAL position, as it said last, minus the acknowledged LSN.",
    ),
    _counter("capture_stream_bytes", "Bytes received of the replication stream."),
    _counter("capture_transactions", "Transactions written to the spool."),
    _counter("capture_rows", "Rows of inserts, updates and deletes written to the spool."),
    _counter(
        "capture_connections",
        "Replication connections that started to stream (started), and how connections ended.",
        "outcome",
    ),
)
SPOOL = (
    _gauge("spool_readable", "1: the spool's files can be read."),
    _gauge("spool_bytes", "Bytes of the spool's segments."),
    _gauge("spool_segments", "Segments in the spool."),
    _gauge(
        "spool_kept_bytes",
        "Bytes of the spool that each kind of keeper needs; several may need the same bytes.",
        "keeper",
    ),
    _gauge("spool_limit_bytes", "[spool] max_bytes; absent: 90 % of the disk."),
    _gauge("spool_disk_free_bytes", "Free bytes on the spool's disk."),
    _gauge("spool_disk_size_bytes", "Bytes of the spool's disk."),
)
SUBSCRIPTIONS = _with(
    _SUBSCRIPTION,
    _gauge("subscription_running", "1: a run applies the subscription."),
    _gauge(
        "subscription_lag_seconds",
        "Age of the oldest change that a target of the subscription lacks.",
    ),
    _gauge(
        "subscription_lag_bytes",
        "The server's WAL position minus the position that all targets have.",
    ),
    _gauge("subscription_tables", "Tables in each state.", "state"),
    _gauge(
        "subscription_failing_tables", "Copied tables whose last batch failed; it is tried again."
    ),
    _gauge(
        "subscription_rejects",
        "Values that their columns cannot hold now; the rejects table has them.",
    ),
    _counter(
        "subscription_rows",
        "Rows that batches inserted, updated or deleted at the targets.",
        "action",
    ),
    _counter(
        "subscription_skipped_rows",
        "Rows that changes updated or deleted, and that the target lacked.",
    ),
    _counter("subscription_batches", "Batches applied."),
    _counter("subscription_batch_failures", "Batches that failed as a whole."),
    _counter("subscription_merges", "Commits of batches to targets."),
    _counter("subscription_merge_seconds", "Time of these commits."),
    _counter("subscription_merge_bytes", "Bytes of new files in these commits."),
    Family(
        "pgsluice_subscription_commit_to_visible_seconds",
        Kind.HISTOGRAM,
        "From the commit at the source of the oldest change of a table in a batch until the batch "
        "is visible at the target.",
    ),
)
COPIES = _with(
    _SUBSCRIPTION,
    _gauge("copies_tables", "Tables of the copies that run."),
    _gauge("copies_done_tables", "Those of them that are copied."),
    _gauge("copies_rows", "Rows copied by the copies that run."),
    _gauge("copies_bytes", "Bytes of the source read by the copies that run."),
    _gauge("copies_expected_bytes", "Bytes of the source that they read in all."),
    _gauge("copies_left_seconds", "Time left at their rate; absent: not known."),
    _counter("copied_tables", "Copies of tables that ended."),
    _counter("copied_rows", "Rows of these copies."),
    _counter("copied_bytes", "Bytes of the source of these copies."),
)
TABLES = _with(
    _TABLE,
    _gauge("table_state", "1, with the table's state.", "state"),
    _gauge("table_lag_seconds", "Age of the oldest change that the target lacks."),
    _gauge("table_lag_bytes", "The server's WAL position minus the position that the target has."),
    _gauge("table_rejects", "Values that their columns cannot hold now."),
    _gauge("table_last_merge_seconds", "Time of the table's last merge."),
    _gauge("table_copy_rows", "Rows copied by the copy that runs."),
    _gauge("table_copy_bytes", "Bytes of the source read by the copy that runs."),
    _gauge("table_copy_expected_bytes", "Bytes of the source that it reads in all."),
    _counter("table_changes", "Changes applied to the target since its first copy."),
    _gauge(
        "table_verified_timestamp_seconds",
        "When the target was last found equal to its source, in seconds since 1970.",
    ),
    _counter("table_skipped_rows", "Rows of changes that the target lacked."),
    _counter(
        "table_rows", "Rows that batches inserted, updated or deleted at the target.", "action"
    ),
)
SPARK = (
    _counter("spark_jobs", "Jobs that the run gave to Spark."),
    _counter("spark_tasks", "Tasks of these jobs."),
    _counter("spark_job_failures", "Jobs that failed."),
    _counter("spark_task_retries", "Tasks that Spark attempted again."),
    _counter("spark_workers_lost", "Attempts at tasks that ended with their Python worker."),
)
PROCESSES = (
    _counter("process_cpu_seconds", "CPU time of the processes.", "process"),
    _gauge("process_resident_memory_bytes", "Resident memory of the processes.", "process"),
    _counter("processes_lost", "Processes that ended unexpectedly.", "process"),
)
FAMILIES: tuple[Family, ...] = (
    *GENERAL,
    *SLOT,
    *CAPTURE,
    *SPOOL,
    *SUBSCRIPTIONS,
    *COPIES,
    *TABLES,
    *SPARK,
    *PROCESSES,
)
"""All of them, in the order in which they are served."""


class _Samples(Collector):
    """Sorts values by family."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        by_family: dict[str, list[Sample]] = {}
        for sample in self._samples:
            if sample.value is not None:
                by_family.setdefault(sample.family, []).append(sample)
        for family in FAMILIES:
            yield _metric(family, by_family.pop(family.name, ()))
        assert not by_family, f"not among the families: {sorted(by_family)}"


def _metric(family: Family, samples: Sequence[Sample]) -> Any:
    metric = _KINDS[family.kind](family.name, family.help, labels=family.labels)
    for sample in samples:
        # The format escapes quotes and newlines; the rest has to be what UTF-8 can hold.
        labels = [
            each if each.isprintable() else each.encode("utf-8", "backslashreplace").decode()
            for each in sample.labels
        ]
        if isinstance(sample.value, Histogram):
            metric.add_metric(labels, sample.value.buckets, sample.value.sum_s)
        else:
            metric.add_metric(labels, float(sample.value or 0))
    return metric


def render(samples: Iterable[Sample]) -> bytes:
    """Values of metrics in the text format of Prometheus."""
    return generate_latest(_Samples(samples))
