"""What capture does when publications change beside open transactions, on PostgreSQL 12.

The server decides by the catalog of an open transaction's start, and keeps that for the rest of the
connection (ADR 0056). A stream without a table reads what capture receives then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.capturing import inserted, running
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.waiting import await_that

from pgsluice.capture import read_health
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.spool import SpoolReader


@pytest.fixture
def db(database: MakeDatabase, servers: Servers) -> Database:
    return database(servers(12))


def is_published(db: Database) -> bool:
    return bool(db.execute("SELECT 1 FROM pg_publication_rel WHERE prrelid = to_regclass('late')"))


@pytest.mark.parametrize("is_ours", [True, False], ids=["of pgsluice", "of the user"])
def test_a_table_is_published_beside_a_transaction_that_wrote_to_it(
    is_ours: bool, db: Database, tmp_path
) -> None:
    if not is_ours:
        db.execute(f"CREATE PUBLICATION {db.name}")
    source = SourceConfig(dsn=db.dsn, slot=db.name, publications=(db.name,), catalog_poll_s=0.1)
    config = Config(source=source, spool=SpoolConfig(path=tmp_path / "spool"))
    ids: Iterator[int] = iter(range(2, 10_000))

    def come() -> bool:
        db.execute(f"INSERT INTO late VALUES ({next(ids)})")
        return bool(inserted(config))

    with running(config):
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        await_that(lambda: (found := read_health(config.spool.path)) and found.phase == "streaming")
        with db.connect() as writer:
            writer.execute("BEGIN; CREATE TABLE late (id int PRIMARY KEY); COMMIT; BEGIN")
            writer.execute("INSERT INTO late VALUES (1)")
            if not is_ours:
                db.execute(f"ALTER PUBLICATION {db.name} ADD TABLE late")
            await_that(lambda: is_published(db), "it is published")
            writer.execute("COMMIT")
        await_that(come, "changes come")


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "committed"])
def test_a_table_was_published_before_capture_starts(is_open: bool, db: Database, tmp_path) -> None:
    """The transaction that wrote to it is still to be decoded when capture connects."""
    db.execute(f"CREATE PUBLICATION {db.name}")
    db.execute("CREATE TABLE late (id int PRIMARY KEY)")
    source = SourceConfig(dsn=db.dsn, slot=db.name, publications=(db.name,), catalog_poll_s=0.1)
    config = Config(source=source, spool=SpoolConfig(path=tmp_path / "spool"))
    ids: Iterator[int] = iter(range(2, 10_000))

    def streams() -> bool:
        health = read_health(config.spool.path)
        return health is not None and health.phase == "streaming"

    def come() -> bool:
        db.execute(f"INSERT INTO late VALUES ({next(ids)})")
        return bool(inserted(config))

    with running(config):
        await_that(lambda: SpoolReader.is_there(config.spool.path))
        await_that(streams)
    with db.connect() as writer:
        writer.execute("BEGIN; INSERT INTO late VALUES (1)")
        db.execute(f"ALTER PUBLICATION {db.name} ADD TABLE late")
        if not is_open:
            writer.execute("COMMIT")
        with running(config):
            await_that(streams)
            if is_open:
                writer.execute("COMMIT")
            await_that(come, "changes come")
