"""Capture in tests: a configuration on a database, run in a thread or in a child process."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.databases import Database
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.capture import read_health, run_capture
from pgsluice.capture.process import Waits
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader
from pgsluice.wire import Insert, decode_message


def configure(db: Database, path: Path, *, dsn: str | None = None, **spool) -> Config:
    return Config(
        source=SourceConfig(dsn=dsn or db.dsn, slot=db.name, connect_timeout_s=60.0),
        spool=SpoolConfig(path=path, **spool),
    )


def inserted(config: Config) -> list[bytes]:
    """The ids of all inserted rows, in order."""
    return [values[0] for values in inserted_rows(config)]


def inserted_rows(config: Config) -> list[tuple[bytes, ...]]:
    """All inserted rows, in order."""
    reader = SpoolReader(config.spool.place)
    rows = []
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            for number in (view.block.tags == ord("I")).nonzero()[0]:
                message = decode_message(view.block.message(number))
                assert isinstance(message, Insert)
                rows.append(tuple(message.new.values))
    return rows


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def insert(first: int, last: int, value: str = "'x'") -> str:
    return f"INSERT INTO t SELECT i, {value} FROM generate_series({first}, {last}) i"


def confirmed(db: Database) -> Lsn:
    ((lsn,),) = db.execute(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{db.name}'"
    )
    return Lsn.parse(lsn)


def running(config: Config, **waits_s: float) -> AbstractContextManager[threading.Thread]:
    """A capture on a thread of its own."""
    return beside(lambda stop: run_capture(config, stop=stop, waits=Waits(**waits_s)))


def killed(config: Config, failpoints: str) -> None:
    arm(failpoints)
    run_capture(config, once=True)


def phase(config: Config) -> str | None:
    health = read_health(config.spool.folder)
    return None if health is None else str(health.phase)


def await_end(spool: Path) -> None:
    """The capture that the query brought ends with it: soon, since it is told by a signal."""

    def has_ended() -> bool:
        health = read_health(spool)
        return health is not None and not health.is_alive()

    await_that(has_ended, "the capture has ended")
