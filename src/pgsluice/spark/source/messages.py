"""Logical messages (``pg_logical_emit_message``) as envelope rows.

A transactional message is a row of its transaction; ``_ordinal`` gives its place among the
changes. A non-transactional message has the position LSN + 1. It belongs to no transaction, so
``_xid`` and ``_commit_timestamp`` are NULL. Within a segment, messages are in the WAL's order.

Messages are decoded one at a time. That takes about 2.5 microseconds each, far less than Spark
needs for a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.changes.change_rows import NAMES
from pgsluice.columnar.definitions import decode_at
from pgsluice.spark.source.rows import MAX_ROWS
from pgsluice.spool import SegmentView
from pgsluice.wire import LogicalMessage

CHANGE_TYPE = "message"
"""``_change_type`` of a message."""

_TAG = ord(LogicalMessage.tag)


def message_batches(view: SegmentView, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A segment's logical messages.

    Args:
        view: a segment, or a part of a large transaction.
        declared: the envelope's columns, in the query's schema.

    Raises:
        ProtocolError: a message is malformed.
    """
    indices = np.flatnonzero(view.block.tags == _TAG)
    for start in range(0, len(indices), MAX_ROWS):
        yield _batch(view, indices[start : start + MAX_ROWS], declared)


def _batch(
    view: SegmentView, indices: npt.NDArray[np.int64], declared: pa.Schema
) -> pa.RecordBatch:
    block = view.block
    messages = [decode_at(view, index) for index in indices.tolist()]
    logical = [message for message in messages if isinstance(message, LogicalMessage)]
    no_transaction = np.array([not message.is_transactional for message in logical], np.bool_)
    timestamps = pa.array(block.commit_timestamps[indices], mask=no_transaction)
    count = len(logical)
    arrays = [
        *(pa.nulls(count, declared.field(name).type) for name in ("schema", "table", "key", "row")),
        pa.array([message.prefix for message in logical], pa.string()),
        pa.array([message.content for message in logical], pa.binary()),
        pa.repeat(CHANGE_TYPE, count),
        pa.array(block.positions[indices], pa.int64()),
        timestamps.cast(pa.timestamp("us", "UTC")),
        pa.array(block.ordinals[indices], pa.int64()),
        pa.array(block.xids[indices], pa.int64(), mask=no_transaction),
        *(pa.array([[]] * count, NAMES) for _ in ("key", "absent", "unfit")),
        pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
    ]
    return pa.record_batch(arrays, schema=declared)
