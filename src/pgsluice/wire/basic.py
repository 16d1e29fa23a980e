"""The messages of protocol version 1, and M of PostgreSQL 14: B C O R Y I U D T M.

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pgsluice.wire.fields import (
    CountedBytes,
    Field,
    Int32,
    NoFlags,
    Oid,
    StreamXid,
    String,
    TimestampTz,
    TransactionId,
    Wire,
    XLogRecPtr,
    counted,
    flag_byte,
)
from pgsluice.wire.reading import Reader, Writer
from pgsluice.wire.tuples import NewTuple, OldTuple, OldTupleIfAny

_COLUMN_IS_KEY = 1
_CASCADE, _RESTART_IDENTITY = 1, 2
_TRANSACTIONAL = 1


class ReplicaIdentity(StrEnum):
    """``relreplident`` of ``pg_class``, which decides the columns of old tuples."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


def _read_identity(reader: Reader, name: str) -> ReplicaIdentity:
    return ReplicaIdentity(chr(reader.part(b"dnfi", name)))


def _write_identity(writer: Writer, identity: ReplicaIdentity, name: str) -> None:
    writer.u8(ord(ReplicaIdentity(identity)), name)


_REPLICA_IDENTITY = Field(_read_identity, _write_identity)


@dataclass(frozen=True, slots=True)
class Begin(Wire):
    """A transaction begins; it is sent when it is committed.

    Attributes:
        final_lsn: where the commit record starts; equals ``Commit.commit_lsn``.
    """

    tag: ClassVar[str] = "B"
    final_lsn: XLogRecPtr
    commit_timestamp: TimestampTz
    xid: TransactionId


@dataclass(frozen=True, slots=True)
class Commit(Wire):
    """The transaction's end.

    Attributes:
        commit_lsn: where the commit record starts.
        end_lsn: where it ends: the transaction's position, and what to acknowledge.
    """

    tag: ClassVar[str] = "C"
    flags: NoFlags
    commit_lsn: XLogRecPtr
    end_lsn: XLogRecPtr
    commit_timestamp: TimestampTz


@dataclass(frozen=True, slots=True)
class Origin(Wire):
    """The origin of a transaction that another server replicated to this one.

    Attributes:
        origin_lsn: the commit's LSN at the origin; 0 after Stream Start.
        name: the origin's name on the server.
    """

    tag: ClassVar[str] = "O"
    origin_lsn: XLogRecPtr
    name: String


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column.

    Attributes:
        flags: 1: part of the replica identity (all columns are under FULL).
        typmod: ``atttypmod``, -1 for none.
    """

    flags: Annotated[int, flag_byte(_COLUMN_IS_KEY)]
    name: String
    type_oid: Oid
    typmod: Int32

    @property
    def is_key(self) -> bool:
        """Whether the column is part of the replica identity."""
        return bool(self.flags & _COLUMN_IS_KEY)


@dataclass(frozen=True, slots=True)
class Relation(Wire):
    """A relation as the changes after it have it; resent whenever it may have changed.

    Attributes:
        namespace: its schema; empty for pg_catalog (:attr:`schema` names that one too).
        replica_identity: what old tuples hold.
        columns: the published columns, in the order of the tuples.
    """

    tag: ClassVar[str] = "R"
    oid: Oid
    namespace: String
    name: String
    replica_identity: Annotated[ReplicaIdentity, _REPLICA_IDENTITY]
    columns: Annotated[tuple[RelationColumn, ...], counted(RelationColumn, "column ", 10)]
    xid: StreamXid = None

    @property
    def schema(self) -> str:
        """The schema's name in full."""
        return self.namespace or "pg_catalog"


@dataclass(frozen=True, slots=True)
class Type(Wire):
    """A type that is not built in, sent before the relation that uses it.

    For a domain it is the domain's OID with the base type's name. The namespace is empty for
    pg_catalog.
    """

    tag: ClassVar[str] = "Y"
    oid: Oid
    namespace: String
    name: String
    xid: StreamXid = None


@dataclass(frozen=True, slots=True)
class Insert(Wire):
    """A new row. It can hold an unchanged column: a row filter made it out of an UPDATE."""

    tag: ClassVar[str] = "I"
    oid: Oid
    new: NewTuple
    xid: StreamXid = None


@dataclass(frozen=True, slots=True)
class Update(Wire):
    """A changed row.

    Attributes:
        old: the old row or its key; None if the key did not change (an OldKey is also sent if the
            key is a TOAST value).
        new: the new row; values of unchanged columns may be missing (kind ``u``), even with an
            OldRow.
    """

    tag: ClassVar[str] = "U"
    oid: Oid
    old: OldTupleIfAny
    new: NewTuple
    xid: StreamXid = None


@dataclass(frozen=True, slots=True)
class Delete(Wire):
    """A deleted row, or its key."""

    tag: ClassVar[str] = "D"
    oid: Oid
    old: OldTuple
    xid: StreamXid = None


@dataclass(frozen=True, slots=True)
class Truncate(Wire):
    """Relations are emptied, all by one statement; flags: 1 = CASCADE, 2 = RESTART IDENTITY."""

    tag: ClassVar[str] = "T"
    oids: tuple[int, ...]
    flags: int
    xid: StreamXid = None

    @property
    def is_cascade(self) -> bool:
        """Whether tables that refer to these were to be emptied too."""
        return bool(self.flags & _CASCADE)

    @property
    def is_restart_identity(self) -> bool:
        """Whether the sequences that these tables own were restarted."""
        return bool(self.flags & _RESTART_IDENTITY)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the message; the number of relations comes before the flags."""
        xid = reader.xid()
        count = reader.count(4, "relation count", 4)
        flags = reader.flags("flags", _CASCADE | _RESTART_IDENTITY)
        return cls(reader.u32s(count, "relation oids"), flags, xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.i32(len(self.oids), "relation count")
        writer.flags(self.flags, "flags", _CASCADE | _RESTART_IDENTITY)
        for oid in self.oids:
            writer.u32(oid, "relation oid")


@dataclass(frozen=True, slots=True)
class LogicalMessage(Wire):
    """A message that ``pg_logical_emit_message`` wrote to the WAL.

    Attributes:
        flags: 1 = part of a transaction; 0 = independent of any transaction.
        lsn: its LSN.
        xid: in a stream, that of the **top-level** transaction, unlike a change's.
    """

    tag: ClassVar[str] = "M"
    flags: Annotated[int, flag_byte(_TRANSACTIONAL)]
    lsn: XLogRecPtr
    prefix: String
    content: CountedBytes
    xid: StreamXid = None

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to the transaction around it."""
        return bool(self.flags & _TRANSACTIONAL)
