"""What may follow what, and the transactions that come whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.wire.wire_machine import (
    ABORT,
    BEGIN,
    BEGIN_PREPARE,
    COMMIT,
    END,
    FIRST,
    LATER,
    LSN,
    NEXT,
    OID,
    PREPARE,
    ROW,
    STOP,
    STREAM_COMMIT,
    STREAM_PREPARE,
    follow,
    followed,
    insert,
    logical,
    refused,
    relation,
)

from pgsluice.lsn import Lsn
from pgsluice.wire import (
    STANDALONE,
    STREAM_TRANSITIONS,
    TRANSITIONS,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Event,
    LogicalMessage,
    Message,
    OldKey,
    Origin,
    Prepare,
    RollbackPrepared,
    State,
    Step,
    StreamPrepare,
    StreamStart,
    StreamState,
    TransactionMachine,
    Truncate,
    Type,
    Update,
)

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
