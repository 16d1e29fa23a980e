"""``mode = "history"``: as of each transaction, a history has the source's rows."""

from __future__ import annotations

import random
import shutil

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.pipeline.test_changelog import BIG, History, in_order, program
from tests.support.databases import MakeDatabase
from tests.support.histories import as_of, history_of
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.verifying import verify as verify_command

from pgsluice.cli.app import run_command
from pgsluice.subscription.verify import Verification, verify

HISTORY = 'mode = "history"'

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("history")]


def assert_as_of(versions: pa.Table, source: History) -> None:
    """As of each of the source's transactions since the first copy, its rows are the versions."""
    first = min(versions["_valid_from"].to_pylist())
    moments = [moment for moment in source.moments if moment[0] >= first]
    assert moments
    for position, rows in moments:
        names = list(rows[0]) if rows else ["id"]
        found = as_of(versions, position)
        assert in_order(found, names) == in_order(rows, names), position


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


def test_as_of_each_transaction_a_history_is_the_source(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Merged on read; merged on write, a soak has the same."""
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
    )
    one = pipeline(shop)
    one.sink_options = ', merge = "on_read"'
    one.write(HISTORY)
    one.once()
    source = History(shop, "orders")
    source.note()
    rng = random.Random(1)
    for number in range(3):
        for _ in program(rng, source, 12):
            pass
        if number == 1:
            source.commit("TRUNCATE orders", "INSERT INTO orders VALUES (3, 'after', NULL)")
            source.commit("INSERT INTO orders VALUES (4, 'after', NULL)")
        one.once()
        if number == 1:
            one.copy("orders")
            one.once()
        versions = history_of(one.delta("orders"))
        assert_as_of(versions, source)
        assert_verified(one, "public.orders")
    closed = versions.filter(pa.compute.invert(versions["_is_current"]))
    assert len(closed) > len(source.moments)


def test_changed_tables_have_whole_histories(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Added columns with a value in older rows, wider and dropped columns, a truncated partition;
    tables without a key, and with columns of a history, are parked."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, w int)",
        "INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3)",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT i, 'x' FROM generate_series(8, 11) i",
        "CREATE TABLE bag (a int)",
        "CREATE TABLE named (id int PRIMARY KEY, _is_current text)",
    )
    one = pipeline(shop, extra=HISTORY)
    with pytest.raises(Exception, match=r"bag|named"):
        one.once()
    assert "no key with a unique index, which a history needs" in str(one.table("bag").error)
    assert "a primary key that is NOT DEFERRABLE" in str(one.table("bag").error)
    assert "adds a column with this name to the table's history" in str(one.table("named").error)
    shop.execute("DROP TABLE bag", "DROP TABLE named")
    source, parts = History(shop, "t"), History(shop, "p")
    source.note()
    source.commit("DELETE FROM t WHERE id = 3")
    source.commit("ALTER TABLE t ADD n int DEFAULT 7")
    source.commit("INSERT INTO t VALUES (4, 'four', 4, 8)", "UPDATE t SET id = 9 WHERE id = 2")
    one.once()
    source.commit("ALTER TABLE t ADD m int DEFAULT 5")  # no change has it
    one.once()
    source.commit("ALTER TABLE t ADD k int DEFAULT 3")
    source.commit("UPDATE t SET a = 'five' WHERE id = 1")
    source.commit("TRUNCATE t", "INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2)")
    one.once()
    assert one.table("t").copy_number == 1, "the server still has the value of older rows"
    source.commit("ALTER TABLE t ALTER w TYPE bigint")  # rewritten, so it is copied
    one.once()
    source.commit("UPDATE t SET w = 2::bigint ^ 40 WHERE id = 1")
    shop.execute("TRUNCATE p1")
    one.once()
    parts.note()
    parts.commit("INSERT INTO p VALUES (1, 'a')")
    source.commit("ALTER TABLE t DROP a")
    source.commit("UPDATE t SET n = 1 WHERE id = 1", "INSERT INTO t VALUES (5, 5, 5, 5, 5)")
    one.once()
    one.copy("t")
    one.once()
    assert_as_of(history_of(one.delta("t")), source)
    assert_as_of(history_of(one.delta("p")), parts)
    assert_verified(one, "public.t", "public.p")
    one.write()
    shop.execute("DELETE FROM p")
    with pytest.raises(Exception, match="p"):
        one.once()
    assert "in another mode" in str(one.table("p").error)


def test_verify_counts_keys_whose_versions_overlap(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """As earlier versions of pgsluice left them. A copy ends one of two open ones, but changes no
    closed one."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    shop.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 3) i")
    one = pipeline(shop)
    one.write(HISTORY + '\n[subscription.rename]\n"public.t.id" = "number"')
    one.once()
    shop.execute("UPDATE t SET v = 'b'")
    one.once()
    code, results = verify_command(one, capsys)
    assert (code, results["public.t"]["overlapping_keys"]) == (0, 0)

    rows = one.rows("t")
    versions = pa.Table.from_batches(rows.batches(rows.schema.names)).cast(rows.schema)
    is_first = pa.compute.equal(versions["number"], 1)
    twice = pa.compute.xor(is_first, versions["_is_current"])  # also the open ones of 2 and 3
    write_deltalake(one.target("t"), versions.filter(twice), mode="append")
    code, results = verify_command(one, capsys)
    assert (code, results["public.t"]["overlapping_keys"]) == (1, 1)
    assert results["public.t"]["extra_keys"] == [["2"], ["3"]]
    code, results = verify_command(one, capsys, "--repair")
    assert (code, results["public.t"]["overlapping_keys"]) == (1, 1)
    assert results["public.t"]["is_copied"]

    assert run_command(["verify", str(one.path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("public.t: VERSIONS OVERLAP of 1 key, and no copy mends closed ones")
    assert f"pgsluice copy {one.path} public.t); current rows: equal at " in said
    shutil.move(one.target("t"), one.folder / "old")
    one.copy("t")
    assert verify_command(one, capsys)[0] == 0
