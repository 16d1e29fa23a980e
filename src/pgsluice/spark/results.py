"""Results of tasks as rows: a dataclass is one row, its fields are the columns."""

from __future__ import annotations

import re
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


def result_batches(
    run: Callable[[bytes], Any], schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run every payload of the first column; one result row each."""
    for batch in batches:
        results = [asdict(run(payload)) for payload in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_pylist(results, schema=schema)


def collect_results(frame: DataFrame, result: type[R]) -> list[R]:
    """Run a frame of result rows, and read them as their dataclass."""
    remedies = [name for name, hint in get_type_hints(result).items() if hint == Remedy | None]
    results = []
    for row in frame.collect():
        values = row.asDict()
        for name in remedies:
            values[name] = None if values[name] is None else Remedy(values[name])
        results.append(result(**values))
    return results


def in_one_line(error: BaseException) -> str:
    """What a Spark error says, without the plans and the stack traces that follow it."""
    text = str(error).strip().partition("\n=== Streaming Query")[0]
    line = text.partition("\n")[0]
    if line.endswith("Traceback (most recent call last):"):  # Python's, whose last line says it
        ends = [one for one in text.splitlines() if re.match(r"[\w.]+: ", one)]
        line = ends[-1] if ends else line
    elif line.startswith("An error occurred while calling "):  # py4j's; Java's own comes next
        line = str(error).strip().partition("\n")[2].partition("\n")[0].removeprefix(": ")
    _, _, cause = line.rpartition("terminated with exception: ")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", cause).strip() or type(error).__name__


def run_tasks(
    spark: SparkSession,
    run: Callable[[bytes], R],
    payloads: Sequence[bytes],
    result: type[R],
    *,
    most_tasks: int | None = None,
) -> list[R]:
    """One Spark job; the results in no particular order.

    Args:
        spark: the session.
        run: makes a payload's result; it pickles.
        payloads: one a piece of work.
        result: the dataclass that ``run`` returns.
        most_tasks: how many tasks share the payloads; None: each has its own.
    """
    if not payloads:
        return []
    schema, ddl = result_types(result)
    held = list(payloads)

    def by_number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = [held[number] for number in batch.column(0).to_pylist()]
            if chosen:
                yield from result_batches(
                    run,
                    schema,
                    iter([pa.RecordBatch.from_arrays([pa.array(chosen, pa.binary())], ["task"])]),
                )

    tasks = min(len(held), most_tasks or len(held))
    frame = spark.range(0, len(held), 1, tasks).mapInArrow(by_number, ddl)
    return collect_results(frame, result)
