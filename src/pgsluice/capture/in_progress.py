"""Transactions that arrive before their commit: streamed in blocks, or prepared.

They are kept apart, each with what it has said of relations, until they end. What they hold
in memory together is bounded: the largest is handed out as a part.

- An abort of a subtransaction takes back everything from its first message on (see
  :mod:`pgsluice.spool.parts`), the relations that it learnt included. One that is not known
  had nothing.
- What a stream says of a relation holds for itself; for the connection only from its commit
  on, and not where the connection has learnt something newer meanwhile. What a transaction
  says between ``b`` and ``P`` holds for the connection at once. A streamed transaction that
  is prepared tells the connection nothing.

Source: ``cleanup_rel_sync_cache`` in src/backend/replication/pgoutput/pgoutput.c;
``stream_abort_internal`` in src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsluice.capture.heap import FRAME_HEADER_BYTES, Heap
from pgsluice.capture.steps import Abandoned, Part, TakenBack
from pgsluice.errors import ProtocolError

IN_STREAM_BODY = 5
_HAS_XID = np.zeros(256, np.bool_)
_HAS_XID[list(b"IUDTRYM")] = True


@dataclass(frozen=True, slots=True)
class _Learnt:
    """A relation that a transaction spoke of: at which message, and when."""

    index: int
    serial: int
    oid: int


@dataclass(slots=True)
class OpenTransaction:
    """One transaction in progress.

    Attributes:
        key: names its parts.
        xid: the top-level transaction's.
        body: 5 in a stream, 1 when it is being prepared.
        heap: frames that are not in parts yet.
        handed_out: messages in parts.
        learnt: what it has said of relations.
    """

    key: str
    xid: int
    body: int
    heap: Heap = field(default_factory=Heap)
    handed_out: int = 0
    learnt: list[_Learnt] = field(default_factory=list)
    _begins: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Messages so far, without what was taken back."""
        return self.handed_out + self.heap.count

    @property
    def relations(self) -> dict[int, int]:
        """OID -> when it was last told."""
        return {one.oid: one.serial for one in self.learnt}

    def add(self, frames: Sequence[bytes | memoryview]) -> None:
        """Messages that follow."""
        before = self.count
        self.heap.add(frames)
        if frames and self.body == IN_STREAM_BODY:
            joined, lengths = self.heap.chunks[-1]
            data = np.frombuffer(joined, np.uint8)
            at = np.cumsum(lengths) - lengths + FRAME_HEADER_BYTES
            messages = np.flatnonzero(_HAS_XID[data[at]])
            if bool((lengths[messages] < FRAME_HEADER_BYTES + IN_STREAM_BODY).any()):
                raise ProtocolError("a message in a stream ends before its xid", xid=self.xid)
            places = at[messages, None] + np.arange(1, IN_STREAM_BODY)
            xids = np.ascontiguousarray(data[places]).view(">u4").reshape(-1)
            found, firsts = np.unique(xids, return_index=True)
            for first, xid in sorted(zip(firsts.tolist(), found.tolist(), strict=True)):
                self._begins.setdefault(xid, before + int(messages[first]))

    def part(self) -> Part:
        """What is in memory, as a part."""
        self.handed_out += self.heap.count
        return Part(self.key, self.heap.take(), self.body)

    def take_back(self, subxid: int) -> TakenBack | None:
        """A subtransaction aborted.

        Returns:
            the step for what is in parts, if anything is.
        """
        kept = self._begins.get(subxid)
        if kept is None:
            return None
        while self._begins and next(reversed(self._begins.values())) >= kept:
            self._begins.popitem()
        while self.learnt and self.learnt[-1].index >= kept:
            self.learnt.pop()
        if kept >= self.handed_out:
            self.heap.truncate(kept - self.handed_out)
            return None
        self.heap.clear()
        self.handed_out = kept
        return TakenBack(self.key, kept)


