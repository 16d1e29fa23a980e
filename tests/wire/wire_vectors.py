"""Golden messages: every message and form, its bytes written by hand, field by field.

One table drives all: decoding and encoding (``test_messages``), the layout tables of the
protocol's documents (``test_layouts``), the fuzzer's seeds (``scripts/fuzz_wire.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pgsluice.lsn import Lsn
from pgsluice.wire import (
    UNCHANGED,
    Aborted,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    CopyData,
    Delete,
    HotStandbyFeedback,
    Insert,
    Keepalive,
    LogicalMessage,
    Message,
    OldKey,
    OldRow,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    StandbyStatusUpdate,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
    XLogData,
)

# The widths in which the manual writes its layouts; None: as long as the field says.
WIDTHS = {"Byte1": 1, "Int8": 1, "Int16": 2, "Int32": 4, "Int64": 8, "String": None, "Byten": None}


@dataclass(frozen=True)
class Vector:
    """A message and its bytes.

    Attributes:
        name: what it shows.
        message: the message.
        fields: (width, field, bytes) in the order of the wire, the tag first.
        options: what ``decode_message`` has to be told.
    """

    name: str
    message: Message | CopyData
    fields: tuple[tuple[str, str, bytes], ...]
    options: dict[str, bool] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return b"".join(part for _, _, part in self.fields)

    @property
    def layout(self) -> str:
        return " ".join(width for width, _, _ in self.fields)


IN_STREAM = {"in_stream": True}
PARALLEL = {"parallel": True}

LSN_1 = ("Int64", "0/16B3748", b"\x00\x00\x00\x00\x01\x6b\x37\x48")
LSN_2 = ("Int64", "0/16B3778", b"\x00\x00\x00\x00\x01\x6b\x37\x78")
LSN_HIGH = ("Int64", "7FFFFFFF/FFFFFFFF, the greatest", b"\x7f\xff\xff\xff\xff\xff\xff\xff")
TIME_1 = ("Int64", "2024-01-01 00:00:00 UTC", b"\x00\x02\xb0\xd5\xd4\xe9\x40\x00")
TIME_2 = ("Int64", "1999-12-31 23:59:59.999999 UTC", b"\xff\xff\xff\xff\xff\xff\xff\xff")
XID = ("Int32", "xid 731", b"\x00\x00\x02\xdb")
SUBXID = ("Int32", "xid 732", b"\x00\x00\x02\xdc")
XID_HIGH = ("Int32", "xid 4294967295", b"\xff\xff\xff\xff")
OID = ("Int32", "relation 16394", b"\x00\x00\x40\x0a")
OID_HIGH = ("Int32", "relation 4294967294: unsigned", b"\xff\xff\xff\xfe")
NO_FLAGS = ("Int8", "flags", b"\x00")
GID = ("String", "gid", b"tx-\xc3\xbc\x00")

_LSN_1, _LSN_2 = Lsn.parse("0/16B3748"), Lsn.parse("0/16B3778")
_LSN_HIGH = Lsn.parse("7FFFFFFF/FFFFFFFF")
_TIME_1 = 757_382_400_000_000
_OID = 16394

_COLUMNS = (
    ("Int16", "3 columns", b"\x00\x03"),
    ("Int8", "flags: key", b"\x01"),
    ("String", "name", b"id\x00"),
    ("Int32", "type int4", b"\x00\x00\x00\x17"),
    ("Int32", "no typmod", b"\xff\xff\xff\xff"),
    ("Int8", "flags", b"\x00"),
    ("String", "name", b"Stra\xc3\x9fe\x00"),
    ("Int32", "type varchar", b"\x00\x00\x04\x13"),
    ("Int32", "typmod of varchar(40)", b"\x00\x00\x00\x2c"),
    ("Int8", "flags", b"\x00"),
    ("String", "name", b"c\x00"),
    ("Int32", "type 4294967295", b"\xff\xff\xff\xff"),
    ("Int32", "no typmod", b"\xff\xff\xff\xff"),
)
_RELATION_COLUMNS = (
    RelationColumn(1, "id", 23, -1),
    RelationColumn(0, "Straße", 1043, 44),
    RelationColumn(0, "c", 2**32 - 1, -1),
)

_ROW = (
    ("Int16", "4 columns", b"\x00\x04"),
    ("Byte1", "text", b"t"),
    ("Int32", "length", b"\x00\x00\x00\x02"),
    ("Byten", "value", b"42"),
    ("Byte1", "null", b"n"),
    ("Byte1", "unchanged", b"u"),
    ("Byte1", "binary", b"b"),
    ("Int32", "length", b"\x00\x00\x00\x04"),
    ("Byten", "value", b"\x00\x00\x00\x2a"),
)
_TUPLE = TupleData.of("42", None, UNCHANGED, b"\x00\x00\x00\x2a")

_KEY_ROW = (
    ("Int16", "2 columns", b"\x00\x02"),
    ("Byte1", "text", b"t"),
    ("Int32", "length", b"\x00\x00\x00\x01"),
    ("Byten", "value", b"7"),
    ("Byte1", "not part of the key", b"n"),
)
_KEY_TUPLE = TupleData.of("7", None)

VECTORS: tuple[Vector, ...] = (
    Vector(
        "Begin",
        Begin(_LSN_1, _TIME_1, 731),
        (("Byte1", "tag", b"B"), LSN_1, TIME_1, XID),
    ),
    Vector(
        "Begin, the extremes",
        Begin(_LSN_HIGH, -1, 2**32 - 1),
        (("Byte1", "tag", b"B"), LSN_HIGH, TIME_2, XID_HIGH),
    ),
    Vector(
        "Commit",
        Commit(0, _LSN_1, _LSN_2, _TIME_1),
        (("Byte1", "tag", b"C"), NO_FLAGS, LSN_1, LSN_2, TIME_1),
    ),
    Vector(
        "Origin",
        Origin(_LSN_1, "pg_16389"),
        (("Byte1", "tag", b"O"), LSN_1, ("String", "name", b"pg_16389\x00")),
    ),
    Vector(
        "Origin after Stream Start: no LSN, and no xid either",
        Origin(Lsn(0), "pg_16389"),
        (
            ("Byte1", "tag", b"O"),
            ("Int64", "0/0", bytes(8)),
            ("String", "name", b"pg_16389\x00"),
        ),
        IN_STREAM,
    ),
    Vector(
        "Relation",
        Relation(_OID, "public", "t", ReplicaIdentity.DEFAULT, _RELATION_COLUMNS),
        (
            ("Byte1", "tag", b"R"),
            OID,
            ("String", "namespace", b"public\x00"),
            ("String", "name", b"t\x00"),
            ("Int8", "replica identity", b"d"),
            *_COLUMNS,
        ),
    ),
    Vector(
        "Relation in a stream, in pg_catalog, FULL",
        Relation(2**32 - 2, "", "t", ReplicaIdentity.FULL, _RELATION_COLUMNS, xid=732),
        (
            ("Byte1", "tag", b"R"),
            SUBXID,
            OID_HIGH,
            ("String", "namespace", b"\x00"),
            ("String", "name", b"t\x00"),
            ("Int8", "replica identity", b"f"),
            *_COLUMNS,
        ),
        IN_STREAM,
    ),
    Vector(
        "Relation without columns, NOTHING",
        Relation(_OID, "s", "t", ReplicaIdentity.NOTHING, ()),
        (
            ("Byte1", "tag", b"R"),
            OID,
            ("String", "namespace", b"s\x00"),
            ("String", "name", b"t\x00"),
            ("Int8", "replica identity", b"n"),
            ("Int16", "no columns", b"\x00\x00"),
        ),
    ),
    Vector(
        "Type",
        Type(16390, "public", "mood"),
        (
            ("Byte1", "tag", b"Y"),
            ("Int32", "type 16390", b"\x00\x00\x40\x06"),
            ("String", "namespace", b"public\x00"),
            ("String", "name", b"mood\x00"),
        ),
    ),
    Vector(
        "Type in a stream",
        Type(16390, "public", "mood", xid=732),
        (
            ("Byte1", "tag", b"Y"),
            SUBXID,
            ("Int32", "type 16390", b"\x00\x00\x40\x06"),
            ("String", "namespace", b"public\x00"),
            ("String", "name", b"mood\x00"),
        ),
        IN_STREAM,
    ),
    Vector(
        "Insert, every kind of value",
        Insert(_OID, _TUPLE),
        (("Byte1", "tag", b"I"), OID, ("Byte1", "new", b"N"), *_ROW),
    ),
    Vector(
        "Insert in a stream",
        Insert(_OID, _TUPLE, xid=732),
        (("Byte1", "tag", b"I"), SUBXID, OID, ("Byte1", "new", b"N"), *_ROW),
        IN_STREAM,
    ),
    Vector(
        "Insert of a row without columns",
        Insert(_OID, TupleData.of()),
        (
            ("Byte1", "tag", b"I"),
            OID,
            ("Byte1", "new", b"N"),
            ("Int16", "no columns", b"\x00\x00"),
        ),
    ),
    Vector(
        "Insert of empty values: text and binary",
        Insert(_OID, TupleData.of("", b"")),
        (
            ("Byte1", "tag", b"I"),
            OID,
            ("Byte1", "new", b"N"),
            ("Int16", "2 columns", b"\x00\x02"),
            ("Byte1", "text", b"t"),
            ("Int32", "length", b"\x00\x00\x00\x00"),
            ("Byte1", "binary", b"b"),
            ("Int32", "length", b"\x00\x00\x00\x00"),
        ),
    ),
    Vector(
        "Update with an unchanged key",
        Update(_OID, None, _TUPLE),
        (("Byte1", "tag", b"U"), OID, ("Byte1", "new", b"N"), *_ROW),
    ),
    Vector(
        "Update of a key",
        Update(_OID, OldKey(_KEY_TUPLE), _TUPLE),
        (
            ("Byte1", "tag", b"U"),
            OID,
            ("Byte1", "old key", b"K"),
            *_KEY_ROW,
            ("Byte1", "new", b"N"),
            *_ROW,
        ),
    ),
    Vector(
        "Update under REPLICA IDENTITY FULL, in a stream",
        Update(_OID, OldRow(_KEY_TUPLE), _TUPLE, xid=731),
        (
            ("Byte1", "tag", b"U"),
            XID,
            OID,
            ("Byte1", "old row", b"O"),
            *_KEY_ROW,
            ("Byte1", "new", b"N"),
            *_ROW,
        ),
        IN_STREAM,
    ),
    Vector(
        "Delete by key",
        Delete(_OID, OldKey(_KEY_TUPLE)),
        (("Byte1", "tag", b"D"), OID, ("Byte1", "old key", b"K"), *_KEY_ROW),
    ),
    Vector(
        "Delete under REPLICA IDENTITY FULL, in a stream",
        Delete(_OID, OldRow(_KEY_TUPLE), xid=732),
        (("Byte1", "tag", b"D"), SUBXID, OID, ("Byte1", "old row", b"O"), *_KEY_ROW),
        IN_STREAM,
    ),
    Vector(
        "Truncate of one relation",
        Truncate((_OID,), 0),
        (
            ("Byte1", "tag", b"T"),
            ("Int32", "1 relation", b"\x00\x00\x00\x01"),
            ("Int8", "flags", b"\x00"),
            OID,
        ),
    ),
    Vector(
        "Truncate of two, CASCADE RESTART IDENTITY, in a stream",
        Truncate((_OID, 2**32 - 2), 3, xid=732),
        (
            ("Byte1", "tag", b"T"),
            SUBXID,
            ("Int32", "2 relations", b"\x00\x00\x00\x02"),
            ("Int8", "flags: cascade 1, restart identity 2", b"\x03"),
            OID,
            OID_HIGH,
        ),
        IN_STREAM,
    ),
    Vector(
        "LogicalMessage, not transactional",
        LogicalMessage(0, _LSN_1, "outbox", b"\x00\xff any"),
        (
            ("Byte1", "tag", b"M"),
            ("Int8", "flags", b"\x00"),
            LSN_1,
            ("String", "prefix", b"outbox\x00"),
            ("Int32", "length", b"\x00\x00\x00\x06"),
            ("Byten", "content", b"\x00\xff any"),
        ),
    ),
    Vector(
        "LogicalMessage in a stream, empty",
        LogicalMessage(1, _LSN_1, "", b"", xid=731),
        (
            ("Byte1", "tag", b"M"),
            XID,
            ("Int8", "flags: transactional", b"\x01"),
            LSN_1,
            ("String", "prefix", b"\x00"),
            ("Int32", "length", b"\x00\x00\x00\x00"),
        ),
        IN_STREAM,
    ),
    Vector(
        "StreamStart, the first",
        StreamStart(731, is_first=True),
        (("Byte1", "tag", b"S"), XID, ("Int8", "first segment", b"\x01")),
    ),
    Vector(
        "StreamStart, a later one",
        StreamStart(731, is_first=False),
        (("Byte1", "tag", b"S"), XID, ("Int8", "first segment", b"\x00")),
    ),
    Vector("StreamStop", StreamStop(), (("Byte1", "tag", b"E"),), IN_STREAM),
    Vector(
        "StreamCommit",
        StreamCommit(731, 0, _LSN_1, _LSN_2, _TIME_1),
        (("Byte1", "tag", b"c"), XID, NO_FLAGS, LSN_1, LSN_2, TIME_1),
    ),
    Vector(
        "StreamAbort of a subtransaction",
        StreamAbort(731, 732),
        (("Byte1", "tag", b"A"), XID, SUBXID),
    ),
    Vector(
        "StreamAbort of the whole, under streaming 'parallel'",
        StreamAbort(731, 731, Aborted(_LSN_1, _TIME_1)),
        (("Byte1", "tag", b"A"), XID, XID, LSN_1, TIME_1),
        PARALLEL,
    ),
    Vector(
        "BeginPrepare",
        BeginPrepare(_LSN_1, _LSN_2, _TIME_1, 731, "tx-ü"),
        (("Byte1", "tag", b"b"), LSN_1, LSN_2, TIME_1, XID, GID),
    ),
    Vector(
        "Prepare",
        Prepare(0, _LSN_1, _LSN_2, _TIME_1, 731, "tx-ü"),
        (("Byte1", "tag", b"P"), NO_FLAGS, LSN_1, LSN_2, TIME_1, XID, GID),
    ),
    Vector(
        "StreamPrepare",
        StreamPrepare(0, _LSN_1, _LSN_2, _TIME_1, 731, "tx-ü"),
        (("Byte1", "tag", b"p"), NO_FLAGS, LSN_1, LSN_2, TIME_1, XID, GID),
    ),
    Vector(
        "CommitPrepared",
        CommitPrepared(0, _LSN_1, _LSN_2, _TIME_1, 731, "tx-ü"),
        (("Byte1", "tag", b"K"), NO_FLAGS, LSN_1, LSN_2, TIME_1, XID, GID),
    ),
    Vector(
        "RollbackPrepared",
        RollbackPrepared(0, _LSN_1, _LSN_2, _TIME_1, -1, 731, "tx-ü"),
        (("Byte1", "tag", b"r"), NO_FLAGS, LSN_1, LSN_2, TIME_1, TIME_2, XID, GID),
    ),
)

FRAME_VECTORS: tuple[Vector, ...] = (
    Vector(
        "XLogData",
        XLogData(_LSN_1, _LSN_2, _TIME_1, b"E"),
        (("Byte1", "tag", b"w"), LSN_1, LSN_2, TIME_1, ("Byten", "message", b"E")),
    ),
    Vector(
        "Keepalive",
        Keepalive(_LSN_1, _TIME_1, reply_requested=True),
        (("Byte1", "tag", b"k"), LSN_1, TIME_1, ("Int8", "reply", b"\x01")),
    ),
    Vector(
        "StandbyStatusUpdate",
        StandbyStatusUpdate(_LSN_2, _LSN_1, Lsn(0), _TIME_1, reply_requested=False),
        (
            ("Byte1", "tag", b"r"),
            LSN_2,
            LSN_1,
            ("Int64", "0/0", bytes(8)),
            TIME_1,
            ("Int8", "reply", b"\x00"),
        ),
    ),
    Vector(
        "HotStandbyFeedback",
        HotStandbyFeedback(_TIME_1, 731, 1, 2**32 - 1, 0),
        (
            ("Byte1", "tag", b"h"),
            TIME_1,
            XID,
            ("Int32", "epoch", b"\x00\x00\x00\x01"),
            XID_HIGH,
            ("Int32", "epoch", b"\x00\x00\x00\x00"),
        ),
    ),
)
