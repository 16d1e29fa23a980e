"""The messages of protocol version 1, and M of PostgreSQL 14: B C O R Y I U D T M.

``[xid]`` is there only between Stream Start and Stream Stop (version 2), never because of
the version alone: a message with ``xid=None`` has none on the wire.

=========== === =====================================================================
Begin       B   lsn final_lsn, i64 commit_timestamp, u32 xid
Commit      C   u8 flags (0), lsn commit_lsn, lsn end_lsn, i64 commit_timestamp
Origin      O   lsn origin_lsn, str name
Relation    R   [xid], u32 oid, str namespace, str name, u8 replica identity, i16 n,
                n x (u8 flags, str name, u32 type oid, i32 typmod)
Type        Y   [xid], u32 oid, str namespace, str name
Insert      I   [xid], u32 oid, 'N', tuple
Update      U   [xid], u32 oid, optional ('K' or 'O', tuple), 'N', tuple
Delete      D   [xid], u32 oid, 'K' or 'O', tuple
Truncate    T   [xid], i32 n, u8 flags, n x u32 oid
Message     M   [xid], u8 flags, lsn, str prefix, i32 length, bytes
=========== === =====================================================================

Source: the manual, "Logical Replication Message Formats"; PostgreSQL's
``src/backend/replication/logical/proto.c``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from pgsluice.lsn import Lsn
from pgsluice.wire.message import Wire
from pgsluice.wire.reading import Reader, Writer
from pgsluice.wire.tuples import TupleData

_KEY, _OLD, _NEW = b"KON"
_COLUMN_IS_KEY = 1
_CASCADE, _RESTART_IDENTITY = 1, 2
_TRANSACTIONAL = 1


class ReplicaIdentity(StrEnum):
    """``relreplident`` of ``pg_class``: what old tuples hold."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Begin(Wire):
    """A transaction begins; it is sent when it is committed.

    Attributes:
        final_lsn: where the commit record starts; equals ``Commit.commit_lsn``.
        commit_timestamp: microseconds since 2000-01-01 UTC.
        xid: the transaction's id.
    """

    tag: ClassVar[str] = "B"
    final_lsn: Lsn
    commit_timestamp: int
    xid: int

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.lsn("final_lsn"), reader.i64("commit_timestamp"), reader.u32("xid"))

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.final_lsn, "final_lsn")
        writer.i64(self.commit_timestamp, "commit_timestamp")
        writer.u32(self.xid, "xid")


@dataclass(frozen=True, slots=True)
class Commit(Wire):
    """The transaction's end.

    Attributes:
        flags: none is known; 0.
        commit_lsn: where the commit record starts.
        end_lsn: where it ends: the transaction's position, and what to acknowledge.
        commit_timestamp: microseconds since 2000-01-01 UTC.
    """

    tag: ClassVar[str] = "C"
    flags: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_timestamp: int

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.flags("flags", 0),
            reader.lsn("commit_lsn"),
            reader.lsn("end_lsn"),
            reader.i64("commit_timestamp"),
        )

    def _write(self, writer: Writer) -> None:
        writer.flags(self.flags, "flags", 0)
        writer.lsn(self.commit_lsn, "commit_lsn")
        writer.lsn(self.end_lsn, "end_lsn")
        writer.i64(self.commit_timestamp, "commit_timestamp")


