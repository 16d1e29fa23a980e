"""Raw messages as columns: one buffer, and arrays that say where each message lies and what it is.

The spool hands blocks to the columnar decoder. No message is a Python object here.
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
"""The tag of pgsluice's own message in the spool: ``#``, [xid in a stream], i32 relation OID, the
relation's facts as JSON in UTF-8. Without facts after the OID, they are unknown."""


def body_offset(*, in_stream: bool) -> int:
    """Bytes before a message's body: its tag, and in a stream the xid."""
    return 5 if in_stream else 1


@dataclass(frozen=True, slots=True)
class MessageBlock:
    """Messages in commit order. All arrays but ``data`` have one element a message.

    Attributes:
        data: the bytes that the messages lie in (other bytes may lie between them).
        starts: message i is ``data[starts[i]:ends[i]]``, its tag first; ``starts`` rises.
        ends: see ``starts``.
        tags: the first byte.
        oids: the relation's OID for R, I, U, D and ``#``; 0 for every other message.
        in_stream: did the messages come inside a stream? Then an xid follows the tag of each R,
            Y, I, U, D, T, M and ``#``.
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
    in_stream: bool
    positions: Int64s
    commit_timestamps: Int64s
    xids: Int64s
    ordinals: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def body_offset(self) -> int:
        """From a message's start to what follows its tag and, in a stream, its xid."""
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
    """A relation as it was announced last.

    Attributes:
        relation: the raw Relation message, without an xid.
        facts: None: the relation had been dropped when they were looked up. Its table has to be
            parked.
    """

    relation: bytes
    facts: RelationFacts | None


InForce = Mapping[int, RelationInForce]
"""By OID."""


def relations_of(in_force: InForce, oids: Collection[int]) -> dict[int, RelationInForce]:
    """Those of the relations with these OIDs that are in force."""
    return {oid: in_force[oid] for oid in oids if oid in in_force}


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment, or one part of a large transaction, ready to decode alone.

    Attributes:
        start, end: the positions in the block are in (start, end].
        relations: by OID, in force before the first message. R and ``#`` messages in the
            block change them for the messages that follow.
    """

    name: str
    start: Lsn
    end: Lsn
    relations: Mapping[int, RelationInForce]
    block: MessageBlock
