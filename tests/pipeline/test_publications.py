"""pgsluice's own publications over the whole way, into Delta.

The examples are those of the manual's section on row filters, with the results that it prints;
a native PostgreSQL subscription is the evaluate_filters of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import psycopg
import pytest
from deltalake.exceptions import TableNotFoundError
from tests.pipeline.own_publications import lake, publishing
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline
from tests.support.waiting import await_that

from pgsluice.cli.app import run_command
from pgsluice.config import Config

pytestmark = pytest.mark.usefixtures("spark")

TABLES = (
    "CREATE TABLE t1 (a int, b int, c text, PRIMARY KEY (a, c))",
    "CREATE TABLE t2 (d int, e int, f int, PRIMARY KEY (d))",
    "CREATE TABLE t3 (g int, h int, i int, PRIMARY KEY (g))",
)
P1_P2_P3 = """
CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99);
CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);
"""
PARTITIONED = (
    "CREATE TABLE parent (a int PRIMARY KEY) PARTITION BY RANGE (a)",
    "CREATE TABLE child PARTITION OF parent DEFAULT",
)
P4 = "CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)"
P4_BY_LEAF = "CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5)"
PARTITIONED_ROWS = (
    "INSERT INTO parent VALUES (2), (4), (6)",
    "INSERT INTO child VALUES (3), (5), (7)",
)
ROWS = (
    "INSERT INTO t1 VALUES (2, 102, 'NSW'), (3, 103, 'QLD'), (4, 104, 'VIC'), (5, 105, 'ACT')",
    "INSERT INTO t1 VALUES (6, 106, 'NSW'), (7, 107, 'NT'), (8, 108, 'QLD'), (9, 109, 'NSW')",
    "INSERT INTO t2 VALUES (10, 1, 1), (11, 99, 1), (12, 98, 1), (13, NULL, NULL)",
    "INSERT INTO t3 VALUES (10, 1, 1), (11, 1, 1)",
)


def test_the_manuals_examples(
    servers: Servers, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """s1: what is inserted, and each kind of UPDATE; copied and streamed; p1, p2, p3 at once.

    s4: the partitioned table, by its root and by its leaf. On 12, which has no row filters and
    sends no roots. The manual's steps one by one, without Spark and also on 18, are in
    tests/publication/test_seed_examples.py.
    """
    shop = database(servers(12))
    shop.execute(*TABLES, *PARTITIONED)
    one = pipeline(shop)
    via_root = f"{P4} WITH (publish_via_partition_root = true);"
    s4: dict[str, tuple[str, ...]] = {"s4": ("p4",)}
    publishing(one, P1_P2_P3 + via_root, s1=("p1",), s3=("p1", "p2", "p3"), **s4)
    one.once()
    shop.execute(*ROWS, *PARTITIONED_ROWS)
    one.once()
    assert lake(one, "s1", "t1") == [(6, 106, "NSW"), (9, 109, "NSW")]
    assert not (one.folder / "s1" / "public" / "t2").exists()
    # t2's filters of p2 and p3 are ORed; p2's t1 has none, which makes p1's redundant.
    assert lake(one, "s3", "t2") == [(10, 1, 1), (11, 99, 1)]
    assert lake(one, "s3", "t3") == [(10, 1, 1)]
    with shop.connect() as connection:
        assert_equal(connection, "public.t1", one.folder / "s3" / "public" / "t1")
    assert lake(one, "s4", "parent") == [(2,), (3,), (4,)]
    shop.execute(
        "UPDATE t1 SET b = 999 WHERE a = 6",
        "UPDATE t1 SET a = 555 WHERE a = 2",
        "UPDATE t1 SET c = 'VIC' WHERE a = 9",
        "UPDATE t1 SET b = 1 WHERE a = 3",
    )
    # Another subscription later: its copy honours the filters, ORed over its publications.
    by_leaf = f"{P4_BY_LEAF} WITH (publish_via_partition_root = false);"
    publishing(one, P1_P2_P3 + by_leaf, s1=("p1",), late=("p1", "p3"), **s4)
    one.once()
    assert lake(one, "s1", "t1") == [(6, 999, "NSW"), (555, 102, "NSW")]
    assert lake(one, "late", "t1") == [(6, 999, "NSW"), (555, 102, "NSW")]
    assert lake(one, "late", "t2") == [(10, 1, 1)]
    assert lake(one, "s4", "child") == [(5,), (6,), (7,)]
    shop.execute("TRUNCATE parent", *PARTITIONED_ROWS, "DELETE FROM child WHERE a IN (4, 5)")
    one.once()
    assert lake(one, "s4", "child") == [(6,), (7,)]
    assert lake(one, "s4", "parent") == [(2,), (3,), (4,)], "it stays as it was"


@pytest.mark.pg(">= 16")
def test_three_filters_off_one_slot_are_three_native_subscriptions(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop, other = database(), database()
    tables = (
        "CREATE TABLE t (id int PRIMARY KEY, region text, n numeric, d timestamp, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (500)",
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (500) TO (MAXVALUE)",
    )
    shop.execute(*tables)
    definitions = {
        "eu": "FOR TABLE t WHERE (region = 'EU' AND n > 10)",
        "late": "FOR TABLE t WHERE (d >= '2024-06-01' OR d IS NULL)",
        "roots": "FOR TABLE parts (id, v) WHERE (id % 3 = 1)"
        " WITH (publish_via_partition_root = true)",
    }
    fill = """INSERT INTO t SELECT i, (ARRAY['EU', 'US', NULL])[1 + i % 3], i % 40,
        CASE WHEN i % 5 > 0 THEN timestamp '2024-01-01' + i * interval '1 day' END, 'v' || i
        FROM generate_series({}, {}) i"""
    shop.execute(
        fill.format(1, 300), "INSERT INTO parts SELECT i, 'p' FROM generate_series(1, 900) i"
    )
    one = pipeline(shop)
    statements = "".join(f"CREATE PUBLICATION {name} {text};" for name, text in definitions.items())
    sends_generated = shop.server.programs.major >= 18
    if sends_generated:
        shop.execute(
            "CREATE TABLE g (id int PRIMARY KEY, n int, n2 int GENERATED ALWAYS AS (n * 2) STORED)",
            "INSERT INTO g VALUES (1, 1), (2, 2)",
        )
        statements += "ALTER PUBLICATION roots ADD TABLE g (id, n2);"
    publishing(one, statements, **{name: (name,) for name in definitions})
    one.once()
    with natives(shop, other, tables, definitions) as wait:
        shop.execute(
            fill.format(301, 400),
            "UPDATE t SET n = n + 7 WHERE id % 4 = 0",
            "UPDATE t SET region = 'EU' WHERE id % 10 = 3",
            "UPDATE t SET d = NULL WHERE id % 11 = 0",
            "UPDATE t SET id = id + 10000, v = v || '!' WHERE id % 13 = 0",
            "DELETE FROM t WHERE id % 17 = 0",
            "UPDATE parts SET id = id + 2000 WHERE id % 100 = 99",
            "UPDATE parts SET v = 'q' WHERE id % 7 = 0",
            "DELETE FROM parts WHERE id % 19 = 0",
        )
        if sends_generated:
            shop.execute("UPDATE g SET n = 20 WHERE id = 2", "INSERT INTO g VALUES (3, 3)")
        wait()
        one.once()
        if sends_generated:
            assert lake(one, "roots", "g") == [(1, 2), (2, 40), (3, 6)]
        for name in definitions:
            table = "parts" if name == "roots" else "t"
            with psycopg.connect(other.server.dsn(f"{other.name}_{name}"), autocommit=True) as sub:
                assert_equal(sub, f"public.{table}", one.folder / name / "public" / table)


@contextmanager
def natives(
    shop: Database, other: Database, tables: tuple[str, ...], definitions: Mapping[str, str]
) -> Iterator[Any]:
    """A native subscription a publication, each in a database of its own of the same server."""
    slots = {name: f"{shop.name}_{name}" for name in definitions}
    for name, text in definitions.items():
        shop.execute(
            f"CREATE PUBLICATION native_{name} {text}",
            f"SELECT pg_create_logical_replication_slot('{slots[name]}', 'pgoutput')",
        )
        other.execute(f'CREATE DATABASE "{other.name}_{name}"')
        with psycopg.connect(other.server.dsn(f"{other.name}_{name}"), autocommit=True) as sub:
            for statement in tables:
                sub.execute(statement)
            sub.execute(
                f"CREATE SUBSCRIPTION native CONNECTION '{shop.dsn}' PUBLICATION native_{name}"
                f" WITH (create_slot = false, slot_name = '{slots[name]}')"
            )

    def wait() -> None:
        for name, slot in slots.items():
            with psycopg.connect(other.server.dsn(f"{other.name}_{name}"), autocommit=True) as sub:
                _until(sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel")
            ((now,),) = shop.execute("SELECT pg_current_wal_flush_lsn()")
            with shop.connect() as source:
                _until(
                    source,
                    f"SELECT confirmed_flush_lsn >= '{now}' FROM pg_replication_slots"
                    f" WHERE slot_name = '{slot}'",
                )

    try:
        yield wait
    finally:
        for name in definitions:
            with psycopg.connect(other.server.dsn(f"{other.name}_{name}"), autocommit=True) as sub:
                sub.execute("ALTER SUBSCRIPTION native DISABLE")
                sub.execute("ALTER SUBSCRIPTION native SET (slot_name = NONE)")
                sub.execute("DROP SUBSCRIPTION native")
            other.execute(f'DROP DATABASE "{other.name}_{name}" WITH (FORCE)')


def _until(connection: psycopg.Connection[Any], question: str) -> None:
    await_that(lambda: bool(connection.execute(question).fetchone()[0]), question)


def test_changed_publications_are_taken_over_when_that_is_asked_for(
    database: MakeDatabase,
    pipeline: MakePipeline,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As by SIGHUP, which tests/pipeline/test_independent.py sends to the program."""
    shop = database()
    shop.execute(*TABLES, *ROWS)
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR TABLE t1 WHERE (a > 5), t2;", lake=("p",))
    is_asked = Event()

    def reread() -> Config | None:
        if not is_asked.is_set():
            return None
        is_asked.clear()
        return one.config

    def publish(statements: str) -> None:
        (one.folder / "publications.sql").write_text(statements)
        is_asked.set()

    def holds(table: str, expected: list[int]) -> bool:
        with suppress(TableNotFoundError):
            return [row[0] for row in lake(one, "lake", table)] == expected
        return False

    with one.live(reread=reread):
        one.wait_until(lambda: holds("t1", [6, 7, 8, 9]) and holds("t2", [10, 11, 12, 13]))
        # A file is read when that is asked for, not while somebody writes it.
        (one.folder / "publications.sql").write_text("CREATE PUBLICATION p FOR TAB")
        shop.execute(
            "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO t1 VALUES (10, 0, 'x')"
        )
        one.wait_applied()
        assert holds("t1", [6, 7, 8, 9, 10])
        assert "syntax error" not in caplog.text
        publish("CREATE PUBLICATION p FOR TABLE t1 WHERE (a < 5), t3;")
        one.wait_until(lambda: holds("t1", [2, 3, 4]) and holds("t3", [10, 11]))
        shop.execute(
            "DELETE FROM t2", "UPDATE t1 SET a = 1 WHERE a = 8", "DELETE FROM t1 WHERE a = 2"
        )
        one.wait_until(lambda: holds("t1", [1, 3, 4]))
        assert holds("t2", [10, 11, 12, 13]), "in no publication any more: it stays as it was"
        # What cannot be taken over is said, and all goes on as it was.
        publish("CREATE PUBLICATION p FOR TABLE t1 WHERE (nothing > 5);")
        one.wait_until(lambda: 'column "nothing" does not exist' in caplog.text)
        shop.execute("INSERT INTO t1 VALUES (0, 0, 'x')")
        one.wait_until(lambda: holds("t1", [0, 1, 3, 4]))
        # Other names of publications count, too.
        publishing(one, "CREATE PUBLICATION q FOR TABLE t1 WHERE (a > 5), t2;", lake=("q",))
        is_asked.set()
        one.wait_until(lambda: holds("t1", [6, 7, 9, 10]) and holds("t2", []))
        # A file that cannot be read changes nothing; `pgsluice copy` says so, and copies.
        (one.folder / "publications.sql").write_bytes(b"-- \xff")
        assert run_command(["copy", str(one.path), "t1"]) == 0
        (one.folder / "publications.sql").unlink()
        assert run_command(["copy", str(one.path), "t1"]) == 0
        said = capsys.readouterr().out
        assert re.findall(r"keeps the settings that it has: .*publications\.sql (.*)", said) == [
            "cannot be read: it is not text in UTF-8",
            "cannot be read: No such file or directory",
        ]
        assert "the active run reloads" not in said
        assert holds("t1", [6, 7, 9, 10])


def test_a_mistake_in_the_statements_is_said_at_the_start(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = database()
    shop.execute(*TABLES)
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p\nFOR TABLE t9;", lake=("p",))
    assert run_command(["run", str(one.path), "--once"]) == 2
    error = capsys.readouterr().err
    assert 'relation "t9" does not exist' in error
    assert "publications.sql:1" in error
    assert "Traceback" not in error
