"""Prepared transactions (protocol version 3, PostgreSQL 15+): b P K r, and p when streamed.

A slot made with two_phase sends them at every protocol version.

================ === ===============================================================
BeginPrepare     b   lsn prepare_lsn, lsn end_lsn, i64 prepare_timestamp, u32 xid,
                     str gid (no flags)
Prepare          P   u8 flags (0), lsn prepare_lsn, lsn end_lsn,
                     i64 prepare_timestamp, u32 xid, str gid
StreamPrepare    p   as P
CommitPrepared   K   u8 flags (0), lsn commit_lsn, lsn end_lsn, i64 commit_timestamp,
                     u32 xid, str gid
RollbackPrepared r   u8 flags (0), lsn prepare_end_lsn, lsn rollback_end_lsn,
                     i64 prepare_timestamp, i64 rollback_timestamp, u32 xid, str gid
================ === ===============================================================

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
class BeginPrepare(Wire):
    """A transaction begins that will be prepared, not committed.

    Attributes:
        prepare_lsn: where the prepare record starts; equals ``Prepare.prepare_lsn``.
        end_lsn: where it ends.
        prepare_timestamp: microseconds since 2000-01-01 UTC.
        xid: the transaction's id.
        gid: the name that PREPARE TRANSACTION gave it.
    """

    tag: ClassVar[str] = "b"
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_timestamp: int
    xid: int
    gid: str

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.lsn("prepare_lsn"),
            reader.lsn("end_lsn"),
            reader.i64("prepare_timestamp"),
            reader.u32("xid"),
            reader.string("gid"),
        )

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.prepare_lsn, "prepare_lsn")
        writer.lsn(self.end_lsn, "end_lsn")
        writer.i64(self.prepare_timestamp, "prepare_timestamp")
        writer.u32(self.xid, "xid")
        writer.string(self.gid, "gid")


@dataclass(frozen=True, slots=True)
class _AnyPrepare(Wire):
    """What P and p share."""

    flags: int
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_timestamp: int
    xid: int
    gid: str

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.flags("flags", 0),
            reader.lsn("prepare_lsn"),
            reader.lsn("end_lsn"),
            reader.i64("prepare_timestamp"),
            reader.u32("xid"),
            reader.string("gid"),
        )

    def _write(self, writer: Writer) -> None:
        writer.flags(self.flags, "flags", 0)
        writer.lsn(self.prepare_lsn, "prepare_lsn")
        writer.lsn(self.end_lsn, "end_lsn")
        writer.i64(self.prepare_timestamp, "prepare_timestamp")
        writer.u32(self.xid, "xid")
        writer.string(self.gid, "gid")


@dataclass(frozen=True, slots=True)
class Prepare(_AnyPrepare):
    """The end of a transaction that is now prepared; nothing of it is visible yet.

    Attributes:
        flags: none is known; 0.
        prepare_lsn: where the prepare record starts.
        end_lsn: where it ends.
        prepare_timestamp: microseconds since 2000-01-01 UTC.
        xid: the transaction's id.
        gid: the name that PREPARE TRANSACTION gave it.
    """

    tag: ClassVar[str] = "P"


@dataclass(frozen=True, slots=True)
class StreamPrepare(_AnyPrepare):
    """A streamed transaction is now prepared; fields as in :class:`Prepare`."""

    tag: ClassVar[str] = "p"


@dataclass(frozen=True, slots=True)
class CommitPrepared(Wire):
    """A prepared transaction is committed, and visible from here on.

    Attributes:
        flags: none is known; 0.
        commit_lsn: where the commit record starts.
        end_lsn: where it ends: the transaction's position, and what to acknowledge.
        commit_timestamp: microseconds since 2000-01-01 UTC.
        xid: the transaction's id.
        gid: the name that PREPARE TRANSACTION gave it.
    """

    tag: ClassVar[str] = "K"
    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_timestamp: int
    xid: int
    gid: str

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.flags("flags", 0),
            reader.lsn("commit_lsn"),
            reader.lsn("end_lsn"),
            reader.i64("commit_timestamp"),
            reader.u32("xid"),
            reader.string("gid"),
        )

    def _write(self, writer: Writer) -> None:
        writer.flags(self.flags, "flags", 0)
        writer.lsn(self.commit_lsn, "commit_lsn")
        writer.lsn(self.end_lsn, "end_lsn")
        writer.i64(self.commit_timestamp, "commit_timestamp")
        writer.u32(self.xid, "xid")
        writer.string(self.gid, "gid")


@dataclass(frozen=True, slots=True)
class RollbackPrepared(Wire):
    """A prepared transaction is rolled back.

    Attributes:
        flags: none is known; 0.
        prepare_end_lsn: ``Prepare.end_lsn``, by which to tell whether it was received.
        rollback_end_lsn: where the rollback's record ends: what to acknowledge.
        prepare_timestamp: microseconds since 2000-01-01 UTC.
        rollback_timestamp: microseconds since 2000-01-01 UTC.
        xid: the transaction's id.
        gid: the name that PREPARE TRANSACTION gave it.
    """

    tag: ClassVar[str] = "r"
    flags: int
    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepare_timestamp: int
    rollback_timestamp: int
    xid: int
    gid: str

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.flags("flags", 0),
            reader.lsn("prepare_end_lsn"),
            reader.lsn("rollback_end_lsn"),
            reader.i64("prepare_timestamp"),
            reader.i64("rollback_timestamp"),
            reader.u32("xid"),
            reader.string("gid"),
        )

    def _write(self, writer: Writer) -> None:
        writer.flags(self.flags, "flags", 0)
        writer.lsn(self.prepare_end_lsn, "prepare_end_lsn")
        writer.lsn(self.rollback_end_lsn, "rollback_end_lsn")
        writer.i64(self.prepare_timestamp, "prepare_timestamp")
        writer.i64(self.rollback_timestamp, "rollback_timestamp")
        writer.u32(self.xid, "xid")
        writer.string(self.gid, "gid")
