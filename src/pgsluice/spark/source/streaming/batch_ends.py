"""Where a batch of a query begins and ends: offsets, limits, and the ends of transactions.

An offset is the end of a transaction, ``{"lsn": "0/16B3748"}``. Spark compares offsets as text, so
other keys have constant values, in a constant order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader
from pgsluice.spool.segments.batch_limits import BatchLimits
from pgsluice.spool.segments.block import change_positions

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

Offset = dict[str, str]


def lsn_of(offset: Offset) -> Lsn:
    """The LSN of an offset.

    Raises:
        SpoolError: the checkpoint belongs to another kind of source.
    """
    try:
        return Lsn.parse(offset["lsn"])
    except (KeyError, TypeError, ValueError) as error:
        raise SpoolError(
            f'the checkpoint has the offset {offset!r}, which format("pgoutput") did not write',
            hint="set another checkpointLocation: this checkpoint belongs to another source",
        ) from error


def limits_of(limit: ReadLimit | None, max_rows: int, max_bytes: int) -> BatchLimits:
    """The limits of a batch.

    Args:
        limit: what Spark asks for; None: it asks for nothing.
        max_rows, max_bytes: the limits of the query's options.
    """
    if limit is None:
        return BatchLimits(max_rows, max_bytes)
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
    )

    match limit:
        case ReadAllAvailable():
            return BatchLimits()
        case ReadMaxBytes():
            return BatchLimits(size_bytes=limit.max_bytes)
        case ReadMaxFiles():
            return BatchLimits(segments=limit.max_files)
        case ReadMaxRows():
            return BatchLimits(limit.max_rows, max_bytes)
        case _:
            return BatchLimits(max_rows, max_bytes)


def end_of_batch(
    reader: SpoolReader, start: Lsn, infos: Sequence[SegmentInfo], limits: BatchLimits
) -> Lsn:
    """The end of the last transaction within the limits, or of the first one.

    Args:
        infos: the segments after ``start``, in order.
    """
    end, info, rows = limits.take(start, infos)
    is_first = end == start
    if info is None:
        return end
    if info.is_reference:  # one transaction
        return info.end if is_first else end
    (view,) = reader.views(info, end)
    positions = change_positions(view.block)
    if len(positions) <= rows:
        return info.end
    past = int(positions[int(rows)])  # of the transaction that has the first row too many
    before = positions[: np.searchsorted(positions, past)]
    if len(before):
        return Lsn(int(before[-1]))
    return Lsn(past) if is_first else end


def lag_s(reader: SpoolReader, end: Lsn) -> float:
    """Seconds since the first commit after ``end``, in whole segments; 0 if there is none."""
    waiting = next((info for info in reader.all_segments() if info.end > end), None)
    committed = None if waiting is None else waiting.header.first_commit_timestamp
    return 0.0 if committed is None else max(0.0, time.time() - committed / 1e6)
