"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pgsluice.monitor.metrics.families import FAMILIES, Family, Kind
from pgsluice.monitor.metrics.samples import Histogram, Sample

CONTENT_TYPE = CONTENT_TYPE_LATEST
_KINDS: Mapping[Kind, Any] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


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
    """Values as text."""
    return generate_latest(_Samples(samples))
