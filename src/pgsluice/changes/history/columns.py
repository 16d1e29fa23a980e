"""The columns of a history: one row for each version of a key.

======================================  ============================================================
``valid_from``, ``valid_to``            The positions between which the source had the version: from
                                        the first, up to and without the second, which is NULL for
                                        the current version.
``valid_from_time``, ``valid_to_time``  The commit times of these transactions; NULL where a copy
                                        took their place, and for the current version.
``is_current``                          Whether the source has the version.
======================================  ============================================================

At each position, a key has at most one version. A row that no position would show, because it was
replaced within its own transaction, is no version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import Int64s
from pgsluice.lsn import Lsn

TIME: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """The columns of a history beside the table's; their names begin with the prefix."""

    prefix: str

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that a history has beside the table's, in their order."""
        return [
            pa.field(self.valid_from, pa.int64(), nullable=False),
            pa.field(self.valid_to, pa.int64()),
            pa.field(f"{self.prefix}valid_from_time", TIME),
            pa.field(f"{self.prefix}valid_to_time", TIME),
            pa.field(f"{self.prefix}is_current", pa.bool_(), nullable=False),
        ]

    @property
    def names(self) -> list[str]:
        """The names of the columns that a history has beside the table's."""
        return [field.name for field in self.fields]

    @property
    def valid_from(self) -> str:
        """The name of the column with the position from which the source had a version."""
        return f"{self.prefix}valid_from"

    @property
    def valid_to(self) -> str:
        """The name of the column that is NULL in current versions alone."""
        return f"{self.prefix}valid_to"

    @property
    def closing(self) -> tuple[str, str, str]:
        """The names of the columns that change when a version ends."""
        return self.valid_to, f"{self.prefix}valid_to_time", f"{self.prefix}is_current"

    def without(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table alone, without those of the history."""
        return pa.schema([field for field in schema if field.name not in self.names])

    def of_table(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the history of a table with these columns."""
        return pa.schema([*self.without(schema), *self.fields])

    def values(
        self, valid_from: Int64s, from_times: pa.Array, valid_to: pa.Array, to_times: pa.Array
    ) -> list[pa.Array]:
        """The columns of some versions, in the order of :attr:`fields`; ``valid_to`` is NULL for
        current versions."""
        froms = pa.array(valid_from, pa.int64())
        is_current = pa.compute.is_null(valid_to)
        return [froms, valid_to, from_times, to_times, is_current]

    def copied(self, rows: pa.RecordBatch, position: Lsn) -> pa.RecordBatch:
        """Rows of a copy as current versions since its position."""
        count = len(rows)
        since: Int64s = np.full(count, int(position), np.int64)
        no_times = pa.nulls(count, TIME)
        columns = self.values(since, no_times, pa.nulls(count, pa.int64()), no_times)
        schema = self.of_table(rows.schema)
        own = [rows.column(field.name) for field in self.without(rows.schema)]
        return pa.RecordBatch.from_arrays([*own, *columns], schema=schema)

    def closed(
        self, rows: pa.RecordBatch | pa.Table, positions: Int64s, times: pa.Array
    ) -> pa.Table:
        """Current versions that end at these positions, without those that no position would show;
        a time is NULL where a copy ends the version."""
        ends = pa.array(positions, pa.int64()), times, pa.array(np.zeros(len(rows), np.bool_))
        closing = dict(zip(self.closing, ends, strict=True))
        columns = [
            closing[field.name].cast(field.type)
            if field.name in closing
            else rows.column(field.name)
            for field in rows.schema
        ]
        table = pa.Table.from_arrays(columns, schema=rows.schema)
        begins = table.column(self.valid_from).to_numpy()
        return table.filter(pa.array(begins < positions))


@dataclass(frozen=True, slots=True)
class Closings:
    """What a part of a batch does to the current versions of a history.

    Attributes:
        columns: the history's columns.
        positions, times: for each of the changes' ``deletes``, where its current version at the
            target ends, and when, in microseconds since 1970.
        sources: for each of the changes' ``rows``: the row of ``deletes`` whose current version at
            the target it follows: without that, it does not exist; -1: it was inserted.
        truncated_at: position and time of the TRUNCATE that comes first, if there is one.
    """

    columns: HistoryColumns
    positions: Int64s
    times: Int64s
    sources: Int64s
    truncated_at: tuple[int, int] | None = None
