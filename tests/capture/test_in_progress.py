"""Transactions in progress against a model of a server: what is committed is what is read.

The network is played back from a script, the only place where something stands in for the
real thing: everything from the frames on is what runs in production.
"""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.scripted_server import (
    LSN,
    RELATION,
    NoFacts,
    Played,
    columns,
    commit,
    commit_prepared,
    decoded,
    files,
    frames_of,
    plain,
    prepare,
    receive,
    rollback_prepared,
    row,
    rows,
    stream,
)
from tests.support.spool_changes import changes
from tests.support.transactions import new_spool
from tests.support.wire_streams import Streams

from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.receiver import Receiver, ReceiverOptions
from pgsluice.capture.receiving.store import Store
from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.errors import ProtocolError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import Spool, SpoolReader, SpoolWriter
from pgsluice.wire import Prepare, StreamAbort, StreamStart, StreamStop


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), parallel=st.booleans(), small=st.booleans())
def test_what_a_server_commits_is_what_is_read(tmp_path_factory, seed, parallel, small):
    path = tmp_path_factory.mktemp("model") / "spool"
    model = Streams(random.Random(seed), parallel=parallel)
    script = list(model.messages(40))
    receive(path, script, parallel=parallel, segment_bytes=150 if small else 2**20)
    inserted = [row for action, row in changes(path) if action == "I"]
    expected = [row for rows in model.committed.values() for row in rows]
    assert inserted == [{column: value.decode()} for column, value in expected]
    # What was prepared waits, and nothing is left on the disk that nobody names.
    before = files(path)
    with SpoolWriter(Spool.open(path)) as writer:
        assert {header.xid for header in writer.parts.prepared} == set(model.prepared)
    assert files(path) == before


@pytest.mark.parametrize("segment_bytes", [64, 2**20])
def test_what_a_stream_learns_holds_for_others_from_its_commit_on(tmp_path, segment_bytes):
    path = tmp_path / "spool"
    old, new = replace(RELATION, columns=columns("a")), replace(RELATION, columns=columns("b"))
    script = [
        *stream(7, old, row("1")),
        *plain(8, 2000, new, row("2")),  # the connection knows something newer now
        commit(7, 2100),
        *plain(9, 2200, row("3")),
        *stream(10, replace(RELATION, columns=columns("c")), row("4")),
        *plain(11, 2300, row("5")),
        commit(10, 2400),
        *plain(12, 2500, row("6")),
    ]
    receive(path, script, segment_bytes=segment_bytes)
    assert decoded(path) == [
        {"b": "2"}, {"a": "1"}, {"b": "3"}, {"b": "5"}, {"c": "4"}, {"c": "6"},
    ]  # fmt: skip


@pytest.mark.parametrize("segment_bytes", [64, 2**20])
def test_what_an_aborted_subtransaction_learnt_is_forgotten(tmp_path, segment_bytes):
    path = tmp_path / "spool"
    inside = replace(RELATION, columns=columns("x"), xid=71)
    script = [
        *stream(7, replace(RELATION, columns=columns("a")), row("1"), inside, row("2", 71)),
        StreamAbort(7, 71).encode(),
        *stream(7, replace(RELATION, columns=columns("a")), row("3"), is_first=False),
        commit(7, 2100),
        *plain(8, 2200, row("4")),
    ]
    receive(path, script, segment_bytes=segment_bytes)
    assert decoded(path) == [{"a": "1"}, {"a": "3"}, {"a": "4"}]


def test_what_was_taken_back_keeps_nobody_else_from_telling(tmp_path):
    path = tmp_path / "spool"
    other = replace(RELATION, oid=16400, columns=columns("o"))
    script = [
        *stream(7, replace(RELATION, columns=columns("a")), row("1")),
        *stream(8, other, replace(row("2"), oid=16400), replace(RELATION, xid=81), row("3", 81)),
        StreamAbort(8, 81).encode(),
        commit(8, 2100),
        commit(7, 2200),
        *plain(9, 2300, row("4")),
    ]
    receive(path, script)
    assert decoded(path) == [{"o": "2"}, {"a": "1"}, {"a": "4"}]


def test_facts_that_a_stream_brought_are_not_replaced_by_older_ones(tmp_path, database):
    """The watch saw a change, and then the stream that commits now changed more."""
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ((oid,),) = db.execute("SELECT 't'::regclass::oid::bigint")
    relation, insert = replace(RELATION, oid=oid), replace(row("1"), oid=oid)
    facts = FactsSource(db.dsn, 10)

    def watch() -> None:
        db.execute("ALTER TABLE t ADD a int")
        with db.connect() as connection:
            seen = fetch_relation_facts(connection, oid)
        facts.offer(oid, facts.known()[oid], seen.to_json())

    frames = [
        *frames_of(plain(8, 2000, relation, insert)),
        watch,
        *frames_of([StreamAbort(99, 99).encode()]),
        lambda: db.execute("ALTER TABLE t ADD b int"),
        *frames_of([*stream(7, relation, insert), commit(7, 2100)]),
        *frames_of(plain(9, 2200, insert)),
    ]
    played = Played(frames, stop := threading.Event())
    path = tmp_path / "spool"
    with SpoolWriter(new_spool(path, Lsn(10))) as writer, Store(writer, None) as store:
        Receiver(played, store, facts, ReceiverOptions(2048, 3600), stop).run()
        store.drain()
        *_, last = SpoolReader(path).views_between(Lsn(10))
    columns = [one.name for one in last.relations[oid].facts.columns]
    facts.close()
    assert columns == ["id", "a", "b"]


