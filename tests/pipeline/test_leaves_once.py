"""Partitions that come and go between runs with ``--once``: only their rows are replaced."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.pipeline.own_publications import publishing
from tests.support.databases import MakeDatabase, Servers
from tests.support.local_spark import use_local_spark
from tests.support.partition_cases import (
    BY_OWN_NAME,
    CASES,
    EMPTIED,
    VIA_ROOT,
    Case,
    change,
    make,
    publish_via_root,
)
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.capture.health import read_health
from pgsluice.events import CapturePhase
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader
from pgsluice.spool.layout import CAPTURE_HEALTH
from pgsluice.subscription.copies import snapshots
from pgsluice.subscription.refresh.looks import CatalogLooks


def run_once(one: Pipeline) -> None:
    """``run --once``; what an earlier capture said of itself is forgotten."""
    (one.spool / CAPTURE_HEALTH).unlink(missing_ok=True)
    one.once()


def has_ended(one: Pipeline) -> bool:
    """Whether the run's capture has ended."""
    health = read_health(one.spool)
    return health is not None and health.phase is CapturePhase.STOPPED


def snapshots_behind_capture(one: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each snapshot after capture has ended, with a commit between them."""
    take = snapshots.new_snapshot

    def late(*arguments: Any) -> Any:
        one.wait_until(lambda: has_ended(one), why="capture has ended")
        one.database.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        return take(*arguments)

    monkeypatch.setattr(snapshots, "new_snapshot", late)


@pytest.mark.parametrize(
    ("cases", "publisher"),
    [
        pytest.param({**CASES, **BY_OWN_NAME}, "pgsluice", id="by leaf"),
        pytest.param(VIA_ROOT, "server", id="via root", marks=pytest.mark.pg(">= 13")),
        pytest.param(EMPTIED, "server", id="via root, emptied", marks=pytest.mark.pg("== 14")),
        pytest.param({**CASES, **VIA_ROOT}, "subscription", id="ours, via root"),
    ],
)
def test_partitions_that_come_and_go_between_runs(
    cases: dict[str, Case],
    publisher: str,
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_local_spark(monkeypatch)
    one = pipeline(shop := database())
    snapshots_behind_capture(one, monkeypatch)
    cases = {name: case for name, case in cases.items() if case.since <= shop.server.programs.major}
    for name, case in cases.items():
        make(shop, name, case)
    match publisher:
        case "server":
            publish_via_root(shop, cases)
        case "subscription":
            options = "WITH (publish_via_partition_root)"
            publishing(one, f"CREATE PUBLICATION p FOR ALL TABLES {options};", lake=("p",))
    run_once(one)
    before = {name: one.table(name) for name in cases}
    for name, case in cases.items():
        change(shop, name, case.change)
    run_once(one)
    one.assert_equal(*cases)
    seen = {name: one.table(name) for name in cases}
    copied = {name for name in cases if seen[name].copy_number != before[name].copy_number}
    assert copied == {name for name, case in cases.items() if case.is_copied}
    for name, case in cases.items():
        change(shop, name, ("UPDATE {t} SET v = 'later' WHERE id % 50 = 1", *case.later))
    run_once(one)
    one.assert_equal(*cases)
    assert all(one.table(name).copied.position == seen[name].copied.position for name in cases)


def test_a_partition_that_is_attached_while_a_run_starts(
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was filled and attached behind the position at which the run ends. PostgreSQL 14 sends no
    change of it in the connection that meets its first rows."""
    use_local_spark(monkeypatch)
    one = pipeline(shop := database(servers(14)))
    shop.execute(
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE early PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "INSERT INTO root SELECT i, 'early' FROM generate_series(1, 50) i",
    )
    publish_via_root(shop, ["root"])
    run_once(one)
    look, is_first = CatalogLooks.look, True

    def late(looks: CatalogLooks) -> None:
        nonlocal is_first
        if is_first:
            one.wait_until(lambda: has_ended(one), why="capture has ended")
            is_first = False
            shop.execute(
                "CREATE TABLE late (LIKE root INCLUDING ALL)",
                "INSERT INTO late SELECT i, 'late' FROM generate_series(100, 150) i",
                "ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (100) TO (200)",
            )
        look(looks)

    monkeypatch.setattr(CatalogLooks, "look", late)
    run_once(one)
    one.assert_equal("root")
    shop.execute("UPDATE root SET v = 'later' WHERE id % 10 = 0", "DELETE FROM root WHERE id = 101")
    run_once(one)
    one.assert_equal("root")
    assert one.table("root").copy_number == 1


def test_a_partition_that_comes_and_goes_between_two_looks(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look has ever said what publishes its changes: they do not count, as it is gone."""
    use_local_spark(monkeypatch)
    one = pipeline(shop := database())
    make(shop, "root", CASES["without_rest"])
    publication = "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    publishing(one, publication, lake=("p",))
    run_once(one)
    capture = one.start("capture")
    change(
        shop,
        "root",
        (
            "CREATE TABLE {t}_9 PARTITION OF {t} FOR VALUES FROM (400) TO (500)",
            "INSERT INTO {t} SELECT i, i, 'gone' FROM generate_series(400, 450) i",
            "UPDATE {t} SET k = 440, v = 'gone' WHERE id = 150",
            "UPDATE {t} SET k = 151 WHERE id = 401",
        ),
    )
    ((sent,),) = shop.execute("SELECT pg_current_wal_flush_lsn()::text")
    reader = SpoolReader(one.spool)
    one.wait_until(lambda: reader.frontier() >= Lsn.parse(str(sent)), why="capture has them")
    change(shop, "root", ("DROP TABLE {t}_9", "UPDATE {t} SET v = 'later' WHERE id % 9 = 0"))
    capture.terminate()
    capture.wait(HANGS_S)
    run_once(one)
    one.assert_equal("root")
    assert one.table("root").copy_number == 1


@pytest.mark.soak  # make soak AREA=long
def test_runs_that_are_killed_while_partitions_are_replaced(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before rows are committed, and after it; between the runs more partitions come and go."""
    one = pipeline(shop := database())
    case = CASES["dropped"]
    make(shop, "root", case)
    with monkeypatch.context() as local:
        use_local_spark(local)
        one.once()
    late = "CREATE TABLE {t}_4 (LIKE {t} INCLUDING ALL)"
    fill = "INSERT INTO {t}_4 SELECT i, i, 'late' FROM generate_series(150, 180) i"
    attach = "ALTER TABLE {t} ATTACH PARTITION {t}_4 FOR VALUES FROM (100) TO (200)"
    change(shop, "root", (*case.change, late, fill, attach))
    for point, statements in {
        "copy.staged": ("DROP TABLE {t}_0", "DELETE FROM {t} WHERE id % 7 = 0"),
        "copy.committed": ("UPDATE {t} SET v = 'later' WHERE id % 2 = 0", "TRUNCATE {t}_2"),
    }.items():
        killed = {**os.environ, "PGSLUICE_FAILPOINTS": f"{point}=kill"}
        done = one.command("run", "--once", str(one.path), env=killed)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert one.table("root").partitions.load
        change(shop, "root", statements)
    done = one.command("run", "--once", str(one.path))
    assert done.returncode == 0, done.stderr
    one.assert_equal("root")
    assert one.table("root").copy_number == 1


# 14: make soak AREA=long
@pytest.mark.parametrize("version", [18, pytest.param(14, marks=pytest.mark.soak)])
def test_a_spool_without_room_for_what_is_to_be_received(
    version: int,
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The table holds nothing while others make room, and is copied as a whole, with words."""
    caplog.set_level("INFO", "pgsluice")
    use_local_spark(monkeypatch)
    one = pipeline(shop := database(servers(version)))
    one.write(spool=f"max_bytes = {2 * 2**20}\nsegment_bytes = {128 * 1024}")
    make(shop, "root", CASES["dropped"])
    shop.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    publish_via_root(shop, ["root", "t"])
    one.once()
    change(shop, "root", ("DROP TABLE {t}_1",))
    for _ in range(12):
        shop.execute(
            "INSERT INTO t (v) SELECT string_agg(md5(random()::text), '')"
            " FROM generate_series(1, 32 * 1000) n GROUP BY n % 1000"
        )
    one.once()
    one.assert_equal("root", "t")
    assert one.table("root").copy_number == 2
    said = "public.root: the whole table is copied next: the spool is at its size limit"
    assert said in caplog.text
