"""Logical messages as envelope rows: what ``pg_logical_emit_message`` wrote, table or no table.

A transactional message is a row of its transaction, in its place by ``_ordinal``. One that is
not stands for itself: its position is its LSN + 1, it has neither transaction nor commit, so
``_xid`` and ``_commit_timestamp`` are NULL. The order within a segment is the WAL's.

Messages are decoded one by one: about 2.5 microseconds each, far less than Spark needs for
a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.columnar.definitions import decode_at
from pgsluice.spark.rows import MAX_ROWS
from pgsluice.spool import SegmentView
from pgsluice.wire import LogicalMessage

CHANGE_TYPE = "message"
"""``_change_type`` of a message."""

_TAG = ord(LogicalMessage.tag)


def message_batches(view: SegmentView, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A segment's logical messages.

    Args:
        view: the segment, or a part.
        declared: the envelope's columns, as the query was told.

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
    own = [one for one in messages if isinstance(one, LogicalMessage)]
    alone = np.array([not one.is_transactional for one in own], np.bool_)
    count = len(own)
    arrays = [
        *(pa.nulls(count, declared.field(name).type) for name in ("schema", "table", "key", "row")),
        pa.array([one.prefix for one in own], pa.string()),
        pa.array([one.content for one in own], pa.binary()),
        pa.repeat(CHANGE_TYPE, count),
        pa.array(block.positions[indices], pa.int64()),
        pa.array(block.commit_timestamps[indices], mask=alone).cast(pa.timestamp("us", "UTC")),
        pa.array(block.ordinals[indices], pa.int64()),
        pa.array(block.xids[indices], pa.int64(), mask=alone),
        pa.array([[]] * count, pa.list_(pa.field("element", pa.string()))),
    ]
    return pa.record_batch(arrays, schema=declared)
