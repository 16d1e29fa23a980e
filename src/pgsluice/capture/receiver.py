"""The hot loop: frames from libpq to the store, status back to the server.

Python touches a row's message three times: libpq hands it over, its tag is looked at, it goes
into a list. Begin and Commit are remembered, a Relation has its facts looked up and written
behind it, a keepalive moves the frontier; everything else is bytes. Tags that protocol 1
without streaming does not send end the stream with an error, except an abort for a
transaction that never came, which 18 sends unasked.

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

from pgsluice.capture.buffer import FRAME_HEADER_BYTES, FrameBuffer, Part, Whole
from pgsluice.capture.facts import FactsSource
from pgsluice.capture.progress import Progress
from pgsluice.capture.store import Step, Store
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
_BEGIN, _COMMIT, _RELATION, _TYPE, _MESSAGE, _ABORT = b"BCRYMA"


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
        has_parts, is_drained = self._buffer.has_parts, False
        for _ in repeat(None, _CHUNK):
            size, frame = get(1)
            if size > FRAME_HEADER_BYTES:
                tag = frame[FRAME_HEADER_BYTES]
                append(frame)
                if plain[tag]:
                    if size < _LARGE_FRAME_BYTES:
                        continue
                    break
                if tag == _COMMIT:
                    committed, last = len(frames), frame
                    self._is_open = False
                    if has_parts:
                        break
                elif tag == _BEGIN:
                    self._begin = frame
                    self._is_open = True
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
        if frames:
            (end,) = _SERVER_END.unpack_from(frames[-1], 9)
            self.server_end = max(self.server_end, Lsn(end))
            part = self._buffer.add(frames, committed, last, time.monotonic())
            if part is not None:
                self._hand_over(part)
        return is_drained

    def _unusual(
        self, tag: int, frame: bytes | memoryview, frames: list[bytes | memoryview]
    ) -> bool:
        """A frame that is neither a row, nor a beginning or end; it is the last in ``frames``.

        Returns:
            true when it is a transaction of its own.
        """
        if tag == _RELATION:
            message = bytes(frame[FRAME_HEADER_BYTES:])
            facts = self._facts.on_relation(message)
            if facts is not None:
                frames.append(_own_frame(facts))
        elif tag == _TYPE:
            pass
        elif tag == _MESSAGE:
            return not self._is_open
        elif tag == _ABORT:
            frames.pop()
        else:
            self._refuse(tag, frame)
        return False

    def _refuse(self, tag: int, frame: bytes | memoryview) -> None:
        (start,) = struct.unpack_from(">Q", frame, 1)
        name = chr(tag) if 32 < tag < 127 else f"\\x{tag:02x}"
        raise ProtocolError(
            f"the server sent a message {name} at {Lsn(start)}, which protocol 1 has not",
            hint="a slot that was made with two_phase, or a newer server? "
            "Both come with a later version",
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
            is_open=self._is_open,
            wants_reply=message.reply_requested,
        )

    def _cut(self, now: float) -> None:
        """Hand over what is large or old enough."""
        buffer, limit = self._buffer, self._pace.segment_bytes
        if buffer.open_bytes >= limit and self._is_open:
            self._hand_over_whole()
            assert self._begin is not None  # a transaction is open
            self._hand_over(buffer.take_part(self._begin))
        elif buffer.whole_since is not None and (
            buffer.whole_bytes >= limit or now - buffer.whole_since >= self._pace.segment_s
        ):
            self._hand_over_whole()
        if not self._is_open and (changed := self._facts.take_changed()):
            buffer.add_ahead([_own_frame(message) for message in changed])

    def _hand_over_whole(self) -> None:
        whole = self._buffer.take_whole()
        if whole is not None:
            self._hand_over(whole)

    def _hand_over(self, step: Step) -> None:
        """Give a step to the store; meanwhile the server gets its status."""
        if isinstance(step, Whole | Part):
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
