"""Copies wait for what capture has received; a run that ends goes on with none of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import MakeDatabase, Servers
from tests.support.spools import START, SpoolMaker

from pgsluice.capture import CaptureProcess
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.copy.job import CopyWork
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.snapshots.ranges import WHOLE
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord
from pgsluice.subscription.base.received import ReceivedLive, ReceivedOnce
from pgsluice.subscription.copies.partitions import catch_up_to
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.progress import CopyCounts
from pgsluice.subscription.copies.site import CopySite
from pgsluice.subscription.copies.snapshots import behind_changes
from pgsluice.subscription.lifecycle.tables import SubscriptionTables

FACTS = RelationFacts(1, "public", "t", "p", 1, "public", "t", ("id",), ("id",), "d", 1, ())
WORK = CopyWork(FACTS, "public", "t", None, None, 1)
LATER = Lsn(START + 1)


@pytest.fixture
def config(maker: SpoolMaker) -> Config:
    source = SourceConfig(dsn="host=127.0.0.1 port=1", slot="pgsluice")
    return Config(source=source, spool=SpoolConfig(path=maker.path))


@pytest.fixture
def stopped(config: Config) -> ReceivedOnce:
    """Of a run that was asked to stop, a moment before its copies are."""
    (stop := threading.Event()).set()
    return ReceivedOnce(config, CaptureProcess(config, once=True), stop)


def is_not_stopping() -> bool:
    return False


def test_a_run_that_is_asked_to_stop_has_not_received_what_follows(
    config: Config, stopped: ReceivedOnce
) -> None:
    assert not stopped.come_to(LATER, is_not_stopping)
    live = ReceivedLive(config)
    assert live.come_to(Lsn(START), is_not_stopping)
    assert not live.come_to(LATER, lambda: True)


def test_a_run_that_is_asked_to_stop_receives_nothing_again(config: Config) -> None:
    (stop := threading.Event()).set()
    with CaptureProcess(config, once=True) as capture:
        first = capture.pid
        ReceivedOnce(config, capture, stop).start_again()
        assert capture.pid == first


def test_partitions_are_not_loaded_at_a_target_that_is_behind_their_snapshot(
    maker: SpoolMaker, config: Config, stopped: ReceivedOnce
) -> None:
    """Nor is anything applied to it then."""
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(START), Lsn(START))
    tables = SubscriptionTables(RecordStore.create(maker.path, record), lambda _: None)
    whole = TableCopy(WORK, WHOLE)
    loaded = TableCopy(replace(WORK, facts=replace(FACTS, oid=2), leaves=(7,)), WHOLE)
    unused: Any = None
    site = CopySite(config, tables, unused, stopped, unused, unused, unused, unused)
    assert catch_up_to(site, LATER, [whole, loaded], {}, threading.Event()) == [whole]


@pytest.mark.parametrize("table", ["root", "leaf", "detached"])
def test_no_table_that_is_or_was_a_partition_is_copied_by_an_old_connection(
    table: str, database: MakeDatabase, servers: Servers, stopped: ReceivedOnce, tmp_path: Path
) -> None:
    """A publication of pgsluice may have partitions as tables of their own."""
    shop = database(servers(14))
    shop.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (1) TO (2)",
        "CREATE TABLE detached PARTITION OF root FOR VALUES FROM (2) TO (3)",
        "ALTER TABLE root DETACH PARTITION detached",
    )
    ((oid,),) = shop.execute(f"SELECT '{table}'::regclass::oid")

    counts = CopyCounts("lake", tmp_path, lambda _: None)
    with behind_changes(shop.dsn, counts, [oid], stopped, is_not_stopping) as taken:
        assert taken is None, "the stream does not have what a snapshot follows"
