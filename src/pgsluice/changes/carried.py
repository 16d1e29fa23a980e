"""The rows after changes, with values that were not sent taken from earlier changes of the row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pgsluice.changes.events import Events
from pgsluice.changes.lineage import Lineages
from pgsluice.columnar.changes import DELETE, UPDATE, Int64s, Mask
from pgsluice.errors import TableError
from pgsluice.hints import copied_again
from pgsluice.sql import quote_title


def filled_rows(
    events: Events, lineages: Lineages, chosen: Int64s, schema: pa.Schema, table: str
) -> tuple[pa.Table, dict[str, Mask]]:
    """The rows after some changes.

    Args:
        chosen: indexes of changes that leave a row.
        schema: the columns.
        table: its title, for messages.

    Returns:
        the rows in the order of ``chosen``, all columns nullable, and for some columns a mask of
        the values that have to come from the target's row with the lineage's former key.

    Raises:
        TableError: an inserted row has no value of a column.
    """
    own_rows = events.row_index[chosen]
    columns: list[pa.ChunkedArray] = []
    absent: dict[str, Mask] = {}
    for field in schema:
        mask = events.absent.get(field.name)
        index = own_rows
        if mask is not None and mask[own_rows].any():
            wanted = mask[own_rows]
            index = own_rows.copy()
            index[wanted] = _carried(events, lineages, chosen[wanted], mask, (table, field.name))
            if (index < 0).any():
                absent[field.name] = index < 0
                index = np.where(index < 0, own_rows, index)
        columns.append(taken(events.rows.column(field.name), index))
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    return pa.Table.from_arrays(columns, schema=nullable), absent


def _carried(
    events: Events, lineages: Lineages, wanted: Int64s, mask: Mask, name: tuple[str, str]
) -> Int64s:
    """For changes that lack a column's value, the row of the batch that has it; -1: the target's
    row.

    Each change with a value of the column, and each INSERT and DELETE, is a mark. The value comes
    from the last mark of the row's lineage up to the change; without a mark, from the target.

    Args:
        wanted: indexes of changes.
        mask: the rows without a value.
        name: the table and the column, for messages.
    """
    of_change = lineages.of_change
    chosen = np.zeros(len(lineages.origin), np.bool_)
    chosen[of_change[wanted]] = True
    changes = np.flatnonzero(chosen[of_change])
    changes = changes[np.argsort(of_change[changes], kind="stable")]
    lineage, action = of_change[changes], events.actions[changes]
    # A DELETE has row -1: the mask's last element is read for it and then ignored.
    carries = (action != DELETE) & ~mask[events.row_index[changes]]
    indexes = np.arange(len(changes))
    last_mark = np.maximum.accumulate(np.where(carries | (action != UPDATE), indexes, -1))
    begins = np.append(True, lineage[1:] != lineage[:-1])
    first_of_lineage = np.maximum.accumulate(np.where(begins, indexes, 0))
    place = np.empty(len(of_change), np.int64)
    place[changes] = indexes
    at = place[wanted]
    mark = last_mark[at]
    inside = mark >= first_of_lineage[at]
    from_batch = inside & carries[mark]
    from_target = ~inside & (lineages.origin[of_change[wanted]] >= 0)
    if not (from_batch | from_target).all():
        raise no_source(*name, int(np.count_nonzero(~(from_batch | from_target))))
    source: Int64s = np.where(from_batch, events.row_index[changes[mark]], -1)
    return source


def taken(column: pa.ChunkedArray, index: Int64s) -> pa.ChunkedArray:
    """As ``column.take``, but returns the column itself if all of it is taken in order (a batch of
    inserts)."""
    if len(index) == len(column) and bool((index[1:] > index[:-1]).all()):
        return column
    return column.take(pa.array(index))


def no_source(table: str, column: str, count: int) -> TableError:
    """An inserted row has no value of a column."""
    return TableError(
        f"{count} row(s) of table {table}, which an update has brought into the row filter, lack "
        f"column {column!r}: the server does not send a large value that an update does not change",
        hint=f"run ALTER TABLE {quote_title(table)} REPLICA IDENTITY FULL, so that the server"
        f" sends large values with every change, then {copied_again(table)}",
        table=table,
        column=column,
        count=count,
    )
