"""``pgsluice verify --repair``: only ranges that differ are read again, in one commit."""

from __future__ import annotations

import logging
import signal
from hashlib import md5
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.children import Child
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.verifying import tamper, verify, with_rows
from tests.support.waiting import HANGS_S, await_that

from pgsluice.cli.app import run_command
from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn
from pgsluice.spool import find_record
from pgsluice.spool.notes import Verified, read_verified
from pgsluice.stores.spool_place import SpoolPlace

pytestmark = pytest.mark.usefixtures("local_spark")

ROWS = 5000


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    with_rows(shop, ROWS)
    return shop


@pytest.fixture
def tampered(shop: Database, pipeline: MakePipeline) -> Pipeline:
    """A table whose target somebody has changed: one row is other, one is lost, one is added."""
    one = pipeline(shop)
    one.once()
    tamper(one.lake / "public" / "t", ROWS)
    return one


def differing(results: dict[str, dict[str, object]]) -> tuple[object, ...]:
    table = results["public.t"]
    return table["differing_keys"], table["missing_keys"], table["extra_keys"]


FOUND = ([["17"]], [["4711"]], [[str(ROWS + 1)]])


def test_only_ranges_that_differ_are_read_again(
    tampered: Pipeline,
    shop: Database,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = tampered.delta("t").version()
    with caplog.at_level(logging.INFO):
        code, results = verify(tampered, capsys, "--repair")
    assert code == 0
    assert differing(results) == FOUND
    assert "3 of 8192 ranges of keys differed" in caplog.text
    assert tampered.delta("t").version() == version + 1
    tampered.assert_equal("t")
    table = tampered.table("t")
    assert results["public.t"]["repaired_at"] == str(table.copied.position)
    assert table.committed == table.copied.position
    assert "is copied again" not in caplog.text
    shop.execute("UPDATE t SET v = 'later' WHERE id IN (17, 4711)", "DELETE FROM t WHERE id = 1")
    tampered.once()
    tampered.assert_equal("t")
    assert verify(tampered, capsys, "--repair")[0] == 0
    assert tampered.table("t").copy_number == table.copy_number, "nothing was to be repaired"


def killed(config: str, failpoint: str) -> None:
    use_local_spark(pytest.MonkeyPatch())
    arm(f"{failpoint}=kill")
    run_command(["verify", config, "--repair"])


@pytest.mark.soak
def test_killed_before_its_commit_and_after_it(tampered: Pipeline, shop: Database) -> None:
    version = tampered.delta("t").version()
    for failpoint, commits in (("copy.ranges_staged", 0), ("copy.adopted", 1)):
        assert Child(killed, str(tampered.path), failpoint).wait(HANGS_S) == -signal.SIGKILL
        assert tampered.delta("t").version() == version + commits
        if commits == 0:
            shop.execute("UPDATE t SET v = 'meanwhile' WHERE id IN (17, 18)")
    tampered.once()
    tampered.assert_equal("t")
    assert DeltaTable(tampered.lake / "public" / "t").version() == version + 2


@pytest.mark.soak
def test_beside_a_run(tampered: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    with tampered.live():
        code, results = verify(tampered, capsys, "--repair")
        assert (code, differing(results)) == (0, FOUND)
        tampered.database.execute("INSERT INTO t VALUES (10000, 'later')")
        tampered.wait_applied()
    tampered.assert_equal("t")


@pytest.mark.parametrize(
    "setting",
    [
        'mode = "history"',
        pytest.param('mode = "changelog"', marks=pytest.mark.soak),
        pytest.param('deleted_column = "gone"', marks=pytest.mark.soak),
        pytest.param("", marks=pytest.mark.soak),
    ],
)
def test_targets_without_repairs_are_copied(
    database: MakeDatabase,
    pipeline: MakePipeline,
    capsys: pytest.CaptureFixture[str],
    setting: str,
) -> None:
    shop = database()
    shop.execute(
        f"CREATE TABLE t (v int {'PRIMARY KEY' if setting else ''})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1), (2)",
    )
    one = pipeline(shop, extra=setting)
    one.once()
    shop.execute("INSERT INTO t VALUES (3)")
    one.once()
    one.delta("t").delete("v = 3")
    code, results = verify(one, capsys, "--repair")
    assert code == 0
    assert len(results["public.t"]["missing_keys"]) == 1
    assert results["public.t"]["is_copied"]
    assert results["public.t"]["repaired_at"] == str(one.table("t").copied.position)
    code, results = verify(one, capsys)
    assert (code, results["public.t"]["target_rows"]) == (0, 3)
    one.delta("t").delete("v = 2")
    assert run_command(["verify", str(one.path), "--repair"]) == 0
    assert "; all rows copied again at " in capsys.readouterr().out


@pytest.mark.soak
def test_an_incomplete_table_is_not_repaired(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (v int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    one = pipeline(shop, extra="copy_data = false")
    one.once()
    shop.execute("INSERT INTO t VALUES (3)")
    one.once()
    one.delta("t").delete("v = 3")
    why = "a table that does not get all rows and changes is not repaired"
    code, results = verify(one, capsys, "--repair")
    assert code == 1
    assert results["public.t"]["not_repaired"].startswith(why)
    assert "pgsluice copy" in results["public.t"]["not_repaired"]
    assert run_command(["verify", str(one.path), "--repair"]) == 1
    assert f"not repaired: {why}" in capsys.readouterr().out


def verified(one: Pipeline, name: str = "t") -> Verified | None:
    """The last verification of a table since its copy."""
    record = find_record(SpoolPlace.of(one.spool), "lake")
    if record is None:
        return None
    known = read_verified(one.spool, "lake", record.tables)
    titles = {table.name: known.get(oid) for oid, table in record.tables.items()}
    return titles.get(name)


def test_on_a_schedule_tables_are_verified_and_repaired(
    shop: Database, pipeline: MakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    shop.execute(
        "CREATE TABLE bag (v int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES (1), (2)",
    )
    one = pipeline(shop, extra='verify = { every = "1s", rate = "100 MiB" }')
    with caplog.at_level(logging.INFO), one.live():
        await_that(lambda: bool(verified(one) and verified(one, "bag")), "the first verification")
        tamper(one.lake / "public" / "t", ROWS)
        one.delta("bag").delete("v = 1")
        await_that(lambda: "public.t differs from the source and is repaired" in caplog.text)
        await_that(lambda: "public.bag differs from the source and is copied" in caplog.text)
        await_that(lambda: bool(verified(one) and verified(one, "bag")), "the next verification")
        shop.execute("UPDATE t SET v = 'later' WHERE id < 9")
        one.wait_applied()
        tables: dict[str, Any] = {}

        def shows_all() -> bool:
            [status] = one.status()["subscriptions"]
            tables.update({table["table"]: table for table in status["tables"]})
            return all(table["verified_through"] for table in tables.values())

        await_that(shows_all, "status shows the verifications")
    assert Lsn.parse(tables["t"]["verified_through"]) >= one.table("t").copied.position
    one.assert_equal("t", "bag")
    assert one.table("t").copy_number == one.table("bag").copy_number == 2
    assert "ranges of keys differed" in caplog.text
    assert run_command(["status", str(one.path)]) == 0


@pytest.mark.soak
def test_on_a_schedule_a_history_is_copied(
    shop: Database, pipeline: MakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    extra = 'mode = "history"\nverify = { every = "1s" }'
    one = pipeline(shop, extra=extra)
    with caplog.at_level(logging.INFO), one.live():
        await_that(lambda: bool(verified(one)), "the first verification")
        tamper(one.lake / "public" / "t", ROWS)
        await_that(lambda: "public.t differs from the source and is copied" in caplog.text)
        await_that(lambda: one.table("t").copy_number == 2 and one.table("t").is_active)
        await_that(lambda: bool(verified(one)), "the next verification")
    current = one.delta("t").to_pyarrow_table(filters=[("_is_current", "=", True)])
    assert current.num_rows == ROWS
    assert current.select(["id", "v"]).sort_by("id")["v"][16].as_py() == md5(b"17").hexdigest()
