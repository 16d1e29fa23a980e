"""The life of partitions that come, get rows and go, or are others, without a look in between."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from tests.support.databases import Database
from tests.support.local_spark import run_killed_at
from tests.support.partition_cases import UNSEEN, make
from tests.support.pipeline import Pipeline
from tests.support.waiting import HANGS_S, await_that

from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader

Connection = psycopg.Connection[Any]
COPIED = {name for name, case in UNSEEN.items() if case.is_copied}


def begin(one: Pipeline) -> None:
    for name, case in UNSEEN.items():
        make(one.database, name, case)
    one.once()


def execute(connection: Connection, statements: Mapping[str, Sequence[str]]) -> None:
    for name, texts in statements.items():
        for text in texts:
            connection.execute(text.format(t=name).encode())


def come(connection: Connection, names: Collection[str] = UNSEEN.keys()) -> None:
    """Make the partitions, and fill them once they are published: up to 12, by capture."""
    made = {name: UNSEEN[name].change for name in names}
    filled = {
        name: next(n for n, text in enumerate(made[name]) if "INSERT" in text) for name in made
    }
    execute(connection, {name: made[name][: filled[name]] for name in names})
    query = b"SELECT count(*) FROM pg_publication_tables WHERE tablename LIKE '%\\_9'"
    await_that(lambda: connection.execute(query).fetchall() == [(len(made),)], "they are published")
    execute(connection, {name: made[name][filled[name] :] for name in names})


def go(connection: Connection, names: Collection[str] = UNSEEN.keys()) -> None:
    execute(connection, {name: UNSEEN[name].later for name in names})


def allow_connections(shop: Database, word: str) -> None:
    with psycopg.connect(shop.server.dsn(), autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{shop.name}" ALLOW_CONNECTIONS {word}'.encode())


def copied(one: Pipeline) -> set[str]:
    return {name for name in UNSEEN if one.table(name).copy_number > 1}


@contextmanager
def capture_alone(one: Pipeline) -> Iterator[None]:
    """Only capture runs, and it has all that was committed at the block's end."""
    capture = one.start("capture")
    yield
    ((sent,),) = one.database.execute("SELECT pg_current_wal_flush_lsn()::text")
    reader = SpoolReader(one.spool)
    one.wait_until(lambda: reader.frontier() >= Lsn.parse(str(sent)), why="capture has it")
    capture.terminate()
    capture.wait(HANGS_S)
    one.processes.clear()


def pass_while_the_driver_is_down(one: Pipeline, *, is_restarted: bool) -> None:
    """The first run afterwards is killed between a commit at the target and the record."""
    shop = one.database
    begin(one)
    with capture_alone(one), shop.connect() as connection:
        come(connection)
    if is_restarted:
        shop.server.restart("immediate")
    with shop.connect() as connection:
        go(connection)
    assert run_killed_at(one.path, "batch.before_record") == -signal.SIGKILL
    one.once()
    one.assert_equal(*UNSEEN)
    assert not any(one.table(name).pending.unseen_leaves for name in UNSEEN)


def pass_while_no_look_comes_through(one: Pipeline) -> None:
    """Batches are applied while the server takes no new connections, and then it is restarted."""
    shop = one.database
    shop.execute("CREATE TABLE first (id int PRIMARY KEY)", "INSERT INTO first VALUES (1)")
    begin(one)
    names = UNSEEN.keys() - {"truncated"}  # its bound is asked of the server

    def write() -> None:
        """The server of a quiet database tells only now and then how far it is."""
        shop.execute("INSERT INTO first SELECT max(id) + 1 FROM first")

    def wait_applied() -> None:
        write()
        ((now,),) = shop.execute("SELECT pg_current_wal_flush_lsn()::text")
        through = Lsn.parse(str(now))

        def is_applied() -> bool:
            write()
            return all(each.applied_through >= through for each in one.record().tables.values())

        one.wait_until(is_applied, why=f"all is applied through {through}")

    def is_open(name: str) -> bool:
        table = one.table(name)
        return bool(table.pending.unseen_leaves or table.pending.verification or table.is_to_copy)

    def is_accounted_for() -> bool:
        write()
        return not any(map(is_open, names))

    with one.live():
        wait_applied()  # capture is connected to the catalog
        connection = shop.connect()
        allow_connections(shop, "false")
        come(connection, names)
        query = b"SELECT pg_current_wal_flush_lsn()::text"
        filled = Lsn.parse(connection.execute(query).fetchall()[0][0])
        one.wait_until(lambda: one.record().position >= filled, why="they are applied")
        brought = {name for name in names if one.table(name).pending.unseen_leaves}
        assert brought == names - {"known_elsewhere"}
        go(connection, names)
        shop.server.restart("immediate")
        connection.close()
        allow_connections(shop, "true")
        one.wait_until(is_accounted_for, why="looks have accounted for them")
        wait_applied()
    one.assert_equal(*UNSEEN)
