"""Row filters on one core: rows a second of CPU time, over columns as decoding gives them.

Nearly all filters run on whole columns. One with an array shows what it costs to compute a filter
for each distinct value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.report import Line, rate
from pgsluice.row_filter import FilterColumn, bind_row_filter, plan_filters

COLUMNS = (
    FilterColumn("n", 23),
    FilterColumn("region", 25),
    FilterColumn("document", 3802),
    FilterColumn("nested", 3802),
    FilterColumn("price", 1700, ((10 << 16) | 2) + 4),
    FilterColumn("amount", 1700),
    FilterColumn("is_active", 16),
    FilterColumn("email", 25),
    FilterColumn("kind", 1042, 7),
    FilterColumn("tags", 1009),
    FilterColumn("address", 869),
    FilterColumn("at", 1114),
    FilterColumn("moment", 1184),
)
#: The filter, and how many of the rows it is tried on (the slow ones on fewer).
FILTERS = (
    ("n > 10 AND region = 'EU'", 1.0),
    ("region LIKE 'E%'", 1.0),
    ("region LIKE '%A_'", 1.0),
    ("n / 2 % 7 IN (1, 3) OR region IS NULL", 1.0),
    ("is_active = true", 1.0),
    ("price * n > 1000", 1.0),
    ("amount > 1000", 1.0),
    ("amount * n > 1000", 1.0),
    ("coalesce(n, 0) > 3", 1.0),
    ("kind IN ('ORD', 'REF')", 1.0),
    ("email ILIKE '%@example3.com'", 1.0),
    ("lower(email) = 'user5@example5.com'", 1.0),
    ("split_part(email, '@', 2) = 'Example3.com'", 1.0),
    ("extract(year FROM at) = 2021", 1.0),
    ("at + interval '30 days' > '2021-01-01'", 1.0),
    ("(moment AT TIME ZONE 'Europe/Berlin')::date > '2020-03-01'", 1.0),
    ("hashtext(email) % 4 = 0", 1.0),
    ("'vip' = ANY (tags)", 1.0),
    ("address << '10.5.0.0/16'", 0.2),
    ("document ->> 'kind' = 'order'", 0.2),
    ("""document @> '{"kind": "order"}'""", 0.2),
    ("document -> 'total' = '12.50'", 0.2),
    ("nested -> 'buyer' ->> 'country' = 'DE'", 0.2),
)
REPEATS = 5


def measure(rows: int) -> list[Line]:
    """One line a filter."""
    table = _columns(rows)
    with _one_core():
        return [_line(text, table, int(rows * share)) for text, share in FILTERS]


def _columns(rows: int) -> dict[str, pa.Array]:
    """Columns whose values are all different, but for a few that have few in practice."""
    numbers = np.random.default_rng(1).permutation(rows).astype(np.int32)
    digits = pa.array(numbers).cast(pa.string())
    nines = pa.array(numbers % 9).cast(pa.string())
    countries = pa.array(["DE", "FR", "NO"]).take(pa.array(numbers % 3))
    kinds = pa.array(["order", "refund"]).take(pa.array(numbers % 2))
    moments = pa.array(1_577_836_800_000_000 + numbers.astype(np.int64) * 60_000_000)

    def bytes_of(values: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pa.Array:
        return pa.array(values % 256).cast(pa.string())

    def joined(*parts: pa.Array | str) -> pa.Array:
        return pc.binary_join_element_wise(*parts, "")

    return {
        "n": pa.array(numbers % 20),
        "region": pa.array(["EU", "US", "APAC", None]).take(pa.array(numbers % 4)),
        "document": joined('{"id": ', digits, ', "kind": "', kinds, '", "total": 12.50}'),
        "nested": joined(
            '{"id": ', digits, ', "buyer": {"id": ', nines, ', "country": "', countries, '"}}'
        ),
        "price": pa.array((numbers % 10_000).astype(np.int16)).cast(pa.decimal128(10, 2)),
        "amount": joined(digits, ".", nines),
        "is_active": pa.array(numbers % 3 == 0),
        "email": joined("User", digits, "@Example", nines, ".com"),
        "kind": pa.array(["ORD  ", "REF  ", "X    "]).take(pa.array(numbers % 3)),
        "tags": pa.array(["{vip,new}", "{}", "{old}"]).take(pa.array(numbers % 3)),
        "address": joined("10.", nines, ".", bytes_of(numbers // 256), ".", bytes_of(numbers)),
        "at": moments.cast(pa.timestamp("us")),
        "moment": moments.cast(pa.timestamp("us", "UTC")),
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
