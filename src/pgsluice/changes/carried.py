"""The rows after changes, with values that were not sent taken from earlier changes of the row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pgsluice.changes.events import Events
from pgsluice.changes.lineage import Lineages, last_marked
from pgsluice.columnar.changes import DELETE, UPDATE, Int64s, Mask
from pgsluice.errors import TableError
from pgsluice.hints import copied_again
from pgsluice.sql import quote_title


def filled_rows(
    events: Events, lineages: Lineages, chosen: Int64s
) -> tuple[pa.Table, dict[str, Mask]]:
    """The rows after some changes.

    Args:
        chosen: indexes of changes that leave a row.

    Returns:
        the rows in the order of ``chosen``, and for some columns a mask of the values that have to
        come from the target's row with the lineage's former key.

    Raises:
        TableError: an inserted row has no value of a column.
    """
    own_rows = events.row_index[chosen]
    columns: list[pa.ChunkedArray] = []
    absent: dict[str, Mask] = {}
    for field in events.rows.schema:
        mask = events.absent.get(field.name)
        index = own_rows
        if mask is not None and mask[own_rows].any():
            wanted = mask[own_rows]
            index = own_rows.copy()
            index[wanted] = _carried(events, lineages, chosen[wanted], field.name)
            if (index < 0).any():
                absent[field.name] = index < 0
                index = np.where(index < 0, own_rows, index)
        columns.append(taken(events.rows.column(field.name), index))
    return pa.Table.from_arrays(columns, schema=events.rows.schema), absent


def _carried(events: Events, lineages: Lineages, wanted: Int64s, column: str) -> Int64s:
    """For some changes that lack a column's value, the row of the batch that has it: that of the
    last change of the lineage up to them that has a value, or is an INSERT or DELETE; -1: the
    target's row."""
    of_change, mask = lineages.of_change, events.absent[column]
    chosen = np.zeros(len(lineages.origin), np.bool_)
    chosen[of_change[wanted]] = True
    changes = np.flatnonzero(chosen[of_change])
    action = events.actions[changes]
    # A DELETE has row -1: the mask's last element is read for it and then ignored.
    carries = (action != DELETE) & ~mask[events.row_index[changes]]
    place = np.empty(len(of_change), np.int64)
    place[changes] = np.arange(len(changes))
    mark = last_marked(of_change[changes], carries | (action != UPDATE))[place[wanted]]
    from_batch = (mark >= 0) & carries[mark]
    from_target = (mark < 0) & (lineages.origin[of_change[wanted]] >= 0)
    if not (from_batch | from_target).all():
        raise no_source(events.table, column, int(np.count_nonzero(~(from_batch | from_target))))
    source: Int64s = np.where(from_batch, events.row_index[changes[mark]], -1)
    return source


def taken(column: pa.ChunkedArray, index: Int64s) -> pa.ChunkedArray:
    """As ``column.take``, but returns the column itself if all of it is taken in order (a batch of
    inserts)."""
    if len(index) == len(column) and bool((index[1:] > index[:-1]).all()):
        return column
    return column.take(pa.array(index))


def no_source(table: str, column: str, count: int) -> TableError:
    """The error of inserted rows without a value of a column, which the server has not sent."""
    return TableError(
        f"{count} row(s) of table {table}, which an update has brought into the row filter, lack "
        f"column {column!r}: the server does not send a large value that an update does not change",
        hint=f"run ALTER TABLE {quote_title(table)} REPLICA IDENTITY FULL, so that the server"
        f" sends large values with every change, then {copied_again(table)}",
        table=table,
        column=column,
        count=count,
    )