@dataclass(frozen=True, slots=True)
class Origin(Wire):
    """The transaction came to the server by replication from elsewhere.

    Attributes:
        origin_lsn: the commit's LSN there; 0 after Stream Start.
        name: the origin's name on the server.
    """

    tag: ClassVar[str] = "O"
    origin_lsn: Lsn
    name: str

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.lsn("origin_lsn"), reader.string("name"))

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.origin_lsn, "origin_lsn")
        writer.string(self.name, "name")


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column.

    Attributes:
        flags: 1: part of the replica identity (all columns are under FULL).
        name: its name.
        type_oid: its type.
        typmod: ``atttypmod``, -1 for none.
    """

    flags: int
    name: str
    type_oid: int
    typmod: int

    @property
    def is_key(self) -> bool:
        """Whether the column is part of the replica identity."""
        return bool(self.flags & _COLUMN_IS_KEY)


@dataclass(frozen=True, slots=True)
class Relation(Wire):
    """A relation as the changes after it have it; resent whenever it may have changed.

    Attributes:
        oid: the relation's.
        namespace: its schema; empty for pg_catalog (:attr:`schema` names that one too).
        name: its name.
        replica_identity: what old tuples hold.
        columns: the published columns, in the order of the tuples.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "R"
    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]
    xid: int | None = None

    @property
    def schema(self) -> str:
        """The schema's name in full."""
        return self.namespace or "pg_catalog"

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid = reader.xid()
        oid = reader.u32("oid")
        namespace = reader.string("namespace")
        name = reader.string("name")
        identity = ReplicaIdentity(chr(reader.part(b"dnfi", "replica identity")))
        count = reader.count(2, "column count", 10)
        columns = tuple([RelationColumn(*reader.column()) for _ in range(count)])
        return cls(oid, namespace, name, identity, columns, xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.u32(self.oid, "oid")
        writer.string(self.namespace, "namespace")
        writer.string(self.name, "name")
        writer.u8(ord(ReplicaIdentity(self.replica_identity)), "replica identity")
        writer.i16(len(self.columns), "column count")
        for column in self.columns:
            writer.flags(column.flags, "column flags", _COLUMN_IS_KEY)
            writer.string(column.name, "column name")
            writer.u32(column.type_oid, "column type oid")
            writer.i32(column.typmod, "column typmod")


@dataclass(frozen=True, slots=True)
class Type(Wire):
    """A type that is not built in, sent before the relation that uses it.

    For a domain it is the domain's OID with the base type's name.

    Attributes:
        oid: the type's.
        namespace: its schema; empty for pg_catalog.
        name: its name.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "Y"
    oid: int
    namespace: str
    name: str
    xid: int | None = None

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid = reader.xid()
        return cls(reader.u32("oid"), reader.string("namespace"), reader.string("name"), xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.u32(self.oid, "oid")
        writer.string(self.namespace, "namespace")
        writer.string(self.name, "name")


@dataclass(frozen=True, slots=True)
class Insert(Wire):
    """A new row. It can hold an unchanged column: a row filter made it out of an UPDATE.

    Attributes:
        oid: the relation's.
        new: the row.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "I"
    oid: int
    new: TupleData
    xid: int | None = None

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid, oid, _ = reader.change(b"N")
        return cls(oid, TupleData.read(reader), xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.u32(self.oid, "oid")
        writer.u8(_NEW, "part")
        self.new.write(writer)


@dataclass(frozen=True, slots=True)
class OldKey:
    """The old row's replica identity: all columns, with ``n`` in those outside the key.

    Attributes:
        data: the columns. NULL outside the key means nothing.
    """

    data: TupleData


@dataclass(frozen=True, slots=True)
class OldRow:
    """The old row in full (REPLICA IDENTITY FULL).

    Attributes:
        data: the columns.
    """

    data: TupleData


def _read_old(reader: Reader, part: int) -> OldKey | OldRow:
    data = TupleData.read(reader)
    return OldKey(data) if part == _KEY else OldRow(data)


def _write_old(writer: Writer, old: OldKey | OldRow) -> None:
    writer.u8(_KEY if isinstance(old, OldKey) else _OLD, "part")
    old.data.write(writer)


@dataclass(frozen=True, slots=True)
class Update(Wire):
    """A changed row.

    Attributes:
        oid: the relation's.
        old: the old row or its key; None when the key did not change (an OldKey also comes
            when the key is stored out of line).
        new: the new row; columns that did not change may be missing (kind ``u``), with an
            OldRow too.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "U"
    oid: int
    old: OldKey | OldRow | None
    new: TupleData
    xid: int | None = None

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid, oid, part = reader.change(b"KON")
        old = None
        if part != _NEW:
            old = _read_old(reader, part)
            reader.part(b"N", "the new tuple")
        return cls(oid, old, TupleData.read(reader), xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.u32(self.oid, "oid")
        if self.old is not None:
            _write_old(writer, self.old)
        writer.u8(_NEW, "part")
        self.new.write(writer)


@dataclass(frozen=True, slots=True)
class Delete(Wire):
    """A deleted row.

    Attributes:
        oid: the relation's.
        old: the row, or its key.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "D"
    oid: int
    old: OldKey | OldRow
    xid: int | None = None

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid, oid, part = reader.change(b"KO")
        return cls(oid, _read_old(reader, part), xid)

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.u32(self.oid, "oid")
        _write_old(writer, self.old)


@dataclass(frozen=True, slots=True)
class Truncate(Wire):
    """Relations are emptied, all by one statement.

    Attributes:
        oids: the relations'.
        flags: 1 = CASCADE, 2 = RESTART IDENTITY.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "T"
    oids: tuple[int, ...]
    flags: int
    xid: int | None = None

    @property
    def is_cascade(self) -> bool:
        """Whether tables that refer to these were to be emptied too."""
        return bool(self.flags & _CASCADE)

    @property
    def is_restart_identity(self) -> bool:
        """Whether the sequences that these own began anew."""
        return bool(self.flags & _RESTART_IDENTITY)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
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
    """What ``pg_logical_emit_message`` wrote into the WAL.

    Attributes:
        flags: 1 = part of a transaction; 0 = it stands for itself, outside of any.
        lsn: where it lies.
        prefix: what its sender calls it.
        content: any bytes.
        xid: in a stream the **top-level** transaction's, unlike a change's.
    """

    tag: ClassVar[str] = "M"
    flags: int
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to the transaction around it."""
        return bool(self.flags & _TRANSACTIONAL)

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        xid = reader.xid()
        return cls(
            reader.flags("flags", _TRANSACTIONAL),
            reader.lsn("lsn"),
            reader.string("prefix"),
            reader.take(reader.count(4, "content length", 1)),
            xid,
        )

    def _write(self, writer: Writer) -> None:
        writer.xid(self.xid)
        writer.flags(self.flags, "flags", _TRANSACTIONAL)
        writer.lsn(self.lsn, "lsn")
        writer.string(self.prefix, "prefix")
        writer.i32(len(self.content), "content length")
        writer.raw(self.content)
