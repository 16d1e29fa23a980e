"""``pgsluice verify``: source and targets compared at one position."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager

import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline
from tests.support.threads import beside
from tests.support.verifying import tamper, verify, with_rows

from pgsluice.cli.app import run_command

pytestmark = pytest.mark.usefixtures("spark")

ROWS = 20_000


def test_without_a_run_it_applies_what_is_missing_and_finds_what_differs(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    one = pipeline(shop := database())
    with_rows(shop, ROWS)
    shop.execute("CREATE TABLE emptied (id int PRIMARY KEY)", "INSERT INTO emptied VALUES (1)")
    assert run_command(["verify", str(one.path)]) == 2
    assert "has not replicated anything" in capsys.readouterr().err
    one.once()

    shop.execute("UPDATE t SET v = 'new' WHERE id = 5", "TRUNCATE emptied")
    code, results = verify(one, capsys)
    assert code == 0
    assert results["public.t"]["equal"]
    assert results["public.t"]["source_rows"] == ROWS
    assert results["public.emptied"]["equal"]
    assert results["public.emptied"]["target_rows"] == 0
    assert len({result["position"] for result in results.values()}) == 1

    tamper(one.lake / "public" / "t", ROWS)
    code, results = verify(one, capsys, "t")
    assert code == 1
    assert list(results) == ["public.t"]
    assert results["public.t"]["differing_keys"] == [["17"]]
    assert results["public.t"]["missing_keys"] == [["4711"]]
    assert results["public.t"]["extra_keys"] == [[str(ROWS + 1)]]
    assert run_command(["verify", str(one.path), "t"]) == 1
    assert "public.t: DIFFERS at " in (text := capsys.readouterr().out)
    assert "missing: 4711" in text
    assert run_command(["verify", str(one.path), "nothing"]) == 2
    assert "no subscription has a table nothing" in capsys.readouterr().err
    assert not list((one.spool / "subscriptions" / "lake").glob("barrier*.json"))


def test_beside_a_run_it_compares_at_one_position_while_writes_go_on(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    one = pipeline(shop := database())
    with_rows(shop, ROWS)
    shop.execute("CREATE TABLE u (id serial PRIMARY KEY, t int)")
    with one.live():
        one.wait_until(one.spool.exists)
        one.wait_applied()
        with writes(shop):
            positions = []
            for _ in range(4):
                code, results = verify(one, capsys)
                assert code == 0, results
                assert results["public.u"]["position"] == results["public.t"]["position"]
                positions.append(results["public.t"]["target_hash"])
            assert len(set(positions)) == 4, "writes went on between the positions"
        one.wait_applied()
    one.assert_equal("t", "u")


def writes(shop: Database) -> AbstractContextManager[threading.Thread]:
    """Small transactions over both tables, one after the other, while the block runs."""

    def work(ended: threading.Event) -> None:
        with shop.connect() as connection:
            for number in range(10**9):
                if ended.is_set():
                    return
                key = number % ROWS + 1
                connection.execute(
                    f"BEGIN; UPDATE t SET v = '{number}' WHERE id = {key};"
                    f" INSERT INTO u (t) VALUES ({key}); DELETE FROM u WHERE t = {key} - 7; COMMIT"
                )

    return beside(work)


def test_a_verify_that_dies_leaves_the_run_unharmed(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    with_rows(shop, 100)
    folder = one.spool / "subscriptions" / "lake"
    hold = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pgsluice.subscription.base.barrier import BarrierOwner\n"
        "with BarrierOwner(Path(sys.argv[1]), ()) as barrier:\n"
        "    barrier.hold()\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with one.live():
        one.wait_until(one.spool.exists)
        one.wait_applied()
        process = subprocess.Popen(
            [sys.executable, "-c", hold, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        shop.execute("UPDATE t SET v = 'new' WHERE id = 5")
        before = one.record().position
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        one.wait_applied()
        assert one.record().position > before
        one.wait_until(lambda: not (folder / "barrier.json").exists())
    one.assert_equal("t")


def test_filters_and_column_lists_of_the_server(
    database: MakeDatabase, pipeline: MakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, hidden text)",
        "INSERT INTO t SELECT i, 'x', i::text FROM generate_series(1, 100) i",
        f"CREATE PUBLICATION {shop.name} FOR TABLE t (id, v) WHERE (id % 2 = 0)",
    )
    one.once()
    shop.execute("INSERT INTO t VALUES (102, 'y', 'z'), (103, 'y', 'z')")
    code, results = verify(one, capsys)
    assert code == 0, results
    assert results["public.t"]["source_rows"] == 51
