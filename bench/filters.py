"""Row filters on one core: rows a second of CPU time, over columns as decoding gives them.

Comparisons and LIKE run on whole columns; the filter of a JSON document shows what one costs that
Arrow's kernels cannot compute, row by row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from bench.report import Line, rate
from pgsluice.row_filter import FilterColumn, bind_row_filter, plan_filters

COLUMNS = (FilterColumn("n", 23), FilterColumn("region", 25), FilterColumn("document", 3802))
#: The filter, and how many of the rows it is tried on (the slow ones on fewer).
FILTERS = (
    ("n > 10 AND region = 'EU'", 1.0),
    ("region LIKE 'E%'", 1.0),
    ("region LIKE '%A_'", 1.0),
    ("n / 2 % 7 IN (1, 3) OR region IS NULL", 1.0),
    ("document ->> 'kind' = 'order'", 0.05),
)
REPEATS = 5


def measure(rows: int) -> list[Line]:
    """One line a filter."""
    table = _columns(rows)
    with _one_core():
        return [_line(text, table, int(rows * share)) for text, share in FILTERS]


def _columns(rows: int) -> dict[str, pa.Array]:
    numbers = np.random.default_rng(1).integers(0, 1000, rows, dtype=np.int32)
    regions = pa.array(["EU", "US", "APAC", None])
    documents = pa.array(['{"kind": "order", "total": 12.50}', '{"kind": "refund"}'])
    return {
        "n": pa.array(numbers % 20),
        "region": regions.take(pa.array(numbers % 4)),
        "document": documents.take(pa.array(numbers % 2)),
    }


def _line(text: str, table: Mapping[str, pa.Array], rows: int) -> Line:
    evaluator = plan_filters([bind_row_filter(text, COLUMNS)])
    columns = {name: column.slice(0, rows) for name, column in table.items()}
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        evaluator.evaluate(columns)
        best = min(best, time.process_time() - start)
    return Line(rate(rows / best), "", f"row filter on one core: `{text}`")


@contextmanager
def _one_core() -> Iterator[None]:
    """Arrow and this process on a single core."""
    cores, threads = os.sched_getaffinity(0), pa.cpu_count()
    pa.set_cpu_count(1)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        pa.set_cpu_count(threads)
