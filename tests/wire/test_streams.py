"""Which messages of a transaction in progress count in the end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.wire_streams import Row, Streams
from tests.wire.wire_machine import (
    ABORT,
    BEGIN,
    COMMIT,
    FIRST,
    LSN,
    NEXT,
    OID,
    STOP,
    STREAM_COMMIT,
    follow,
    followed,
    insert,
    logical,
    refused,
    relation,
)

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire import (
    Event,
    Insert,
    Message,
    Origin,
    Step,
    StreamAbort,
    StreamCommit,
    StreamStart,
    TransactionMachine,
    Type,
)


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


@settings(max_examples=examples(100))
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


@settings(max_examples=examples(60))
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
