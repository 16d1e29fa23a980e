"""pgoutput, the protocol of PostgreSQL's logical replication: bytes to messages and back.

Standard library only, no input or output. ``encode(decode(b)) == b`` for every message that
a server sends; every other byte string is a :class:`~pgsluice.errors.ProtocolError`.

>>> decode_message(bytes.fromhex("490000400a4e0001740000000131"))
Insert(oid=16394, new=TupleData(kinds=b't', values=(b'1',)), xid=None)
"""

from pgsluice.wire.basic import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    OldKey,
    OldRow,
    Origin,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Truncate,
    Type,
    Update,
)
from pgsluice.wire.copydata import (
    CopyData,
    HotStandbyFeedback,
    Keepalive,
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
)
from pgsluice.wire.decoder import MESSAGES, Message, decode_message
from pgsluice.wire.message import POSTGRES_EPOCH_US
from pgsluice.wire.tuples import UNCHANGED, TupleData

__all__ = [
    "MESSAGES",
    "POSTGRES_EPOCH_US",
    "UNCHANGED",
    "Begin",
    "Commit",
    "CopyData",
    "Delete",
    "HotStandbyFeedback",
    "Insert",
    "Keepalive",
    "LogicalMessage",
    "Message",
    "OldKey",
    "OldRow",
    "Origin",
    "Relation",
    "RelationColumn",
    "ReplicaIdentity",
    "StandbyStatusUpdate",
    "Truncate",
    "TupleData",
    "Type",
    "Update",
    "XLogData",
    "decode_copy_data",
    "decode_message",
]
