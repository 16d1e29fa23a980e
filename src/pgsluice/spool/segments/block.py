"""Raw messages as columns: one buffer, and arrays with the place and kind of each message.

The columnar decoder gets blocks from the spool. Single messages are not Python objects here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FACTS_TAG = ord("#")
"""The tag of pgsluice's own message in the spool: ``#``, [xid in a stream], i32 relation OID, and
the relation's metadata as JSON in UTF-8. Nothing after the OID: the metadata is unknown."""


def body_offset(*, in_stream: bool) -> int:
    """Bytes before a message's body: its tag, and in a stream the xid."""
    return 5 if in_stream else 1


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Messages in commit order. All arrays except ``data`` have one element for each message.

    Attributes:
        data: the buffer with the messages (and maybe other bytes between them).
        starts: message i is ``data[starts[i]:ends[i]]``, its tag first; ``starts`` rises.
        ends: see ``starts``.
        tags: the first byte.
        oids: the relation's OID for R, I, U, D and ``#``; 0 for other messages.
        in_stream: whether the messages came inside a stream, with an xid after the tag of each R,
            Y, I, U, D, T, M and ``#``.
        positions: end LSN of the message's transaction (contracts: positions).
        commit_timestamps: microseconds since 1970-01-01 UTC.
        xids: the top-level transaction's.
        ordinals: the number of changes (I, U, D, T, M) in the transaction before the message.
    """

    data: Bytes
    starts: Int64s
    ends: Int64s
    tags: Bytes
    oids: Int64s
    in_stream: bool
    positions: Int64s
    commit_timestamps: Int64s
    xids: Int64s
    ordinals: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def body_offset(self) -> int:
        """The distance from a message's start to the bytes after its tag and, in a stream, its
        xid."""
        return body_offset(in_stream=self.in_stream)

    def select(self, indices: Int64s | npt.NDArray[np.bool_]) -> MessageBlock:
        """The messages at ``indices`` (or where a mask is true), over the same buffer."""
        return MessageBlock(
            data=self.data,
            starts=self.starts[indices],
            ends=self.ends[indices],
            tags=self.tags[indices],
            oids=self.oids[indices],
            in_stream=self.in_stream,
            positions=self.positions[indices],
            commit_timestamps=self.commit_timestamps[indices],
            xids=self.xids[indices],
            ordinals=self.ordinals[indices],
        )

    def message(self, index: int) -> bytes:
        """One message's bytes; for rare messages."""
        return bytes(self.data[self.starts[index] : self.ends[index]])


@dataclass(frozen=True, slots=True)
class RelationInForce:
    """A relation as its last Relation message announced it.

    Attributes:
        relation: the raw Relation message, without an xid.
        facts: the relation's metadata; None: the relation had been dropped when it was read, so its
            table has to be parked.
    """

    relation: bytes
    facts: RelationFacts | None


InForce = Mapping[int, RelationInForce]
"""Relations in force, by OID."""


def relations_of(in_force: InForce, oids: Collection[int]) -> dict[int, RelationInForce]:
    """The relations with these OIDs that are in force."""
    return {oid: in_force[oid] for oid in oids if oid in in_force}


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment, or one part of a large transaction, that can be decoded without others.

    Attributes:
        start, end: the positions in the block are in (start, end].
        relations: the relations in force before the first message, by OID. R and ``#`` messages in
            the block change them for later messages.
    """

    name: str
    start: Lsn
    end: Lsn
    relations: Mapping[int, RelationInForce]
    block: MessageBlock
