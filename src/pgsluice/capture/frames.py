"""Received frames in memory: a chunk as it arrives, and what accumulates of a transaction.

Thousands of small objects become one ``bytes`` and a few arrays. What has to be known of every
message (its tag, relation and xid) is found with numpy; only messages that are not rows are
looked at one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages
from pgsluice.spool.block import Int64s
from pgsluice.wire import decode_message

FRAME_HEADER_BYTES = 25
"""An XLogData frame's: ``w``, start LSN, end LSN, timestamp."""

_XLOG_DATA = ord("w")
_LSN = struct.Struct(">q")
_HINT = (
    "nothing of this transaction was acknowledged. Is the server newer than this pgsluice knows, "
    "or is there a proxy in between?"
)
_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(b"IUD")] = True
_BEGIN = struct.Struct(">qqI")
_COMMIT = struct.Struct(">Bqqq")


class Chunk:
    """XLogData frames that were received together.

    Args:
        frames: as libpq gave them; each longer than its header.

    Attributes:
        others: the indexes of messages other than Insert, Update and Delete.

    Raises:
        ProtocolError: a frame is of another kind.
    """

    def __init__(self, frames: Sequence[bytes | memoryview]) -> None:
        self._data = b"".join(frames)
        self._bytes = np.frombuffer(self._data, np.uint8)
        self._lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(self._lengths)
        self._starts = ends - self._lengths
        self._bounds = [0, *ends.tolist()]
        unknown = np.flatnonzero(self._bytes[self._starts] != _XLOG_DATA)
        if len(unknown):
            self._refuse_frame(int(unknown[0]))
        self._tags = self._bytes[self._starts + FRAME_HEADER_BYTES]
        is_row = _IS_ROW[self._tags]
        self.others: list[int] = np.flatnonzero(~is_row).tolist()
        self._shortest_row = int(self._lengths[is_row].min()) if is_row.any() else 0
        self._numbers: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def server_end(self) -> Lsn:
        """How far the server's WAL was at the last frame."""
        return Lsn(max(0, _LSN.unpack_from(self._data, self._bounds[-2] + 9)[0]))

    def tag(self, index: int) -> str:
        """A message's first byte."""
        return chr(self._data[self._bounds[index] + FRAME_HEADER_BYTES])

    def message(self, index: int) -> bytes:
        """A message's bytes."""
        return self._data[self._bounds[index] + FRAME_HEADER_BYTES : self._bounds[index + 1]]

    def begin(self, index: int) -> tuple[int, int, int]:
        """A Begin's final LSN, commit timestamp and xid.

        Raises:
            ProtocolError: it is malformed.
        """
        fields = self._unpack(_BEGIN, index)
        if fields[0] < 0:
            decode_message(self.message(index))
        return fields  # type: ignore[return-value]  # by the layout

    def commit(self, index: int) -> tuple[int, int, int, int]:
        """A Commit's flags, commit LSN, end LSN and commit timestamp.

        Raises:
            ProtocolError: it is malformed.
        """
        fields = self._unpack(_COMMIT, index)
        if fields[0]:
            decode_message(self.message(index))
        return fields  # type: ignore[return-value]  # by the layout

    def _unpack(self, layout: struct.Struct, index: int) -> tuple[int, ...]:
        """The fields of a message without building it; one that does not fit is refused."""
        start = self._bounds[index] + FRAME_HEADER_BYTES + 1
        if self._bounds[index + 1] - start != layout.size:
            decode_message(self.message(index))
        return layout.unpack_from(self._data, start)

    def rows(self, first: int, end: int, *, in_stream: bool) -> tuple[list[int], list[int] | None]:
        """The relation of each row in ``[first, end)``; in a stream its xid, too.

        Raises:
            ProtocolError: a row ends before its relation.
        """
        needed = FRAME_HEADER_BYTES + (9 if in_stream else 5)
        if self._shortest_row < needed:
            short = np.flatnonzero(self._lengths[first:end] < needed)
            if len(short):
                self._refuse_row(first + int(short[0]))
        if in_stream:
            return self._uint32s(5)[first:end], self._uint32s(1)[first:end]
        return self._uint32s(1)[first:end], None

    def _uint32s(self, offset: int) -> list[int]:
        """The number at ``offset`` of each message; anything where a message is too short."""
        if offset not in self._numbers:
            places = np.minimum(self._starts + FRAME_HEADER_BYTES + offset, len(self._data) - 4)[
                :, None
            ] + np.arange(4)
            self._numbers[offset] = self._bytes[places].view(">u4").reshape(-1).tolist()
        return self._numbers[offset]

    def cut(self, first: int, end: int) -> tuple[memoryview, Int64s]:
        """The frames ``[first, end)``, joined, and the length of each."""
        joined = memoryview(self._data)[self._bounds[first] : self._bounds[end]]
        return joined, self._lengths[first:end]

    def locate(self, error: ProtocolError, index: int) -> ProtocolError:
        """The error of a message, with its LSN if the server said it, and with what to do."""
        lsn = Lsn(max(0, _LSN.unpack_from(self._data, self._bounds[index] + 1)[0]))
        what = f"at {lsn}: {error.what}" if lsn else error.what
        return ProtocolError(what, hint=error.hint or _HINT, **{**error.facts, "lsn": lsn})

    def _refuse_frame(self, index: int) -> None:
        kind = self._data[self._bounds[index]]
        raise ProtocolError(
            f"a frame of {self._lengths[index]} bytes begins with byte {kind:#04x}: expected 'w' "
            "(XLogData)",
            hint=_HINT,
            tag=chr(kind),
            offset=0,
        )

    def _refuse_row(self, index: int) -> None:
        tag, size = self.tag(index), len(self.message(index))
        raise ProtocolError(
            f"message {tag} ends after {size} bytes, before its relation", tag=tag, offset=size
        )


@dataclass(slots=True)
class FrameChunks:
    """XLogData frames in the order in which they came.

    Attributes:
        pieces: joined frames, and the length of each.
        size_bytes: of all of them.
        count: how many frames.
    """

    pieces: list[tuple[bytes | memoryview, Int64s]] = field(default_factory=list)
    size_bytes: int = 0
    count: int = 0

    def add(self, joined: bytes | memoryview, lengths: Int64s) -> None:
        """Append frames."""
        if len(lengths):
            self.pieces.append((joined, lengths))
            self.size_bytes += len(joined)
            self.count += len(lengths)

    def add_message(self, message: bytes) -> None:
        """Append a message of our own, at no place in the WAL."""
        frame = bytes([_XLOG_DATA]) + bytes(FRAME_HEADER_BYTES - 1) + message
        self.add(frame, np.array([len(frame)], np.int64))

    def move_to(self, other: FrameChunks) -> None:
        """Append all of it to ``other``."""
        other.pieces += self.pieces
        other.size_bytes += self.size_bytes
        other.count += self.count
        self.clear()

    def clear(self) -> None:
        """Drop all of it."""
        self.pieces = []
        self.size_bytes = self.count = 0

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` frames."""
        while self.count > count:
            joined, lengths = self.pieces.pop()
            self.size_bytes -= len(joined)
            self.count -= len(lengths)
            if self.count < count:
                kept = lengths[: count - self.count]
                self.add(joined[: int(kept.sum())], kept)

    def take(self) -> RawMessages:
        """All of it as messages; nothing is left here."""
        data = b"".join(joined for joined, _ in self.pieces)
        nothing = np.zeros(0, np.int64)
        lengths = np.concatenate([nothing, *(lengths for _, lengths in self.pieces)])
        self.clear()
        return RawMessages.from_frames(data, lengths)
