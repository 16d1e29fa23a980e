"""pgoutput, the protocol of PostgreSQL's logical replication: bytes to messages and back.

Standard library only, no input or output. ``encode(decode(b)) == b`` for every message that
a server sends; every other byte string is a :class:`~pgsluice.errors.ProtocolError`.

>>> decode_message(bytes.fromhex("490000400a4e0001740000000131"))
Insert(oid=16394, new=TupleData(kinds=b't', values=(b'1',)), xid=None)
"""

from pgsluice.wire.copydata import (
    XLOG_DATA_HEADER,
    CopyData,
    HotStandbyFeedback,
    Keepalive,
    StandbyStatusUpdate,
    XLogData,
    decode_copy_data,
)
from pgsluice.wire.decoder import decode_first_message, decode_message
from pgsluice.wire.fields import POSTGRES_EPOCH_US
from pgsluice.wire.messages import (
    MESSAGES,
    Aborted,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from pgsluice.wire.transactions import TransactionMachine
from pgsluice.wire.transitions import (
    STANDALONE,
    STREAM_TRANSITIONS,
    TRANSITIONS,
    Event,
    State,
    Step,
    StreamState,
)
from pgsluice.wire.tuples import UNCHANGED, OldKey, OldRow, TupleData
