"""Bytes of real servers: each comes back as it was, in an order that the state machine takes.

``pg_logical_slot_peek_binary_changes`` gives the same bytes as a walsender does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.support.databases import Database, MakeDatabase

from pgsluice.embedded import EmbeddedServer
from pgsluice.wire import (
    Begin,
    Commit,
    Delete,
    Event,
    Insert,
    LogicalMessage,
    Message,
    OldKey,
    OldRow,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Step,
    StreamAbort,
    TransactionMachine,
    Truncate,
    Type,
    Update,
    decode_message,
)

SCHEMA = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN amount AS numeric(8, 2)",
    "CREATE TABLE t (id int PRIMARY KEY, big text, m mood, a amount, v varchar(40))",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    'CREATE TABLE "Straße" (x int, y text)',
    'ALTER TABLE "Straße" REPLICA IDENTITY FULL',
    "CREATE TABLE bulk (id int, filler text)",
    'CREATE PUBLICATION p FOR TABLE t, "Straße", bulk',
)
PLAIN = (
    "INSERT INTO t VALUES (1, repeat('x', 9000), 'sad', 1.50, NULL), (2, '', 'glad', -1, 'ü')",
    "UPDATE t SET v = 'other' WHERE id = 1",  # big is unchanged and out of line
    "UPDATE t SET id = 3 WHERE id = 2",
    "DELETE FROM t WHERE id = 1",
    "INSERT INTO \"Straße\" VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
    "UPDATE \"Straße\" SET y = 'b' WHERE x = 1",
    'DELETE FROM "Straße" WHERE x IS NULL',
    "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
    "INSERT INTO t (id) VALUES (4)",
)
TRUNCATE = ('TRUNCATE t, "Straße" RESTART IDENTITY CASCADE',)
FILL = "INSERT INTO bulk SELECT g, repeat('y', 100) FROM generate_series(1, 1500) g"


def make(database: Database, *, two_phase: bool = False) -> None:
    """A schema, a publication and a slot."""
    database.execute(*SCHEMA)
    arguments = "'s', 'pgoutput'" + (", twophase => true" if two_phase else "")
    database.execute(f"SELECT pg_create_logical_replication_slot({arguments})")


def peek(database: Database, **options: str) -> list[bytes]:
    """All that the slot has to send, under START_REPLICATION's options."""
    options = {"proto_version": "1", "publication_names": "p"} | options
    pairs = [item for pair in options.items() for item in pair]
    with database.connect() as connection:
        if "streaming" in options:
            connection.execute("SET logical_decoding_work_mem = '64kB'")
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
            " VARIADIC %s::text[])",
            [pairs],
        ).fetchall()
    return [bytes(data) for (data,) in rows]


def read(stream: list[bytes], *, parallel: bool = False) -> list[tuple[Message, Step]]:
    """Follow the stream; every message's bytes must come back."""
    machine = TransactionMachine(parallel=parallel)
    seen = []
    for data in stream:
        in_stream = machine.in_stream
        message, step = machine.feed(data)
        assert message.encode() == data
        assert decode_message(data, in_stream=in_stream, parallel=parallel) == message
        if isinstance(message, Insert | Update):
            relation = machine.relation(message.oid)
            assert relation is not None
            assert len(message.new) == len(relation.columns)
        seen.append((message, step))
    return seen


def tags(seen: list[tuple[Message, Step]]) -> Counter[str]:
    return Counter(message.tag for message, _ in seen)


def contents(seen: list[tuple[Message, Step]]) -> dict[int, list[Message]]:
    """What is committed, by transaction."""
    contents: dict[int, list[Message]] = {}
    for message, step in seen:
        if step.xid is None:
            continue
        match step.event:
            case Event.CONTENT:
                contents.setdefault(step.xid, []).append(message)
            case Event.SUBTRANSACTION_ABORTED | Event.ABORTED:
                del contents.get(step.xid, [])[step.length :]
    return contents


def of(kind: type[Any], seen: list[tuple[Message, Step]]) -> list[Any]:
    return [message for message, _ in seen if isinstance(message, kind)]


