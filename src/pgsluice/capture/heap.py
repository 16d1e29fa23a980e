"""Frames in memory: chunks of them, each joined to one ``bytes``.

Little memory then lies in small objects, and what has to be known of all of them (tags,
in-stream xids) is found with numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsluice.spool import RawMessages
from pgsluice.spool.block import Int64s

FRAME_HEADER_BYTES = 25


@dataclass(slots=True)
class Heap:
    """XLogData frames in the order in which they came.

    Attributes:
        chunks: joined frames, and the length of each.
        size_bytes: of all of them.
        count: how many frames.
    """

    chunks: list[tuple[bytes, Int64s]] = field(default_factory=list)
    size_bytes: int = 0
    count: int = 0

    def add(self, frames: Sequence[bytes | memoryview]) -> None:
        """Frames that follow."""
        if frames:
            self._add(b"".join(frames), np.fromiter(map(len, frames), np.int64, len(frames)))

    def _add(self, joined: bytes, lengths: Int64s) -> None:
        self.chunks.append((joined, lengths))
        self.size_bytes += len(joined)
        self.count += len(lengths)

    def move_to(self, other: Heap) -> None:
        """All of it behind what ``other`` has."""
        other.chunks += self.chunks
        other.size_bytes += self.size_bytes
        other.count += self.count
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self.chunks = []
        self.size_bytes = self.count = 0

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` frames."""
        while self.count > count:
            joined, lengths = self.chunks.pop()
            self.size_bytes -= len(joined)
            self.count -= len(lengths)
            if self.count < count:
                kept = lengths[: count - self.count]
                self._add(joined[: int(kept.sum())], kept)

    def take(self) -> RawMessages:
        """All of it as messages; the heap is empty then."""
        data = b"".join(chunk for chunk, _ in self.chunks)
        nothing = np.zeros(0, np.int64)
        lengths = np.concatenate([nothing, *(lengths for _, lengths in self.chunks)])
        self.clear()
        return RawMessages.from_frames(data, lengths)
