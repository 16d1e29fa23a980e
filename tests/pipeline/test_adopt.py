"""``adopt``: after ``drop`` or a lost spool, only what differs from the source is copied."""

from __future__ import annotations

import logging
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import run_killed_at, use_local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import await_that

from pgsluice.cli.app import run_command
from pgsluice.errors import TablesUnfinished
from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_spark(monkeypatch)


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, amount numeric(9,2))",
        "INSERT INTO t SELECT i, 'word ' || i, i / 7.0 FROM generate_series(1, 3000) i",
    )
    return shop


@pytest.fixture
def dropped(shop: Database, pipeline: MakePipeline) -> Pipeline:
    """A table that was copied and changed, without the spool and the slot that knew of it."""
    one = pipeline(shop, extra="adopt = true")
    one.once()
    shop.execute("UPDATE t SET word = 'another' WHERE id % 9 = 0", "DELETE FROM t WHERE id = 5")
    one.once()
    assert run_command(["drop", str(one.path), "--yes"]) == 0
    return one


def files_of(one: Pipeline) -> set[str]:
    """The table's data files: a copy has only new ones."""
    return set(one.delta("t").file_uris())


def test_an_equal_target_is_taken_over_and_goes_on(
    dropped: Pipeline, shop: Database, caplog: pytest.LogCaptureFixture
) -> None:
    before, version = files_of(dropped), dropped.delta("t").version()
    with caplog.at_level(logging.INFO):
        dropped.once()
    assert "2999 rows, and taken over without a copy" in caplog.text
    assert files_of(dropped) == before
    assert dropped.delta("t").version() == version + 1
    table = dropped.table("t")
    assert (table.rows, table.version) == (2999, version + 1)
    assert table.copied.position == table.committed > 0
    shop.execute("UPDATE t SET amount = 1 WHERE id = 7", "INSERT INTO t VALUES (5000, 'new', 2)")
    dropped.once()
    dropped.assert_equal("t")
    assert dropped.table("t").copy_number == table.copy_number


def test_a_lost_spool_is_the_same(dropped: Pipeline) -> None:
    dropped.once()
    before = files_of(dropped)
    shutil.rmtree(dropped.spool)
    dropped.database.execute(f"SELECT pg_drop_replication_slot('{dropped.database.name}')")
    dropped.once()
    assert files_of(dropped) == before
    dropped.assert_equal("t")


@pytest.mark.parametrize(
    ("change", "rows_read"),
    [
        ("UPDATE t SET word = word || '!' WHERE id = 2000", 1),
        ("DELETE FROM t WHERE id = 2000", 0),
        ("UPDATE t SET id = -1 WHERE id = 2000", 1),
    ],
)
def test_only_ranges_that_differ_are_read_again(
    dropped: Pipeline,
    shop: Database,
    caplog: pytest.LogCaptureFixture,
    change: str,
    rows_read: int,
) -> None:
    """Rows that have a range of keys in common with the one that changed are read with it."""
    ((last,),) = shop.execute("SELECT pg_current_wal_lsn()")
    shop.execute(change)
    version = dropped.delta("t").version()
    with caplog.at_level(logging.INFO):
        dropped.once()
    (ranges, read, rows), *others = re.findall(
        r"(\d+) of 8192 ranges of keys differed, and (\d+) of (\d+) rows", caplog.text
    )
    assert not others
    changed_keys = 2 if "-1" in change else 1
    assert int(ranges) == changed_keys
    assert rows_read <= int(read) <= 20, "about one row in each range"
    assert int(rows) == 2999 - ("DELETE" in change)
    table = dropped.table("t")
    assert (table.rows, table.version) == (int(rows), version + 1)
    assert table.copied.position > Lsn.parse(last)
    shop.execute("UPDATE t SET amount = 3 WHERE id < 20")
    dropped.once()
    dropped.assert_equal("t")


