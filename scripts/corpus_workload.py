"""The workload of the golden corpus: every message that the server's version can send.

Each step is a few transactions on one or two sessions. Where a transaction has to be streamed
before it goes on, the step waits until the server has decoded what there is of it, so that
what is sent does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg

from pgsluice.lsn import Lsn

Session = psycopg.Connection[Any]


class Receiver(Protocol):
    """What the workload needs of the walsender's other end."""

    def await_end(self, end: Lsn) -> None:
        """Wait until the server has sent everything up to ``end``."""


SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
CREATE DOMAIN amount AS numeric(8, 2);
CREATE TYPE place AS (street text, number int);
CREATE TABLE kinds (
  id int PRIMARY KEY, b bool, s int2, l int8, r float4, d float8, n numeric, nn numeric(10, 3),
  t text, v varchar(40), c char(5), by bytea, da date, ts timestamp, tz timestamptz(3), ti time,
  iv interval, u uuid, j json, jb jsonb, a int[], ta text[], ip inet, rg int4range, bi bit(3),
  m mood, ms mood[], am amount, pl place, pls place[]);
CREATE TABLE orders (id serial PRIMARY KEY, customer text NOT NULL, total amount, note text);
CREATE TABLE items (id int PRIMARY KEY, order_id int REFERENCES orders, what text);
CREATE TABLE "Straße" (x int, "y ""z"" 1" text);
ALTER TABLE "Straße" REPLICA IDENTITY FULL;
CREATE TABLE journal (line text);
ALTER TABLE journal REPLICA IDENTITY NOTHING;
CREATE TABLE codes (label text, code text NOT NULL);
ALTER TABLE codes ALTER code SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX codes_code ON codes (code);
ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_code;
CREATE TABLE documents (id int PRIMARY KEY, body text, title text);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE documents_full (id int, body text, title text);
ALTER TABLE documents_full ALTER body SET STORAGE EXTERNAL;
ALTER TABLE documents_full REPLICA IDENTITY FULL;
CREATE TABLE bulk (id int, filler text);
ALTER TABLE bulk ALTER filler SET STORAGE PLAIN;
CREATE TABLE unpublished (id int);
CREATE PUBLICATION corpus FOR TABLE kinds, orders, items, "Straße", codes, documents,
  documents_full, bulk;
