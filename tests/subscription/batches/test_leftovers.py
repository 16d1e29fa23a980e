"""The daily search for files of killed processes, on a real spool and real targets."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.spools import START, SpoolMaker

from pgsluice.config import Config
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.layout import LEFTOVERS
from pgsluice.subscription.base.received import ReceivedLive
from pgsluice.subscription.batches.leftovers import Leftovers
from pgsluice.subscription.copies.scheduler import CopyScheduler
from pgsluice.subscription.running.driver import SubscriptionDriver

DAY_S = 24 * 3600
OID = 16384
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
READY = TableRecord(
    "public",
    "t",
    state=TableState.READY,
    applied_through=Lsn(START),
    committed=Lsn(START),
    version=0,
)


class Run:
    """An idle run whose target was copied; the process of an earlier attempt was killed."""

    def __init__(self, maker: SpoolMaker, folder: Path, table: TableRecord = READY) -> None:
        self.maker = maker
        self.path = str(folder / "{table}")
        self.target = folder / "t"
        self.spool_id = maker.spool.identity.spool_id
        self.config = Config.model_validate(
            {
                "source": {"dsn": "host=/nowhere", "slot": "s"},
                "spool": {"path": str(maker.path)},
                "subscription": ({"name": "lake", "sink": {"type": "delta", "path": self.path}},),
            }
        )
        self.copy()
        record = SubscriptionRecord(
            "lake", Owner.CONFIG, "current", "delta", Lsn(START), Lsn(START), {OID: table}
        )
        self.store = RecordStore.create(maker.path, record)

    def copy(self, spool_id: str | None = None) -> None:
        table = TargetTable("public", "t", SCHEMA, ("id",))
        identity = TargetIdentity(spool_id or self.spool_id, OID, 0)
        rows = pa.record_batch([pa.array([1, 2])], schema=SCHEMA)
        TableWriter(DeltaSink(self.path), table, identity).load([rows], Lsn(START))

    def driver(self) -> SubscriptionDriver:
        spark = ContextOnDemand(cast(Any, None))  # nobody asks for it
        return SubscriptionDriver(
            self.config,
            self.store,
            lambda _: None,
            CopyScheduler(spark),
            ReceivedLive(self.config),
        )

    def search(self, now: float) -> None:
        """Let a new process search all tables, if it is time."""
        driver = self.driver()
        leftovers = Leftovers(self.maker.path / "subscriptions" / "lake" / LEFTOVERS, driver.tables)
        while leftovers.tend(driver.subscription, self.spool_id, None, now):
            pass

    def leave(self, name: str, age_s: float = DAY_S + 60) -> Path:
        """What a killed attempt has left."""
        path = self.target / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half a file")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def age(self) -> None:
        """All files that the table has are older than a day."""
        for path in self.target.rglob("*"):
            os.utime(path, (time.time() - 2 * DAY_S,) * 2)


@pytest.fixture
def run(maker: SpoolMaker, tmp_path: Path) -> Run:
    return Run(maker, tmp_path / "targets")


def test_files_of_killed_processes_go_after_a_day_from_a_table_without_changes(run: Run) -> None:
    run.age()
    old = [run.leave(name) for name in ("part-1.parquet", "_dv/2.bin", "_tmp/3.tmp")]
    kept = [
        run.leave("part-4.parquet", DAY_S - 60),
        run.leave("another_table/5.parquet"),
        run.leave("_change_data/6.parquet"),
    ]
    driver = run.driver()
    assert not driver.batches.run_next()
    assert [path.exists() for path in old] == [False] * 3
    assert [path.exists() for path in kept] == [True] * 3
    table = DeltaTable(run.target)
    assert (table.version(), table.to_pyarrow_table().num_rows) == (0, 2), "no new version"


def test_the_search_comes_once_a_day_whatever_process_runs(run: Run) -> None:
    now = time.time()
    run.search(now)
    left = run.leave("part-1.parquet")
    run.search(now + DAY_S - 60)
    assert left.exists()
    run.search(now + DAY_S)
    assert not left.exists()


def test_a_search_in_the_future_does_not_count(run: Run) -> None:
    """The clock was wrong, and was set back."""
    now = time.time()
    run.search(now + 100 * DAY_S)
    left = run.leave("part-1.parquet")
    run.search(now)
    assert not left.exists()


@pytest.mark.parametrize("state", [TableState.DATA_COPY, TableState.PARKED])
def test_tables_that_are_copied_or_parked_are_left_alone(
    maker: SpoolMaker, tmp_path: Path, state: TableState
) -> None:
    """A copy may have read its first rows more than a day before it commits them."""
    run = Run(maker, tmp_path / "targets", READY.in_state(state))
    left = run.leave("part-1.parquet")
    run.search(time.time())
    assert left.exists()


def test_the_files_of_another_source_stay(run: Run) -> None:
    shutil.rmtree(run.target)
    run.copy("5b0a7c1e-0000-4000-8000-00000000000f")
    left = run.leave("part-1.parquet")
    run.search(time.time())
    assert left.exists()
