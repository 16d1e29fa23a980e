"""``pgsluice drop --stream``: what streaming queries left on the server and on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.capturing import configure
from tests.support.commands import Command
from tests.support.databases import Database, MakeDatabase

from pgsluice.capture import run_capture
from pgsluice.embedded import EmbeddedServer
from pgsluice.spool import Owner, RecordStore, SpoolReader, SubscriptionRecord
from pgsluice.spool.lock import subscription_lock


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return shop


def streamed(shop: Database, spool: Path, owner: Owner = Owner.SOURCE) -> None:
    """What a streaming query leaves."""
    run_capture(configure(shop, spool), once=True)
    at = SpoolReader(spool).position()
    query = {"reads": "table public.t"} if owner is Owner.SOURCE else {}
    record = SubscriptionRecord(
        "audit", owner, mode="changelog", sink="", registered=at, position=at, query=query
    )
    RecordStore.create(spool, record)


def left(shop: Database) -> tuple[int, int]:
    """The slots and publications of the database."""
    ((slots,),) = shop.execute(
        f"SELECT count(*) FROM pg_replication_slots WHERE database = '{shop.name}'"
    )
    ((publications,),) = shop.execute("SELECT count(*) FROM pg_publication")
    return slots, publications


def test_all_of_a_stream_is_removed(shop: Database, pgsluice: Command, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    streamed(shop, spool)
    assert left(shop) == (1, 2)
    outcome = pgsluice("drop", "--stream", spool, "--dsn", shop.dsn, "--yes")
    assert outcome.code == 0, outcome.err
    assert 'stream "audit" of table public.t, read through' in outcome.out
    assert f"dropped the slot {shop.name}" in outcome.out
    assert "dropped the publication pgsluice_insert" in outcome.out
    assert "looked again: the server has no slot" in outcome.out
    assert left(shop) == (0, 0)
    assert not spool.exists()


def test_what_is_in_use_or_of_others_is_kept(
    shop: Database, pgsluice: Command, tmp_path: Path, pg16: EmbeddedServer, database: MakeDatabase
) -> None:
    spool = tmp_path / "spool"
    streamed(shop, spool)
    other = database(pg16)
    for arguments, why in (
        (("--stream", tmp_path, "--dsn", shop.dsn), "is not a spool"),
        (("--stream", spool, "--dsn", other.dsn), "the spool was filled from"),
        (("--stream", spool), "--stream needs --dsn"),
        ((), "name the configuration, or --stream"),
    ):
        outcome = pgsluice("drop", *arguments, "--yes")
        assert outcome.code != 0
        assert why in outcome.err
    with subscription_lock(spool, "audit"):
        assert pgsluice("drop", "--stream", spool, "--dsn", shop.dsn, "--yes").code != 0
    assert left(shop) == (1, 2)


def test_the_spool_of_a_configuration_is_refused(
    shop: Database, pgsluice: Command, tmp_path: Path
) -> None:
    streamed(shop, tmp_path / "spool", Owner.CONFIG)
    outcome = pgsluice("drop", "--stream", tmp_path / "spool", "--dsn", shop.dsn, "--yes")
    assert "was created by a configuration of `pgsluice run`" in outcome.err
    assert left(shop) == (1, 2)
