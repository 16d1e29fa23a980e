"""A query that waits for a capture that it may not start itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.databases import MakeDatabase, Servers
from tests.support.forked_capture import ForkedCapture
from tests.support.hostile_server import Fault, HostileProxy
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.errors import ConfigError, SpoolError
from pgsluice.hints import COPY_ALL_AGAIN, for_query
from pgsluice.lsn import Lsn
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spark.source.streaming.keeper import CaptureKeeper
from pgsluice.spool import Owner, RecordStore, Spool, SpoolIdentity, SpoolReader, SubscriptionRecord


def test_a_spool_that_no_capture_begins_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    """`pgsluice run` was killed before it had made its slot, and is not started again."""
    path = tmp_path / "spool"
    identity = SpoolIdentity(system_identifier="7", timeline=1, database="shop", slot="pgsluice")
    Spool.create(path, identity)
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, mode="current", sink="delta", registered=Lsn(0), position=Lsn(0)
    )
    RecordStore.create(path, record)
    waiting = CaptureKeeper(SourceOptions(spool=path, dsn="dbname=shop"), patience_s=0.2)
    with pytest.raises(SpoolError, match="no process writes changes to the spool"):
        waiting.wait_for_spool()


def test_a_long_wait_says_what_the_query_waits_for(
    database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server makes no slot until the transactions that are open have ended."""
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop, words = database(), "the query waits for the slot, and the start of the spool; capture"
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    options = {"dsn": shop.dsn, "slot": shop.name, "publications": "p"}
    given = SourceOptions.model_validate({**options, "spool": tmp_path / "spool"})
    waiting = CaptureKeeper(given, log_after_s=0.0)
    try:
        with shop.connect() as writer:
            writer.execute("BEGIN; INSERT INTO t VALUES (1)")
            with beside(lambda _: waiting.wait_for_spool()):
                await_that(lambda: any(words in message for message in caplog.messages))
                writer.execute("COMMIT")
        assert sum(words in message for message in caplog.messages) == 1
    finally:
        waiting.close()


def test_a_query_that_begins_beside_the_first_one_of_a_spool_waits_for_open_transactions(
    database: MakeDatabase, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture of the first query connects before the second one's table is published: the server
    sends no change of that table while it decides by these transactions."""
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop = database(servers(12))
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    common = {"dsn": shop.dsn, "slot": shop.name, "spool": tmp_path / "spool"}
    first, second = (
        CaptureKeeper(
            SourceOptions.model_validate(
                {**common, "subscription": table, "table": f"public.{table}"}
            )
        )
        for table in ("t", "u")
    )
    try:
        first.publish()
        first.wait_for_spool()
        with shop.connect() as writer:
            writer.execute("BEGIN; INSERT INTO u VALUES (1)")
            second.publish()
            with beside(lambda _: second.await_publications()) as beginning:
                await_that(
                    lambda: not beginning.is_alive() or bool(shop.execute(_WAITS_FOR_WRITERS))
                )
                assert beginning.is_alive()
                writer.execute("COMMIT")
    finally:
        second.close()
        first.close()


_WAITS_FOR_WRITERS = """
SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()
"""


def test_a_capture_requests_the_publications_of_the_spool_that_another_query_makes_meanwhile(
    database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queries start at once; the one that asks for no publications goes on alone."""
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop, path = database(), tmp_path / "spool"
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    shop.execute("CREATE TABLE u (id int PRIMARY KEY)")
    options = {"dsn": shop.dsn, "spool": path}
    second = CaptureKeeper(SourceOptions.model_validate({**options, "table": "public.u"}))
    named = {**options, "slot": shop.name, "publications": "p", "table": "public.t"}
    first = CaptureKeeper(SourceOptions.model_validate(named))
    first.wait_for_spool()
    first.close()
    try:
        second.publish()
        second.wait_for_spool()
        reader = SpoolReader(path)
        begin = reader.position()
        shop.execute("INSERT INTO t VALUES (1)")

        def has_come() -> bool:
            second.look_after()
            return reader.position() > begin

        await_that(has_come, "the change of the first query's table")
    finally:
        second.close()
    assert Spool.open(path).identity.publications == ("p",)
    assert shop.execute("SELECT pubname FROM pg_publication") == [("p",)]


@pytest.mark.pg(">= 14")  # the option messages
def test_the_capture_of_one_query_requests_what_another_one_of_the_spool_needs(
    database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in turn, and the spool has to go on with messages."""
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop, path = database(), tmp_path / "spool"
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    options = {"dsn": shop.dsn, "spool": path, "slot": shop.name}
    first = CaptureKeeper(SourceOptions.parse({**options, "messages": "true"}), once=True)
    first.publish()
    first.wait_for_spool()
    end = SpoolReader(path).position()
    RecordStore.create(path, SubscriptionRecord("first", Owner.SOURCE, "changelog", "", end, end))
    first.close()
    second = CaptureKeeper(SourceOptions.parse({**options, "subscription": "second"}))
    try:
        second.look_after()
        shop.execute("SELECT pg_logical_emit_message(true, 'outbox', 'content')")
        await_that(lambda: SpoolReader(path).position() > end, "the message")
    finally:
        second.close()
    assert Spool.open(path).identity.options["messages"] == "true"
    other = SourceOptions.parse({**options, "subscription": "third", "publications": "p"})
    with pytest.raises(ConfigError, match="the option publications is p, but"):
        CaptureKeeper(other).look_after()


class _Meanwhile(Fault):
    """The server is asked for slots: something happens before it answers."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(is_walsender=False)
        self._act = act

    def asked(self, command: str) -> None:
        if "pg_replication_slots" in command:
            self._act()
            self.has_acted = True


def test_a_query_whose_spool_another_one_makes_meanwhile_has_its_table_published(
    database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    common = {"slot": shop.name, "spool": tmp_path / "spool"}
    first = CaptureKeeper(
        SourceOptions.model_validate({**common, "dsn": shop.dsn, "table": "public.t"})
    )

    def begin() -> None:
        first.publish()
        first.wait_for_spool()

    fault = _Meanwhile(begin)
    try:
        with HostileProxy(shop.server.port, fault) as proxy:
            dsn = proxy.dsn(shop.dsn)
            given = {**common, "dsn": dsn, "table": "public.u"}
            CaptureKeeper(SourceOptions.model_validate(given)).publish()
    finally:
        first.close()
    assert fault.has_acted
    published = shop.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1")
    assert published == [("t",), ("u",)]


def test_a_query_is_not_told_of_a_configuration_that_it_does_not_have(tmp_path: Path) -> None:
    """Its own capture's errors speak of its options, and of what can be done without a file."""
    path = tmp_path / "spool"
    identity = SpoolIdentity(system_identifier="7", timeline=1, database="shop", slot="shop")
    Spool.create(path, identity)
    with pytest.raises(
        ConfigError, match=r"option slot is b, but the spool .* belongs to slot shop"
    ):
        CaptureKeeper(SourceOptions(spool=path, dsn="dbname=shop", slot="b"))
    for text in (
        "raise it, or run `pgsluice drop CONFIG` and start pgsluice again",
        f"the changes are gone from the server: {COPY_ALL_AGAIN}",
        "rename it, or choose another name instead of it in [source] publications",
    ):
        told = for_query(text, "shop", path)
        assert "CONFIG" not in told
        assert "[source]" not in told
    assert for_query("`pgsluice drop CONFIG` and start again", "shop", path) == (
        f"drop the slot shop with `pgsluice drop --stream {path} --dsn DSN` and start again"
    )
