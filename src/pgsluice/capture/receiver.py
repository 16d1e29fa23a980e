"""The hot loop: frames from libpq to the store, status back to the server.

Python touches a row's message three times: libpq hands it over, its tag is looked at, it goes
into a list. Begin and Commit are remembered, a Relation has its facts looked up and written
behind it, a keepalive moves the frontier; everything else is bytes. What begins or ends a
transaction in progress (:mod:`pgsluice.capture.control`) ends a chunk, so that a chunk's rows
belong to the plain transactions or to one in progress.

One receiver serves one connection. It ends by ``stop``, by reaching ``until``, or by an error;
what was received and is whole is durable then, the rest comes again.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

from pgsluice.capture.buffer import FrameBuffer
from pgsluice.capture.control import CONTROL_TAGS, Control
from pgsluice.capture.facts import FactsSource, relation_oid
from pgsluice.capture.heap import FRAME_HEADER_BYTES
from pgsluice.capture.in_progress import IN_STREAM_BODY, InProgress
from pgsluice.capture.progress import Progress
from pgsluice.capture.steps import Step, Whole
from pgsluice.capture.store import Store
from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection
from pgsluice.wire import POSTGRES_EPOCH_US, Keepalive, StandbyStatusUpdate

_CHUNK = 1024
_LARGE_FRAME_BYTES = 32 * 1024
_ROOM_LOOK_S = 0.2
_STEP_S = 0.2
_ASK_S = 0.5
"""How often the server is asked for its position while one is waited for."""
_SERVER_END = struct.Struct(">Q")

_PLAIN = bytearray(256)
"""1 for tags that need nothing but to be kept."""
for _tag in b"IUDTO":
    _PLAIN[_tag] = 1
_BEGIN, _COMMIT, _RELATION, _TYPE, _MESSAGE = b"BCRYM"
_CONTROL = frozenset(CONTROL_TAGS)


@dataclass(frozen=True, slots=True)
class Pace:
    """When what was received becomes a segment.

    Attributes:
        segment_bytes: at this size.
        segment_s: at this age.
        status_s: the longest time between two status updates.
    """

    segment_bytes: int
    segment_s: float
    status_s: float = 10.0


class Receiver:
    """Receives on one connection that is streaming.

    Args:
        connection: after START_REPLICATION.
        store: makes durable what is handed to it.
        facts: looks up what is not on the wire.
        pace: when segments are cut.
        parallel: ``streaming 'parallel'`` was asked for.
        stop: set to end cleanly.
        until: end when the durable frontier has reached it.
        on_progress: called about once a second, and when the spool is full or has room again.

    Attributes:
        server_end: how far the server's WAL was when it last said so.
    """

    def __init__(
        self,
        connection: ReplicationConnection,
        store: Store,
        facts: FactsSource,
        pace: Pace,
        *,
        parallel: bool = False,
        stop: threading.Event,
        until: Lsn | None = None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._store = store
        self._facts = facts
        self._pace = pace
        self._stop = stop
        self._until = until
        self._on_progress = on_progress
        self._buffer = FrameBuffer()
        self._in_progress = InProgress()
        self._control = Control(self._in_progress, facts, store, parallel=parallel)
        self._progress = Progress(store.durable, status_s=pace.status_s, is_eager=until is not None)
        self._begin: bytes | memoryview | None = None
        self._is_open = False
        self._progress_at = 0.0
        self._asked_at = 0.0
        self.server_end = Lsn(0)

    def run(self) -> None:
        """Receive until asked to stop, or ``until`` is reached; then all whole is durable.

        Raises:
            SourceUnreachable, SlotLost, SourceRefused: the server ended the stream.
            ProtocolError: it sent what this protocol has not.
            SpoolError, SpoolFull: what came cannot be made durable.
        """
        try:
            self._send_status(time.monotonic(), asks=True)
            while not self._is_finished():
                self._wait_for_room()
                is_drained = self._receive_chunk()
                now = time.monotonic()
                self._cut(now)
                self._look_after(now)
                if is_drained:
                    self._connection.wait(self._patience(now))
        finally:
            self._hand_over_whole()
        self._store.drain()
        self._send_status(time.monotonic())

    def _is_finished(self) -> bool:
        return self._stop.is_set() or (
            self._until is not None and self._store.durable >= self._until
        )

    def _receive_chunk(self) -> bool:
        """Take what has come, up to a chunk; true when nothing more is there now."""
        frames: list[bytes | memoryview] = []
        append, get, plain = frames.append, self._connection.pgconn.get_copy_data, _PLAIN
        committed = 0
        last: bytes | memoryview | None = None
        control: bytes | memoryview | None = None
        is_plain = self._in_progress.current is None
        has_parts, is_drained = self._buffer.has_parts, False
        for _ in repeat(None, _CHUNK):
            size, frame = get(1)
            if size > FRAME_HEADER_BYTES:
                tag = frame[FRAME_HEADER_BYTES]
                if plain[tag]:
                    append(frame)
                    if size < _LARGE_FRAME_BYTES:
                        continue
                    break
                if tag == _COMMIT and is_plain:
                    append(frame)
                    committed, last = len(frames), frame
                    self._is_open = False
                    if has_parts:
                        break
                elif tag == _BEGIN and is_plain:
                    # Here, and no earlier: a stream that commits may bring newer ones.
                    frames.extend(map(_own_frame, self._facts.take_changed()))
                    append(frame)
                    self._begin = frame
                    self._is_open = True
                elif tag in _CONTROL:
                    control = frame
                    break
                elif self._unusual(tag, frame, frames):
                    committed, last = len(frames), frame
            elif size > 0:
                in_chunk = committed > 0 or self._buffer.whole_since is not None
                self._keepalive(bytes(frame), is_behind=in_chunk)
            elif size == 0:
                is_drained = True
                break
            else:
                self._connection.raise_ended()
        self._keep(frames, committed, last)
        if control is not None:
            self._end_or_begin(control)
        return is_drained

    def _keep(
        self,
        frames: list[bytes | memoryview],
        committed: int,
        last: bytes | memoryview | None,
    ) -> None:
        """A chunk's frames, into the heap that they belong to."""
        if not frames:
            return
        (end,) = _SERVER_END.unpack_from(frames[-1], 9)
        self.server_end = max(self.server_end, Lsn(end))
        if self._in_progress.current is not None:
            self._in_progress.current.add(frames)
            return
        for step in self._buffer.add(frames, committed, last, time.monotonic()) or ():
            self._hand_over(step)

    def _end_or_begin(self, frame: bytes | memoryview) -> None:
        """A message that begins or ends a transaction in progress, or a block of it."""
        if self._is_open:
            raise self._unexpected(frame[FRAME_HEADER_BYTES], frame, "inside a transaction")
        for step in self._control.take(bytes(frame[FRAME_HEADER_BYTES:])):
            self._hand_over(step)

    def _unusual(
        self, tag: int, frame: bytes | memoryview, frames: list[bytes | memoryview]
    ) -> bool:
        """A frame that is neither a row, nor a beginning or end.

        Returns:
            true when it is a transaction of its own.
        """
        current = self._in_progress.current
        if tag == _RELATION:
            in_stream = current is not None and current.body == IN_STREAM_BODY
            message = bytes(frame[FRAME_HEADER_BYTES:])
            body = IN_STREAM_BODY if in_stream else 1
            self._in_progress.told(relation_oid(message, body), len(frames))
            frames.append(frame)
            facts = None if in_stream else self._facts.on_relation(message)
            if facts is not None:
                frames.append(_own_frame(facts))
        elif tag == _TYPE:
            frames.append(frame)
        elif tag == _MESSAGE:
            frames.append(frame)
            return current is None and not self._is_open
        else:
            raise self._unexpected(tag, frame, "here")
        return False

    def _unexpected(self, tag: int, frame: bytes | memoryview, where: str) -> ProtocolError:
        (start,) = struct.unpack_from(">Q", frame, 1)
        name = chr(tag) if 32 < tag < 127 else f"\\x{tag:02x}"
        return ProtocolError(
            f"the server sent a message {name} at {Lsn(start)}, which cannot come {where}",
            hint="a newer server, perhaps: look for a newer pgsluice",
            tag=name,
            lsn=Lsn(start),
            offset=0,
        )

    def _keepalive(self, frame: bytes, *, is_behind: bool) -> None:
        message = Keepalive.decode(frame)
        self.server_end = max(self.server_end, message.end)
        self._progress.keepalive(
            message.end,
            after_step=self._store.submitted + (1 if is_behind else 0),
            is_open=self._is_open or self._in_progress.is_preparing,
            wants_reply=message.reply_requested,
        )

    def _cut(self, now: float) -> None:
        """Hand over what is large or old enough."""
        buffer, limit = self._buffer, self._pace.segment_bytes
        if buffer.open_bytes >= limit and self._is_open:
            assert self._begin is not None  # a transaction is open
            self._hand_over(buffer.take_part(self._begin))
        elif buffer.whole_since is not None and (
            buffer.whole_bytes >= limit or now - buffer.whole_since >= self._pace.segment_s
        ):
            self._hand_over_whole()
        for part in self._in_progress.overflow(limit):
            self._hand_over(part)

    def _hand_over_whole(self) -> None:
        whole = self._buffer.take_whole()
        if whole is not None:
            self._hand_over(whole)

    def _hand_over(self, step: Step) -> None:
        """Give a step to the store; meanwhile the server gets its status.

        What committed before goes first: commits stand in the spool in their order, and a
        keepalive counts on it that the next step makes durable what waits.
        """
        if not isinstance(step, Whole):
            self._hand_over_whole()
        if not isinstance(step, Lsn):
            self._progress.wrote()
        while not self._store.offer(step, _STEP_S):
            self._look_after(time.monotonic(), is_storing=True)

    def _look_after(self, now: float, *, is_storing: bool = False) -> None:
        """Frontier and status, when they are due."""
        self._store.raise_error()
        durable = self._store.durable
        if not is_storing and self._buffer.whole_since is None:
            lsn = self._progress.frontier_due(now, done_step=self._store.done, durable=durable)
            if lsn is not None and self._store.offer(lsn, 0):
                self._store.drain(_STEP_S)
        if self._until is not None and now - self._asked_at >= _ASK_S:
            # An idle server has said how far it is, perhaps a moment too early, and says it
            # again only when it is asked.
            self._send_status(now, asks=True)
        elif self._progress.status_due(now, self._store.durable):
            self._send_status(now)
        if now - self._progress_at >= 1:
            self._progress_at = now
            self._on_progress()

    def _send_status(self, now: float, *, asks: bool = False) -> None:
        """Acknowledge what is durable, and nothing else."""
        if asks:
            self._asked_at = time.monotonic()
        flush = self._progress.sent(now, self._store.durable)
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
        """While the spool is full: read nothing, acknowledge nothing new, keep in touch."""
        if not self._store.is_full:
            return
        self._hand_over_whole()
        self._on_progress()
        while self._store.is_full and not self._stop.wait(_ROOM_LOOK_S):
            now = time.monotonic()
            self._store.raise_error()
            if self._progress.status_due(now, self._store.durable):
                self._send_status(now)
        self._on_progress()

    def _patience(self, now: float) -> float:
        """How long to wait for the socket."""
        due = [self._progress.next_event_in(now), _STEP_S]
        if self._buffer.whole_since is not None:
            due.append(max(0.0, self._buffer.whole_since + self._pace.segment_s - now))
        if self._until is not None or self._store.done != self._store.submitted:
            due.append(0.02)
        return min(due)


def _own_frame(message: bytes) -> bytes:
    """A message of our own as a frame, at no place in the WAL."""
    return b"w" + bytes(FRAME_HEADER_BYTES - 1) + message
