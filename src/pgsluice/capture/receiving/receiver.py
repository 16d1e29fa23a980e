"""The hot loop: frames from libpq to the store, status back to the server.

For a row's message, Python only handles the frame's size; everything else is done for a whole chunk
(:mod:`pgsluice.capture.receiving.frames`). The assembler turns chunks into commands, the store
makes them durable in its own thread, and durable data is acknowledged.

One receiver serves one connection. It ends by ``stop``, by reaching ``until``, or by an error.
Completely received transactions are durable then; the server resends the rest on the next
connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import psycopg

from pgsluice.capture.receiving.ack_policy import AckPolicy, FlushLimit
from pgsluice.capture.receiving.assembler import TransactionAssembler
from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.frames import Chunk
from pgsluice.capture.receiving.store import Command, Store, to_parts
from pgsluice.capture.reporting import CaptureReporter, Unfinished
from pgsluice.catalog.visibility import TransactionStatus
from pgsluice.errors import PgsluiceError, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection
from pgsluice.spool.segments.parts_writer import PartsWriter
from pgsluice.wire import POSTGRES_EPOCH_US, XLOG_DATA_HEADER, Keepalive, StandbyStatusUpdate

_CHUNK_FRAMES = 1024
"""The largest number of frames in a chunk: joining more is slower, because malloc needs new
pages."""
_LARGE_FRAME_BYTES = 32 * 1024
_ROOM_POLL_S = 0.2
_SEEN_POLL_S = 0.01
"""A commit that waits for a standby usually waits some milliseconds."""
_STORE_WAIT_S = 0.2
_POSITION_REQUEST_S = 0.5
"""How often to query the server's position while waiting for one, in seconds."""
_ENDS_REQUEST_S = 1.0
"""How often to query the outcome of open transactions while the spool is full, in seconds."""


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """How a stream is received.

    Attributes:
        segment_bytes: write a segment when this many bytes were received.
        segment_s: write a segment this long after the previous one; at once, if that was longer
            ago.
        status_s: the longest time between two status updates.
        silence_s: after half of it without a message, ask the server for a reply; at its end, give
            up the connection; 0: never.
        parallel: ``streaming 'parallel'`` was requested.
        until: end when the durable received-through LSN has reached this LSN.
    """

    segment_bytes: int
    segment_s: float
    status_s: float = 10.0
    silence_s: float = 60.0
    parallel: bool = False
    until: Lsn | None = None


class SegmentPace:
    """Decides when waiting whole transactions become a segment; without socket or disk. A
    transaction after a pause is written at once; more are spaced out, because each segment costs an
    fsync and a batch in Spark.

    Args:
        segment_bytes: write a segment when this many bytes wait.
        apart_s: the time between two segments, and the longest that a transaction waits, in
            seconds.
        now: the caller's clock; the first segment is written ``apart_s`` later at the earliest.
    """

    def __init__(self, segment_bytes: int, apart_s: float, now: float) -> None:
        self._segment_bytes = segment_bytes
        self._apart_s = apart_s
        self._next_at = now + apart_s

    def is_due(self, now: float, since: float, size_bytes: int, *, is_drained: bool) -> bool:
        """Whether to write the waiting transactions now.

        Args:
            since: when the oldest of them was received.
            size_bytes: the size of all of them.
            is_drained: the socket is empty; otherwise the same segment can take more.
        """
        if size_bytes >= self._segment_bytes or now - since >= self._apart_s:
            return True
        return is_drained and now >= self._next_at

    def wrote(self, now: float) -> None:
        """Note that a segment was handed over."""
        self._next_at = now + self._apart_s

    def next_in(self, now: float) -> float:
        """Seconds until a segment of the waiting transactions is due, if nothing more is
        received."""
        return max(0.0, self._next_at - now)