@pytest.mark.parametrize("is_the_same", [True, False])
def test_of_a_table_that_is_gone_the_connections_facts_hold_if_it_was_the_same(
    tmp_path, database, is_the_same
):
    db = database()
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ((oid,),) = db.execute("SELECT 't'::regclass::oid::bigint")
    relation, insert = replace(RELATION, oid=oid), replace(row("1"), oid=oid)
    told = relation if is_the_same else replace(relation, columns=columns("other"))
    frames = [
        *frames_of(plain(8, 2000, relation, insert)),
        lambda: db.execute("DROP TABLE t"),
        *frames_of([*stream(7, told, insert), commit(7, 2100)]),
    ]
    facts = FactsSource(db.dsn, 10)
    played = Played(frames, stop := threading.Event())
    path = tmp_path / "spool"
    with SpoolWriter(new_spool(path, Lsn(10))) as writer, Store(writer, None) as store:
        Receiver(played, store, facts, ReceiverOptions(2048, 3600), stop).run()
    facts.close()
    reader = SpoolReader(path)
    found = [info.header.relations[oid].facts for info in reader.all_segments()[1:]]
    assert [one and one.primary_key for one in found] == [("id",) if is_the_same else None]


def test_a_prepared_transaction_waits_for_its_end_across_connections(tmp_path):
    path = tmp_path / "spool"
    receive(path, [*prepare(7, "g", 2000, RELATION, row("1")), *plain(8, 2100, row("2"))])
    assert rows(path) == {8: [b"2"]}
    # Sent again, as it is until it is acknowledged: once is enough.
    again = prepare(7, "g", 2000, RELATION, row("1"))
    receive(path, [*again, commit_prepared(7, "g", 2200), *plain(9, 2300, RELATION, row("3"))])
    assert rows(path) == {8: [b"2"], 7: [b"1"], 9: [b"3"]}
    # And all of it again: nothing twice, nothing left behind.
    before = files(path)
    receive(path, [*again, commit_prepared(7, "g", 2200)])
    assert rows(path) == {8: [b"2"], 7: [b"1"], 9: [b"3"]}
    assert files(path) == before
    assert not [*(path / "prepared").glob("*/*")]


def test_a_prepare_may_come_again_to_the_same_process(tmp_path):
    """Its connection broke before the prepare was acknowledged."""
    path = tmp_path / "spool"
    again = prepare(7, "g", 2000, RELATION, row("1"))
    options = ReceiverOptions(2048, 3600)
    with SpoolWriter(new_spool(path, Lsn(10))) as writer, Store(writer, None) as store:
        for script in (again, again, [*again, commit_prepared(7, "g", 2200)]):
            played = Played(frames_of(script), stop := threading.Event())
            Receiver(played, store, NoFacts(), options, stop).run()
            store.settled_writer().forget_connection()
    assert rows(path) == {7: [b"1"]}
    assert len(files(path)) == 1


def test_what_a_prepare_says_of_relations_holds_though_it_comes_again(tmp_path):
    path = tmp_path / "spool"
    again = prepare(7, "g", 2000, RELATION, row("1"))
    receive(path, again)
    receive(path, [*again, *plain(8, 2100, row("2"))])
    assert decoded(path) == [{"id": 2}]


def test_rolled_back_it_leaves_nothing(tmp_path):
    path = tmp_path / "spool"
    receive(path, prepare(7, "g", 2000, RELATION, row("1")))
    assert files(path)
    # The server has forgotten what it was: an empty one, then its end.
    receive(path, [rollback_prepared(7, "g", 2100), *prepare(7, "g", 2000)])
    receive(path, [rollback_prepared(7, "g", 2100), rollback_prepared(7, "h", 2200)])
    assert rows(path) == {}
    assert not files(path)
    assert not [*(path / "prepared").glob("*/*")]


def test_an_empty_prepared_transaction_may_come_again(tmp_path):
    path = tmp_path / "spool"
    for _ in range(2):
        receive(path, [*prepare(7, "g", 2000), commit_prepared(7, "g", 2100)])
    assert SpoolReader(path).position() == 2100


def test_a_commit_of_what_was_never_prepared_here_is_an_error(tmp_path):
    with pytest.raises(SpoolError, match="does not have the changes of that prepared"):
        receive(tmp_path / "spool", [commit_prepared(7, "g", 2100)])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([StreamStart(7, False).encode()], "transaction 7 is not open"),
        ([*stream(7), *stream(7)], "transaction 7 is open"),
        ([StreamStop().encode()], "outside of a transaction"),
        ([StreamStart(7, True).encode(), StreamStart(8, True).encode()], "inside S … E"),
        ([StreamStart(7, True).encode(), commit(7, 2000)], "inside S … E"),
        ([commit(7, 2000)], "transaction 7 is not open"),
        ([Prepare(0, LSN, LSN, 0, 7, "g").encode()], "outside of a transaction"),
        ([StreamStart(7, True).encode(), *plain(8, 2000)], "inside S … E"),
        ([StreamStart(7, True).encode(), b"I\0\0"], "message I ends after 3 bytes"),
        ([StreamStart(7, True).encode(), b"R\0\0"], "Relation message .*, offset 1"),
        ([*plain(8, 2000)[:1], StreamStart(7, True).encode()], "inside B … C"),
        ([b"B" + bytes(19)], "Begin message .*, offset 17"),
        ([b"z"], "got byte 0x7a"),
    ],
)
def test_what_cannot_come_is_an_error_that_says_so(tmp_path, script, expected):
    with pytest.raises(ProtocolError, match=expected):
        receive(tmp_path / "spool", script)
