"""The layout of a table, and the columns that it adds.

A table keeps the ``partition_by`` with which a copy has made it. ``cluster_by`` may change with any
commit: it is the order of rows in new files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.lake.layout.terms import Term

_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


@dataclass(frozen=True)
class Layout:
    """Which rows share files, and their order.

    Attributes:
        partition_by: the rows of a file have the same values of these.
        cluster_by: columns by which new files are sorted.
    """

    partition_by: tuple[Term, ...] = ()
    cluster_by: tuple[str, ...] = ()

    @classmethod
    def parse(cls, partition_by: Iterable[str], cluster_by: Iterable[str]) -> Layout:
        """From the lists in the configuration."""
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
        """A table's own columns."""
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
        """Refuse a table of which the layout cannot be.

        Args:
            schema: the table's own columns.

        Raises:
            TableError: a column is missing, has an unsuitable type, or has the name of one that
                the layout adds.
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
