"""What may follow what, and which of a transaction's messages count in the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.wire_streams import Streams

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire import (
    STANDALONE,
    STREAM_TRANSITIONS,
    TRANSITIONS,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Event,
    Insert,
    LogicalMessage,
    Message,
    OldKey,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    State,
    Step,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamState,
    StreamStop,
    TransactionTracker,
    Truncate,
    TupleData,
    Type,
    Update,
)

LSN, END = Lsn(100), Lsn(200)
OID = 16394
ROW = TupleData.of("1")

BEGIN = Begin(LSN, 0, 7)
COMMIT = Commit(0, LSN, END, 0)
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


def follow(tracker: TransactionTracker, *messages: Message) -> list[Step]:
    """Feed messages as bytes, so that decoding follows the state too."""
    steps = []
    for message in messages:
        decoded, step = tracker.feed(message.encode())
        assert decoded == message
        steps.append(step)
    return steps


def followed(*messages: Message) -> TransactionTracker:
    tracker = TransactionTracker()
    follow(tracker, *messages)
    return tracker


def refused(tracker: TransactionTracker, message: Message) -> ProtocolError:
    before = (tracker.state, tracker.xid, tracker.open_streams)
    with pytest.raises(ProtocolError) as caught:
        tracker.receive(message)
    assert (tracker.state, tracker.xid, tracker.open_streams) == before
    error = caught.value
    assert error.tag == message.tag
    assert type(message).__name__ in str(error)
    assert error.state in str(error)
    return error


# ── the tables ──────────────────────────────────────────────────────────────────────────────


def test_what_may_follow_what() -> None:
    """The table in short; whoever changes one has to change the other."""
    content = {*"ORYIUDTM"}
    assert {state: set(legal) for state, legal in TRANSITIONS.items()} == {
        State.OUTSIDE: {*"BbScpAKr", STANDALONE},
        State.TRANSACTION: content | {"C"},
        State.PREPARE: content | {"P"},
        State.STREAM: content | {"E"},
    }
    assert {state: set(legal) for state, legal in STREAM_TRANSITIONS.items()} == {
        StreamState.UNKNOWN: {"S, the first", "A", "A of a subtransaction"},
        StreamState.OPEN: {"S", "c", "p", "A", "A of a subtransaction"},
    }


PREFIXES: dict[State, tuple[Message, ...]] = {
    State.OUTSIDE: (FIRST, STOP),
    State.TRANSACTION: (BEGIN, relation()),
    State.PREPARE: (BEGIN_PREPARE, relation()),
    State.STREAM: (FIRST, relation(7)),
}


def every_message(xid: int | None) -> dict[str, Message]:
    """One message of each name in the table; those with an xid have the given one."""
    return {
        "B": BEGIN,
        "C": COMMIT,
        "O": Origin(LSN, "o"),
        "R": relation(xid),
        "Y": Type(1, "s", "t", xid),
        "I": insert(xid),
        "U": Update(OID, None, ROW, xid),
        "D": Delete(OID, OldKey(ROW), xid),
        "T": Truncate((OID,), 0, xid),
        "M": logical(xid),
        STANDALONE: logical(xid, transactional=False),
        "S": NEXT,
        "E": STOP,
        "c": STREAM_COMMIT,
        "A": ABORT,
        "b": BEGIN_PREPARE,
        "P": PREPARE,
        "p": STREAM_PREPARE,
        "K": CommitPrepared(0, LSN, END, 0, 7, "g"),
        "r": RollbackPrepared(0, LSN, END, 0, 0, 7, "g"),
    }


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_each_state_takes_what_its_table_has_and_nothing_else(state: State) -> None:
    messages = every_message(7 if state is State.STREAM else None)
    assert messages.keys() == {name for legal in TRANSITIONS.values() for name in legal}
    for name, message in messages.items():
        tracker = followed(*PREFIXES[state])
        assert tracker.state is state
        if name in TRANSITIONS[state]:
            after, _ = TRANSITIONS[state][name]
            tracker.receive(message)
            assert tracker.state is after
        else:
            refused(tracker, message)


def test_an_illegal_message_says_what_would_be_legal() -> None:
    error = refused(TransactionTracker(), COMMIT)
    assert error.state == "outside of a transaction"
    assert error.expected.startswith("one of B, b, S")
    assert "Commit message (C) cannot come here (outside of a transaction)" in str(error)


@pytest.mark.parametrize("message", [NEXT, STREAM_COMMIT, STREAM_PREPARE])
def test_a_stream_that_is_not_open_cannot_go_on(message: Message) -> None:
    for tracker in (
        TransactionTracker(),
        followed(FIRST, STOP, ABORT),
        followed(FIRST, STOP, STREAM_COMMIT),
        followed(FIRST, STOP, STREAM_PREPARE),
    ):
        error = refused(tracker, message)
        assert error.state == "not open"
        assert "transaction 7 is not open" in str(error)


def test_a_stream_opens_once() -> None:
    assert "transaction 7 is open" in str(refused(followed(FIRST, STOP), FIRST))


# ── plain transactions ──────────────────────────────────────────────────────────────────────


def test_a_transaction() -> None:
    tracker = TransactionTracker()
    steps = follow(tracker, BEGIN, Origin(LSN, "o"), relation(), insert(), logical(), COMMIT)
    assert [step.event for step in steps] == [
        Event.OPENED,
        *[Event.CONTENT] * 4,
        Event.COMMITTED,
    ]
    assert [step.length for step in steps] == [0, 1, 2, 3, 4, 4]
    assert {step.xid for step in steps} == {7}
    assert (tracker.state, tracker.xid) == (State.OUTSIDE, None)


def test_an_empty_transaction_and_a_repeated_relation() -> None:
    steps = follow(TransactionTracker(), BEGIN, COMMIT, BEGIN, relation(), relation(), COMMIT)
    assert [step.length for step in steps] == [0, 0, 0, 1, 2, 2]


def test_a_commit_names_its_transaction() -> None:
    error = refused(followed(BEGIN), Commit(0, Lsn(101), END, 0))
    assert error.state == "inside B … C"
    assert error.xid == 7


def test_a_message_outside_of_all_transactions() -> None:
    tracker = TransactionTracker()
    standalone = logical(transactional=False)
    assert follow(tracker, standalone) == [Step(Event.STANDALONE, None, 0)]
    # Between the blocks of a transaction in progress too: then without an xid.
    follow(tracker, FIRST, STOP)
    assert follow(tracker, standalone) == [Step(Event.STANDALONE, None, 0)]
    assert tracker.open_streams == {7}


@pytest.mark.parametrize(
    "message",
    [insert(), Truncate((OID,), 0), Update(OID, None, ROW), Delete(OID, OldKey(ROW))],
    ids=lambda message: type(message).__name__,
)
def test_a_change_comes_after_its_relation(message: Message) -> None:
    error = refused(followed(BEGIN, relation(oid=1)), message)
    assert f"relation {OID} is sent before its changes" in error.expected


def test_all_of_a_truncates_relations_are_known() -> None:
    tracker = followed(BEGIN, relation())
    refused(tracker, Truncate((OID, 1), 0))
    follow(tracker, relation(oid=1), Truncate((OID, 1), 0), COMMIT)


def test_relations_stay_for_the_connection() -> None:
    tracker = followed(BEGIN, Type(1, "s", "mood"), relation(), COMMIT)
    assert tracker.relation(OID) == relation()
    assert tracker.type_name(1) == Type(1, "s", "mood")
    assert (tracker.relation(1), tracker.type_name(OID)) == (None, None)
    follow(tracker, BEGIN, insert(), COMMIT, BEGIN, relation(name="renamed"), COMMIT)
    assert tracker.relation(OID) == relation(name="renamed")


# ── two-phase ───────────────────────────────────────────────────────────────────────────────


def test_a_prepared_transaction_is_decided_later() -> None:
    tracker = TransactionTracker()
    steps = follow(
        tracker,
        BEGIN_PREPARE,
        relation(),
        insert(),
        PREPARE,
        BEGIN,  # others may come between
        COMMIT,
        CommitPrepared(0, LSN, END, 0, 7, "g"),
        RollbackPrepared(0, LSN, END, 0, 0, 8, "unknown here: of an earlier connection"),
    )
    assert [(step.event, step.xid, step.length) for step in steps[3:]] == [
        (Event.PREPARED, 7, 2),
        (Event.OPENED, 7, 0),
        (Event.COMMITTED, 7, 0),
        (Event.COMMIT_PREPARED, 7, 0),
        (Event.ROLLBACK_PREPARED, 8, 0),
    ]


@pytest.mark.parametrize(
    "prepare",
    [
        Prepare(0, Lsn(101), END, 0, 7, "g"),
        Prepare(0, LSN, Lsn(201), 0, 7, "g"),
        Prepare(0, LSN, END, 0, 8, "g"),
        Prepare(0, LSN, END, 0, 7, "h"),
    ],
)
def test_a_prepare_names_its_transaction(prepare: Prepare) -> None:
    refused(followed(BEGIN_PREPARE), prepare)


def test_a_streamed_transaction_can_be_prepared() -> None:
    tracker = TransactionTracker()
    steps = follow(tracker, FIRST, relation(7), insert(7), STOP, STREAM_PREPARE)
    assert steps[-1] == Step(Event.PREPARED, 7, 2)
    # What it learnt is not committed: the server sends the relation again.
    assert tracker.relation(OID) is None
    assert tracker.open_streams == frozenset()


# ── streams ─────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_in_progress() -> None:
    tracker = TransactionTracker()
    steps = follow(tracker, FIRST, Origin(Lsn(0), "o"), relation(7), insert(7), STOP)
    steps += follow(tracker, NEXT, insert(8), logical(7), STOP, STREAM_COMMIT)
    assert [(step.event, step.length) for step in steps] == [
        (Event.OPENED, 0),
        (Event.CONTENT, 1),
        (Event.CONTENT, 2),
        (Event.CONTENT, 3),
        (Event.PAUSED, 3),
        (Event.RESUMED, 3),
        (Event.CONTENT, 4),
        (Event.CONTENT, 5),
        (Event.PAUSED, 5),
        (Event.COMMITTED, 5),
    ]
    assert {step.xid for step in steps} == {7}  # the top level's, whatever the change's


def test_in_a_stream_changes_have_an_xid_and_only_there() -> None:
    refused(followed(FIRST, relation(7)), insert())
    refused(followed(FIRST), relation())
    refused(followed(BEGIN, relation()), insert(7))
    refused(TransactionTracker(), logical(7, transactional=False))


def test_an_abort_takes_back_from_the_subtransactions_first_message_on() -> None:
    tracker = followed(FIRST, relation(7), insert(7), insert(8), insert(9), insert(8), STOP)
    (step,) = follow(tracker, StreamAbort(7, 8))
    assert step == Step(Event.TAKEN_BACK, 7, 2)
    # Its child's own abort comes after it, and one that had nothing streamed: no change.
    assert follow(tracker, StreamAbort(7, 9), StreamAbort(7, 99)) == [step, step]
    # The relation came before the savepoint, and is still in force.
    follow(tracker, NEXT, insert(7), STOP)
    assert follow(tracker, STREAM_COMMIT) == [Step(Event.COMMITTED, 7, 3)]


def test_an_abort_of_the_child_alone() -> None:
    tracker = followed(FIRST, relation(7), insert(8), insert(9), STOP)
    assert follow(tracker, StreamAbort(7, 9)) == [Step(Event.TAKEN_BACK, 7, 2)]
    assert follow(tracker, StreamAbort(7, 8)) == [Step(Event.TAKEN_BACK, 7, 1)]


def test_a_subtransactions_id_is_not_remembered_after_its_abort() -> None:
    tracker = followed(FIRST, relation(7), insert(8), STOP, StreamAbort(7, 8))
    follow(tracker, NEXT, insert(7), STOP)
    assert follow(tracker, StreamAbort(7, 8)) == [Step(Event.TAKEN_BACK, 7, 2)]


def test_an_abort_of_an_unknown_transaction_means_nothing() -> None:
    tracker = TransactionTracker()
    for abort in (ABORT, StreamAbort(7, 8)):
        assert follow(tracker, abort) == [Step(Event.IGNORED, 7, 0)]
    assert tracker.open_streams == frozenset()


def test_an_abort_of_the_whole() -> None:
    tracker = followed(FIRST, relation(7), insert(7), STOP)
    assert follow(tracker, ABORT) == [Step(Event.ABORTED, 7, 0)]
    assert tracker.open_streams == frozenset()
    assert tracker.relation(OID) is None


def test_under_parallel_streaming_an_abort_says_where() -> None:
    tracker = TransactionTracker(parallel=True)
    abort = StreamAbort.decode(b"A\0\0\0\7\0\0\0\7" + bytes(16), parallel=True)
    _, step = tracker.feed(abort.encode())
    assert step.event is Event.IGNORED
    with pytest.raises(ProtocolError, match="abort_lsn"):
        tracker.feed(ABORT.encode())


def test_a_relation_learnt_in_an_aborted_subtransaction_is_forgotten() -> None:
    tracker = followed(FIRST, relation(7), Type(1, "s", "mood", 8), relation(8, "new"), insert(8))
    assert tracker.relation(OID) == relation(8, "new")
    follow(tracker, STOP, StreamAbort(7, 8), NEXT)
    assert tracker.relation(OID) == relation(7)
    assert tracker.type_name(1) is None
    follow(tracker, STOP, STREAM_COMMIT)
    assert tracker.relation(OID) == relation()


def test_in_a_stream_only_its_own_relations_count() -> None:
    tracker = followed(BEGIN, relation(), COMMIT, FIRST)
    assert tracker.relation(OID) is None
    refused(tracker, insert(7))
    follow(tracker, relation(7, "new"), STOP)
    assert tracker.relation(OID) == relation()  # until it is committed
    follow(tracker, STREAM_COMMIT)
    assert tracker.relation(OID) == relation(name="new")


def test_a_stream_does_not_bring_back_an_older_relation() -> None:
    """After ALTER PUBLICATION another transaction can bring other columns meanwhile."""
    tracker = followed(FIRST, relation(7, "old"), STOP, BEGIN, relation(name="new"), COMMIT)
    follow(tracker, STREAM_COMMIT)
    assert tracker.relation(OID) == relation(name="new")


def test_of_two_streams_the_newer_relation_counts_whichever_commits_first() -> None:
    second = StreamStart(9, True)
    for commits in ((7, 9), (9, 7)):
        tracker = followed(FIRST, relation(7, "old"), STOP, second, relation(9, "new"), STOP)
        follow(tracker, *(StreamCommit(xid, 0, LSN, END, 0) for xid in commits))
        assert tracker.relation(OID) == relation(name="new")


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_what_is_committed_is_what_was_not_rolled_back(
    generator: random.Random, parallel: bool
) -> None:
    """Transactions with savepoints, interleaved as a server streams them."""
    streams = Streams(generator, parallel=parallel)
    tracker = TransactionTracker(parallel=parallel)
    contents: dict[int, list[Message]] = {}
    committed: dict[int, list[bytes | None]] = {}
    for data in streams.messages(80):
        message, step = tracker.feed(data)
        if step.event is Event.STANDALONE or step.event is Event.IGNORED:
            continue
        assert step.xid is not None
        content = contents.setdefault(step.xid, [])
        match step.event:
            case Event.CONTENT:
                content.append(message)
            case Event.TAKEN_BACK | Event.ABORTED:
                del content[step.length :]
            case Event.COMMITTED | Event.PREPARED:
                committed[step.xid] = [
                    message.new.values[0] for message in content if isinstance(message, Insert)
                ]
        assert len(content) == step.length
    assert committed == streams.committed
    assert not tracker.open_streams
