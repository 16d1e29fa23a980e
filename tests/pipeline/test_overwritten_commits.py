"""A program that overwrites our commits: Delta's jar for Spark does so in S3, without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.sinks.delta.config import DeltaSinkConfig
from pgsluice.sinks.delta.log import reading

pytestmark = pytest.mark.usefixtures("local_spark")


@pytest.fixture(autouse=True)
def confirmed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk whose writers are taken for those of S3."""
    monkeypatch.setattr(DeltaSinkConfig, "confirms_after_s", 1.0)


@pytest.fixture
def one(database: MakeDatabase, pipeline: MakePipeline) -> Pipeline:
    made = pipeline(shop := database())
    made.write(spool='retention = "60s"')  # capture is a process of its own
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i",
    )
    return made


def overwrite(delta: DeltaTable, before_newest: int = 0) -> None:
    """Put another program's OPTIMIZE in the place of the newest commit, or of an earlier one."""
    table = Path(delta.table_uri.removeprefix("file:"))
    path = table / "_delta_log" / f"{delta.version() - before_newest:020}.json"
    path.unlink()
    info = {"timestamp": 0, "operation": "OPTIMIZE", "operationParameters": {}}
    path.write_text(json.dumps({"commitInfo": info}) + "\n")


def test_the_next_batch_applies_the_changes_of_an_overwritten_commit_again(one: Pipeline) -> None:
    one.once()
    copies = one.table("t").copy_number
    one.database.execute("UPDATE t SET n = 1 WHERE id <= 10")
    one.once()
    overwrite(one.delta("t"))
    one.database.execute("INSERT INTO t VALUES (99, 1)")
    with one.live():
        one.wait_until(lambda: len(_values(one)) == 51, why="the new row is there")
    one.assert_equal("t")
    assert one.table("t").copy_number == copies


def test_a_table_without_changes_is_looked_at_once(one: Pipeline) -> None:
    one.once()
    one.database.execute("UPDATE t SET n = 2 WHERE id <= 10")
    one.once()
    overwrite(one.delta("t"))
    with one.live():
        one.wait_until(lambda: _values(one)[1] == 2, why="the changes are there again")
    one.assert_equal("t")


def test_a_table_is_copied_if_the_spool_has_not_kept_the_changes(one: Pipeline) -> None:
    one.once()
    one.database.execute("UPDATE t SET n = 1 WHERE id <= 10")
    one.once()
    copies = one.table("t").copy_number
    overwrite(one.delta("t"))
    one.write()
    one.once()  # capture deletes what all tables have
    one.database.execute("UPDATE t SET n = 2 WHERE id = 20")
    one.once()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies + 1


def test_a_table_is_copied_if_a_later_commit_follows_the_overwritten_one(one: Pipeline) -> None:
    """The later commit has the position, but the table lacks the changes before it."""
    copies = _overwritten_below_the_newest(one)
    one.database.execute("UPDATE t SET n = 3 WHERE id = 30")
    with one.live():
        one.wait_until(lambda: one.table("t").copy_number > copies, why="it is copied")
        one.wait_applied()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies + 1


def test_a_table_without_changes_is_copied_if_an_earlier_commit_was_overwritten(
    one: Pipeline,
) -> None:
    """An executor that does not know the commits sees it in the log. One copy is enough."""
    copies = _overwritten_below_the_newest(one)
    reading.KNOWN_TABLES.clear()
    with one.live():
        one.wait_until(lambda: one.table("t").copy_number > copies, why="it is copied")
        one.wait_applied()
    reading.KNOWN_TABLES.clear()
    one.database.execute("UPDATE t SET n = 4 WHERE id = 40")
    one.once()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies + 1


def _overwritten_below_the_newest(one: Pipeline) -> int:
    one.once()
    one.database.execute("UPDATE t SET n = 1 WHERE id <= 10")
    one.once()
    one.database.execute("INSERT INTO t VALUES (99, 1)")
    one.once()
    overwrite(one.delta("t"), before_newest=1)
    return one.table("t").copy_number


def _values(one: Pipeline) -> dict[int, int]:
    rows = one.delta("t").to_pyarrow_table().to_pylist()
    return {row["id"]: row["n"] for row in rows}
