"""Transactions in progress (protocol version 2, PostgreSQL 14+): S E c A.

A large transaction comes in blocks S … E while it is still open, then ends by c, or by A. A
with another subxid than its xid takes back one subtransaction (a savepoint) only.

============= === ==================================================================
StreamStart   S   u32 xid, u8 first segment
StreamStop    E   nothing
StreamCommit  c   u32 xid, u8 flags (0), lsn commit_lsn, lsn end_lsn,
                  i64 commit_timestamp
StreamAbort   A   u32 xid, u32 subxid, and where START_REPLICATION asked for
                  ``streaming 'parallel'`` (version 4): lsn abort_lsn,
                  i64 abort_timestamp
============= === ==================================================================

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from pgsluice.lsn import Lsn
from pgsluice.wire.message import Wire
from pgsluice.wire.reading import Reader, Writer


@dataclass(frozen=True, slots=True)
class StreamStart(Wire):
    """A block of a transaction in progress begins.

    Attributes:
        xid: the top-level transaction's.
        is_first: the first block of this transaction.
    """

    tag: ClassVar[str] = "S"
    xid: int
    is_first: bool

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.u32("xid"), reader.boolean("first segment"))

    def _write(self, writer: Writer) -> None:
        writer.u32(self.xid, "xid")
        writer.boolean(self.is_first, "first segment")


@dataclass(frozen=True, slots=True)
class StreamStop(Wire):
    """The block ends; the transaction goes on."""

    tag: ClassVar[str] = "E"

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls()

    def _write(self, writer: Writer) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StreamCommit(Wire):
    """A streamed transaction is committed.

    Attributes:
        xid: the top-level transaction's.
        flags: none is known; 0.
        commit_lsn: where the commit record starts.
        end_lsn: where it ends: the transaction's position, and what to acknowledge.
        commit_timestamp: microseconds since 2000-01-01 UTC.
    """

    tag: ClassVar[str] = "c"
    xid: int
    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_timestamp: int

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.u32("xid"),
            reader.flags("flags", 0),
            reader.lsn("commit_lsn"),
            reader.lsn("end_lsn"),
            reader.i64("commit_timestamp"),
        )

    def _write(self, writer: Writer) -> None:
        writer.u32(self.xid, "xid")
        writer.flags(self.flags, "flags", 0)
        writer.lsn(self.commit_lsn, "commit_lsn")
        writer.lsn(self.end_lsn, "end_lsn")
        writer.i64(self.commit_timestamp, "commit_timestamp")


@dataclass(frozen=True, slots=True)
class Aborted:
    """When and where a streamed (sub)transaction was aborted.

    Attributes:
        lsn: of the abort record.
        timestamp: microseconds since 2000-01-01 UTC.
    """

    lsn: Lsn
    timestamp: int


@dataclass(frozen=True, slots=True)
class StreamAbort(Wire):
    """A streamed transaction, or one subtransaction of it, is taken back.

    Attributes:
        xid: the top-level transaction's.
        subxid: the subtransaction's, or ``xid`` again for the whole transaction.
        at: when and where; None unless ``streaming 'parallel'`` was asked for (then
            decode it with ``parallel=True``).
    """

    tag: ClassVar[str] = "A"
    xid: int
    subxid: int
    at: Aborted | None = None

    @property
    def is_top_level(self) -> bool:
        """Whether the whole transaction is taken back."""
        return self.xid == self.subxid

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid, subxid = reader.u32("xid"), reader.u32("subxid")
        if not reader.parallel:
            return cls(xid, subxid)
        return cls(xid, subxid, Aborted(reader.lsn("abort_lsn"), reader.i64("abort_timestamp")))

    def _write(self, writer: Writer) -> None:
        writer.u32(self.xid, "xid")
        writer.u32(self.subxid, "subxid")
        if self.at is not None:
            writer.lsn(self.at.lsn, "abort_lsn")
            writer.i64(self.at.timestamp, "abort_timestamp")
