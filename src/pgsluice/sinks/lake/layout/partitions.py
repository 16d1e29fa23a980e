"""Divides rows among the partitions of a table, and sorts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.sinks.lake.layout.layout import Layout

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Partition = Mapping[str, str | None]
"""Column -> the value that the rows of a file share, as Delta's log has it: NULL is None."""

NO_PARTITION: Final[Partition] = {}
MOST_PARTITIONS = 2000
"""How many partitions one task may write of a table: each is a file of its own."""
_HELD_BYTES = 64 * 2**20
"""Rows in memory until a file is made of those of one partition, or until they are sorted."""
ROWS_IN_A_GROUP = 64 * 1024
"""Rows in a row group, which is read as a whole even if single rows are wanted."""
_FIRST_DAY, _LAST_DAY = (
    int(np.datetime64(day, "D").astype(np.int64)) for day in ("0001-01-01", "9999-12-31")
)


def arranged(
    batches: Iterable[pa.RecordBatch], layout: Layout, location: str
) -> Iterator[tuple[Partition, Iterator[pa.RecordBatch]]]:
    """Rows in the order in which files have them, for one file or more at a time.

    Args:
        batches: the rows, which are read while the result is.
        location: the table's location, for messages.

    Raises:
        TableError: a partition column has a value that no partition can have, or too many values.
    """
    if not layout.partition_by and not layout.cluster_by:
        yield NO_PARTITION, iter(batches)
        return
    held: dict[tuple[str | None, ...], list[pa.RecordBatch]] = {}
    sizes: dict[tuple[str | None, ...], int] = {}
    names = layout.partition_columns
    seen = set[tuple[str | None, ...]]()

    def taken(values: tuple[str | None, ...]) -> tuple[Partition, Iterator[pa.RecordBatch]]:
        del sizes[values]
        return dict(zip(names, values, strict=True)), _sorted(held.pop(values), layout)

    for batch in batches:
        for values, rows in _divided(layout.filled(batch), names, location):
            held.setdefault(values, []).append(rows)
            sizes[values] = sizes.get(values, 0) + rows.nbytes
        seen |= held.keys()
        if len(seen) > MOST_PARTITIONS:
            raise _unfit(f"more than {MOST_PARTITIONS} values", ", ".join(names), location)
        while sum(sizes.values()) > _HELD_BYTES:
            yield taken(max(sizes, key=lambda values: sizes[values]))
    while held:
        yield taken(next(iter(held)))


def _sorted(batches: list[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches)
    batches.clear()
    if layout.cluster_by:
        rows = rows.sort_by([(name, "ascending") for name in layout.cluster_by])
    yield from rows.combine_chunks().to_batches(ROWS_IN_A_GROUP)


def _divided(
    batch: pa.RecordBatch, names: list[str], location: str
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition, with its values."""
    code: npt.NDArray[np.int64] = np.zeros(len(batch), np.int64)
    texts = []
    for name in names:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        texts.append(_texts(encoded.dictionary, name, location))
        code = code * len(texts[-1]) + encoded.indices.to_numpy()
    distinct, place, count = np.unique(code, return_inverse=True, return_counts=True)
    if len(distinct) == 1:
        yield _values(distinct[0], texts), batch
        return
    parts = np.split(np.argsort(place, kind="stable"), np.cumsum(count)[:-1])
    for number, rows in zip(distinct, parts, strict=True):
        yield _values(number, texts), batch.take(pa.array(rows))


def _values(number: int, texts: list[list[str | None]]) -> tuple[str | None, ...]:
    """The values of a partition, by the number of their combination."""
    values: list[str | None] = []
    for of_column in reversed(texts):
        number, index = divmod(int(number), len(of_column))
        values.insert(0, of_column[index])
    return tuple(values)


def _texts(values: pa.Array, column: str, location: str) -> list[str | None]:
    """Values of a partition column as Delta's log has them."""
    if pa.types.is_date(values.type):
        days = values.view(pa.int32()).to_pylist()
        if any(day is not None and not _FIRST_DAY <= day <= _LAST_DAY for day in days):
            raise _unfit("a date outside of the years 1 to 9999", column, location)
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if "" in texts:
        raise _unfit("an empty text, which readers take for NULL", column, location)
    return texts


def _unfit(what: str, column: str, location: str) -> TableError:
    return TableError(
        f"rows for the table at {location} have {what} in the partition column {column}",
        hint="take the column out of `partition_by` in the sink; then copy the table again: "
        "`pgsluice copy CONFIG TABLE`",
        location=location,
        column=column,
    )


def with_partition(rows: Rows, partition: Partition, schema: pa.Schema) -> Rows:
    """Rows of a file, with the partition columns that it lacks: other writers omit them.

    Args:
        partition: the file's values.
        schema: the columns to read.
    """
    for name, text in partition.items():
        if name in schema.names and name not in rows.schema.names:
            kind = schema.field(name).type
            value: Any = pa.scalar(text or None, pa.string()).cast(kind)
            rows = rows.append_column(name, pa.repeat(value, len(rows)))
    return rows
