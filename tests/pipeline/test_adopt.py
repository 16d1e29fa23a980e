"""``adopt``: after ``drop`` or a lost spool, a target that is equal to the source is not copied."""

from __future__ import annotations

import logging
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.children import Child
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.cli.app import run_command
from pgsluice.config import load_config
from pgsluice.errors import TablesUnfinished
from pgsluice.failpoints import arm
from pgsluice.subscription.running.run import run


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
    "change",
    [
        "UPDATE t SET word = word || '!' WHERE id = 2000",
        "DELETE FROM t WHERE id % 2 = 0",
        "TRUNCATE t",
    ],
)
def test_a_target_that_differs_is_copied_with_words(
    dropped: Pipeline, shop: Database, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    before = files_of(dropped)
    shop.execute(change)
    with caplog.at_level(logging.INFO):
        dropped.once()
    assert "public.t is copied: its target differs: " in caplog.text
    assert not files_of(dropped) & before
    dropped.assert_equal("t")


def test_other_columns_are_copied(
    dropped: Pipeline, shop: Database, caplog: pytest.LogCaptureFixture
) -> None:
    shop.execute("ALTER TABLE t ADD note text")
    with caplog.at_level(logging.INFO):
        dropped.once()
    assert "public.t is copied: no copy would make its target as it is" in caplog.text
    dropped.assert_equal("t")


def test_a_damaged_target_is_copied(dropped: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    for uri in files_of(dropped):
        Path(uri.removeprefix("file://")).unlink()
    dropped.once()
    assert "public.t is copied: its target is not compared: " in caplog.text
    dropped.assert_equal("t")


def killed(config: Path) -> None:
    patch = pytest.MonkeyPatch()
    use_local_spark(patch)
    arm("copy.adopted=kill")
    run(load_config(config), once=True)


def test_killed_between_the_commit_and_the_record(dropped: Pipeline, shop: Database) -> None:
    before, version = files_of(dropped), dropped.delta("t").version()
    assert Child(killed, dropped.path).wait(HANGS_S) == -signal.SIGKILL
    assert dropped.delta("t").version() == version + 1
    assert dropped.table("t").state == "d"
    dropped.once()
    assert files_of(dropped) == before
    shop.execute("DELETE FROM t WHERE id = 8")
    dropped.once()
    dropped.assert_equal("t")


def test_killed_and_changed_since_it_is_copied(dropped: Pipeline, shop: Database) -> None:
    assert Child(killed, dropped.path).wait(HANGS_S) == -signal.SIGKILL
    shop.execute("UPDATE t SET word = 'later' WHERE id < 10")
    dropped.once()
    dropped.assert_equal("t")


def test_a_table_that_pgsluice_did_not_write_is_refused(
    shop: Database, pipeline: MakePipeline
) -> None:
    one = pipeline(shop, extra="adopt = true")
    rows = pa.table({"id": pa.array([1], pa.int32()), "word": ["theirs"]})
    folder = one.lake / "public" / "t"
    folder.mkdir(parents=True)
    write_deltalake(folder, rows)
    with pytest.raises(TablesUnfinished, match="that pgsluice did not make"):
        one.once()
    assert one.delta("t").version() == 0


def test_without_the_setting_the_target_is_refused(dropped: Pipeline) -> None:
    dropped.write()
    with pytest.raises(TablesUnfinished, match="from another spool"):
        dropped.once()
