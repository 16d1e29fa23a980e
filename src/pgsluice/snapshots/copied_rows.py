"""Receives the rows of a COPY in binary form in blocks.

libpq returns each row as a separate object, which takes longer than decoding the row. So libpq
makes the session, and sends and receives all other statements. For a COPY, this module uses the
session's socket directly, and receives the server's answer into large blocks. That is impossible
for encrypted sessions; there, libpq returns each row.

Source: the manual, "Message Flow", "COPY Operations".
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import numpy as np
import psycopg
from psycopg import pq, sql

from pgsluice.catalog import Connection
from pgsluice.snapshots.copy_messages import (
    TRAILER_BYTES,
    CopyMessages,
    header_bytes,
    may_be_over,
    message_bytes,
    query_message,
)
from pgsluice.snapshots.row_block import RowBlock
from pgsluice.types.buffers import Bytes

BLOCK_BYTES = 8 * 1024 * 1024
"""The size of a block in bytes; a block with a single row may be as large as 1 GB."""
_LOOK_MS = 100
"""After this time without a byte, also search for an end of the rows that other messages follow."""
_MUCH_BYTES = 256 * 1024
_MUCH_MS = 10
"""For a copy of more than one block, wait until this many bytes are available, for a limited time.
The server sends 8 KiB at a time, and waking up for each takes half of the time of receiving."""
_FIRST_WITH_GSSAPI = 120000
_IS_PLAIN = """
SELECT NOT encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_catalog.pg_backend_pid()
"""


def copied_blocks(connection: Connection, statement: sql.Composed) -> Generator[RowBlock]:
    """The rows of a COPY TO STDOUT in binary form, in blocks that are not empty.

    Args:
        connection: an idle connection; it is closed after an error, or if the generator is closed
            early.

    Raises:
        psycopg.Error: an error of the server.
        ProtocolError: the server sends something else.
    """
    receive = blocks_of_libpq if _is_encrypted(connection) else _blocks_of_socket
    try:
        yield from receive(connection.pgconn, statement.as_bytes(connection))
    except BaseException:
        connection.close()  # in the middle of a COPY it is good for nothing else
        raise


def _is_encrypted(connection: Connection) -> bool:
    """Whether the session's socket carries encrypted data."""
    if connection.pgconn.ssl_in_use:
        return True
    modes = [option.val for option in connection.pgconn.info if option.keyword == b"gssencmode"]
    if modes == [b"disable"] or connection.info.server_version < _FIRST_WITH_GSSAPI:
        return False
    return connection.execute(_IS_PLAIN).fetchall() != [(True,)]


def _blocks_of_socket(pgconn: pq.abc.PGconn, command: bytes) -> Iterator[RowBlock]:
    messages, rest = CopyMessages(), np.zeros(0, np.uint8)
    with _SocketStream.of(pgconn.socket) as stream:
        stream.send(query_message(command))
        while len(rest) or not messages.is_over:
            blocks, rest = _receive_block(stream, messages, rest)
            while blocks:
                yield blocks.pop()  # kept by nobody here: a row may have hundreds of megabytes
            stream.wait_for(_MUCH_BYTES, _MUCH_MS)
    if messages.error is not None:
        raise messages.error


def _receive_block(
    stream: _SocketStream, messages: CopyMessages, rest: Bytes
) -> tuple[list[RowBlock], Bytes]:
    """Receive messages until a block is full, or the COPY is complete.

    Args:
        rest: the received part of the first message.

    Returns:
        the block, if it has rows, and the received part of the next message.
    """
    data = np.empty(max(BLOCK_BYTES, message_bytes(rest)), np.uint8)
    data[: len(rest)] = rest
    filled, followed = len(rest), 0
    try:
        while filled < len(data) and not (messages.is_over and followed == filled):
            received = stream.receive(data[filled:])
            filled += received
            if not received or may_be_over(data[:filled]):
                followed = messages.follow(data, followed, filled)
    except psycopg.OperationalError as broken:
        messages.follow(data, followed, filled)
        raise (messages.error or broken) from None
    followed = messages.follow(data, followed, filled)
    block = RowBlock(data, *messages.take_rows())
    return [block] if len(block) else [], data[followed:filled].copy()


