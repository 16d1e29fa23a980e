"""Messages of small transactions, and a machine that follows them."""

from __future__ import annotations

import pytest

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire import (
    Begin,
    BeginPrepare,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Step,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TransactionMachine,
    TupleData,
)

LSN, END = Lsn(100), Lsn(200)
OID = 16394
ROW = TupleData.of("1")

BEGIN = Begin(LSN, 0, 7)
COMMIT = Commit(0, LSN, END, 0)
LATER = Commit(0, LSN, Lsn(300), 0)
BEGIN_PREPARE = BeginPrepare(LSN, END, 0, 7, "g")
PREPARE = Prepare(0, LSN, END, 0, 7, "g")
FIRST, NEXT, STOP = StreamStart(7, True), StreamStart(7, False), StreamStop()
STREAM_COMMIT = StreamCommit(7, 0, LSN, END, 0)
STREAM_PREPARE = StreamPrepare(0, LSN, END, 0, 7, "g")
ABORT = StreamAbort(7, 7)


def relation(xid: int | None = None, name: str = "t", oid: int = OID) -> Relation:
    columns = (RelationColumn(1, "id", 23, -1),)
    return Relation(oid, "public", name, ReplicaIdentity.DEFAULT, columns, xid)


def insert(xid: int | None = None) -> Insert:
    return Insert(OID, ROW, xid)


def logical(xid: int | None = None, *, transactional: bool = True) -> LogicalMessage:
    return LogicalMessage(int(transactional), LSN, "p", b"", xid)


def follow(machine: TransactionMachine, *messages: Message) -> list[Step]:
    """Feed messages as bytes, so that decoding follows the state too."""
    steps = []
    for message in messages:
        decoded, step = machine.feed(message.encode())
        assert decoded == message
        steps.append(step)
    return steps


def followed(*messages: Message) -> TransactionMachine:
    machine = TransactionMachine()
    follow(machine, *messages)
    return machine


def refused(machine: TransactionMachine, message: Message) -> ProtocolError:
    before = (machine.state, machine.xid, machine.open_streams)
    with pytest.raises(ProtocolError) as caught:
        machine.receive(message)
    assert (machine.state, machine.xid, machine.open_streams) == before
    error = caught.value
    assert error.tag == message.tag
    assert type(message).__name__ in str(error)
    assert error.state in str(error)
    return error
