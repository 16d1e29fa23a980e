"""What may follow what, and which of a transaction's messages count in the end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.wire_streams import Row, Streams

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
    TransactionMachine,
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
        machine = followed(*PREFIXES[state])
        assert machine.state is state
        if name in TRANSITIONS[state]:
            after, _ = TRANSITIONS[state][name]
            machine.receive(message)
            assert machine.state is after
        else:
            refused(machine, message)


def test_an_illegal_message_says_what_would_be_legal() -> None:
    error = refused(TransactionMachine(), COMMIT)
    assert error.state == "outside of a transaction"
    assert error.expected.startswith("one of B, b, S")
    assert "Commit message (C) cannot come here (outside of a transaction)" in str(error)


@pytest.mark.parametrize("message", [NEXT, STREAM_COMMIT, STREAM_PREPARE])
def test_a_stream_that_is_not_open_cannot_go_on(message: Message) -> None:
    for machine in (
        TransactionMachine(),
        followed(FIRST, STOP, ABORT),
        followed(FIRST, STOP, STREAM_COMMIT),
        followed(FIRST, STOP, STREAM_PREPARE),
    ):
        error = refused(machine, message)
        assert error.state == "not open"
        assert "transaction 7 is not open" in str(error)


def test_a_stream_opens_once() -> None:
    assert "transaction 7 is open" in str(refused(followed(FIRST, STOP), FIRST))


# ── plain transactions ──────────────────────────────────────────────────────────────────────


def test_a_transaction() -> None:
    machine = TransactionMachine()
    steps = follow(machine, BEGIN, Origin(LSN, "o"), relation(), insert(), logical(), COMMIT)
    assert [step.event for step in steps] == [
        Event.OPENED,
        *[Event.CONTENT] * 4,
        Event.COMMITTED,
    ]
    assert [step.length for step in steps] == [0, 1, 2, 3, 4, 4]
    assert {step.xid for step in steps} == {7}
    assert (machine.state, machine.xid) == (State.OUTSIDE, None)


def test_an_empty_transaction_and_a_repeated_relation() -> None:
    steps = follow(TransactionMachine(), BEGIN, COMMIT, BEGIN, relation(), relation(), LATER)
    assert [step.length for step in steps] == [0, 0, 0, 1, 2, 2]


def test_a_commit_names_its_transaction() -> None:
    error = refused(followed(BEGIN), Commit(0, Lsn(101), END, 0))
    assert error.state == "inside B … C"
    assert error.xid == 7


def test_a_message_outside_of_all_transactions() -> None:
    machine = TransactionMachine()
    standalone = logical(transactional=False)
    assert follow(machine, standalone) == [Step(Event.STANDALONE, None, 0)]
    assert machine.position == LSN + 1
    # Between the blocks of a transaction in progress too: then without an xid.
    follow(machine, FIRST, STOP)
    later = replace(standalone, lsn=Lsn(LSN + 1))
    assert follow(machine, later) == [Step(Event.STANDALONE, None, 0)]
    assert machine.open_streams == {7}


@pytest.mark.parametrize(
    "message",
    [insert(), Truncate((OID,), 0), Update(OID, None, ROW), Delete(OID, OldKey(ROW))],
    ids=lambda message: type(message).__name__,
)
def test_a_change_comes_after_its_relation(message: Message) -> None:
    error = refused(followed(BEGIN, relation(oid=1)), message)
    assert f"a Relation message of relation {OID} before its changes" in error.expected


def test_all_of_a_truncates_relations_are_known() -> None:
    machine = followed(BEGIN, relation())
    refused(machine, Truncate((OID, 1), 0))
    follow(machine, relation(oid=1), Truncate((OID, 1), 0), COMMIT)


def test_relations_stay_for_the_connection() -> None:
    machine = followed(BEGIN, Type(1, "s", "mood"), relation(), COMMIT)
    assert machine.relation(OID) == relation()
    assert machine.type_name(1) == Type(1, "s", "mood")
    assert (machine.relation(1), machine.type_name(OID)) == (None, None)
    follow(machine, BEGIN, insert(), LATER, BEGIN, relation(name="renamed"))
    assert machine.relation(OID) == relation(name="renamed")


# ── positions ───────────────────────────────────────────────────────────────────────────────


def ends_at(position: int) -> dict[str, tuple[list[Message], Message]]:
    """Whatever has a position: what precedes it on an empty connection, and the message."""
    end = Lsn(position)
    return {
        "C": ([BEGIN], replace(COMMIT, end_lsn=end)),
        "c": ([FIRST, STOP], replace(STREAM_COMMIT, end_lsn=end)),
        "K": ([], CommitPrepared(0, LSN, end, 0, 7, "g")),
        STANDALONE: ([], LogicalMessage(0, Lsn(max(position - 1, 0)), "p", b"")),
    }


@pytest.mark.parametrize("before", ends_at(0))
@pytest.mark.parametrize("name", ends_at(0))
def test_positions_rise_within_a_connection(before: str, name: str) -> None:
    """A position that repeats or goes back would look like a duplicate of what is durable."""
    prefix, end = ends_at(200)[before]
    for position in (150, 200):
        machine = followed(*prefix, end)
        opening, message = ends_at(position)[name]
        follow(machine, *opening)
        error = refused(machine, message)
        assert error.expected == "a position past 0/C8, the last of this connection"
    machine = followed(*prefix, end)
    opening, message = ends_at(201)[name]
    follow(machine, *opening, message)
    assert machine.position == 201


@pytest.mark.parametrize("name", ["C", "c", "K"])
def test_no_position_is_zero(name: str) -> None:
    prefix, end = ends_at(0)[name]
    refused(followed(*prefix), end)


def test_a_position_fits_a_signed_number() -> None:
    refused(TransactionMachine(), LogicalMessage(0, Lsn(2**63 - 1), "p", b""))


def test_a_prepare_has_no_position() -> None:
    later = Lsn(1000)
    machine = followed(
        BeginPrepare(later, later, 0, 7, "g"), Prepare(0, later, later, 0, 7, "g"), BEGIN, COMMIT
    )
    follow(machine, StreamStart(8, True), STOP, StreamPrepare(0, LSN, END, 0, 8, "h"))
    assert machine.position == END


# ── two-phase ───────────────────────────────────────────────────────────────────────────────


def test_a_prepared_transaction_is_decided_later() -> None:
    machine = TransactionMachine()
    steps = follow(
        machine,
        BEGIN_PREPARE,
        relation(),
        insert(),
        PREPARE,
        BEGIN,  # others may come between
        COMMIT,
        CommitPrepared(0, LSN, Lsn(300), 0, 7, "g"),
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
    machine = TransactionMachine()
    steps = follow(machine, FIRST, relation(7), insert(7), STOP, STREAM_PREPARE)
    assert steps[-1] == Step(Event.PREPARED, 7, 2)
    # What it learnt is not committed: the server sends the relation again.
    assert machine.relation(OID) is None
    assert machine.open_streams == frozenset()


# ── streams ─────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_in_progress() -> None:
    machine = TransactionMachine()
    steps = follow(machine, FIRST, Origin(Lsn(0), "o"), relation(7), insert(7), STOP)
    steps += follow(machine, NEXT, insert(8), logical(7), STOP, STREAM_COMMIT)
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
    refused(TransactionMachine(), logical(7, transactional=False))


def test_an_abort_takes_back_from_the_subtransactions_first_message_on() -> None:
    machine = followed(FIRST, relation(7), insert(7), insert(8), insert(9), insert(8), STOP)
    (step,) = follow(machine, StreamAbort(7, 8))
    assert step == Step(Event.SUBTRANSACTION_ABORTED, 7, 2)
    # Its child's own abort comes after it, and one that had nothing streamed: no change.
    assert follow(machine, StreamAbort(7, 9), StreamAbort(7, 99)) == [step, step]
    # The relation came before the savepoint, and is still in force.
    follow(machine, NEXT, insert(7), STOP)
    only = frozenset({OID})
    assert follow(machine, STREAM_COMMIT) == [Step(Event.COMMITTED, 7, 3, only, only)]


def test_an_abort_of_the_child_alone() -> None:
    machine = followed(FIRST, relation(7), insert(8), insert(9), STOP)
    assert follow(machine, StreamAbort(7, 9)) == [Step(Event.SUBTRANSACTION_ABORTED, 7, 2)]
    assert follow(machine, StreamAbort(7, 8)) == [Step(Event.SUBTRANSACTION_ABORTED, 7, 1)]


def test_a_subtransactions_id_is_not_remembered_after_its_abort() -> None:
    machine = followed(FIRST, relation(7), insert(8), STOP, StreamAbort(7, 8))
    follow(machine, NEXT, insert(7), STOP)
    assert follow(machine, StreamAbort(7, 8)) == [Step(Event.SUBTRANSACTION_ABORTED, 7, 2)]


def test_an_abort_of_an_unknown_transaction_means_nothing() -> None:
    machine = TransactionMachine()
    for abort in (ABORT, StreamAbort(7, 8)):
        assert follow(machine, abort) == [Step(Event.IGNORED, 7, 0)]
    assert machine.open_streams == frozenset()


def test_an_abort_of_the_whole() -> None:
    machine = followed(FIRST, relation(7), insert(7), STOP)
    assert follow(machine, ABORT) == [Step(Event.ABORTED, 7, 0)]
    assert machine.open_streams == frozenset()
    assert machine.relation(OID) is None


def test_under_parallel_streaming_an_abort_says_where() -> None:
    machine = TransactionMachine(parallel=True)
    abort = StreamAbort.decode(b"A\0\0\0\7\0\0\0\7" + bytes(16), parallel=True)
    _, step = machine.feed(abort.encode())
    assert step.event is Event.IGNORED
    with pytest.raises(ProtocolError, match="abort_lsn"):
        machine.feed(ABORT.encode())


def test_a_relation_learnt_in_an_aborted_subtransaction_is_forgotten() -> None:
    machine = followed(FIRST, relation(7), Type(1, "s", "mood", 8), relation(8, "new"), insert(8))
    assert machine.relation(OID) == relation(8, "new")
    follow(machine, STOP, StreamAbort(7, 8), NEXT)
    assert machine.relation(OID) == relation(7)
    assert machine.type_name(1) is None
    follow(machine, STOP, STREAM_COMMIT)
    assert machine.relation(OID) == relation()


def test_in_a_stream_only_its_own_relations_count() -> None:
    machine = followed(BEGIN, relation(), COMMIT, FIRST)
    assert machine.relation(OID) is None
    refused(machine, insert(7))
    follow(machine, relation(7, "new"), STOP)
    assert machine.relation(OID) == relation()  # until it is committed
    follow(machine, replace(STREAM_COMMIT, end_lsn=Lsn(300)))
    assert machine.relation(OID) == relation(name="new")


def test_a_stream_does_not_bring_back_an_older_relation() -> None:
    """After ALTER PUBLICATION another transaction can bring other columns meanwhile."""
    machine = followed(FIRST, relation(7, "old"), relation(7, oid=1), STOP)
    follow(machine, BEGIN, relation(name="new"), COMMIT)
    (step,) = follow(machine, replace(STREAM_COMMIT, end_lsn=Lsn(300)))
    assert (step.relations, step.joining) == ({OID, 1}, {1})
    assert machine.relation(OID) == relation(name="new")


def test_of_two_streams_the_newer_relation_counts_whichever_commits_first() -> None:
    second = StreamStart(9, True)
    for commits in ([(0, 7), (1, 9)], [(0, 9), (1, 7)]):
        machine = followed(FIRST, relation(7, "old"), STOP, second, relation(9, "new"), STOP)
        follow(machine, *(StreamCommit(xid, 0, LSN, Lsn(200 + n), 0) for n, xid in commits))
        assert machine.relation(OID) == relation(name="new")


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.booleans())
def test_what_is_committed_is_what_was_not_rolled_back(
    generator: random.Random, parallel: bool
) -> None:
    """Each row with the columns that were announced for it, from a model of a server."""
    streams = Streams(generator, parallel=parallel)
    machine = TransactionMachine(parallel=parallel)
    contents: dict[int, list[Row | None]] = {}
    prepared: dict[int, list[Row | None]] = {}
    committed: dict[int, list[Row | None]] = {}
    for data in streams.messages(80):
        message, step = machine.feed(data)
        if step.event is Event.STANDALONE or step.event is Event.IGNORED:
            continue
        assert step.xid is not None
        content = contents.setdefault(step.xid, [])
        match step.event:
            case Event.CONTENT:
                content.append(row_of(message, machine))
            case Event.SUBTRANSACTION_ABORTED | Event.ABORTED:
                del content[step.length :]
            case Event.COMMITTED:
                committed[step.xid] = content
            case Event.PREPARED:
                prepared[step.xid] = content
            case Event.COMMIT_PREPARED:
                committed[step.xid] = prepared.pop(step.xid)
            case Event.ROLLBACK_PREPARED:
                del prepared[step.xid]
        if step.event not in (Event.COMMIT_PREPARED, Event.ROLLBACK_PREPARED):
            assert len(content) == step.length
    assert {xid: rows_of(content) for xid, content in committed.items()} == streams.committed
    assert {xid: rows_of(content) for xid, content in prepared.items()} == streams.prepared
    assert not machine.open_streams


def row_of(message: Message, machine: TransactionMachine) -> Row | None:
    """An Insert's column name and value."""
    if not isinstance(message, Insert):
        return None
    announced, (value,) = machine.relation(message.oid), message.new.values
    assert announced is not None
    assert value is not None
    return announced.columns[0].name, value


