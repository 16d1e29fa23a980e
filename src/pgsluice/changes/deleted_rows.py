"""Deleted rows that stay at the target: a column has the time when each was deleted.

A delete of a row that the target has becomes a row of the net changes: it keeps the target's
values, and gets the commit's time. A row that is inserted again replaces it, without a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.columnar.changes import Int64s

TIME = pa.timestamp("us", "UTC")


def with_marks(net: NetChanges, column: str, times: Int64s) -> NetChanges:
    """The same net changes, whose deletes give rows the time of their commit, in microseconds since
    1970, in a column that ``net`` may lack."""
    net = with_deleted_column(net, column)
    count, marks = len(net.rows), len(net.deletes)
    if not marks:
        return net
    columns = [
        net.deletes.column(field.name).cast(field.type)
        if field.name in net.key
        else pa.chunked_array([pa.array(times, TIME).cast(field.type)])
        if field.name == column
        else pa.chunked_array([pa.nulls(marks, field.type)])
        for field in net.rows.schema
    ]
    others = {*net.rows.schema.names} - {*net.key, column}
    none, every = np.zeros(count, np.bool_), np.ones(marks, np.bool_)
    return replace(
        net,
        rows=pa.concat_tables([net.rows, pa.Table.from_arrays(columns, schema=net.rows.schema)]),
        inserted=np.concatenate([net.inserted, ~every]),
        absent={name: np.concatenate([net.absent.get(name, none), every]) for name in others},
        deletes=net.deletes.slice(0, 0),
        only_new=False,
        marked=np.concatenate([none, every]),
    )


def with_deleted_column(net: NetChanges, column: str) -> NetChanges:
    """The same net changes with this column, which is NULL: the rows are there at the source."""
    if column in net.schema.names:
        return net
    field = pa.field(column, TIME)
    rows = net.rows.append_column(field, pa.nulls(len(net.rows), TIME))
    return replace(net, schema=net.schema.append(field), rows=rows)
