"""Received frames in memory: a chunk as it arrives, and the collected frames of a transaction.

Thousands of small objects become one ``bytes`` and a few arrays. numpy extracts the tag, relation
and xid of all messages at once. Python visits single messages only if they are not rows, and in
consecutive plain transactions not even those.

Its figure: capture into the durable spool, at least 1.5 times the rate of pg_recvlogical.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages
from pgsluice.spool.segments.block import Int64s
from pgsluice.wire import XLOG_DATA_HEADER, XLogData

_XLOG_DATA = ord(XLogData.tag)
_HINT = (
    "no change is lost: the server keeps this transaction until pgsluice can read it. If the "
    "server is newer than PostgreSQL 18, install a newer version of pgsluice; connect without the "
    "proxy or pooler between pgsluice and the server, if there is one; then start pgsluice again"
)
_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(b"IUD")] = True
_PLAIN_TRANSACTIONS = re.compile("(?:BC){4,}")
"""Process fewer messages than this one by one: arrays would cost more."""
_BEGIN_BYTES = 21
_COMMIT_BYTES = 26


class Chunk:
    """XLogData frames that were received together.

    Args:
        frames: the frames from libpq; each longer than its header.

    Attributes:
        others: the indexes of messages other than Insert, Update and Delete.
        other_tags: the tag of each of them.

    Raises:
        ProtocolError: a frame is of another kind.
    """

    def __init__(self, frames: Sequence[bytes | memoryview]) -> None:
        self._data = b"".join(frames)
        self._lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        self._ends = self._lengths.cumsum()
        self._starts = self._ends - self._lengths
        self._octets = np.frombuffer(self._data, np.uint8)
        kinds = self._octets[self._starts]
        if bool((kinds != _XLOG_DATA).any()):
            self._refuse_frame(int((kinds != _XLOG_DATA).argmax()))
        self._tags = self._octets[self._starts + XLOG_DATA_HEADER.size]
        self._is_row = _IS_ROW[self._tags]
        self._others = (~self._is_row).nonzero()[0]
        self.others: list[int] = self._others.tolist()
        self.other_tags = self._tags[self._others].tobytes().decode("latin-1")
        self._shortest_row = int(self._lengths.min(where=self._is_row, initial=2**62))
        self._numbers: dict[int, npt.NDArray[np.uint32]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def size_bytes(self) -> int:
        """The size of its frames, with their headers."""
        return len(self._data)

    @property
    def server_end(self) -> Lsn:
        """The end of the server's WAL at the last frame."""
        _, _, end, _ = XLOG_DATA_HEADER.unpack_from(self._data, int(self._starts[-1]))
        return Lsn(max(0, end))

    def message(self, index: int) -> bytes:
        """A message's bytes."""
        return self._data[self._starts[index] + XLOG_DATA_HEADER.size : self._ends[index]]

    def rows(
        self, first: int, end: int, *, in_stream: bool
    ) -> tuple[list[int], dict[int, int] | None]:
        """The relations of the rows ``[first, end)``, in their order.

        Returns:
            the relations; and in a stream the rows' xids, each with the index (from ``first``)
            of its first row.

        Raises:
            ProtocolError: a row ends before its relation.
        """
        needed = XLOG_DATA_HEADER.size + (9 if in_stream else 5)
        if self._shortest_row < needed and bool((self._lengths[first:end] < needed).any()):
            self._refuse_row(first + int((self._lengths[first:end] < needed).argmax()))
        if not in_stream:
            return list(_first_indexes(self._uint32s(1)[first:end])), None
        oids, xids = self._uint32s(5)[first:end], self._uint32s(1)[first:end]
        return list(_first_indexes(oids)), _first_indexes(xids)

    def plain_transactions(self, first: int) -> tuple[int, list[list[int]]] | None:
        """The consecutive plain transactions from a Begin on that contain only rows.

        Args:
            first: the index of the Begin in :attr:`others`.

        Returns:
            the index after the last Commit; and the final LSN, the commit LSN and the end LSN of
            each transaction, and the relations. None: there are few transactions, or one is
            malformed.
        """
        match = _PLAIN_TRANSACTIONS.match(self.other_tags, first)
        if match is None:
            return None
        begins = self._others[first : match.end() : 2]
        commits = self._others[first + 1 : match.end() : 2]
        starts_of_begins = self._starts[begins] + XLOG_DATA_HEADER.size
        starts_of_commits = self._starts[commits] + XLOG_DATA_HEADER.size
        is_malformed = (
            (commits[:-1] + 1 != begins[1:]).any()
            or (self._ends[begins] - starts_of_begins != _BEGIN_BYTES).any()
            or (self._ends[commits] - starts_of_commits != _COMMIT_BYTES).any()
            or self._octets[starts_of_commits + 1].any()
            or self._shortest_row < XLOG_DATA_HEADER.size + 5
        )
        if is_malformed:
            return None
        rows = slice(begins[0], commits[-1] + 1)
        return int(rows.stop), [
            self._read(">i8", starts_of_begins + 1).tolist(),
            self._read(">i8", starts_of_commits + 2).tolist(),
            self._read(">i8", starts_of_commits + 10).tolist(),
            list(_first_indexes(self._uint32s(1)[rows][self._is_row[rows]])),
        ]

    def _uint32s(self, offset: int) -> npt.NDArray[np.uint32]:
        """The number at ``offset`` of each message; arbitrary if a message is too short."""
        if offset not in self._numbers:
            places = self._starts + XLOG_DATA_HEADER.size + offset
            self._numbers[offset] = self._read(">u4", np.minimum(places, len(self._data) - 4))
        return self._numbers[offset]

    def _read(self, kind: str, places: Int64s) -> npt.NDArray[Any]:
        """The numbers that start at these bytes."""
        count = len(self._data) - int(kind[-1]) + 1
        return np.ndarray((count,), kind, self._data, strides=(1,))[places]

    def cut(self, first: int, end: int) -> tuple[memoryview, Int64s]:
        """The frames ``[first, end)``, joined, and the length of each."""
        if first >= end:
            return memoryview(b""), self._lengths[:0]
        joined = memoryview(self._data)[self._starts[first] : self._ends[end - 1]]
        return joined, self._lengths[first:end]

    def locate(self, error: ProtocolError, index: int) -> ProtocolError:
        """Add the message's LSN, if known, and a hint to an error."""
        _, start, _, _ = XLOG_DATA_HEADER.unpack_from(self._data, int(self._starts[index]))
        lsn = Lsn(max(0, start))
        problem = error.what
        what = f"the server's message at {lsn} is not valid: {problem}" if lsn else problem
        return ProtocolError(what, hint=error.hint or _HINT, **{**error.facts, "lsn": lsn})

    def _refuse_frame(self, index: int) -> None:
        kind = self._data[self._starts[index]]
        raise ProtocolError(
            f"a message of the stream, {self._lengths[index]} bytes long, begins with byte "
            f"{kind:#04x} instead of 'w' (XLogData)",
            hint=_HINT,
            tag=chr(kind),
            offset=0,
        )

    def _refuse_row(self, index: int) -> None:
        message = self.message(index)
        raise ProtocolError(
            f"message {chr(message[0])} ends after {len(message)} bytes, before its relation",
            tag=chr(message[0]),
            offset=len(message),
        )


