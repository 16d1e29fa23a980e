"""What other sessions and processes do to a copy: limits, long transactions, a lost keeper."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.ddl.held_copies import HeldCopies, held_copies
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.spool import TableState
from pgsluice.spool.layout import COPY_SNAPSHOT
from pgsluice.subscription.base.requests import request_copy
from pgsluice.subscription.base.waits import Waits

LIMIT_MS = 400
IDLE_SESSION_MS = 3000
"""Longer: pgsluice switches all limits off by the first statement of a session, and a busy machine
may need its time for that."""
_LIMITS = {
    "statement_timeout": 10,
    "lock_timeout": 10,
    "idle_in_transaction_session_timeout": 10,
    "idle_session_timeout": 14,
    "transaction_timeout": 17,
}
"""Each with the first version that has it."""
_KEEPERS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'pgsluice snapshot of a copy'
"""
_IDLE_LONGER = f"""
{_KEEPERS}
AND clock_timestamp() - state_change > {IDLE_SESSION_MS + LIMIT_MS} * interval '1 ms'
"""


class Unlimited(Database):
    """The test's own sessions have no limits: on a busy machine, their queries may take long."""

    def connect(self) -> psycopg.Connection[Any]:
        version = int(self.server.version.partition(".")[0])
        off = [f"-c {name}=0" for name, since in _LIMITS.items() if version >= since]
        return psycopg.connect(self.dsn, autocommit=True, options=" ".join(off))


class Shop:
    """A database and a run of it; ``big`` is copied in ranges, under a snapshot with a keeper."""

    def __init__(self, database: Database, one: Pipeline, held: HeldCopies) -> None:
        self.database = database
        self.one = one
        self.held = held
        self._others = 0

    @contextmanager
    def copying(self, table: str) -> Iterator[None]:
        """A block in which a table is copied, and no range is begun before its end."""
        ((oid,),) = self.database.execute(f"SELECT '{table}'::regclass::oid::bigint")
        self.held.hold([oid])
        request_copy(self.one.spool / "subscriptions" / "lake", oid)
        self.one.wait_until(self.held.are_held, why=f"{table} is about to be read")
        try:
            yield
        finally:
            self.held.release()
        self.wait_copied(table)

    def wait_copied(self, table: str) -> None:
        self.one.wait_until(
            lambda: self.one.table(table).state in (TableState.COPIED, TableState.READY),
            why=f"{table} is copied",
        )

    def others_go_on(self) -> None:
        """A change of another table comes to its target."""
        self._others += 1
        self.database.execute(f"INSERT INTO small VALUES ({self._others})")
        self.one.wait_until(
            lambda: self._others in self._ids(), why="the other table's change is applied"
        )

    def _ids(self) -> list[int]:
        return list(self.one.delta("small").to_pyarrow_table()["id"].to_pylist())

    @property
    def keeper(self) -> psutil.Process:
        path = self.one.spool / "subscriptions" / "lake" / COPY_SNAPSHOT
        self.one.wait_until(path.exists, why="the keeper has the snapshot")
        return psutil.Process(json.loads(path.read_text())["pid"])


def test_a_copy_is_disturbed(
    database: MakeDatabase,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = database()
    source = Unlimited(made.server, made.name)
    source.execute(
        "CREATE TABLE big (id int PRIMARY KEY, note text)",
        "INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i",
        "CREATE TABLE small (id int PRIMARY KEY)",
    )
    version = int(source.server.version.partition(".")[0])
    for name, since in _LIMITS.items():
        if version >= since:
            limit_ms = IDLE_SESSION_MS if name == "idle_session_timeout" else LIMIT_MS
            source.execute(f"ALTER DATABASE \"{source.name}\" SET {name} = '{limit_ms}ms'")
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.subscription.copies.kept.KEPT_FROM_BYTES", 0)
    one = pipeline(source)
    one.waits = Waits(keeper_after_s=0.0)
    one.once()
    with held_copies(has_lock=False) as held, one.live():
        shop = Shop(source, one, held)
        limits_end_no_session_that_a_copy_needs(shop)
        a_lost_keeper_costs_what_is_not_finished(shop, caplog)
        only_the_copy_waits_for_a_transaction(shop)
        one.wait_applied()
        one.assert_equal("big", "small")


def limits_end_no_session_that_a_copy_needs(shop: Shop) -> None:
    one = shop.one
    with shop.copying("big"):
        one.wait_until(
            lambda: bool(shop.database.execute(_IDLE_LONGER)), why="the keeper is idle for long"
        )
        shop.others_go_on()
    assert one.table("big").copy_number == 2
    assert one.table("small").copy_number == 1


def a_lost_keeper_costs_what_is_not_finished(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    one = shop.one
    for number, how in enumerate(("its process", "its session"), 1):
        with shop.copying("big"):
            keeper = shop.keeper
            if how == "its process":
                os.kill(keeper.pid, signal.SIGKILL)
            else:
                shop.database.execute(_KEEPERS.replace("pid", "pg_terminate_backend(pid)", 1))
            # Until then the snapshot can be imported.
            one.wait_until(
                lambda: not shop.database.execute(_KEEPERS), why="the server's process has ended"
            )
            shop.database.execute("UPDATE big SET note = 'later' WHERE id < 9")
        assert one.table("big").copy_number == 2 + 2 * number, how
        ended = f"the snapshot holder of copies (process {keeper.pid}) has ended"
        assert (ended in caplog.text) == (how == "its process")
        assert one.table("small").copy_number == 1
        shop.others_go_on()


def only_the_copy_waits_for_a_transaction(shop: Shop) -> None:
    one = shop.one
    with shop.database.connect() as writer:
        writer.execute("SET idle_in_transaction_session_timeout = 0")
        if int(shop.database.server.version.partition(".")[0]) >= 17:
            writer.execute("SET transaction_timeout = 0")
        writer.execute("BEGIN")
        writer.execute("UPDATE big SET note = 'of a long transaction' WHERE id = 1")
        ((oid,),) = shop.database.execute("SELECT 'big'::regclass::oid::bigint")
        request_copy(one.spool / "subscriptions" / "lake", oid)
        one.wait_until(
            lambda: one.table("big").state is TableState.DATA_COPY, why="the copy waits for it"
        )
        for _ in range(2):
            shop.others_go_on()
            assert one.table("big").state is TableState.DATA_COPY
        writer.execute("UPDATE big SET note = 'of a long transaction' WHERE id = 2")
        writer.execute("COMMIT")
    shop.wait_copied("big")
