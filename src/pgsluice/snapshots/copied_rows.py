"""The rows of a COPY in binary form: received in blocks, and split into columns of values.

COPY sends one message for each row. So libpq is asked directly, and each row is appended to its
block at once: as objects that live until the block is full, rows would cost ten times as much,
because Python's garbage collector looks at them again and again. A block has whole rows, and is
parsed by numpy, a column of all rows at a time.

Source: the manual, "COPY", "Binary Format".
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq, sql

from pgsluice.errors import ProtocolError
from pgsluice.types.codec import Int64s, Mask, integers, spans

BLOCK_BYTES = 8 * 1024 * 1024
"""A block has so much, and at most one row more: a row may be as large as 1 GB."""
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_TRAILER = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Whole rows, one after the other.

    Attributes:
        data: their bytes.
        lengths: of each row.
    """

    data: bytearray
    lengths: Int64s

    def columns(self, count: int) -> Iterator[pa.Array]:
        """The values of one column after the other, as LargeBinary; null for NULL.

        Args:
            count: how many columns each row has.

        Raises:
            ProtocolError: the rows are not of COPY's binary form, or have other columns.
        """
        octets = np.frombuffer(self.data, np.uint8)
        ends = np.cumsum(self.lengths)
        starts = ends - self.lengths
        _refuse(self.lengths < 2)
        _refuse(integers(octets, starts, ">u2") != count)
        places = starts + 2
        for _ in range(count):
            _refuse(places + 4 > ends)
            sizes = integers(octets, places, ">i4")
            null: Mask = sizes < 0
            begins = places + 4
            places = begins + np.maximum(sizes, 0)
            _refuse(places > ends)
            yield spans(octets, begins, places, null if null.any() else None)
        _refuse(places != ends)


def copied_blocks(
    connection: psycopg.Connection[Any], statement: sql.Composed
) -> Iterator[RowBlock]:
    """The rows that a COPY TO STDOUT in binary form sends, in blocks that are not empty.

    Args:
        connection: idle; after an error, or if not all blocks are taken, it is closed.

    Raises:
        psycopg.Error: as the server says it.
        ProtocolError: the server sends something else.
    """
    pgconn = connection.pgconn
    result = pgconn.exec_(statement.as_bytes(connection))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    try:
        yield from _blocks(pgconn)
        ends = iter(pgconn.get_result, None)
        failures = [end for end in ends if end.status != pq.ExecStatus.COMMAND_OK]
        if failures:
            raise psycopg.errors.error_from_result(failures[0])
    except BaseException:
        connection.close()  # in the middle of a COPY it is good for nothing else
        raise


def _blocks(pgconn: pq.abc.PGconn) -> Iterator[RowBlock]:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    get, is_first, size = pgconn.get_copy_data, True, 0
    while size >= 0:
        data = bytearray()
        lengths: list[int] = []
        append = lengths.append
        while len(data) < BLOCK_BYTES:
            size, row = get(1)
            if size > 0:
                data += row
                append(size)
            elif size == 0:
                poll.poll()
                pgconn.consume_input()
            else:
                break
        row = memoryview(b"")  # it may have hundreds of megabytes
        if is_first and lengths:
            _take_header(data, lengths)
            is_first = False
        if lengths and lengths[-1] == len(_TRAILER) and data.endswith(_TRAILER):
            del data[-len(_TRAILER) :], lengths[-1]
        if lengths:
            yield RowBlock(data, np.array(lengths, np.int64))


def _take_header(data: bytearray, lengths: list[int]) -> None:
    """Remove the header, which comes in one message with the first row or with the trailer."""
    extension = int.from_bytes(data[_HEADER_BYTES - 4 : _HEADER_BYTES])
    size = _HEADER_BYTES + extension
    if not data.startswith(_SIGNATURE) or lengths[0] < size:
        raise ProtocolError("the server does not send rows in COPY's binary form")
    del data[:size]
    lengths[0] -= size
    if not lengths[0]:
        del lengths[0]


def _refuse(bad: Mask) -> None:
    if bad.any():
        raise ProtocolError(
            "a row of a COPY has other columns than were asked for, or is cut off",
            hint="is there a proxy between pgsluice and the server?",
        )
