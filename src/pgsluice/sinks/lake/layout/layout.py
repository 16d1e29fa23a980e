"""The layout of a table: which rows share files, in which order, and which columns it adds.

A table keeps the ``partition_by`` with which a copy has made it. ``cluster_by`` may change with any
commit: it is the order of rows in new files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.lake.layout.terms import Term

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
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


@dataclass(frozen=True)
class Layout:
    """Which rows share files (those with the same values of ``partition_by``), and their order: new
    files are sorted by the columns ``cluster_by``."""

    partition_by: tuple[Term, ...] = ()
    cluster_by: tuple[str, ...] = ()

    @classmethod
    def parse(cls, partition_by: Iterable[str], cluster_by: Iterable[str]) -> Layout:
        """The layout that the lists ``partition_by`` and ``cluster_by`` of the configuration
        describe."""
        return cls(tuple(map(Term.parse, partition_by)), tuple(cluster_by))

    @cached_property
    def partition_columns(self) -> list[str]:
        """The names of the columns whose values a file's rows share."""
        return [term.name for term in self.partition_by]

    @cached_property
    def parts(self) -> dict[str, Term]:
        """The columns that the layout adds to the table's own: parts of times, as text in UTC such
        as ``2026-11``."""
        return {term.name: term for term in self.partition_by if term.part is not None}

    def with_parts(self, schema: pa.Schema) -> pa.Schema:
        """A table's columns, and those that the layout adds."""
        missing = [name for name in self.parts if name not in schema.names]
        return pa.schema([*schema, *(pa.field(name, pa.string()) for name in missing)])

    def without_parts(self, schema: pa.Schema) -> pa.Schema:
        """A table's own columns, without those that the layout adds."""
        return pa.schema([field for field in schema if field.name not in self.parts])

    def filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the values of the columns that the layout adds."""
        for name, term in self.parts.items():
            assert term.part is not None
            values = _part(batch.column(term.column), term.part)
            place = batch.schema.get_field_index(name)
            field = pa.field(name, pa.string())
            if place < 0:
                batch = batch.append_column(field, values)
            else:
                batch = batch.set_column(place, field, values)
        return batch

    def check(self, schema: pa.Schema, title: str) -> None:
        """Refuse a table, with these columns of its own, of which the layout cannot be.

        Raises:
            TableError: a column is missing, has an unsuitable type, or has the name of one that the
                layout adds.
        """
        types = {field.name: field.type for field in schema}
        names = {field.name.casefold(): field.name for field in schema}
        for term in self.partition_by:
            if (kind := types.get(term.column)) is None:
                raise _unfit("partition_by", f"{term}, but there is no such column", title)
            fits = _can_partition(kind) if term.part is None else _has_part(kind, term.part)
            if not fits:
                text = "text, whole numbers, boolean and date" if term.part is None else "times"
                what = f"{term}, but this column is {kind} at the target; it can be {text}"
                raise _unfit("partition_by", what, title, term.column)
            if term.part is not None and term.name.casefold() in names:
                what = f"{term}, but the table already has a column {names[term.name.casefold()]}"
                raise _unfit("partition_by", what, title, term.name)
        if self.partition_by and not types.keys() - {*self.partition_columns}:
            raise _unfit("partition_by", "all columns of the table; one has to remain", title)
        for name in self.cluster_by:
            if name not in types:
                raise _unfit("cluster_by", f"{name}, but there is no such column", title)
            if pa.types.is_nested(types[name]):
                what = f"{name}, but this column is {types[name]}, which has no order"
                raise _unfit("cluster_by", what, title, name)


NO_LAYOUT: Final = Layout()


def _unfit(key: str, what: str, title: str, column: str | None = None) -> TableError:
    return TableError(
        f"`{key}` of the sink has for table {title}: {what}",
        hint=f"correct `{key}` in the sink; then copy the table: {copy_again(title)}",
        table=title,
        column=column,
    )


def _can_partition(kind: pa.DataType) -> bool:
    is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return bool(is_whole or pa.types.is_string(kind) or pa.types.is_date(kind))


def _has_part(kind: pa.DataType, part: str) -> bool:
    return bool(pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and part != "hour"))


def _part(values: pa.Array, part: str) -> pa.Array:
    """A part of times as text, in UTC; years have four digits or more, and a sign before the year
    0."""
    unit = "D" if pa.types.is_date32(values.type) else values.type.unit
    whole = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    numbers = values.view(whole).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    times: npt.NDArray[np.datetime64] = numbers.view(f"datetime64[{unit}]")
    distinct, place = np.unique(times.astype(f"datetime64[{_UNITS[part]}]"), return_inverse=True)
    texts = pa.array(np.datetime_as_string(distinct).astype(object), pa.string())
    return texts.take(pa.array(place, mask=values.is_null().to_numpy(zero_copy_only=False)))


def arranged(
    batches: Iterable[pa.RecordBatch], layout: Layout, location: str
) -> Iterator[tuple[Partition, Iterator[pa.RecordBatch]]]:
    """Rows in the order in which files have them, for one file or more at a time; they are read
    while the result is. The table's location is for messages.

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
            raise _unfit_rows(f"more than {MOST_PARTITIONS} values", ", ".join(names), location)
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
            raise _unfit_rows("a date outside of the years 1 to 9999", column, location)
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if "" in texts:
        raise _unfit_rows("an empty text, which readers take for NULL", column, location)
    return texts


def _unfit_rows(what: str, column: str, location: str) -> TableError:
    return TableError(
        f"rows for the table at {location} have {what} in the partition column {column}",
        hint="take the column out of `partition_by` in the sink; then copy the table again: "
        "`pgsluice copy CONFIG TABLE`",
        location=location,
        column=column,
    )


def with_partition(rows: Rows, partition: Partition, schema: pa.Schema) -> Rows:
    """Rows of a file, with those partition columns of the schema that it lacks: other writers omit
    them."""
    for name, text in partition.items():
        if name in schema.names and name not in rows.schema.names:
            kind = schema.field(name).type
            value: Any = pa.scalar(text or None, pa.string()).cast(kind)
            rows = rows.append_column(name, pa.repeat(value, len(rows)))
    return rows
