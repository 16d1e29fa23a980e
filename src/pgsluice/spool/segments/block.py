"""Raw messages as columns: one buffer, and arrays with the place and kind of each message.

The spool stores pgoutput's messages unchanged. This module derives each message's tag, relation
OID, transaction, position, timestamp and ordinal with numpy, for all messages at once: when a
segment is written (for its counts) and again when it is read. No message is decoded, and single
messages are not Python objects here. Layouts: the manual, "Logical Replication Message Formats".

A plain block has whole transactions, from B to C, and messages outside of transactions. A
non-transactional M counts as a separate transaction at its LSN + 1. R, Y and ``#`` outside of a
transaction are valid from there on; they get the position of the next transaction, or, at the end
of the block, of the last one.

Its figure: capture into the durable spool, at least 1.5 times the rate of pg_recvlogical.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgsluice.errors import ProtocolError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.types.buffers import integers
from pgsluice.wire import POSTGRES_EPOCH_US, XLOG_DATA_HEADER

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FACTS_TAG = ord("#")
"""The tag of pgsluice's own message in the spool: ``#``, [xid in a stream], i32 relation OID, and
the relation's metadata as JSON in UTF-8. Nothing after the OID: the metadata is unknown."""
BEGIN, COMMIT, MESSAGE, RELATION = ord("B"), ord("C"), ord("M"), ord("R")


def _table(tags: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[list(tags)] = True
    return table


COUNTED = _table(b"IUDTM")
OF_ONE_RELATION = _table(b"RIUD" + bytes([FACTS_TAG]))
_OUTSIDE = _table(b"MRYO" + bytes([FACTS_TAG]))
_M_TO_LSN = 10
"""Bytes of a message M up to its LSN's end: tag, flags, LSN."""
_KIND = np.full(256, -1, dtype=np.int64)
_KIND[list(b"IUD")] = (0, 1, 2)


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
        """The bytes of one message; for rare messages."""
        return bytes(self.data[self.starts[index] : self.ends[index]])

    def facts(self, index: int) -> RelationFacts | None:
        """The relation's metadata in a message ``#``, None if it is unknown; raises ValueError if
        it cannot be read."""
        text = self.message(index)[self.body_offset + 4 :]
        return RelationFacts.from_json(text.decode()) if text else None


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
    """Those of the relations with these OIDs that are in force."""
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


@dataclass(frozen=True, slots=True)
class RawMessages:
    """Messages in one buffer: message i is ``data[starts[i]:ends[i]]``, its tag first.

    Attributes:
        data: the buffer; it may have other bytes between messages.
        starts, ends: bounds of each message; ``starts`` rises.
        lsns: the WAL start of each message's frame (0 for some, such as R).
    """

    data: Bytes
    starts: Int64s
    ends: Int64s
    lsns: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, chosen: slice | npt.NDArray[np.bool_]) -> RawMessages:
        """The messages in a slice, or where a mask is true, over the same buffer."""
        return RawMessages(self.data, self.starts[chosen], self.ends[chosen], self.lsns[chosen])

    @property
    def first_lsn(self) -> int:
        """The WAL start of the first message's frame; 0 without messages."""
        return int(self.lsns[0]) if len(self) else 0

    @classmethod
    def from_frames(cls, data: bytes, lengths: npt.ArrayLike) -> RawMessages:
        """Split joined XLogData frames, given the length of each frame."""
        ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
        begins = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1])) if len(ends) else ends
        buffer = np.frombuffer(data, dtype=np.uint8)
        return cls(
            buffer, begins + XLOG_DATA_HEADER.size, ends, integers(buffer, begins + 1, ">i8")
        )

    @classmethod
    def from_messages(cls, messages: Sequence[tuple[int, bytes]]) -> RawMessages:
        """Join messages, each with its LSN; for tests and tools."""
        sizes = np.array([len(message) for _, message in messages], dtype=np.int64)
        ends = np.cumsum(sizes)
        data = np.frombuffer(b"".join(message for _, message in messages), dtype=np.uint8)
        lsns = np.array([int(lsn) for lsn, _ in messages], dtype=np.int64)
        return cls(data, ends - sizes, ends, lsns)


