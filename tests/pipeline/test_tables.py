"""What arrives in the lake: every kind of change on every kind of table."""

from __future__ import annotations

import pytest
from tests.pipeline.stories import Story, tell
from tests.support.databases import MakeDatabase
from tests.support.hostile_server import HostileProxy, Said
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.capture import run_capture

pytestmark = pytest.mark.usefixtures("spark")

BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))"

SHOP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, balance numeric(12,2), notes text,
    joined timestamptz, tags text[], mood mood, token uuid, profile jsonb);
ALTER TABLE customers ALTER notes SET STORAGE EXTERNAL;
CREATE TABLE lines (
    order_id int, line_no smallint, price numeric, share real, weight double precision,
    ordered date, at timestamp, raw bytea, flag boolean, PRIMARY KEY (order_id, line_no));
CREATE TABLE log (at timestamptz, message varchar(100));
CREATE TABLE audit (id int PRIMARY KEY, old text, new text);
ALTER TABLE audit REPLICA IDENTITY FULL;
ALTER TABLE audit ALTER old SET STORAGE EXTERNAL;
"""
PARTS = """
CREATE TABLE parts (id int, region text, n int, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us');
"""
# Up to 10 a partitioned table has no key, and its rows stay where they are.
PARTS_OF_10 = """
CREATE TABLE parts (id int, region text, n int) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts (PRIMARY KEY (id, region)) FOR VALUES IN ('eu');
CREATE TABLE parts_us PARTITION OF parts (PRIMARY KEY (id, region)) FOR VALUES IN ('us');
"""
SHOP_TABLES = ("customers", "lines", "log", "audit", "parts")

BEFORE = f"""
INSERT INTO customers SELECT i, 'c' || i, i * 1.25, {BIG}, now(), ARRAY['a', NULL, 'b"c'],
    'ok', md5(i::text)::uuid, '{{"a": 1}}' FROM generate_series(1, 100) i;
INSERT INTO lines SELECT i, i % 3, i / 7.0, i / 3.0, i / 3.0, '2024-02-29', now(), '\\x00ff', true
    FROM generate_series(1, 50) i;
INSERT INTO log SELECT now(), 'before' FROM generate_series(1, 10);
INSERT INTO audit SELECT i, {BIG}, 'x' FROM generate_series(1, 20) i;
INSERT INTO parts SELECT i, CASE WHEN i % 2 = 0 THEN 'eu' ELSE 'us' END, i
    FROM generate_series(1, 20) i;
"""

WORK = (
    # Rows that keep their big column; NULLs and empty strings.
    "UPDATE customers SET balance = balance + 1 WHERE id % 2 = 0",
    "UPDATE customers SET name = '', tags = '{}', profile = NULL WHERE id = 3",
    # Keys that change, and one that a new row takes.
    "UPDATE customers SET id = id + 1000 WHERE id BETWEEN 10 AND 15",
    """BEGIN; DELETE FROM customers WHERE id = 20;
    INSERT INTO customers (id, name) VALUES (20, 'n'); COMMIT""",
    # What never happened.
    "BEGIN; DELETE FROM customers; ROLLBACK",
    """BEGIN; INSERT INTO customers (id, name) VALUES (500, 'a'); SAVEPOINT s;
    INSERT INTO customers (id, name) VALUES (501, 'b'); ROLLBACK TO s;
    INSERT INTO customers (id, name) VALUES (502, 'c'); COMMIT""",
    "DELETE FROM lines WHERE order_id < 5",
    "UPDATE lines SET price = 'NaN', share = 'Infinity', weight = -0.0 WHERE order_id = 9",
    "UPDATE lines SET line_no = 9, price = 123456789012345678901234567890.123 WHERE order_id = 10",
    "INSERT INTO log VALUES (now(), 'after'), (NULL, NULL)",
    "UPDATE audit SET new = 'y' WHERE id < 5",
    "DELETE FROM audit WHERE id = 7",
    "DELETE FROM parts WHERE id = 6",
    # A TRUNCATE in the middle.
    """BEGIN; INSERT INTO lines (order_id, line_no) VALUES (900, 1); TRUNCATE lines;
    INSERT INTO lines (order_id, line_no) VALUES (901, 1); COMMIT""",
)
MOVE = "UPDATE parts SET region = 'us' WHERE id = 4"
"""A row that moves to another partition (from 11 on) is a delete and an insert."""


def test_changes_of_tables_arrive(database: MakeDatabase, pipeline: MakePipeline) -> None:
    tell(
        pipeline(database(), extra='on_unrepresentable = "fail"'),
        every_table_equals_its_source_after_a_copy_and_after_changes,
        two_keys_swapped_while_their_big_columns_stay,
        an_added_nullable_column_is_followed_and_a_dropped_one_turns_null,
        one_bad_table_stops_no_other,
        an_application_that_updates_a_table_without_identity_is_never_stopped,
        what_the_stream_cannot_tell_is_seen_in_the_catalog,
        a_table_that_was_without_its_key_for_a_while_and_a_new_one,
        a_target_that_was_rolled_back_is_parked_and_copied_again,
        a_row_that_was_damaged_on_its_way_parks_its_table,
    )


def every_table_equals_its_source_after_a_copy_and_after_changes(one: Pipeline) -> Story:
    shop = one.database
    is_keyed = shop.server.programs.major >= 11
    shop.execute(SHOP, PARTS if is_keyed else PARTS_OF_10, BEFORE)
    yield
    one.assert_equal(*SHOP_TABLES)
    shop.execute(*WORK, *([MOVE] if is_keyed else []))
    yield
    one.assert_equal(*SHOP_TABLES)
    versions = {table: one.delta(table).version() for table in SHOP_TABLES}
    applied = {table: one.table(table).rows for table in SHOP_TABLES}
    yield
    assert {table: one.delta(table).version() for table in SHOP_TABLES} == versions
    assert {table: one.table(table).rows for table in SHOP_TABLES} == applied


def two_keys_swapped_while_their_big_columns_stay(one: Pipeline) -> Story:
    one.database.execute(
        "CREATE TABLE swapped (id int PRIMARY KEY DEFERRABLE, big text)",
        "ALTER TABLE swapped ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO swapped SELECT i, {BIG} || i FROM generate_series(1, 4) i",
        # A deferrable key is no replica identity.
        "CREATE UNIQUE INDEX swapped_id ON swapped (id)",
        "ALTER TABLE swapped REPLICA IDENTITY USING INDEX swapped_id",
    )
    yield
    one.database.execute(
        "BEGIN; UPDATE swapped SET id = -1 WHERE id = 1; UPDATE swapped SET id = 1 WHERE id = 2;"
        "UPDATE swapped SET id = 2 WHERE id = -1; COMMIT"
    )
    yield
    one.assert_equal("swapped")


def an_added_nullable_column_is_followed_and_a_dropped_one_turns_null(one: Pipeline) -> Story:
    one.database.execute(
        "CREATE TABLE altered (id int PRIMARY KEY, a text)", "INSERT INTO altered VALUES (1, 'x')"
    )
    yield
    one.database.execute(
        "INSERT INTO altered VALUES (2, 'y')",
        "ALTER TABLE altered ADD COLUMN b numeric(6,2)",
        "INSERT INTO altered VALUES (3, 'z', 1.5)",
        "UPDATE altered SET b = 2 WHERE id = 1",
    )
    yield
    one.assert_equal("altered")
    one.database.execute("ALTER TABLE altered DROP COLUMN a", "INSERT INTO altered VALUES (4, 9)")
    yield
    rows = {row["id"]: row for row in one.delta("altered").to_pyarrow_table().to_pylist()}
    assert rows[2]["a"] == "y"
    assert rows[4]["a"] is None
    assert one.table("altered").copy_number == 1


def one_bad_table_stops_no_other(one: Pipeline) -> Story:
    shop = one.database
    shop.execute(
        "CREATE TABLE good (id int PRIMARY KEY)",
        "CREATE TABLE bad (id int PRIMARY KEY, d date)",
        "INSERT INTO good VALUES (1)",
        "INSERT INTO bad VALUES (1, '2024-01-01')",
    )
    yield
    shop.execute("INSERT INTO bad VALUES (2, 'infinity')", "INSERT INTO good VALUES (2)")
    yield {"bad": "1 value.* of column .d. .* fit"}
    one.assert_equal("good")
    assert one.table("bad").state == "p"
    shop.execute("DELETE FROM bad WHERE id = 2", "INSERT INTO bad VALUES (3, NULL)")
    one.copy("public.bad")
    one.assert_equal("good", "bad")
    yield
    one.assert_equal("good", "bad")


def an_application_that_updates_a_table_without_identity_is_never_stopped(one: Pipeline) -> Story:
    shop = one.database
    shop.execute("CREATE TABLE nokey (a int)", "CREATE TABLE k (id int PRIMARY KEY)")
    yield
    shop.execute("INSERT INTO nokey VALUES (1), (2)", "INSERT INTO k VALUES (1)")
    yield
    one.assert_equal("nokey", "k")
    shop.execute("UPDATE nokey SET a = a + 1", "DELETE FROM nokey WHERE a = 2")
    shop.execute("ALTER TABLE k DROP CONSTRAINT k_pkey")
    yield
    # Ours are kept in step: the table without its key may be updated as well.
    shop.execute("UPDATE k SET id = 2")


def what_the_stream_cannot_tell_is_seen_in_the_catalog(one: Pipeline) -> Story:
    shop = one.database
    major = shop.server.programs.major
    # Up to 10 a partitioned table has no key.
    root_key, leaf_key = (" PRIMARY KEY", "") if major >= 11 else ("", " (PRIMARY KEY (id))")
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 10) i",
        f"CREATE TABLE p (id int{root_key}) PARTITION BY RANGE (id)",
        f"CREATE TABLE p1 PARTITION OF p{leaf_key} FOR VALUES FROM (0) TO (100)",
        "INSERT INTO p SELECT generate_series(1, 20)",
        "CREATE TABLE p3 (id int PRIMARY KEY)",
        "INSERT INTO p3 SELECT generate_series(200, 210)",
    )
    yield
    copies = {name: one.table(name).copy_number for name in ("t", "p")}
    # Neither a new file nor a new empty partition is a reason to copy again.
    shop.execute(
        "VACUUM FULL t",
        f"CREATE TABLE p2 PARTITION OF p{leaf_key} FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p VALUES (150)",
    )
    yield
    one.assert_equal("t", "p")
    again = {name: one.table(name).copy_number - number for name, number in copies.items()}
    # But 10 sends no TRUNCATE, and there a new file may be one. Before 13 a new partition has to
    # be added to the publication: what is written to it until then does not come.
    assert again == {"t": int(major < 11), "p": int(major < 13)}
    # A partition that comes or goes with its rows is in part; one that is truncated is not.
    shop.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)")
    # Every value is another, and no message says so.
    shop.execute("ALTER TABLE t ALTER a TYPE int USING a * 2", "INSERT INTO t VALUES (11, 11)")
    yield
    one.assert_equal("t", "p")
    shop.execute(
        "BEGIN; CREATE TABLE p4 (LIKE p1 INCLUDING ALL); INSERT INTO p4 VALUES (300);"
        "ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (300) TO (400); COMMIT"
    )
    yield
    one.assert_equal("p")
    shop.execute("ALTER TABLE p DETACH PARTITION p4", "TRUNCATE p1", "INSERT INTO p VALUES (5)")
    yield
    one.assert_equal("p")


def a_table_that_was_without_its_key_for_a_while_and_a_new_one(one: Pipeline) -> Story:
    shop = one.database
    shop.execute(
        "CREATE TABLE keyless (id int PRIMARY KEY, a int)", "INSERT INTO keyless VALUES (1, 1)"
    )
    yield
    shop.execute(
        "CREATE TABLE added (id int PRIMARY KEY)",
        "INSERT INTO added VALUES (1)",
        "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey",
    )
    yield
    one.assert_equal("added")
    # Nobody is told of this one: pgsluice saw to it that the application may do it.
    shop.execute("UPDATE keyless SET a = 2", "ALTER TABLE keyless ADD PRIMARY KEY (id)")
    yield
    one.assert_equal("keyless")


def a_target_that_was_rolled_back_is_parked_and_copied_again(one: Pipeline) -> Story:
    shop = one.database
    shop.execute("CREATE TABLE restored (id int PRIMARY KEY)", "INSERT INTO restored VALUES (1)")
    yield
    shop.execute("INSERT INTO restored VALUES (2)")
    yield
    # As if the lake had been put back from a backup: the newest commit is gone.
    log = one.lake / "public" / "restored" / "_delta_log"
    newest = max(log.glob("*.json"))
    assert '"add"' in newest.read_text()
    newest.unlink()
    shop.execute("INSERT INTO restored VALUES (3)")
    yield {"restored": "rolled back"}
    one.copy("restored")
    one.assert_equal("restored")
    yield


def a_row_that_was_damaged_on_its_way_parks_its_table(one: Pipeline) -> Story:
    shop = one.database
    shop.execute("CREATE TABLE hurt (id int PRIMARY KEY, v text)")
    for _ in range(3):  # nothing else is parked afterwards: copying one table applies them all
        yield
    shop.execute("INSERT INTO hurt VALUES (1, 'whole'), (2, 'damaged'), (3, 'whole')")
    # The value claims to be longer than its message. Capture stores what it receives.
    damage = Said(
        lambda said: b"\0\0\0\7damaged" in said.pgoutput,
        lambda said: [
            said.with_pgoutput(said.pgoutput.replace(b"\0\0\0\7damaged", b"\0\0\1\7damaged"))
        ],
    )
    with HostileProxy(shop.server.port, damage) as proxy:
        through = one.config.source.model_copy(update={"dsn": proxy.dsn(shop.dsn)})
        run_capture(one.config.model_copy(update={"source": through}), once=True)
    assert damage.has_acted
    yield {"hurt": "the value is truncated.*\n.*pgsluice copy CONFIG public.hurt"}
    one.copy("hurt")
    one.assert_equal("hurt")
    yield


def test_updates_of_rows_that_were_not_copied_are_skipped(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database(), extra="copy_data = false")
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 0, {BIG} FROM generate_series(1, 4) i",
    )
    one.once()
    shop.execute(
        "INSERT INTO t VALUES (5, 0, 'new'), (6, 0, 'new')",
        "UPDATE t SET a = 1",
        "UPDATE t SET id = id + 10 WHERE id IN (1, 6)",
        "DELETE FROM t WHERE id = 2",
    )
    one.once()
    rows = one.delta("t").to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [5, 16]
    shop.execute("UPDATE t SET a = 2")
    one.once()
    rows = one.delta("t").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["a"]) for row in rows) == [(5, 2), (16, 2)]
    assert (one.table("t").state, one.table("t").rows_skipped) == ("r", 7)


def test_an_insert_replaces_a_row_whose_delete_is_not_published(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t VALUES (1, 0), (2, 0)",
        f"CREATE PUBLICATION {shop.name} FOR ALL TABLES WITH (publish = 'insert, update')",
    )
    one.once()
    shop.execute("DELETE FROM t", "INSERT INTO t VALUES (1, 1), (3, 1)")
    one.once()
    rows = one.delta("t").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["a"]) for row in rows) == [(1, 1), (2, 0), (3, 1)]
