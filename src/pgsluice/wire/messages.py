"""The messages: B C O R Y I U D T M of protocol version 1, S E c A of 2, and b P K r p of 3.

M came with PostgreSQL 14, and is tied to no version; version 4 adds two fields to A.

**Transactions in progress** (version 2, PostgreSQL 14+): the server sends a large open transaction
in blocks from S to E, and ends it with c or A. An A whose subxid differs from its xid only aborts
that subtransaction (a savepoint).

**Prepared transactions** (version 3, PostgreSQL 15+): b P K r, and p when streamed. A slot that was
made with two_phase sends them at every protocol version. BeginPrepare has no flags, unlike the
others.

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Self, get_args

from pgsluice.wire.fields import (
    Boolean,
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
    if_parallel,
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


_REPLICA_IDENTITY = Field(
    lambda reader, name: ReplicaIdentity(chr(reader.part(b"dnfi", name))),
    lambda writer, identity, name: writer.u8(ord(ReplicaIdentity(identity)), name),
)


@dataclass(frozen=True, slots=True)
class Begin(Wire):
    """A transaction begins; it is sent when it is committed. ``final_lsn``, where the commit record
    starts, equals ``Commit.commit_lsn``."""

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
    """The origin of a transaction that another server replicated to this one: its name on the
    server, and the commit's LSN at the origin, which is 0 after Stream Start."""

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
        """The name of the relation's schema, also of pg_catalog."""
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
    """A row was deleted: the old row, or its key."""

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


@dataclass(frozen=True, slots=True)
class StreamStart(Wire):
    """A block of a transaction in progress starts; its xid is that of the top level."""

    tag: ClassVar[str] = "S"
    xid: TransactionId
    is_first: Boolean


@dataclass(frozen=True, slots=True)
class StreamStop(Wire):
    """A block of a transaction in progress ends; the transaction continues."""

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
        """Whether the whole transaction is aborted, not only a subtransaction."""
        return self.xid == self.subxid


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


Message = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)

MESSAGES: Mapping[int, type[Message]] = MappingProxyType(
    {ord(message.tag): message for message in get_args(Message)}
)
"""Tag byte -> message, for protocol versions 1 to 4."""