def _tags_and_oids(data: Bytes, starts: Int64s, ends: Int64s, body: int) -> tuple[Bytes, Int64s]:
    if len(starts) and bool((ends <= starts).any()):
        raise ProtocolError("a replication message is empty", offset=0)
    tags = data[starts]
    oids = np.zeros(len(starts), dtype=np.int64)
    rows = np.flatnonzero(OF_ONE_RELATION[tags])
    if bool((ends[rows] - starts[rows] < body + 4).any()):
        raise ProtocolError("a replication message ends before its relation's OID")
    oids[rows] = integers(data, starts[rows] + body, ">u4")
    return tags, oids


def _ordinals(tags: Bytes, first: Int64s | None = None) -> Int64s:
    """The number of changes before each message, since message ``first[i]``, or the block's
    first."""
    changes = COUNTED[tags].astype(np.int64)
    before = np.cumsum(changes) - changes
    return before if first is None else before - before[first]


def plain_block(messages: RawMessages) -> MessageBlock:
    """Whole transactions, from B to C, as a block; raises ProtocolError if a B or C is missing, or
    a message is truncated."""
    data, starts, ends = messages.data, messages.starts, messages.ends
    tags, oids = _tags_and_oids(data, starts, ends, body=1)
    begins, commits = np.flatnonzero(tags == BEGIN), np.flatnonzero(tags == COMMIT)
    if (
        len(begins) != len(commits)
        or bool((begins >= commits).any())
        or bool((commits[:-1] >= begins[1:]).any())
    ):
        raise ProtocolError("begins and commits do not pair", tag="B", lsn=messages.first_lsn)
    _expect_length(starts, ends, begins, 21, "B")
    _expect_length(starts, ends, commits, 26, "C")
    end_lsns = integers(data, starts[commits] + 10, ">i8")
    timestamps = integers(data, starts[begins] + 9, ">i8") + POSTGRES_EPOCH_US
    xids = integers(data, starts[begins] + 17, ">u4")

    count = len(starts)
    opened = np.zeros(count, dtype=np.int64)
    opened[begins] = 1
    closed = np.zeros(count + 1, dtype=np.int64)
    closed[commits + 1] = 1
    begun = np.cumsum(opened)
    inside = begun > np.cumsum(closed[:-1])
    if bool((~inside & ~_OUTSIDE[tags]).any()):
        raise ProtocolError("a change is outside of a transaction", lsn=messages.first_lsn)
    alone = np.flatnonzero(~inside & (tags == MESSAGE))
    if not len(begins):
        return _without_transactions(messages, tags, oids, alone)

    transaction = np.minimum(np.where(inside, begun - 1, begun), len(begins) - 1)
    first = np.where(inside, begins[transaction], np.arange(count))
    positions, xid, timestamp = end_lsns[transaction], xids[transaction], timestamps[transaction]
    if len(alone):
        positions[alone] = _ends_of_messages(messages, alone)
        xid[alone] = 0
    ordinals = _ordinals(tags, first)
    return MessageBlock(data, starts, ends, tags, oids, False, positions, timestamp, xid, ordinals)


def _without_transactions(
    messages: RawMessages, tags: Bytes, oids: Int64s, alone: Int64s
) -> MessageBlock:
    """A block without transactions: an M has its own position, others that of the next M."""
    data, starts, ends = messages.data, messages.starts, messages.ends
    zeros = np.zeros(len(starts), dtype=np.int64)
    positions = zeros.copy()
    if len(alone):
        own = _ends_of_messages(messages, alone)
        following = np.searchsorted(alone, np.arange(len(starts)))
        positions = own[np.minimum(following, len(own) - 1)]
    return MessageBlock(data, starts, ends, tags, oids, False, positions, zeros, zeros, zeros)