def _first_indexes(numbers: npt.NDArray[np.uint32]) -> dict[int, int]:
    """The distinct numbers in order, each with its first index; visits the first of equal
    neighbours."""
    if not len(numbers):
        return {}
    firsts = {int(numbers[0]): 0}
    differs = numbers[1:] != numbers[:-1]
    if differs.any():
        starts = differs.nonzero()[0] + 1
        for number, index in zip(numbers[starts].tolist(), starts.tolist(), strict=True):
            firsts.setdefault(number, index)
    return firsts


@dataclass(slots=True)
class FrameChunks:
    """XLogData frames in the order of arrival.

    Attributes:
        pieces: joined frames, and the length of each.
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
        """Append a message of our own, which has no place in the WAL."""
        frame = XLOG_DATA_HEADER.pack(XLogData.tag.encode(), 0, 0, 0) + message
        self.add(frame, np.array([len(frame)], np.int64))

    def move_to(self, other: FrameChunks) -> None:
        """Move all frames to the end of ``other``."""
        other.pieces += self.pieces
        other.size_bytes += self.size_bytes
        other.count += self.count
        self.clear()

    def clear(self) -> None:
        """Drop all frames."""
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
        """Return all messages and clear this object."""
        data = b"".join(joined for joined, _ in self.pieces)
        nothing = np.zeros(0, np.int64)
        lengths = np.concatenate([nothing, *(lengths for _, lengths in self.pieces)])
        self.clear()
        return RawMessages.from_frames(data, lengths)
