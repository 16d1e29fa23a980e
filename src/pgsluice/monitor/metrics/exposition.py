"""Metrics as Prometheus reads them, rendered anew after some seconds at the earliest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

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

T = TypeVar("T")
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
        labels = [_encodable(label) for label in sample.labels]
        if isinstance(sample.value, Histogram):
            metric.add_metric(labels, sample.value.buckets, sample.value.sum_s)
        else:
            metric.add_metric(labels, float(sample.value or 0))
    return metric


def _encodable(label: str) -> str:
    """A label that UTF-8 can hold; the format itself escapes quotes and newlines."""
    return label if label.isprintable() else label.encode("utf-8", "backslashreplace").decode()


def render(samples: Iterable[Sample]) -> bytes:
    """Values as text."""
    return generate_latest(_Samples(samples))


class Recent(Generic[T]):
    """A value that is renewed at most once in a period of some seconds; threads may share it.

    Args:
        make: makes the value; one thread at a time calls it.
    """

    def __init__(
        self, make: Callable[[], T], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None

    def __call__(self) -> T:
        """The value."""
        with self._lock:
            if self._made is None or self._clock() - self._made[0] >= self._every_s:
                self._made = self._clock(), self._make()
            return self._made[1]
