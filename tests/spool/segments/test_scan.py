"""The scan of raw messages, compared with a model that looks at one message at a time."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.transactions import begin, commit, facts, insert, raw, relation, transaction

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages
from pgsluice.spool.segments.block import count_changes, part_block, plain_block
from pgsluice.wire import POSTGRES_EPOCH_US, LogicalMessage, Truncate, XLogData

OIDS = st.sampled_from([5, 16385, 2**32 - 1])
CHANGES = st.one_of(
    OIDS.map(insert),
    OIDS.map(relation),
    OIDS.map(facts),
    st.lists(OIDS, min_size=1, max_size=3).map(
        lambda oids: Truncate(flags=0, oids=tuple(oids)).encode()
    ),
)


def emitted(lsn: int) -> bytes:
    return LogicalMessage(flags=0, lsn=Lsn(lsn), prefix="p", content=b"c").encode()


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("transaction"), st.lists(CHANGES, max_size=6), st.integers(1, 2**32 - 1)),
        st.tuples(st.just("message"), st.just([]), st.just(0)),
        st.tuples(st.just("facts"), st.just([]), st.just(0)),
    ),
    max_size=8,
)


def block_of(messages: RawMessages):
    return plain_block(messages)


def expected(pieces):
    """(messages, rows of (tag, oid, position, timestamp, xid, ordinal))."""
    messages, rows, waiting = [], [], []
    lsn = 1000
    last_position = last_timestamp = last_xid = 0
    for kind, changes, xid in pieces:
        lsn += 100
        if kind == "facts":
            messages.append((0, facts(5)))
            waiting.append(len(rows))
            rows.append([ord("#"), 5, None, None, None, 0])
            continue
        if kind == "message":
            messages.append((lsn, emitted(lsn)))
            rows.append([ord("M"), 0, lsn + 1, None, 0, 0])
            continue
        ordinal = 0
        for message in [begin(lsn, xid), *changes, commit(lsn)]:
            messages.append((lsn, message))
            tag = message[0]
            oid = struct.unpack_from(">I", message, 1)[0] if tag in b"RIUD#" else 0
            rows.append([tag, oid, lsn, lsn + POSTGRES_EPOCH_US, xid, ordinal])
            ordinal += tag in b"IUDTM"
        last_position, last_timestamp, last_xid = lsn, lsn + POSTGRES_EPOCH_US, xid
        for index in waiting:
            rows[index][2:5] = last_position, last_timestamp, last_xid
        waiting = []
    for index in waiting:
        rows[index][2:5] = last_position, last_timestamp, last_xid
    return messages, rows


@given(PIECES)
def test_every_column_agrees_with_the_model(pieces):
    messages, rows = expected(pieces)
    block = block_of(RawMessages.from_messages(messages))
    assert [block.message(i) for i in range(len(block))] == [message for _, message in messages]
    assert block.tags.tolist() == [row[0] for row in rows]
    assert block.oids.tolist() == [row[1] for row in rows]
    assert block.ordinals.tolist() == [row[5] for row in rows]
    has_transaction = any(kind == "transaction" for kind, _, _ in pieces)
    for index, (tag, _, position, timestamp, xid, _) in enumerate(rows):
        if has_transaction or tag == ord("M"):
            assert block.positions[index] == position
            assert block.xids[index] == xid
        if has_transaction and timestamp is not None:
            assert block.commit_timestamps[index] == timestamp


@given(PIECES)
def test_frames_give_their_messages_without_headers(pieces):
    messages, _ = expected(pieces)
    frames = [XLogData(Lsn(lsn), Lsn(0), 0, message).encode() for lsn, message in messages]
    framed = RawMessages.from_frames(b"".join(frames), [len(frame) for frame in frames])
    assert framed.lsns.tolist() == [lsn for lsn, _ in messages]
    assert (framed.ends - framed.starts).sum() == sum(len(message) for _, message in messages)
    block = block_of(framed)
    assert [block.message(i) for i in range(len(block))] == [message for _, message in messages]


@pytest.mark.parametrize(
    "messages",
    [
        [begin(100), insert(5)],
        [insert(5), commit(100)],
        [begin(100), begin(200), commit(200), commit(300)],
        [begin(100), commit(100), insert(5)],
        [b""],
        [begin(100)[:-1], commit(100)],
        [begin(100), commit(100) + b"x"],
        [begin(100), b"I\0\0", commit(100)],
        [b"M\0\0\0\0"],
        [b"M\0" + bytes(7), begin(100), commit(100)],
    ],
)
def test_messages_that_are_not_whole_transactions_are_refused(messages):
    with pytest.raises(ProtocolError):
        block_of(RawMessages.from_messages([(0, message) for message in messages]))


def test_changes_are_counted_by_relation_and_kind():
    messages = raw(
        transaction(2000, [insert(5), insert(5), Truncate(flags=0, oids=(5, 6)).encode()]),
        transaction(3000, [insert(6, b"longer")]),
    )
    counts = count_changes(block_of(messages))
    assert (counts.messages, counts.changes) == (8, 4)
    five, six = counts.relations[5], counts.relations[6]
    assert (five.inserts, five.truncates, five.size_bytes) == (2, 1, 2 * len(insert(5)))
    assert (six.inserts, six.updates, six.deletes, six.truncates) == (1, 0, 0, 1)
    assert six.size_bytes == len(insert(6, b"longer"))


def test_a_part_has_the_position_and_xid_of_its_reference():
    messages = RawMessages.from_messages([(0, insert(5)), (0, relation(6)), (0, insert(6))])
    block = part_block(
        messages, in_stream=False, position=900, commit_timestamp=11, xid=3, ordinal_start=40
    )
    assert block.ordinals.tolist() == [40, 41, 41]
    assert set(block.positions.tolist()) == {900}
    assert np.unique(block.xids).tolist() == [3]
