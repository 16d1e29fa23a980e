"""Capture into a spool in an object store: kills, lost folders, a failing store, two captures."""

from __future__ import annotations

import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from tests.support.capturing import confirmed, insert, inserted, killed, numbers, phase, running
from tests.support.children import Child
from tests.support.databases import Database, MakeDatabase
from tests.support.object_stores import ObjectStore
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.waiting import HANGS_S, await_that

from pgsluice.capture import run_capture
from pgsluice.capture.process import Waits
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.errors import SlotInUse
from pgsluice.spool import Spool, SpoolReader
from pgsluice.spool.object_storage import folder_of

ONE_TRY = {"max_retries": "0", "retry_timeout": "1s"}


@pytest.fixture
def db(database: MakeDatabase) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return one


@pytest.fixture
def config(db: Database, s3_store: ObjectStore, tmp_path: Path) -> Config:
    return Config(
        source=SourceConfig(dsn=db.dsn, slot=db.name, connect_timeout_s=60.0),
        spool=SpoolConfig(
            path=f"s3://lake/{uuid.uuid4()}",
            state=tmp_path / "state",
            storage_options=s3_store.options,
            segment_ms=50,
        ),
    )


@pytest.fixture
def proxy(s3_store: ObjectStore) -> Iterator[StoreProxy]:
    with store_proxy(s3_store.endpoint) as proxy:
        yield proxy


def on_another_machine(config: Config, **options: str) -> Config:
    """The same configuration with another state folder."""
    spool = config.spool
    state = spool.folder.with_name(f"state-{uuid.uuid4()}")
    update = {"state": state, "storage_options": {**spool.storage_options, **options}}
    return config.model_copy(update={"spool": spool.model_copy(update=update)})


def received(config: Config) -> list[bytes]:
    return inserted(config) if SpoolReader.is_there(config.spool.place) else []


@pytest.mark.parametrize("failpoint", ["spool.before_put", "spool.after_put"])
def test_a_killed_capture_goes_on_although_its_folder_is_lost(
    db: Database, config: Config, failpoint: str
) -> None:
    """The second kill is within a transaction in parts, whose parts the next capture deletes."""
    config = config.model_copy(
        update={"spool": config.spool.model_copy(update={"segment_bytes": 64 * 1024})}
    )
    run_capture(config, once=True)
    db.execute(insert(1, 100))
    for first in (101, 10_101):
        db.execute(insert(first, first + 9_999, "repeat('x', 50)"))
        skipped = "" if first == 101 else "@4"
        assert Child(killed, config, f"{failpoint}=kill{skipped}").wait(HANGS_S) == -signal.SIGKILL
        shutil.rmtree(config.spool.folder)
    run_capture(config, once=True)
    assert received(config) == numbers(1, 20_100)
    assert confirmed(db) >= SpoolReader(config.spool.place).position()
    named = {
        part.name for info in SpoolReader(config.spool.place).all_segments() for part in info.parts
    }
    assert {stored.name for stored in folder_of(config.spool.place).tree("parts/")} == named


def test_while_the_store_is_away_nothing_is_acknowledged(
    db: Database, config: Config, proxy: StoreProxy, s3_store: ObjectStore
) -> None:
    config = on_another_machine(config, **s3_store.at(proxy.endpoint), **ONE_TRY)
    run_capture(config, once=True)
    with running(config):
        db.execute(insert(1, 10))
        await_that(lambda: received(config) == numbers(1, 10))
        for first, (status, code) in ((11, (503, "SlowDown")), (21, (403, "AccessDenied"))):
            before = SpoolReader(config.spool.place).frontier()
            proxy.refusal = status, code
            db.execute(insert(first, first + 9))
            await_that(lambda: phase(config) == "reconnecting")
            assert confirmed(db) <= before
            proxy.refusal = None
            await_that(lambda last=first + 9: received(config) == numbers(1, last))
            await_that(lambda: phase(config) == "streaming")
        await_that(lambda: confirmed(db) >= SpoolReader(config.spool.place).position())


def test_a_second_capture_is_refused_by_name_and_disturbs_nobody(
    db: Database, config: Config
) -> None:
    run_capture(config, once=True)
    with running(config):
        db.execute(insert(1, 10))
        await_that(lambda: received(config) == numbers(1, 10))
        epoch = folder_of(config.spool.place).read("epoch.json")
        with pytest.raises(SlotInUse, match=f"slot '{db.name}' is in use by the server's process"):
            run_capture(on_another_machine(config), waits=Waits(stale_walsender_s=0.5))
        assert folder_of(config.spool.place).read("epoch.json") == epoch
        db.execute(insert(11, 20))
        await_that(lambda: received(config) == numbers(1, 20))


def test_a_capture_that_lost_the_spool_for_a_while_opens_it_again(
    db: Database, config: Config
) -> None:
    """Another one raised the epoch, did not get the slot, and is gone."""
    run_capture(config, once=True)
    with running(config):
        db.execute(insert(1, 10))
        await_that(lambda: received(config) == numbers(1, 10))
        taken = Spool.open(on_another_machine(config).spool.place).raise_epoch()
        db.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            f"WHERE slot_name = '{db.name}'",
            insert(11, 20),
        )
        await_that(lambda: received(config) == numbers(1, 20))
        last = SpoolReader(config.spool.place).all_segments()[-1]
        assert last.epoch == taken + 1


def test_a_capture_whose_slot_another_one_has_read_meanwhile_opens_the_spool_again(
    db: Database, config: Config
) -> None:
    """The slot is past what this one knows of the spool, but not past the spool's end."""
    role = f"capture_{db.name}"
    db.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    source = config.source.model_copy(update={"dsn": make_conninfo(db.dsn, user=role)})
    run_capture(config, once=True)
    with running(config.model_copy(update={"source": source}), pauses_s=(0.1,)):
        db.execute(insert(1, 10))
        await_that(lambda: received(config) == numbers(1, 10))
        db.execute(
            f"ALTER ROLE {role} NOLOGIN",
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            f"WHERE slot_name = '{db.name}'",
        )
        await_that(lambda: phase(config) == "reconnecting")
        db.execute(insert(11, 20))
        run_capture(on_another_machine(config), once=True)
        db.execute(f"ALTER ROLE {role} LOGIN", insert(21, 30))
        await_that(lambda: received(config) == numbers(1, 30))
    db.execute(f"DROP ROLE {role}")


def test_two_first_starts_make_one_slot(db: Database, config: Config) -> None:
    """The second one would take the slot for that of an interrupted start, and drop it."""
    others = [on_another_machine(config) for _ in range(3)]
    children = [Child(once, other) for other in others]
    codes = [child.wait(HANGS_S) for child in children]
    assert 0 in codes
    db.execute(insert(1, 10))
    run_capture(config, once=True)
    assert received(config) == numbers(1, 10)


def once(config: Config) -> None:
    run_capture(config, once=True)
