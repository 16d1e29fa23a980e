"""Prepared transactions (protocol version 3, PostgreSQL 15+): b P K r, and p when streamed.

A slot that was made with two_phase sends them at every protocol version. BeginPrepare has no
flags, unlike the others.

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pgsluice.wire.fields import NoFlags, String, TimestampTz, TransactionId, Wire, XLogRecPtr


@dataclass(frozen=True, slots=True)
class BeginPrepare(Wire):
    """A transaction begins that will be prepared, not committed.

    Attributes:
        prepare_lsn: where the prepare record starts; equals ``Prepare.prepare_lsn``.
        end_lsn: where it ends.
        gid: the name that PREPARE TRANSACTION gave it.
    """

    tag: ClassVar[str] = "b"
    prepare_lsn: XLogRecPtr
    end_lsn: XLogRecPtr
    prepare_timestamp: TimestampTz
    xid: TransactionId
    gid: String


@dataclass(frozen=True, slots=True)
class _AnyPrepare(Wire):
    """The common fields of P and p."""

    flags: NoFlags
    prepare_lsn: XLogRecPtr
    end_lsn: XLogRecPtr
    prepare_timestamp: TimestampTz
    xid: TransactionId
    gid: String


@dataclass(frozen=True, slots=True)
class Prepare(_AnyPrepare):
    """The end of a transaction that is now prepared; nothing of it is visible yet.

    Fields as in :class:`BeginPrepare`.
    """

    tag: ClassVar[str] = "P"


@dataclass(frozen=True, slots=True)
class StreamPrepare(_AnyPrepare):
    """A streamed transaction is now prepared; fields as in :class:`BeginPrepare`."""

    tag: ClassVar[str] = "p"


@dataclass(frozen=True, slots=True)
class CommitPrepared(Wire):
    """A prepared transaction is committed, and visible from here on.

    Attributes:
        commit_lsn: where the commit record starts.
        end_lsn: where it ends: the transaction's position, and what to acknowledge.
    """

    tag: ClassVar[str] = "K"
    flags: NoFlags
    commit_lsn: XLogRecPtr
    end_lsn: XLogRecPtr
    commit_timestamp: TimestampTz
    xid: TransactionId
    gid: String


@dataclass(frozen=True, slots=True)
class RollbackPrepared(Wire):
    """A prepared transaction was rolled back.

    Attributes:
        prepare_end_lsn: ``Prepare.end_lsn``, by which the client can tell whether it received the
            transaction.
        rollback_end_lsn: the end of the rollback's record, which is the LSN to acknowledge.
    """

    tag: ClassVar[str] = "r"
    flags: NoFlags
    prepare_end_lsn: XLogRecPtr
    rollback_end_lsn: XLogRecPtr
    prepare_timestamp: TimestampTz
    rollback_timestamp: TimestampTz
    xid: TransactionId
    gid: String
