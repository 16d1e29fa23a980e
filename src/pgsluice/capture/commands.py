"""What the store is told to do: each command is durable before the next begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages

FactsByOid: TypeAlias = Mapping[int, str | None]
"""Relation OID -> its facts as JSON; None: the catalog has no such relation any more."""


@dataclass(frozen=True, slots=True)
class WriteSegment:
    """Write whole transactions as one segment."""

    messages: RawMessages


@dataclass(frozen=True, slots=True)
class WritePart:
    """Write a piece of an open transaction.

    Attributes:
        key: the transaction's, unique on its connection.
        messages: those that came since its last part.
        in_stream: whether they carry the xid of their (sub)transaction.
    """

    key: str
    messages: RawMessages
    in_stream: bool


@dataclass(frozen=True, slots=True)
class TruncateParts:
    """Keep only the first ``length`` messages in parts: a subtransaction was aborted."""

    key: str
    length: int


@dataclass(frozen=True, slots=True)
class DiscardParts:
    """Delete the parts of a transaction that was aborted."""

    key: str


@dataclass(frozen=True, slots=True)
class CommitParts:
    """Make a transaction in parts readable.

    Attributes:
        key: the transaction's.
        position: its end LSN.
        commit_timestamp: microseconds since 1970-01-01 UTC.
        xid: the transaction's.
        facts: of its relations as of the commit; None when they are among its messages.
        joining: relations whose announcement now counts for the connection.
    """

    key: str
    position: Lsn
    commit_timestamp: int
    xid: int
    facts: FactsByOid | None = None
    joining: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class KeepPrepared:
    """Keep a prepared transaction until its end. It has parts unless it is empty."""

    key: str
    gid: str
    xid: int
    prepare_lsn: Lsn


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """Make a prepared transaction readable; the attributes as in :class:`CommitParts`."""

    gid: str
    xid: int
    position: Lsn
    commit_timestamp: int
    facts: FactsByOid


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """Forget a prepared transaction."""

    gid: str
    xid: int


@dataclass(frozen=True, slots=True)
class AdvanceFrontier:
    """Everything up to ``lsn`` has been received, whether it held changes or not."""

    lsn: Lsn


Command: TypeAlias = (
    WriteSegment
    | WritePart
    | TruncateParts
    | DiscardParts
    | CommitParts
    | KeepPrepared
    | CommitPrepared
    | RollbackPrepared
    | AdvanceFrontier
)