CREATE PUBLICATION corpus_insert FOR TABLE journal WITH (publish = 'insert');
"""
PARTITIONS_FROM_13 = """
CREATE TABLE parted (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a');
CREATE TABLE parted_b PARTITION OF parted FOR VALUES IN ('b');
CREATE PUBLICATION corpus_root FOR TABLE parted WITH (publish_via_partition_root = true);
"""
FILTERS_FROM_15 = """
CREATE TABLE filtered (id int PRIMARY KEY, body text, secret text);
ALTER TABLE filtered ALTER body SET STORAGE EXTERNAL;
CREATE PUBLICATION corpus_filter FOR TABLE filtered (id, body) WHERE (id < 100);
"""
GENERATED_FROM_18 = """
CREATE TABLE generated (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (2 * id) STORED);
CREATE PUBLICATION corpus_generated FOR TABLE generated WITH (publish_generated_columns = stored);
"""

KINDS = """
INSERT INTO kinds VALUES
 (1, true, -2, 9007199254740993, 1.5, 'NaN', 123456789012345678901234567890.5, -1.500, 'text',
  'vär', 'ab', '\\x00ff0a', '2024-02-29', '2024-02-29 23:59:59.123456', '2024-02-29 12:00:00+02',
  '24:00', '1 mon -1 day 00:00:01', '00000000-0000-0000-0000-000000000001', '{"a": [1, null]}',
  '{"b": 1}', '{1,NULL,3}', '{a,"b c",NULL,""}', '10.0.0.1/8', '[1,5)', '101',
  'glad', '{sad,ok}', 1.50, '("High Street",1)', '{"(a,1)","(b,2)"}'),
 (2, false, 32767, -1, 'Infinity', '-Infinity', 'NaN', 0, '', '', '', '', '-infinity',
  '4713-01-01 00:00:00 BC', 'infinity', '00:00', '-1 mons', NULL, 'null', 'null',
  '{{1,2},{3,4}}', '[0:1]={x,y}', '::1', 'empty', '000', 'sad', '{}', -1, '(,)', '{}'),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""
PLAIN = (
    "INSERT INTO orders (customer, total, note) VALUES ('Ada', 12.50, NULL), ('Bob', 3, 'a\nb')",
    "UPDATE orders SET total = 13 WHERE id = 1",
    "UPDATE orders SET id = 30 WHERE id = 2",
    "DELETE FROM orders WHERE id = 30",
    "INSERT INTO \"Straße\" VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
    'UPDATE "Straße" SET "y ""z"" 1" = \'b\' WHERE x = 1',
    'DELETE FROM "Straße" WHERE x IS NULL',
    "INSERT INTO journal VALUES ('only inserts are published')",
    # A key that is stored out of line: it comes as K, and unchanged in the new tuple.
    "INSERT INTO codes VALUES ('long', repeat('k', 2300)), ('short', 's')",
    "UPDATE codes SET label = 'longer' WHERE label = 'long'",
    "UPDATE codes SET code = 't' WHERE code = 's'",
    "DELETE FROM codes",
    "INSERT INTO documents VALUES (1, repeat('d', 3000), 'title')",
    "UPDATE documents SET title = 'unchanged body' WHERE id = 1",
    "UPDATE documents SET id = 2 WHERE id = 1",
    "INSERT INTO documents_full VALUES (1, repeat('f', 3000), 'title')",
    "UPDATE documents_full SET title = 'unchanged body'",
    "DELETE FROM documents_full",
    "INSERT INTO unpublished VALUES (1)",
    "ALTER TABLE documents ADD COLUMN added int DEFAULT 7, DROP COLUMN title",
    "INSERT INTO documents VALUES (3, 'short', 8)",
    (
        "BEGIN; INSERT INTO items VALUES (1, NULL, 'kept'); SAVEPOINT a;"
        " INSERT INTO items VALUES (2, NULL, 'rolled back'); ROLLBACK TO a;"
        " UPDATE items SET what = 'both' WHERE id = 1; COMMIT"
    ),
)
TRUNCATE_FROM_11 = (
    "TRUNCATE documents_full",
    "TRUNCATE orders RESTART IDENTITY CASCADE",
    'TRUNCATE "Straße", codes',
)
PARTITIONED = (
    "INSERT INTO parted VALUES (1, 'a'), (2, 'b')",
    "UPDATE parted SET region = 'b' WHERE id = 1",
    "TRUNCATE parted",
)
FILTERED = (
    "INSERT INTO filtered VALUES (1, repeat('b', 3000), 's'), (200, repeat('c', 3000), 's')",
    # Into the filter: an INSERT whose body is unchanged, and so not there. And out of it.
    "UPDATE filtered SET id = 5 WHERE id = 200",
    "UPDATE filtered SET id = 300 WHERE id = 1",
)
MESSAGES_FROM_14 = (
    "SELECT pg_logical_emit_message(false, 'alone', 'belongs to nothing')",
    (
        "BEGIN; SELECT pg_logical_emit_message(false, 'early', 'x');"
        " SELECT pg_logical_emit_message(true, 'within', '\\x00ff0a'::bytea);"
        " INSERT INTO items VALUES (100, NULL, 'with a message'); COMMIT"
    ),
    (
        "BEGIN; SELECT pg_logical_emit_message(false, 'survives', 'its transaction');"
        " SELECT pg_logical_emit_message(true, 'goes', 'with its transaction'); ROLLBACK"
    ),
)
PREPARED = (
    "BEGIN; INSERT INTO items VALUES (200, NULL, 'kept'); PREPARE TRANSACTION 'kept'",
    "COMMIT PREPARED 'kept'",
    "BEGIN; INSERT INTO items VALUES (201, NULL, 'dropped'); PREPARE TRANSACTION 'dropped'",
    "ROLLBACK PREPARED 'dropped'",
    "BEGIN; INSERT INTO unpublished VALUES (2); PREPARE TRANSACTION 'nothing published'",
    "COMMIT PREPARED 'nothing published'",
)
# More than logical_decoding_work_mem = 64kB.
FILL = "INSERT INTO bulk SELECT g, repeat('f', 7900) FROM generate_series(1, 9) g"


def create(session: Session, major: int) -> tuple[str, ...]:
    """Make the schema; the publications' names."""
    session.execute(SCHEMA)
    names = ["corpus", "corpus_insert"]
    if major >= 11:
        session.execute("ALTER PUBLICATION corpus_insert SET (publish = 'insert, truncate')")
    for since, script, name in (
        (13, PARTITIONS_FROM_13, "corpus_root"),
        (15, FILTERS_FROM_15, "corpus_filter"),
        (18, GENERATED_FROM_18, "corpus_generated"),
    ):
        if major >= since:
            session.execute(script)
            names.append(name)
    return tuple(names)


def run(first: Session, second: Session, major: int, receiver: Receiver) -> None:
    """The whole workload on two sessions in autocommit mode."""
    session = first
    session.execute(KINDS)
    steps = list(PLAIN)
    steps += TRUNCATE_FROM_11 if major >= 11 else ()
    steps += PARTITIONED if major >= 13 else ()
    steps += MESSAGES_FROM_14 if major >= 14 else ()
    steps += FILTERED if major >= 15 else ()
    steps += ["INSERT INTO generated VALUES (21)"] if major >= 18 else []
    steps += PREPARED
    for step in steps:
        session.execute(step)
    with origin(session):
        session.execute(
            "BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2020-02-02');"
            " INSERT INTO items VALUES (300, NULL, 'from elsewhere'); COMMIT"
        )
    stream(first, second, major, receiver)


def stream(first: Session, second: Session, major: int, receiver: Receiver) -> None:
    """Transactions that are streamed where that was asked for; large ones elsewhere."""

    def fill(session: Session) -> None:
        """Enough for another block, and sent, where streaming was asked for."""
        session.execute(FILL)
        # What is not flushed is not decoded: another session's commit flushes all.
        with psycopg.connect(session.info.dsn, autocommit=True) as flusher:
            flusher.execute("INSERT INTO unpublished VALUES (0)")
            row = flusher.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        receiver.await_end(Lsn.parse(row[0]))

    # Two savepoints, of which one is rolled back, in a transaction in progress.
    first.execute("BEGIN; INSERT INTO items VALUES (400, NULL, 'before')")
    fill(first)
    first.execute("SAVEPOINT kept; INSERT INTO items VALUES (401, NULL, 'kept')")
    fill(first)
    first.execute("SAVEPOINT dropped; ALTER TABLE items ADD COLUMN gone int;")
    first.execute("INSERT INTO items VALUES (402, NULL, 'dropped', 1)")
    fill(first)
    first.execute("ROLLBACK TO dropped; INSERT INTO items VALUES (403, NULL, 'after'); COMMIT")

    # Two transactions at once, with messages within and between their blocks; one is aborted.
    first.execute("BEGIN")
    second.execute("BEGIN; INSERT INTO items VALUES (500, NULL, 'second')")
    fill(first)
    fill(second)
    if major >= 14:
        first.execute("SELECT pg_logical_emit_message(true, 'streamed', 'content')")
        first.execute("SELECT pg_logical_emit_message(false, 'between', 'blocks')")
    if major >= 11:
        first.execute("TRUNCATE kinds")
    first.execute("UPDATE documents SET added = 9 WHERE id = 2")
    first.execute("DELETE FROM documents WHERE id = 3")
    fill(first)
    second.execute("ROLLBACK")
    first.execute("COMMIT")

    with origin(first):
        first.execute("BEGIN")
        fill(first)
        first.execute("COMMIT")

    for gid, end in (("large", "COMMIT"), ("large and dropped", "ROLLBACK")):
        first.execute("BEGIN")
        fill(first)
        first.execute(f"PREPARE TRANSACTION '{gid}'")
        first.execute(f"{end} PREPARED '{gid}'")
    first.execute("INSERT INTO items VALUES (600, NULL, 'the last')")


@contextmanager
def origin(session: Session) -> Iterator[None]:
    """What the session writes meanwhile came from elsewhere."""
    session.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
    yield
    session.execute("SELECT pg_replication_origin_session_reset()")