def rows_of(content: list[Row | None]) -> list[Row]:
    return [row for row in content if row is not None]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_rows_in_one_go_are_as_rows_one_by_one(generator: random.Random) -> None:
    """Capture tells the machine of all rows between two other messages at once."""
    by_message, by_run = TransactionMachine(), TransactionMachine()
    run: list[Insert] = []
    last = None
    for data in Streams(generator, parallel=False).messages(60):
        message, expected = by_message.feed(data)
        if isinstance(message, Insert):
            run.append(message)
            last = expected
            continue
        if run:
            xids: dict[int, int] = {}
            for index, row in enumerate(run):
                if row.xid is not None:
                    xids.setdefault(row.xid, index)
            oids = {row.oid for row in run}
            assert by_run.changes(oids, xids or None, count=len(run)) == last
            run.clear()
        assert by_run.receive(message) == expected


def test_transactions_in_one_go_are_as_one_by_one() -> None:
    machine = followed(BEGIN, relation(), COMMIT)
    assert machine.transactions([300, 400], [300, 400], [310, 410], [OID])
    assert (machine.position, machine.state) == (410, State.OUTSIDE)
    assert machine.transactions([500], [500], [510], [])


@pytest.mark.parametrize(
    ("final_lsns", "commit_lsns", "end_lsns", "oids"),
    [
        ([300, 400], [300, 401], [310, 410], [OID]),
        ([300, 400], [300, 400], [310, 310], [OID]),
        ([300, 400], [300, 400], [310, 309], [OID]),
        ([300], [300], [200], [OID]),
        ([-1], [-1], [310], [OID]),
        ([300], [300], [310], [OID, 1]),
    ],
)
def test_illegal_transactions_are_not_followed(final_lsns, commit_lsns, end_lsns, oids) -> None:
    machine = followed(BEGIN, relation(), COMMIT)
    assert not machine.transactions(final_lsns, commit_lsns, end_lsns, oids)
    assert (machine.position, machine.state) == (END, State.OUTSIDE)
    for prefix in ((BEGIN,), (FIRST,), (BEGIN_PREPARE,)):
        assert not followed(*prefix).transactions([300], [300], [310], [])