class _SocketStream:
    """The bytes of a session, whose socket libpq has set to non-blocking."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket
        self._wait_ms = _LOOK_MS
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(socket, select.POLLIN)
        self._writable.register(socket, select.POLLOUT)

    @classmethod
    @contextmanager
    def of(cls, descriptor: int) -> Iterator[Self]:
        """A stream on a session's socket, which is restored afterwards."""
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            stream = cls(duplicate)
            try:
                yield stream
            finally:
                stream.wait_for(1, _LOOK_MS)

    def wait_for(self, least_bytes: int, wait_ms: int) -> None:
        """Let :meth:`receive` wait for more than one byte.

        Args:
            least_bytes: how many bytes to wait for, if the system supports it.
            wait_ms: return the available bytes after this time, in milliseconds.
        """
        self._wait_ms = wait_ms
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least_bytes)

    def send(self, data: bytes) -> None:
        """Send all of these bytes.

        Raises:
            psycopg.OperationalError: the connection broke.
        """
        try:
            while data:
                self._writable.poll()
                with suppress(BlockingIOError):
                    data = data[self._socket.send(data) :]
        except OSError as error:
            raise _broken(error.strerror) from error

    def receive(self, into: Bytes) -> int:
        """Receive the available bytes, or wait for the first ones.

        Returns:
            the number of bytes; 0: nothing was received for a while.

        Raises:
            psycopg.OperationalError: the connection has ended.
        """
        received = self._receive(into)
        if not received:
            self._readable.poll(self._wait_ms)
            received = self._receive(into)
        return received

    def _receive(self, into: Bytes) -> int:
        """Receive the available bytes."""
        try:
            received = self._socket.recv_into(into.data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _broken(error.strerror) from error
        if not received:
            raise _broken("the server closed it")
        return received


def _broken(why: str | None) -> psycopg.OperationalError:
    return psycopg.OperationalError(f"the connection to the server broke: {why}")


def blocks_of_libpq(pgconn: pq.abc.PGconn, command: bytes) -> Iterator[RowBlock]:
    result = pgconn.exec_(command)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    is_first, is_over = True, False
    while not is_over:
        blocks, is_over = _receive_messages(pgconn)
        if is_first and blocks:
            blocks[0].starts[0] += header_bytes(blocks[0].data[: blocks[0].ends[0]])
            is_first = False
        blocks = [rows for rows in map(_without_trailer, reversed(blocks)) if len(rows)]
        while blocks:
            yield blocks.pop()
    while (end := _next_result(pgconn)) is not None:
        if end.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(end)


def _next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """The result after the rows.

    This waits for it in Python: PQgetResult would wait in C, where psycopg blocks all other threads
    of the process.
    """
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        readable.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def _receive_messages(pgconn: pq.abc.PGconn) -> tuple[list[RowBlock], bool]:
    """Let libpq receive data messages until a block is full, or the COPY is complete.

    Returns:
        their content, a large message as a separate block; and whether the COPY is complete.
    """
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    data, ends, size = bytearray(), [0], 1
    get, append = pgconn.get_copy_data, ends.append
    while len(data) < BLOCK_BYTES:
        size, row = get(1)
        if 0 < size < BLOCK_BYTES:  # as an object for each, rows would cost ten times as much
            data += row
            append(len(data))
        elif size == 0:
            readable.poll()
            pgconn.consume_input()
        else:
            break
    places = np.array(ends, np.int64)
    blocks = [RowBlock(np.frombuffer(data, np.uint8), places[:-1], places[1:])]
    if size >= BLOCK_BYTES:
        blocks.append(RowBlock(np.frombuffer(row, np.uint8), np.array([0]), np.array([size])))
    return [block for block in blocks if len(block)], size < 0


def _without_trailer(block: RowBlock) -> RowBlock:
    is_row = block.ends - block.starts > TRAILER_BYTES  # a row has columns
    return RowBlock(block.data, block.starts[is_row], block.ends[is_row])