def test_plain_transactions(each_server: EmbeddedServer, database: MakeDatabase) -> None:
    one = database(each_server)
    make(one)
    version = int(each_server.version.split(".")[0])
    one.execute(*PLAIN)
    if version >= 11:
        one.execute(*TRUNCATE)
    stream = peek(one)
    seen = read(stream)
    oids = {name: oid for oid, name in one.execute("SELECT oid::int8, relname FROM pg_class")}

    relations = of(Relation, seen)
    assert relations[0] == Relation(
        oids["t"],
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (
            RelationColumn(1, "id", 23, -1),
            RelationColumn(0, "big", 25, -1),
            RelationColumn(0, "m", relations[0].columns[2].type_oid, -1),
            RelationColumn(0, "a", relations[0].columns[3].type_oid, -1),
            RelationColumn(0, "v", 1043, 44),
        ),
    )
    full = next(r for r in relations if r.oid == oids["Straße"])
    assert full.name == "Straße"
    assert full.replica_identity is ReplicaIdentity.FULL
    assert all(column.is_key for column in full.columns)
    assert [column.name for column in relations[-1].columns][-1:] == ["w"] or version >= 11
    # A domain's OID comes with its base type's name.
    assert {"mood", "numeric"} <= {one.name for one in of(Type, seen)}

    inserts, updates, deletes = of(Insert, seen), of(Update, seen), of(Delete, seen)
    assert inserts[0].new.values == (b"1", b"x" * 9000, b"sad", b"1.50", None)
    assert inserts[1].new.values[4] == "ü".encode()
    assert updates[0].new.kinds == b"tuttt"
    assert updates[0].old is None
    assert isinstance(updates[1].old, OldKey)
    assert updates[1].old.data.kinds == b"tnnnn"
    assert isinstance(updates[2].old, OldRow)
    assert isinstance(deletes[0].old, OldKey)
    assert isinstance(deletes[1].old, OldRow)
    assert deletes[1].old.data.kinds == b"nn"
    if version >= 11:
        (truncate,) = of(Truncate, seen)
        assert set(truncate.oids) == {oids["t"], oids["Straße"]}
        assert truncate.is_cascade
        assert truncate.is_restart_identity
    for begin, commit in zip(of(Begin, seen), of(Commit, seen), strict=True):
        assert begin.final_lsn == commit.commit_lsn < commit.end_lsn


@pytest.mark.pg(">= 14")
def test_binary_values_and_logical_messages(database: MakeDatabase) -> None:
    one = database()
    make(one)
    one.execute(*PLAIN, *TRUNCATE, "SELECT pg_logical_emit_message(false, 'alone', 'x')")
    one.execute(
        "BEGIN; SELECT pg_logical_emit_message(false, 'early', 'x');"
        " SELECT pg_logical_emit_message(true, 'within', '\\x00ff'::bytea); COMMIT"
    )
    seen = read(peek(one, binary="true", messages="true"))
    assert of(Insert, seen)[0].new.values[0] == b"\0\0\0\1"
    assert of(Insert, seen)[0].new.is_binary(0)
    assert [
        (message.prefix, message.is_transactional, message.content, step.event)
        for message, step in seen
        if isinstance(message, LogicalMessage)
    ] == [
        ("alone", False, b"x", Event.STANDALONE),
        ("early", False, b"x", Event.STANDALONE),
        ("within", True, b"\0\xff", Event.CONTENT),
    ]


ON = {"proto_version": "2", "streaming": "on"}
PARALLEL = {"proto_version": "4", "streaming": "parallel"}
STREAMING = [
    pytest.param(ON, id="on"),
    pytest.param(PARALLEL, id="parallel", marks=pytest.mark.pg(">= 16")),
]


def interleave(database: Database) -> None:
    """Two large transactions at once, with savepoints, one of which is rolled back; and a
    table that is changed inside that one."""
    with database.connect() as first, database.connect() as second, first.transaction():
        first.execute(FILL)
        with second.transaction():
            second.execute(FILL)
            with first.transaction():
                first.execute("INSERT INTO t (id) VALUES (10)")
            with first.transaction(force_rollback=True):
                first.execute("ALTER TABLE t ADD COLUMN gone int")
                first.execute("INSERT INTO t (id, gone) SELECT g, 1 FROM generate_series(11, 99) g")
                first.execute(FILL)
            second.execute(FILL)
            second.execute("SELECT pg_logical_emit_message(true, 'within', 'x')")
            second.execute("SELECT pg_logical_emit_message(false, 'between', 'x')")
        first.execute("INSERT INTO t (id) VALUES (12)")
        first.execute(FILL)


