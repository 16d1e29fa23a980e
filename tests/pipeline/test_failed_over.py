"""A server fails over to its standby while a run works: nothing is lost, and the log has a line."""

from __future__ import annotations

import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database
from tests.support.ddl.promotion import FailoverDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline
from tests.support.standby import Standby


@pytest.mark.usefixtures("local_spark")
def test_a_server_fails_over_while_a_run_works(
    pipeline: MakePipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    with CopiedServer(settings={"fsync": "off", "autovacuum": "off"}) as primary:
        Database(primary, "postgres").execute("CREATE DATABASE shop")
        with Standby(primary) as standby:
            shop = FailoverDatabase(primary, "shop", standby)
            shop.execute(
                "CREATE TABLE t (id serial PRIMARY KEY, v text)", "INSERT INTO t (v) VALUES ('1')"
            )
            one = pipeline(shop)
            shop.synchronise_slot(one.once)
            with one.live():
                shop.execute("INSERT INTO t (v) VALUES ('2')")
                one.wait_applied()
                shop.await_replay()
                shop.fail_over()
                shop.execute("INSERT INTO t (v) VALUES ('3')")
                one.wait_applied()
            one.assert_equal("t")
            assert one.table("t").copy_number == 1
    log = capfd.readouterr().err
    assert log.count("the server is on timeline 2, promoted at ") == 1, log