class Receiver:
    """Receives on one connection that is streaming.

    Args:
        connection: a connection after START_REPLICATION.
        reporter: None: nothing is reported.
    """

    def __init__(
        self,
        connection: ReplicationConnection,
        store: Store,
        facts: FactsSource,
        options: ReceiverOptions,
        stop: threading.Event,
        reporter: CaptureReporter | None = None,
    ) -> None:
        self._connection = connection
        self._store = store
        self._options = options
        self._stop = stop
        self._until = options.until
        self._reporter = reporter
        self._limit = FlushLimit(store.durable, facts.flush_lsn, options.segment_bytes)
        self._assembler = TransactionAssembler(facts, store, self._limit, parallel=options.parallel)
        self._facts = facts
        self._largest: Unfinished | None = None
        self._segments = SegmentPace(options.segment_bytes, options.segment_s, time.monotonic())
        self._policy = AckPolicy(
            store.durable, status_s=options.status_s, is_eager=options.until is not None
        )
        self._progress_at = 0.0
        self._requested_at = 0.0
        self._silent_s = 0.0
        self._server_end = Lsn(0)

    def run(self) -> None:
        """Receive until asked to stop, or until ``until`` is reached.

        When it returns, all completely received transactions are durable.

        Raises:
            SourceUnreachable, SlotLost, SourceRefused: the server ended the stream.
            ProtocolError: it violated the protocol.
            SpoolError, SpoolFull: received data cannot be made durable.
        """
        try:
            self._send_status(time.monotonic(), asks=True)
            while not self._is_finished():
                self._wait_for_room()
                is_drained = self._receive_chunk()
                now = time.monotonic()
                self._cut(now, is_drained=is_drained)
                self._send_due(now)
                if is_drained:
                    self._wait_for_server(self._due_in(now))
        finally:
            self._hand_over_all(self._assembler.take_whole())
        self._store.drain()
        self._send_status(time.monotonic())

    def _is_finished(self) -> bool:
        return self._stop.is_set() or (
            self._until is not None and self._store.durable >= self._until
        )

    def _receive_chunk(self) -> bool:
        """Receive the available frames, up to a chunk; returns whether the socket is empty now."""
        frames: list[bytes | memoryview] = []
        append, get = frames.append, self._connection.pgconn.get_copy_data
        header_bytes, size = XLOG_DATA_HEADER.size, 0
        frame: bytes | memoryview = b""
        failure: PgsluiceError | None = None
        try:
            for _ in repeat(None, _CHUNK_FRAMES):
                size, frame = get(1)
                if size == 0:
                    self._connection.read()
                    size, frame = get(1)
                if size <= header_bytes:
                    break
                append(frame)
                if size >= _LARGE_FRAME_BYTES:
                    break
        except psycopg.OperationalError as error:
            failure = self._connection.broken(error)
        except PgsluiceError as error:
            failure = error
        if frames or size > 0:
            self._silent_s = 0.0
        if frames:
            self._follow(Chunk(frames))
        if failure is not None:  # after the frames that came before
            raise failure
        if 0 < size <= header_bytes:
            self._keepalive(bytes(frame))
        elif size < 0:
            self._connection.raise_ended()
        return size == 0

    def _wait_for_server(self, timeout_s: float) -> None:
        """Wait for the socket, and check that the server still responds (as wal_receiver_timeout
        does).

        A silently broken connection looks like an idle one: TCP may need a quarter of an hour to
        notice. Only the time in this method counts as silence: nothing is read while the spool is
        full.
        """
        limit_s = self._options.silence_s
        if limit_s and self._silent_s >= limit_s:
            raise SourceUnreachable(
                f"the server has sent nothing for {limit_s:g} s, although pgsluice asked it to "
                "reply",
                hint="check the network between pgsluice and the server. If the server is busy "
                "decoding a long transaction, raise source.silence_timeout_s",
            )
        began = time.monotonic()
        self._connection.wait(timeout_s)
        now = time.monotonic()
        before_s, self._silent_s = self._silent_s, self._silent_s + now - began
        if before_s < limit_s / 2 <= self._silent_s:
            # However long this process stood still, the server has the second half to reply.
            self._silent_s = limit_s / 2
            self._send_status(now, asks=True)

    def _follow(self, chunk: Chunk) -> None:
        self._server_end = max(self._server_end, chunk.server_end)
        if self._reporter is not None:
            self._reporter.stream_bytes += chunk.size_bytes
        self._hand_over_all(self._assembler.take(chunk, time.monotonic()))

    def _keepalive(self, frame: bytes) -> None:
        message = Keepalive.decode(frame)
        self._limit.check(message.end)
        self._server_end = max(self._server_end, message.end)
        waits = self._assembler.whole_since is not None
        self._policy.keepalive(
            message.end,
            after_command=self._store.submitted + (1 if waits else 0),
            is_held=self._assembler.holds_frontier,
            wants_reply=message.reply_requested,
        )

    def _cut(self, now: float, *, is_drained: bool) -> None:
        """Hand whole transactions to the store if a segment is due, and open ones if they are
        large."""
        assembler = self._assembler
        if assembler.whole_since is not None and self._segments.is_due(
            now, assembler.whole_since, assembler.whole_bytes, is_drained=is_drained
        ):
            self._hand_over_all(assembler.take_whole())
            self._segments.wrote(now)
        self._hand_over_all(assembler.overflow(self._options.segment_bytes))

    def _hand_over_all(self, commands: Iterable[Command | None]) -> None:
        """Give commands to the store; send the server its status updates meanwhile."""
        held_at: float | None = None
        for command in commands:
            if command is not None:
                self._policy.wrote()
                while not self._store.offer(command, _STORE_WAIT_S):
                    self._send_due(time.monotonic(), is_storing=True)
                continue
            held_at = held_at or time.monotonic()
            self._report_held(time.monotonic() - held_at)
            self._send_due(time.monotonic(), is_storing=True)
            if self._stop.wait(_SEEN_POLL_S):
                break  # the transaction comes again
        if held_at is not None:
            self._report_held(0)

    def _send_due(self, now: float, *, is_storing: bool = False) -> None:
        """Write the received-through LSN and send a status update, if they are due."""
        self._store.raise_error()
        durable = self._store.durable
        if not is_storing and self._assembler.whole_since is None:
            lsn = self._policy.frontier_due(now, done_command=self._store.done, durable=durable)
            if lsn is not None and self._store.offer(lambda to: to.advance_frontier(lsn), 0):
                self._store.drain(_STORE_WAIT_S)
        if self._until is not None and now - self._requested_at >= _POSITION_REQUEST_S:
            # An idle server reports its position once, perhaps before it reached ``until``, and
            # again only when it is asked.
            self._send_status(now, asks=True)
        elif self._policy.status_due(now, self._store.durable):
            self._send_status(now)
        if now - self._progress_at >= 1:
            self._progress_at = now
            self._report_progress()

    def _send_status(self, now: float, *, asks: bool = False) -> None:
        """Acknowledge durable data only."""
        if asks:
            self._requested_at = time.monotonic()
        flush = self._policy.sent(now, self._store.durable)
        self._connection.send_status(
            StandbyStatusUpdate(
                write=flush,
                flush=flush,
                apply=flush,
                timestamp=time.time_ns() // 1000 - POSTGRES_EPOCH_US,
                reply_requested=asks,
            )
        )

    def _wait_for_room(self) -> None:
        """While the spool is full: read and acknowledge nothing, and keep the connection alive."""
        if not self._store.is_full:
            return
        self._hand_over_all(self._assembler.take_whole())
        self._report_progress()
        asked_at = -_ENDS_REQUEST_S
        while self._store.is_full and not self._stop.wait(_ROOM_POLL_S):
            now = time.monotonic()
            self._store.raise_error()
            if now - asked_at >= _ENDS_REQUEST_S:
                asked_at = now
                self._hand_over_all(self._drop_rolled_back())
                self._report_progress()
            if self._policy.status_due(now, self._store.durable):
                self._send_status(now)
        self._report_progress()

    def _drop_rolled_back(self) -> Iterator[Command]:
        """Ask how open and prepared transactions ended, and drop those that were rolled back.

        One of them may fill the spool. While it is full, nothing is read, so the end of that
        transaction would never be received. One that commits needs all of its room.
        """
        waiting = self._store.settled_writer().parts.waiting()
        xids = {*self._assembler.open_xids(), *(transaction.xid for transaction in waiting)}
        statuses = self._facts.statuses(xids)
        aborted = {xid for xid, status in statuses.items() if status is TransactionStatus.ABORTED}
        yield from self._assembler.drop_rolled_back(aborted)
        for transaction in waiting:
            if transaction.gid is not None and transaction.xid in aborted:
                yield to_parts(PartsWriter.rollback_prepared, transaction.gid, transaction.xid)
        largest = max(waiting, key=lambda transaction: transaction.size_bytes, default=None)
        self._largest = (largest, statuses.get(largest.xid)) if largest else None

    def _report_progress(self) -> None:
        if self._reporter is not None:
            self._reporter.report_progress(
                self._server_end, self._policy.flush, self._store.retained, self._largest
            )

    def _report_held(self, seconds: float) -> None:
        if self._reporter is not None:
            self._reporter.report_held(seconds)

    def _due_in(self, now: float) -> float:
        """How long to wait for the socket, in seconds."""
        due = [self._policy.next_event_in(now), _STORE_WAIT_S]
        if self._assembler.whole_since is not None:
            due.append(self._segments.next_in(now))
        if self._until is not None or self._store.done != self._store.submitted:
            due.append(0.02)
        return min(due)
