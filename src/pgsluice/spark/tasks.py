"""Runs payloads as Spark tasks. Each returns a dataclass: a row with the fields as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import pyarrow as pa

from pgsluice.errors import Remedy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")

_TYPES: dict[Any, tuple[pa.DataType, str]] = {
    int: (pa.int64(), "bigint"),
    float: (pa.float64(), "double"),
    bool: (pa.bool_(), "boolean"),
    str | None: (pa.string(), "string"),
    Remedy | None: (pa.string(), "string"),
}


def result_types(result: type[Any]) -> tuple[pa.Schema, str]:
    """The Arrow schema and Spark's DDL string of a result dataclass."""
    hints = get_type_hints(result)
    columns = [(field.name, *_TYPES[hints[field.name]]) for field in fields(result)]
    schema = pa.schema([(name, arrow) for name, arrow, _ in columns])
    return schema, ", ".join(f"{name} {ddl}" for name, _, ddl in columns)


def collect_results(frame: DataFrame, result: type[R]) -> list[R]:
    """Run a frame of result rows, and return the rows as instances of their dataclass."""
    remedies = [name for name, hint in get_type_hints(result).items() if hint == Remedy | None]
    results = []
    for row in frame.collect():
        values = row.asDict()
        for name in remedies:
            values[name] = None if values[name] is None else Remedy(values[name])
        results.append(result(**values))
    return results


def result_batches(
    run: Callable[[bytes], Any], schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the payloads in the first column; each gives one result row."""
    for batch in batches:
        yield _run_all(run, schema, batch.column(0).to_pylist())


def _run_all(
    run: Callable[[bytes], Any], schema: pa.Schema, payloads: Sequence[bytes]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([asdict(run(payload)) for payload in payloads], schema=schema)


def run_tasks(
    spark: SparkSession,
    run: Callable[[bytes], R],
    payloads: Sequence[bytes],
    result: type[R],
    *,
    most_tasks: int | None = None,
) -> list[R]:
    """Run payloads in one Spark job, and return the results in no particular order.

    Args:
        spark: the session.
        run: turns a payload into a result; Spark pickles it.
        payloads: one for each piece of work.
        result: the dataclass that ``run`` returns.
        most_tasks: the largest number of tasks; None: each payload has its own task.
    """
    if not payloads:
        return []
    schema, ddl = result_types(result)

    def run_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _run_all(run, schema, [payloads[index] for index in batch.column(0).to_pylist()])

    tasks = min(len(payloads), most_tasks or len(payloads))
    frame = spark.range(0, len(payloads), 1, tasks).mapInArrow(run_numbers, ddl)
    return collect_results(frame, result)
