"""The whole way with the spool in an object store: machines, kills, lost folders, faults."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.children import Child
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import use_local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.store_proxy import store_proxy
from tests.support.threads import beside
from tests.support.verifying import verify
from tests.support.waiting import HANGS_S, await_that

from pgsluice import failpoints
from pgsluice.capture import run_capture
from pgsluice.cli.app import run_command
from pgsluice.config import load_config
from pgsluice.errors import SpoolTaken
from pgsluice.spool import SpoolReader
from pgsluice.spool.object_storage import ListingAges, folder_of
from pgsluice.subscription.base.waits import Waits
from pgsluice.subscription.running.run import run


def run_until(config: Path, failpoint: str) -> None:
    """A run in a process that is killed at a failpoint; its tasks are in the process, too."""
    use_local_spark(pytest.MonkeyPatch())
    failpoints.arm(f"{failpoint}=kill")
    run(load_config(config), once=True, waits=Waits(beat_s=0.1))


@pytest.mark.usefixtures("local_spark")
def test_tables_equal_the_source_whoever_is_killed_and_whatever_folder_is_lost(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = pipeline(shop := database())
    one.have_spool_in_store(s3_store)
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    shop.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 1000) i")
    one.once()
    one.assert_equal("t")
    there = on_another_machine(one)
    for number, failpoint in enumerate(("record.before_put", "record.after_put")):
        shop.execute(f"UPDATE t SET a = '{number}' WHERE id % 7 = {number}")
        assert Child(run_until, one.path, failpoint).wait(HANGS_S) == -signal.SIGKILL
        await_that(
            lambda: status_of(there, capsys)["subscriptions"][0]["running"] is False,
            "the killed run does not count as one on another machine",
        )
        if number:
            shutil.rmtree(one.folder / "state")
    copies = one.table("t").copy_number
    shop.execute("DELETE FROM t WHERE id > 900")
    one.once()
    one.assert_equal("t")
    assert one.table("t").copy_number == copies, "the record in the store knows the table"
    assert not one.spool.exists()


def on_another_machine(one: Pipeline) -> Path:
    """The configuration of a machine with another state folder."""
    path = one.folder / "other.toml"
    path.write_text(one.path.read_text().replace('state = "state"', 'state = "other"'))
    return path


def status_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run_command(["status", str(path), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.usefixtures("local_spark")
def test_capture_and_run_on_different_machines(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = pipeline(shop := database())
    one.have_spool_in_store(s3_store)
    there = on_another_machine(one)
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a')")
    config = load_config(there)
    with (
        one.live(captures=False),
        beside(lambda stop: run_capture(config, stop=stop), one.errors),
    ):
        one.wait_applied()
        shop.execute("INSERT INTO t SELECT i, 'b' FROM generate_series(2, 500) i")
        one.wait_applied()
        one.assert_equal("t")
        code, results = verify(one, capsys)
        assert (code, results["public.t"]["equal"]) == (0, True)
        copies = one.table("t").copy_number
        assert run_command(["copy", str(one.path), "t"]) == 0
        one.wait_until(lambda: one.table("t").copy_number > copies, why="it is copied")
        here, elsewhere = status_of(one.path, capsys), status_of(there, capsys)
        assert (here["capture"]["elsewhere"], here["subscriptions"][0]["running"]) == (True, True)
        assert elsewhere["capture"]["running"]
        assert elsewhere["subscriptions"][0]["running"] is None
        problems = [each["kind"] for each in (*here["problems"], *elsewhere["problems"])]
        assert not {"capture", "run"} & {*problems}
        for command in (["copy", str(there), "t"], ["verify", str(there)]):
            assert run_command(command) == 1
            assert (
                f"`pgsluice run` on host {socket.gethostname()}, with the state"
                in capsys.readouterr().err
            )
    one.assert_equal("t")


@pytest.mark.usefixtures("local_spark")
def test_a_second_run_takes_the_subscription_over(
    s3_store: ObjectStore, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """The first one ends at its next save, and has changed nothing since."""
    one = pipeline(shop := database())
    one.have_spool_in_store(s3_store)
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a')")
    one.once()
    capturing = load_config(one.path).model_copy(
        update={"spool": load_config(on_another_machine(one)).spool}
    )
    other = pipeline(shop)
    other.spool_section = one.spool_section
    other.lake_uri = str(one.lake)
    other.write()

    def run_first(stop: threading.Event) -> None:
        with pytest.raises(SpoolTaken, match="another `pgsluice run` replicates subscription lake"):
            run(one.config, captures=False, stop=stop)

    with (
        beside(lambda stop: run_capture(capturing, stop=stop)),
        beside(run_first) as first,
    ):
        shop.execute("INSERT INTO t VALUES (2, 'b')")
        await_that(lambda: one.record().position >= _position(one))
        with other.live(captures=False):
            number = 3
            while first.is_alive():
                assert not other.errors
                shop.execute(f"INSERT INTO t VALUES ({number}, 'c')")
                number += 1
                time.sleep(0.05)
            other.wait_applied()
    one.assert_equal("t")


@pytest.mark.usefixtures("local_spark")
def test_a_run_waits_while_the_store_of_its_spool_is_away(
    s3_store: ObjectStore, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database())
    with store_proxy(s3_store.endpoint) as proxy:
        one.have_spool_in_store(s3_store, proxy.endpoint)
        one_try = 'storage_options = { max_retries = "0", retry_timeout = "1s", timeout = "2s", '
        one.path.write_text(one.path.read_text().replace("storage_options = { ", one_try))
        shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a')")
        with one.live():
            one.wait_applied()
            proxy.refusal = 503, "SlowDown"
            proxy.requests.clear()
            shop.execute("UPDATE t SET a = 'b'", "INSERT INTO t VALUES (2, 'b')")

            def asks_again() -> bool:
                paths = [request.path for request in proxy.requests]
                return all(
                    sum(name in path for path in paths) >= 2 for name in ("released", "segments")
                )

            one.wait_until(asks_again, why="run and capture ask again")
            proxy.refusal = None
            one.wait_applied()
        one.assert_equal("t")


def _position(one: Pipeline) -> int:
    return SpoolReader(one.config.spool.place).position()


@pytest.mark.usefixtures("local_spark")
def test_a_large_transaction_is_shared_by_tasks(
    s3_store: ObjectStore,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks exchange slices in the store, and leave none."""
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.LARGE_BYTES", 2**18)
    monkeypatch.setattr("pgsluice.subscription.batches.tasks.large_batch.PIECE_BYTES", 2**17)
    one = pipeline(shop := database())
    with store_proxy(s3_store.endpoint) as proxy:
        one.have_spool_in_store(s3_store, proxy.endpoint)
        one.write(spool="segment_bytes = 65536")
        shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (0, 'a')")
        one.once()
        shop.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i")
        one.once()
        one.assert_equal("t")
        staged = {each.path for each in proxy.requests if "/staging/lake/" in each.path}
    assert any(path.endswith(".changes") for path in staged)
    assert folder_of(one.config.spool.place).tree("staging/") == []


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.usefixtures("local_spark")
def test_an_idle_spool_costs_at_most_a_request_a_second(
    s3_store: ObjectStore, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """With capture elsewhere, of which the run is not told."""
    one = pipeline(shop := database())
    with store_proxy(s3_store.endpoint) as proxy:
        one.have_spool_in_store(s3_store, proxy.endpoint)
        one.path.write_text(one.path.read_text().replace("catalog_poll_s = 1\n", ""))
        config = load_config(on_another_machine(one))
        shop.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (0, 'a')")
        with (
            beside(lambda stop: run_capture(config, stop=stop)),
            one.live(captures=False),
        ):
            one.wait_applied()
            idle_at = time.monotonic() + ListingAges().idle_after_s
            await_that(lambda: time.monotonic() > idle_at)
            proxy.requests.clear()
            began = time.monotonic()
            await_that(lambda: time.monotonic() > began + 20)
            took, requests = time.monotonic() - began, list(proxy.requests)
    # Capture reads the objects of a record once.
    repeated = [each for each in requests if "/records/lake/0" not in each.path]
    assert len(repeated) <= took, repeated
