"""Frames of plain transactions on their way to the disk: whole ones, and the open one.

Between Begin and Commit nothing else comes, so there are two heaps: whole transactions, and
the one that is open. A commit moves the second to the first. An open transaction that
outgrows a segment is handed out in pieces, *parts*, and ends with one more part and its
commit. What comes before its commit is kept elsewhere (:mod:`pgsluice.capture.in_progress`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pgsluice.capture.heap import FRAME_HEADER_BYTES, Heap
from pgsluice.capture.steps import Committed, Part, Whole
from pgsluice.lsn import Lsn
from pgsluice.wire import POSTGRES_EPOCH_US

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">xQQq")


class FrameBuffer:
    """Collects frames of one connection and hands out what a segment or part will hold.

    Attributes:
        whole_since: when the oldest whole transaction came, as the caller's clock has it;
            None while there is none.
    """

    def __init__(self) -> None:
        self._whole = Heap()
        self._open = Heap()
        self._key: str | None = None
        self._begin: tuple[int, int] = (0, 0)
        self.whole_since: float | None = None

    @property
    def whole_bytes(self) -> int:
        """Bytes of whole transactions that wait."""
        return self._whole.size_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes of the open transaction that wait."""
        return self._open.size_bytes

    @property
    def has_parts(self) -> bool:
        """Is the open transaction being handed out in parts? Then each commit has to come
        as the last of its :meth:`add`."""
        return self._key is not None

    def add(
        self,
        frames: Sequence[bytes | memoryview],
        committed: int,
        last: bytes | memoryview | None,
        now: float,
    ) -> tuple[Part, Committed] | None:
        """Take a chunk.

        Args:
            frames: XLogData frames as they came.
            committed: how many of them belong to transactions that are whole by now (of the
                open one that is continued, too); 0 when none committed.
            last: the commit frame of the last of them.
            now: the caller's clock.

        Returns:
            of a transaction that was handed out in parts and now committed, the end.
        """
        if not committed:
            self._open.add(frames)
            return None
        assert last is not None
        if self._key is not None:
            self._open.add(frames[:committed])
            timestamp, xid = self._begin
            part = Part(self._key, self._open.take())
            commit = Committed(self._key, _position(last), timestamp, xid)
            self._key = None
            self._open.add(frames[committed:])
            return part, commit
        self._open.move_to(self._whole)
        self._whole.add(frames[:committed])
        self._open.add(frames[committed:])
        if self.whole_since is None:
            self.whole_since = now
        return None

    def take_whole(self) -> Whole | None:
        """What waits as whole transactions; None without any."""
        if self.whole_since is None:
            return None
        self.whole_since = None
        return Whole(self._whole.take())

    def take_part(self, begin: bytes | memoryview) -> Part:
        """What waits of the open transaction, as a part.

        Args:
            begin: the transaction's Begin frame.
        """
        final_lsn, timestamp, xid = _BEGIN.unpack_from(begin, FRAME_HEADER_BYTES + 1)
        if self._key is None:
            self._key = f"{final_lsn:016X}-{xid:08X}"
            self._begin = (timestamp + POSTGRES_EPOCH_US, xid)
        return Part(self._key, self._open.take())


def _position(frame: bytes | memoryview) -> Lsn:
    """The position of a Commit frame."""
    _, end, _ = _COMMIT.unpack_from(frame, FRAME_HEADER_BYTES + 1)
    return Lsn(end)
