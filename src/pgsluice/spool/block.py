"""Raw messages as columns: one buffer, and for each message where it lies and what it is.

This is what the spool hands to the columnar decoder. No message is a Python object here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FACTS_TAG = ord("#")
"""Tag of our own message in the spool: ``#``, [xid in a stream], i32 relation OID, then a
relation's facts as JSON in UTF-8; nothing after the OID: the facts are unknown."""


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Messages in commit order. All arrays but ``data`` have one element a message.

    Attributes:
        data: the bytes that the messages lie in (other bytes may lie between them).
        starts: message i is ``data[starts[i]:ends[i]]``, its tag first; ``starts`` rises.
        ends: see ``starts``.
        tags: the first byte.
        oids: the relation's OID for R, I, U, D and ``#``; 0 for every other message.
        body: offset from a message's start to what follows the tag and the in-stream xid:
            1, or 5 for messages that came inside a stream.
        positions: end LSN of the message's transaction (contracts: positions).
        commit_timestamps: microseconds since 1970-01-01 UTC.
        xids: the top-level transaction's.
        ordinals: how many changes (I, U, D, T, M) of the transaction precede the message.
    """

    data: Bytes
    starts: Int64s
    ends: Int64s
    tags: Bytes
    oids: Int64s
    body: int
    positions: Int64s
    commit_timestamps: Int64s
    xids: Int64s
    ordinals: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, indices: Int64s | npt.NDArray[np.bool_]) -> MessageBlock:
        """The messages at ``indices`` (or where a mask is true), over the same buffer."""
        return MessageBlock(
            data=self.data,
            starts=self.starts[indices],
            ends=self.ends[indices],
            tags=self.tags[indices],
            oids=self.oids[indices],
            body=self.body,
            positions=self.positions[indices],
            commit_timestamps=self.commit_timestamps[indices],
            xids=self.xids[indices],
            ordinals=self.ordinals[indices],
        )

    def message(self, index: int) -> bytes:
        """One message's bytes, for those that are rare enough to look at one by one."""
        return bytes(self.data[self.starts[index] : self.ends[index]])


@dataclass(frozen=True, slots=True)
class RelationInForce:
    """A relation as it was when a segment began: the raw R message, without an xid, and the
    facts (None: they could not be found any more, and the table has to be parked)."""

    relation: bytes
    facts: RelationFacts | None


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment, or one part of a large transaction, ready to decode alone.

    Attributes:
        name: the file's name, for error messages.
        start: the range's open end; every position in the block is greater.
        end: the range's closed end.
        relations: by OID, in force before the first message. R and ``#`` messages in the
            block change them from there on.
        block: its messages.
    """

    name: str
    start: Lsn
    end: Lsn
    relations: Mapping[int, RelationInForce]
    block: MessageBlock
