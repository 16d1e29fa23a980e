"""The bytes of a transaction that has not ended, in memory and in parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgsluice.capture.receiving.frames import FrameChunks
from pgsluice.capture.receiving.store import Command, to_parts
from pgsluice.errors import ProtocolError
from pgsluice.spool.segments.block import Int64s
from pgsluice.spool.segments.parts_writer import PartsWriter
from pgsluice.wire import Relation


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that has not ended.

    Its methods return commands in the order in which the store has to execute them.

    Attributes:
        xid: its top-level xid.
        in_stream: whether its messages carry an xid.
        key: the key in its parts' names; empty before the first part.
        frames: the frames that are not in parts yet.
        in_parts: the number of messages in parts.
        announced: the last Relation message of each relation of a streamed transaction.
        rolled_back_from: the server's catalog shows that everything from this message on was rolled
            back, but the stream has not reported it yet. Those messages are dropped. None:
            everything is kept.
    """

    xid: int
    in_stream: bool
    key: str = ""
    frames: FrameChunks = field(default_factory=FrameChunks)
    in_parts: int = 0
    announced: dict[int, Relation] = field(default_factory=dict)
    rolled_back_from: int | None = None

    def add(self, joined: bytes | memoryview, lengths: Int64s) -> None:
        """Append frames, unless they belong to a part that was rolled back."""
        if self.rolled_back_from is None:
            self.frames.add(joined, lengths)

    def write_part(self, key: str) -> Command | None:
        """Write the in-memory messages as a part, if there are any. ``key``: the key for its parts'
        names, if it has none yet."""
        self.key = self.key or key
        if not self.frames.count:
            return None
        self.in_parts += self.frames.count
        messages = self.frames.take()
        return to_parts(
            PartsWriter.append, self.key, messages, xid=self.xid, in_stream=self.in_stream
        )

    def drop_rolled_back(self, start: int) -> Command | None:
        """Drop everything from a message on, because the catalog shows that it was rolled back."""
        if self.rolled_back_from is not None and self.rolled_back_from <= start:
            return None
        self.rolled_back_from = start
        return self._keep_first(start)

    def abort(self, length: int) -> Command | None:
        """Keep only the first messages: the stream has reported that the others were rolled
        back."""
        if self.rolled_back_from is not None and self.rolled_back_from < length:
            return None  # a part of what is dropped
        self.rolled_back_from = None
        return self._keep_first(length)

    def _keep_first(self, length: int) -> Command | None:
        if length >= self.in_parts:
            self.frames.truncate(length - self.in_parts)
            return None
        self.frames.clear()
        self.in_parts = length
        return to_parts(PartsWriter.truncate, self.key, length)

    def abandon(self) -> Command | None:
        """Drop the whole transaction."""
        return to_parts(PartsWriter.abandon, self.key) if self.key else None

    def check_end(self) -> None:
        """Raise ProtocolError if a part of the transaction that ends now was dropped as rolled
        back."""
        if self.rolled_back_from is not None:
            raise ProtocolError(
                f"the server ends transaction {self.xid} without a rollback of any part, but its "
                "catalog shows one",
                xid=self.xid,
            )