@pytest.mark.pg(">= 14")
@pytest.mark.parametrize("options", STREAMING)
def test_transactions_in_progress(database: MakeDatabase, options: dict[str, str]) -> None:
    """What streaming leaves is what comes without it."""
    one = database()
    make(one)
    interleave(one)
    plain = read(peek(one, messages="true"))
    seen = read(peek(one, messages="true", **options), parallel=options == PARALLEL)

    counts = tags(seen)
    assert counts["B"] == 0
    assert counts["c"] == 2
    assert counts["S"] == counts["E"] > 2
    aborts = of(StreamAbort, seen)
    assert aborts
    assert not any(abort.is_top_level for abort in aborts)
    assert all((abort.at is not None) == (options == PARALLEL) for abort in aborts)

    def rows(seen: list[tuple[Message, Step]]) -> dict[int, list[Any]]:
        return {
            xid: [(one.oid, one.new) for one in messages if isinstance(one, Insert)]
            for xid, messages in contents(seen).items()
            if messages
        }

    assert rows(seen) == rows(plain)
    assert {len(some) for some in rows(seen).values()} == {3002, 3000}
    assert [step.event for message, step in seen if isinstance(message, LogicalMessage)].count(
        Event.STANDALONE
    ) == 1


@pytest.mark.pg(">= 15")
@pytest.mark.parametrize("proto_version", ["1", "3"])
def test_prepared_transactions(database: MakeDatabase, proto_version: str) -> None:
    """A slot made for them sends them at every version of the protocol."""
    one = database()
    make(one, two_phase=True)
    with one.connect() as connection:
        for gid, row, end in (
            ("kept", "INSERT INTO t (id) VALUES (1);", "COMMIT"),
            ("dropped", "INSERT INTO t (id) VALUES (2);", "ROLLBACK"),
            ("empty", "CREATE TABLE not_published ();", "COMMIT"),
        ):
            connection.execute(f"BEGIN; {row} PREPARE TRANSACTION '{gid}'")
            connection.execute(f"{end} PREPARED '{gid}'")
    seen = read(peek(one, proto_version=proto_version))
    assert "".join(message.tag for message, _ in seen if message.tag != "Y") == "bRIPKbIPrbPK"
    # The relation of the first is known to the second: it is not sent again.
    gids = [message.gid for message, _ in seen if message.tag in "bPKr"]
    assert gids == ["kept"] * 3 + ["dropped"] * 3 + ["empty"] * 3


@pytest.mark.pg(">= 15")
def test_a_streamed_transaction_that_is_prepared(database: MakeDatabase) -> None:
    one = database()
    make(one, two_phase=True)
    with one.connect() as connection:
        connection.execute(f"BEGIN; {FILL}; PREPARE TRANSACTION 'large'")
        connection.execute("COMMIT PREPARED 'large'")
        connection.execute("INSERT INTO bulk VALUES (1)")
    seen = read(peek(one, proto_version="3", streaming="on"))
    counts = tags(seen)
    assert (counts["p"], counts["K"], counts["c"]) == (1, 1, 0)
    assert next(step.length for message, step in seen if message.tag == "p") == 1501
    # The relation is sent again after it: what a prepared stream learnt does not stay.
    assert "".join(message.tag for message, _ in seen[-4:]) == "BRIC"


@pytest.mark.pg(">= 15")
def test_a_column_list_that_changes_while_a_stream_is_open(database: MakeDatabase) -> None:
    """Each row fits the relation in force, whichever transaction brought that one."""
    one = database()
    make(one)
    with one.connect() as streaming, streaming.transaction():
        streaming.execute(FILL)
        # All of bulk is streamed before the list changes; what is left is t's.
        streaming.execute("INSERT INTO t (id) SELECT generate_series(1, 1500)")
        one.execute(
            "ALTER PUBLICATION p SET TABLE bulk (id), t", "INSERT INTO bulk VALUES (1, 'a')"
        )
    one.execute("INSERT INTO bulk VALUES (2, 'b')")
    seen = read(peek(one, **ON))  # compares each row's width with the relation in force
    bulk = [len(relation.columns) for relation in of(Relation, seen) if relation.name == "bulk"]
    assert (bulk[0], bulk[-1]) == (2, 1)