def _ends_of_messages(messages: RawMessages, rows: Int64s) -> Int64s:
    """The positions of these messages M, which are outside of transactions."""
    starts = messages.starts[rows]
    if bool((messages.ends[rows] - starts < _M_TO_LSN).any()):
        raise ProtocolError("a message M ends before its LSN", tag="M")
    return integers(messages.data, starts + 2, ">i8") + 1


def part_block(
    messages: RawMessages,
    *,
    in_stream: bool,
    position: int = 0,
    commit_timestamp: int = 0,
    xid: int = 0,
    ordinal_start: int = 0,
) -> MessageBlock:
    """One part of a transaction as a block; the arguments come from the reference, if there is one
    already."""
    body = body_offset(in_stream=in_stream)
    tags, oids = _tags_and_oids(messages.data, messages.starts, messages.ends, body)
    count = len(messages)
    return MessageBlock(
        data=messages.data, starts=messages.starts, ends=messages.ends, tags=tags, oids=oids,
        in_stream=in_stream,
        positions=np.full(count, position, dtype=np.int64),
        commit_timestamps=np.full(count, commit_timestamp, dtype=np.int64),
        xids=np.full(count, xid, dtype=np.int64),
        ordinals=_ordinals(tags) + ordinal_start,
    )  # fmt: skip


def _expect_length(starts: Int64s, ends: Int64s, rows: Int64s, length: int, tag: str) -> None:
    if bool((ends[rows] - starts[rows] != length).any()):
        raise ProtocolError(f"a message {tag} is not {length} bytes long", tag=tag)


def truncated_oids(message: bytes, body: int = 1) -> tuple[int, ...]:
    """The OIDs of the relations that one Truncate message names; raises ProtocolError if it is
    truncated."""
    try:
        (count,) = struct.unpack_from(">i", message, body)
        return struct.unpack_from(f">{count}I", message, body + 5)
    except struct.error as error:
        raise ProtocolError("a message T is truncated", tag="T") from error


@dataclass(slots=True)
class RelationCounts:
    """The number and size of one relation's changes in a file, by which readers plan batches."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    size_bytes: int = 0

    def add(self, more: RelationCounts) -> None:
        """Add the changes of another file or transaction to these."""
        self.inserts += more.inserts
        self.updates += more.updates
        self.deletes += more.deletes
        self.truncates += more.truncates
        self.size_bytes += more.size_bytes


@dataclass(slots=True)
class Counts:
    """The number of changes and messages in a file, and the counts of each relation by OID."""

    relations: dict[int, RelationCounts] = field(default_factory=dict)
    messages: int = 0
    changes: int = 0

    def add(self, more: Counts) -> None:
        """Add the changes and messages of another file or transaction to these."""
        self.messages += more.messages
        self.changes += more.changes
        for oid, counts in more.relations.items():
            self.relations.setdefault(oid, RelationCounts()).add(counts)


def change_positions(block: MessageBlock) -> Int64s:
    """The position of each of a block's changes, in the order of :attr:`Counts.changes`."""
    positions: Int64s = block.positions[COUNTED[block.tags]]
    return positions


def count_changes(block: MessageBlock) -> Counts:
    """How many inserts, updates, deletes and truncates of each relation a block has."""
    counts = Counts(messages=len(block), changes=int(COUNTED[block.tags].sum()))
    kinds = _KIND[block.tags]
    rows = np.flatnonzero(kinds >= 0)
    oids, inverse = np.unique(block.oids[rows], return_inverse=True)
    table = np.bincount(inverse * 3 + kinds[rows], minlength=len(oids) * 3).reshape(-1, 3)
    sizes = np.bincount(inverse, weights=block.ends[rows] - block.starts[rows])
    for index, oid in enumerate(oids.tolist()):
        inserts, updates, deletes = table[index].tolist()
        counts.relations[oid] = RelationCounts(inserts, updates, deletes, 0, int(sizes[index]))
    for row in np.flatnonzero(block.tags == ord("T")).tolist():
        for oid in truncated_oids(block.message(row), block.body_offset):
            counts.relations.setdefault(oid, RelationCounts()).truncates += 1
    return counts
