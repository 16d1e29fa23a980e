"""Transactions in progress (protocol version 2, PostgreSQL 14+): S E c A.

The server sends a large open transaction in blocks from S to E, and ends it with c or A. An A whose
subxid differs from its xid only aborts that subtransaction (a savepoint).

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pgsluice.wire.fields import (
    Boolean,
    NoFlags,
    TimestampTz,
    TransactionId,
    Wire,
    XLogRecPtr,
    if_parallel,
)


@dataclass(frozen=True, slots=True)
class StreamStart(Wire):
    """A block of a transaction in progress starts; its xid is that of the top level."""

    tag: ClassVar[str] = "S"
    xid: TransactionId
    is_first: Boolean


@dataclass(frozen=True, slots=True)
class StreamStop(Wire):
    """The block ends; the transaction continues."""

    tag: ClassVar[str] = "E"


@dataclass(frozen=True, slots=True)
class StreamCommit(Wire):
    """A streamed transaction is committed; fields as in :class:`~pgsluice.wire.Commit`."""

    tag: ClassVar[str] = "c"
    xid: TransactionId
    flags: NoFlags
    commit_lsn: XLogRecPtr
    end_lsn: XLogRecPtr
    commit_timestamp: TimestampTz


@dataclass(frozen=True, slots=True)
class Aborted:
    """When, and where in the WAL, a streamed (sub)transaction was aborted."""

    lsn: XLogRecPtr
    timestamp: TimestampTz


@dataclass(frozen=True, slots=True)
class StreamAbort(Wire):
    """A streamed transaction, or one of its subtransactions, was aborted.

    Attributes:
        xid: the top-level transaction's.
        subxid: the subtransaction's, or ``xid`` again for the whole transaction.
        at: LSN and time of the abort; None unless ``streaming 'parallel'`` was requested (then
            decode it with ``parallel=True``).
    """

    tag: ClassVar[str] = "A"
    xid: TransactionId
    subxid: TransactionId
    at: Annotated[Aborted | None, if_parallel(Aborted, "abort_")] = None

    @property
    def is_top_level(self) -> bool:
        """Whether the whole transaction is taken back."""
        return self.xid == self.subxid
