"""Whatever can be built travels: ``decode(encode(m)) == m``, over all messages and values."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.errors import ProtocolError
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
    decode_copy_data,
    decode_message,
)

lsns = st.integers(0, 2**63 - 1).map(Lsn)
times = st.integers(-(2**63), 2**63 - 1)
u32s = st.integers(0, 2**32 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
no_flags = st.just(0)

columns = st.builds(
    RelationColumn, st.integers(0, 1), names, u32s, st.integers(-(2**31), 2**31 - 1)
)
values = st.none() | st.just(UNCHANGED) | names | st.binary(max_size=30)
tuples = st.lists(values, max_size=12).map(lambda some: TupleData.of(*some))
old_tuples = st.builds(OldKey, tuples) | st.builds(OldRow, tuples)
column_lists = st.lists(columns, max_size=6).map(tuple)
prepares = (no_flags, lsns, lsns, times, u32s, names)


def with_xid(kind: type[Message], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages outside and inside a stream."""
    return st.builds(kind, *fields, xid=st.none() | u32s)


MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    Begin: st.builds(Begin, lsns, times, u32s),
    Commit: st.builds(Commit, no_flags, lsns, lsns, times),
    Origin: st.builds(Origin, lsns, names),
    Relation: with_xid(
        Relation, u32s, names, names, st.sampled_from(ReplicaIdentity), column_lists
    ),
    Type: with_xid(Type, u32s, names, names),
    Insert: with_xid(Insert, u32s, tuples),
    Update: with_xid(Update, u32s, st.none() | old_tuples, tuples),
    Delete: with_xid(Delete, u32s, old_tuples),
    Truncate: with_xid(Truncate, st.lists(u32s, max_size=5).map(tuple), st.integers(0, 3)),
    LogicalMessage: with_xid(
        LogicalMessage, st.integers(0, 1), lsns, names, st.binary(max_size=50)
    ),
    StreamStart: st.builds(StreamStart, u32s, st.booleans()),
    StreamStop: st.builds(StreamStop),
    StreamCommit: st.builds(StreamCommit, u32s, no_flags, lsns, lsns, times),
    StreamAbort: st.builds(StreamAbort, u32s, u32s, st.none() | st.builds(Aborted, lsns, times)),
    BeginPrepare: st.builds(BeginPrepare, lsns, lsns, times, u32s, names),
    Prepare: st.builds(Prepare, *prepares),
    StreamPrepare: st.builds(StreamPrepare, *prepares),
    CommitPrepared: st.builds(CommitPrepared, *prepares),
    RollbackPrepared: st.builds(RollbackPrepared, no_flags, lsns, lsns, times, times, u32s, names),
}
FRAMES: dict[type[CopyData], st.SearchStrategy[Any]] = {
    XLogData: st.builds(XLogData, lsns, lsns, times, st.binary(max_size=50)),
    Keepalive: st.builds(Keepalive, lsns, times, st.booleans()),
    StandbyStatusUpdate: st.builds(StandbyStatusUpdate, lsns, lsns, lsns, times, st.booleans()),
    HotStandbyFeedback: st.builds(HotStandbyFeedback, times, u32s, u32s, u32s, u32s),
}


def decode(message: Message, data: bytes) -> Message:
    in_stream = getattr(message, "xid", None) is not None
    parallel = isinstance(message, StreamAbort) and message.at is not None
    return decode_message(data, in_stream=in_stream, parallel=parallel)


def test_every_message_has_a_strategy() -> None:
    assert set(MESSAGES) == set(get_args(Message))
    assert set(FRAMES) == set(get_args(CopyData))


@settings(max_examples=examples(400))
@given(st.one_of(list(MESSAGES.values())))
def test_messages_travel(message: Message) -> None:
    assert decode(message, message.encode()) == message


@given(st.one_of(list(FRAMES.values())))
def test_frames_travel(frame: CopyData) -> None:
    assert decode_copy_data(frame.encode()) == frame


@settings(max_examples=examples(200))
@given(st.one_of(list(MESSAGES.values())), st.data())
def test_no_message_is_the_beginning_of_another(message: Message, data: st.DataObject) -> None:
    """So that every cut is noticed: no message is valid without its last bytes."""
    whole = message.encode()
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        decode(message, whole[:size])


@settings(max_examples=examples(300))
@given(st.binary(max_size=60), st.booleans(), st.booleans())
def test_any_bytes_are_a_message_or_a_protocol_error(
    data: bytes, in_stream: bool, parallel: bool
) -> None:
    for decoder in (
        decode_copy_data,
        lambda data: decode_message(data, in_stream=in_stream, parallel=parallel),
    ):
        try:
            message = decoder(data)
        except ProtocolError:
            continue
        assert message.encode() == data