def test_a_table_merged_on_write_is_compared_by_small_ranges(
    dropped: Pipeline,
    shop: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each file with a row of the ranges is rewritten: of a large range, these are all files."""
    comparing = import_module("pgsluice.verification.compare")
    monkeypatch.setattr(comparing, "BUCKETS", 64)
    monkeypatch.setattr(comparing, "SMALL_BUCKETS", 8192)
    shop.execute("UPDATE t SET word = 'changed' WHERE id = 2000")
    with caplog.at_level(logging.INFO):
        dropped.once()
    assert "1 of 8192 ranges of keys differed" in caplog.text
    dropped.assert_equal("t")


@pytest.mark.parametrize("change", ["DELETE FROM t WHERE id % 2 = 0", "TRUNCATE t"])
def test_a_target_that_differs_much_is_copied_with_words(
    dropped: Pipeline, shop: Database, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    before = files_of(dropped)
    shop.execute(change)
    with caplog.at_level(logging.INFO):
        dropped.once()
    assert "public.t is copied: its target differs: " in caplog.text
    assert not files_of(dropped) & before
    dropped.assert_equal("t")


def test_without_a_key_it_is_copied_if_it_differs(
    shop: Database, pipeline: MakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """Which of its rows a target has is known by their key alone."""
    for name in ("log", "same"):
        shop.execute(
            f"CREATE TABLE {name} (word text)", f"INSERT INTO {name} VALUES ('a'), ('a'), ('b')"
        )
    one = pipeline(shop, extra="adopt = true")
    one.once()
    assert run_command(["drop", str(one.path), "--yes"]) == 0
    shop.execute("DELETE FROM log WHERE ctid = '(0,1)'")
    with caplog.at_level(logging.INFO):
        one.once()
    assert "public.log is copied: its target differs: " in caplog.text
    assert "public.same: its target is equal to the source" in caplog.text
    shop.execute("INSERT INTO same VALUES ('a')")
    one.once()
    one.assert_equal("log", "same")


def test_another_program_commits_before_the_take_over(
    dropped: Pipeline, shop: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The table is compared once more, with what that program wrote."""
    shop.execute("UPDATE t SET word = 'ours' WHERE id = 7")
    version, folder = dropped.delta("t").version(), Path(dropped.target("t"))
    before = {*folder.glob("*.parquet")}
    (waiting := tmp_path / "waiting").touch()
    arm(f"copy.ranges_staged=wait:{waiting}")
    try:
        with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as threads:
            adopting = threads.submit(dropped.once)
            await_that(lambda: {*folder.glob("*.parquet")} != before, "rows are staged")
            theirs = dropped.delta("t").to_pyarrow_table().slice(0, 1)
            theirs = theirs.set_column(0, theirs.schema.field(0), [pa.array([9001], pa.int32())])
            write_deltalake(folder, theirs, mode="append")
            waiting.unlink()
            adopting.result()
    finally:
        arm("")
    assert "public.t: another program wrote into its target meanwhile" in caplog.text
    assert ": 2 of 8192 ranges of keys differed" in caplog.text
    assert dropped.delta("t").version() == version + 2
    dropped.assert_equal("t")


def test_tables_whose_columns_changed_are_copied(
    shop: Database, pipeline: MakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {
        "added": "ADD note text",
        "dropped": "DROP COLUMN word",
        "another_key": "DROP CONSTRAINT another_key_pkey, ADD PRIMARY KEY (word)",
        "another_type": "ALTER COLUMN amount TYPE numeric(12, 4)",
    }
    for name in changes:
        shop.execute(f"CREATE TABLE {name} (LIKE t INCLUDING ALL)")
        shop.execute(f"INSERT INTO {name} SELECT * FROM t WHERE id < 50")
    one = pipeline(shop, extra="adopt = true")
    one.once()
    assert run_command(["drop", str(one.path), "--yes"]) == 0
    for name, change in changes.items():
        shop.execute(f"ALTER TABLE {name} {change}")
    with caplog.at_level(logging.INFO):
        one.once()
    for name in changes:
        assert f"public.{name} is copied: no copy would make its target as it is" in caplog.text
    assert "public.t: its target is equal to the source" in caplog.text
    one.assert_equal("t", *changes)


def test_a_damaged_target_is_copied(dropped: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    for uri in files_of(dropped):
        Path(uri.removeprefix("file://")).unlink()
    dropped.once()
    assert "public.t is copied: its target is not compared: " in caplog.text
    dropped.assert_equal("t")


def test_a_session_that_breaks_has_the_table_compared_again(
    dropped: Pipeline, shop: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = files_of(dropped)
    (waiting := tmp_path / "waiting").touch()
    arm(f"copy.comparing=wait:{waiting}")
    end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'pgsluice adopt' AND datname = current_database()"""
    try:
        with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as threads:
            adopting = threads.submit(dropped.once)
            await_that(lambda: bool(shop.execute(end)), "the table is compared")
            waiting.unlink()
            adopting.result()
    finally:
        arm("")
    assert "2999 rows, and taken over without a copy" in caplog.text
    assert files_of(dropped) == before


def test_killed_before_the_commit_and_after_it(dropped: Pipeline, shop: Database) -> None:
    shop.execute("UPDATE t SET word = 'changed' WHERE id = 2000")
    version = dropped.delta("t").version()
    for failpoint, commits in (("copy.ranges_staged", 0), ("copy.adopted", 1)):
        assert run_killed_at(dropped.path, failpoint) == -signal.SIGKILL
        assert dropped.delta("t").version() == version + commits
        assert dropped.table("t").state == "d"
    dropped.once()
    assert dropped.delta("t").version() == version + 2
    shop.execute("DELETE FROM t WHERE id = 8")
    dropped.once()
    dropped.assert_equal("t")


def test_killed_and_changed_since_it_is_copied(dropped: Pipeline, shop: Database) -> None:
    assert run_killed_at(dropped.path, "copy.adopted") == -signal.SIGKILL
    shop.execute("UPDATE t SET word = 'later' WHERE id < 10")
    dropped.once()
    dropped.assert_equal("t")


def test_in_a_store_ranges_are_read_again(
    shop: Database,
    pipeline: MakePipeline,
    s3_store: ObjectStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, word text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (1000)",
        "INSERT INTO parts SELECT i, 'word' FROM generate_series(1, 200) i",
    )
    one = pipeline(shop)
    one.sink_options = ', merge = "on_read"'
    one.have_store(s3_store)
    one.write("adopt = true")
    one.once()
    assert run_command(["drop", str(one.path), "--yes"]) == 0
    before = files_of(one)
    shop.execute(
        "UPDATE t SET word = 'changed' WHERE id IN (2000, 2500)",
        "UPDATE parts SET word = 'changed' WHERE id = 150",
    )
    with caplog.at_level(logging.INFO):
        one.once()
    assert caplog.text.count(" of 8192 ranges of keys differed") == 2
    assert before < files_of(one), "the other rows stay where they are"
    shop.execute("DELETE FROM t WHERE id = 2000", "DELETE FROM parts WHERE id IN (50, 150)")
    one.once()
    one.assert_equal("t", "parts")


def test_a_table_that_pgsluice_did_not_write_is_refused(
    shop: Database, pipeline: MakePipeline
) -> None:
    one = pipeline(shop, extra="adopt = true")
    rows = pa.table({"id": pa.array([1], pa.int32()), "word": ["theirs"]})
    folder = one.lake / "public" / "t"
    folder.mkdir(parents=True)
    write_deltalake(folder, rows)
    with pytest.raises(TablesUnfinished, match="that pgsluice did not create"):
        one.once()
    assert one.delta("t").version() == 0


def test_without_the_setting_the_target_is_refused(dropped: Pipeline) -> None:
    dropped.write()
    with pytest.raises(TablesUnfinished, match="from another spool"):
        dropped.once()
