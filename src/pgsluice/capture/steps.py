"""What the receiver hands to the store: each step is durable before the next begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages

FactsByOid: TypeAlias = Mapping[int, str | None]
"""Relation OID -> its facts as JSON; None: they cannot be found any more."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole transactions for one segment."""

    messages: RawMessages


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an open transaction.

    Attributes:
        key: of the transaction, unique in a connection.
        messages: what came since its last part.
        body: 5 when they carry an in-stream xid, else 1.
    """

    key: str
    messages: RawMessages
    body: int = 1


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A subtransaction aborted: only the first ``kept`` messages in parts stay."""

    key: str
    kept: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A transaction aborted that has parts."""

    key: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction in parts is whole.

    Attributes:
        key: of its parts.
        end: its position.
        commit_timestamp: microseconds since 1970-01-01 UTC.
        xid: the transaction's.
        facts: of its relations as of the commit; None when they are among its messages.
        joining: relations that are now as this transaction has said.
    """

    key: str
    end: Lsn
    commit_timestamp: int
    xid: int
    facts: FactsByOid | None = None
    joining: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction (in parts, if it has messages) is prepared."""

    key: str
    gid: str
    xid: int
    prepare_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedCommitted:
    """COMMIT PREPARED; the attributes as in :class:`Committed`."""

    gid: str
    xid: int
    end: Lsn
    commit_timestamp: int
    facts: FactsByOid


@dataclass(frozen=True, slots=True)
class PreparedRolledBack:
    """ROLLBACK PREPARED."""

    gid: str
    xid: int


Step: TypeAlias = (
    Whole
    | Part
    | TakenBack
    | Abandoned
    | Committed
    | Prepared
    | PreparedCommitted
    | PreparedRolledBack
    | Lsn
)
"""Data, what becomes of it, or a frontier."""
