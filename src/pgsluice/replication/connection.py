"""A replication connection: commands, and one copy stream.

The protocol has two phases:

* commands (:class:`~pgsluice.replication.commands.Walsender`), each answered before the next;
* after :meth:`~ReplicationConnection.start_replication`, the copy stream in both directions, until
  :meth:`~ReplicationConnection.finish`. Then commands are possible again, but no second stream: a
  walsender that ended one stream by CopyDone ends the next at once (10 to 18: it does not reset
  its flags).

This module does not interpret the stream: frames are bytes as received (``w``, ``k``). A status
update is sent only when the caller calls :meth:`~ReplicationConnection.send_status`, with the
caller's positions. Nothing is acknowledged automatically.

:meth:`~ReplicationConnection.receive` returns a frame. In a hot loop, the caller uses libpq
directly, at about 1 µs a message: ``connection.pgconn.get_copy_data(1)`` returns a size and a
frame. If the size is 0, call :meth:`~ReplicationConnection.wait`; if it is negative,
:meth:`~ReplicationConnection.raise_ended`.
Source: the manual, section "Streaming Replication Protocol".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import psycopg
from psycopg import pq

from pgsluice.errors import PgsluiceError, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication.commands import Walsender
from pgsluice.replication.low_water import SHORT_WAIT_S, LowWater
from pgsluice.replication.options import PgoutputOptions, quote_identifier
from pgsluice.replication.refusals import no_answer, odd_answer, refused_result, status_name
from pgsluice.wire import StandbyStatusUpdate


class ReplicationConnection(Walsender):
    """A walsender and its stream; a context manager. Created by :meth:`connect`."""

    def __init__(
        self, connection: psycopg.Connection[Any], dsn: str, silence_s: float | None
    ) -> None:
        super().__init__(connection, dsn, silence_s)
        self._is_streaming = False
        self._has_streamed = False
        self._has_unsent = False
        self._error: psycopg.OperationalError | None = None
        self._low_water = LowWater(self.pgconn)

    def close(self) -> None:
        """Close the socket, in any state of the stream."""
        self._is_streaming = False
        super().close()

    def start_replication(
        self,
        slot: str,
        start: Lsn,
        options: PgoutputOptions,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Send START_REPLICATION; afterwards the server sends frames.

        The server skips transactions that committed before the slot's confirmed_flush_lsn. It does
        not check whether ``start`` is past its own WAL: the caller does.

        Args:
            start: the position after which to start.
            is_stopping: called a few times a second; True ends the wait.

        Raises:
            SlotInUse, SlotLost, ForeignSource, SourceRefused: the server refused.
            SourceUnreachable: no answer in time, or asked to stop.
            ProtocolError: the answer is not the start of a stream.
        """
        doing = f"starting replication of slot {slot!r}"
        if self._has_streamed:
            raise PgsluiceError(f"{doing}: the connection has streamed, a new one is needed")
        arguments = options.to_command(self.server_version)
        command = f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start} {arguments}"
        self._send_query(command, doing)
        deadline = time.monotonic() + self._silence_s
        try:
            result = self._get_result(doing, deadline, is_stopping)
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                failure = refused_result(doing, result)
                while self._get_result(doing, deadline, is_stopping) is not None:
                    pass
                raise failure
        except TimeoutError:
            self.close()
            raise no_answer(doing, self._silence_s) from None
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            self.close()
            raise odd_answer(doing, f"the server answered with {status_name(result)}")
        self._is_streaming = self._has_streamed = True
        self._low_water.enable()

    def receive(self) -> bytes | None:
        """The next received frame, or None if there is none now; raises as :meth:`raise_ended`."""
        try:
            size, frame = self.pgconn.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise self.broken(error) from None
        if size > 0:
            return bytes(frame)
        if size < 0:
            self.raise_ended()
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait until more has come, or for ``timeout_s``, and read it from the socket.

        Call it when ``get_copy_data`` returns 0. It also sends data that could not be sent before.

        Raises:
            SourceUnreachable: the connection broke.
        """
        if self._error is None:
            self._low_water.wait(timeout_s, wants_write=self._has_unsent)
        self.read()

    def read(self) -> None:
        """Read the available bytes from the socket, without waiting; libpq reads about 16 kB.

        If the connection breaks, libpq may still have complete frames. So the error is kept, and
        raised by the next call.

        Raises:
            SourceUnreachable: the connection broke.
        """
        if self._error is not None:
            raise self.broken(self._error)
        try:
            if self._has_unsent:
                self._has_unsent = self.pgconn.flush() == 1
            self.pgconn.consume_input()
        except psycopg.OperationalError as error:
            self._error = error

    def broken(self, error: psycopg.OperationalError) -> PgsluiceError:
        """The pgsluice error for an error of libpq during streaming, including malformed
        messages."""
        return self._broken("streaming", error)

    def send_status(self, update: StandbyStatusUpdate) -> None:
        """Send a standby status update; nothing else acknowledges an LSN. Raises
        SourceUnreachable."""
        self._put(update.encode())

    def finish(self, timeout_s: float = 3) -> None:
        """End the stream by the CopyDone handshake; commands can follow.

        Data that the server still sends is dropped: it was not acknowledged, so the server resends
        it.

        Raises:
            SourceUnreachable: no answer in time, or the connection broke; close it.
        """
        doing = "ending the stream"
        deadline = time.monotonic() + timeout_s
        self._low_water.disable()  # the answer is a few bytes
        try:
            self.pgconn.put_copy_end()
            self._has_unsent = self.pgconn.flush() == 1
            while (size := self.pgconn.get_copy_data(1)[0]) >= 0:
                if time.monotonic() > deadline:
                    raise no_answer(doing, timeout_s)
                if size == 0:
                    self.wait(SHORT_WAIT_S)
            self._end_command(doing, deadline)
        except psycopg.OperationalError as error:
            raise self._broken(doing, error) from None
        except TimeoutError:
            raise no_answer(doing, timeout_s) from None
        self._is_streaming = False

    def raise_ended(self) -> NoReturn:
        """Raise the reason why the server ended the stream; for ``get_copy_data`` < 0.

        Raises:
            SourceUnreachable: it shuts down, or the connection broke.
            SlotLost, SourceRefused: an error of the server's.
        """
        doing = "streaming"
        self._is_streaming = False
        self._low_water.disable()
        with suppress(TimeoutError):
            self._end_command(doing, time.monotonic() + 2)
        raise SourceUnreachable("the server ended the stream: it is shutting down")

    def _end_command(self, doing: str, deadline: float) -> None:
        """Take the results of START_REPLICATION until it, or the server's side, has ended; raises
        errors among them, or TimeoutError."""
        while (result := self._get_result(doing, deadline)) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise refused_result(doing, result)
            if result.status == pq.ExecStatus.COPY_IN:
                return  # our side is open still: libpq gives this result again and again

    def _send_query(self, text: str, doing: str) -> None:
        if self._is_streaming:
            raise PgsluiceError(f"{doing}: the connection is streaming")
        super()._send_query(text, doing)

    def _put(self, frame: bytes) -> None:
        try:
            while self.pgconn.put_copy_data(frame) == 0:
                # libpq's buffer is full, because the server does not read: wait until it does.
                self._low_water.wait(SHORT_WAIT_S, wants_write=True)
                self.pgconn.flush()
                self.pgconn.consume_input()
            self._has_unsent = self.pgconn.flush() == 1
        except psycopg.OperationalError as error:
            raise self._broken("sending status", error) from None