class InProgress:
    """All transactions in progress of one connection.

    Attributes:
        current: the one whose block is open, or that is being prepared; None outside.
    """

    def __init__(self) -> None:
        self.current: OpenTransaction | None = None
        self._streams: dict[int, OpenTransaction] = {}
        self._serial = 0
        self._told: dict[int, int] = {}

    @property
    def is_preparing(self) -> bool:
        """Has a Begin Prepare come, and not its Prepare?"""
        return self.current is not None and self.current.body != IN_STREAM_BODY

    def begin_block(self, xid: int, *, is_first: bool) -> None:
        """A Stream Start came.

        Raises:
            ProtocolError: it cannot come here.
        """
        self._expect_outside("S")
        if is_first == (xid in self._streams):
            what = "is open already" if is_first else "has not begun"
            raise ProtocolError(
                f"a Stream Start message (S) of transaction {xid}, which {what}", tag="S", xid=xid
            )
        if is_first:
            self._streams[xid] = OpenTransaction(self._key("s", xid), xid, IN_STREAM_BODY)
        self.current = self._streams[xid]

    def end_block(self) -> None:
        """A Stream Stop came."""
        if self.current is None or self.current.body != IN_STREAM_BODY:
            raise ProtocolError("a Stream Stop message (E) outside a block", tag="E")
        self.current = None

    def begin_prepare(self, xid: int) -> None:
        """A Begin Prepare came."""
        self._expect_outside("b")
        self.current = OpenTransaction(self._key("p", xid), xid, 1)

    def end_prepare(self, xid: int) -> OpenTransaction:
        """A Prepare came: the transaction that it ends."""
        current = self.current
        if current is None or current.body != 1 or current.xid != xid:
            raise ProtocolError(
                f"a Prepare message (P) of transaction {xid} without its beginning",
                tag="P",
                xid=xid,
            )
        self.current = None
        return current

    def end_stream(self, xid: int, tag: str) -> OpenTransaction:
        """A streamed transaction is committed or prepared."""
        self._expect_outside(tag)
        stream = self._streams.pop(xid, None)
        if stream is None:
            raise ProtocolError(
                f"a message {tag} ends transaction {xid}, which has not begun", tag=tag, xid=xid
            )
        return stream

    def abort(self, xid: int, subxid: int) -> TakenBack | Abandoned | None:
        """A Stream Abort came; one of an unknown transaction means nothing (18 sends such)."""
        self._expect_outside("A")
        stream = self._streams.get(xid)
        if stream is None:
            return None
        if xid != subxid:
            return stream.take_back(subxid)
        del self._streams[xid]
        return Abandoned(stream.key) if stream.handed_out else None

    def told(self, oid: int, frames_before: int) -> None:
        """A Relation message came.

        Args:
            oid: the relation.
            frames_before: how many frames of the current transaction were not added yet.
        """
        self._serial += 1
        if self.current is not None and self.current.body == IN_STREAM_BODY:
            index = self.current.count + frames_before
            self.current.learnt.append(_Learnt(index, self._serial, oid))
        else:
            self._told[oid] = self._serial

    def join(self, stream: OpenTransaction) -> frozenset[int]:
        """A stream committed: the relations of which the connection knows nothing newer."""
        joining = {
            oid: serial
            for oid, serial in stream.relations.items()
            if self._told.get(oid, 0) < serial
        }
        self._told.update(joining)
        return frozenset(joining)

    def overflow(self, limit_bytes: int) -> Iterator[Part]:
        """Parts to hand out so that less than ``limit_bytes`` stay in memory."""
        open_ones = [*self._streams.values()]
        if self.current is not None and self.is_preparing:
            open_ones.append(self.current)
        while sum(one.heap.size_bytes for one in open_ones) >= limit_bytes:
            yield max(open_ones, key=lambda one: one.heap.size_bytes).part()

    def _key(self, kind: str, xid: int) -> str:
        self._serial += 1
        return f"{kind}{xid:08X}-{self._serial:08X}"

    def _expect_outside(self, tag: str) -> None:
        if self.current is not None:
            raise ProtocolError(
                f"a message {tag} inside a block of transaction {self.current.xid}",
                tag=tag,
                xid=self.current.xid,
            )
