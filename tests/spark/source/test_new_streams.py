"""A new stream of a spool gets whole transactions of its table, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.source.snapshot.planned_stream import Stream
from tests.support.databases import Database, MakeDatabase
from tests.support.forked_capture import ForkedCapture
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.errors import ConfigError
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spark.source.streaming.keeper import CaptureKeeper

_WAITS_FOR_WRITERS = """
SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()
"""


@pytest.fixture
def shop(database: MakeDatabase, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    shop = database()
    shop.execute(
        "CREATE TABLE other (id int PRIMARY KEY, note text)",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    )
    return shop


def test_a_transaction_that_is_open_when_a_second_stream_begins_is_not_split(
    shop: Database, tmp_path: Path
) -> None:
    """The server sends none of its changes from before the table was published."""
    spool, streams = tmp_path / "spool", list[Stream]()
    given = {"starting_position": "now"}
    first = Stream(shop, spool, subscription="first", table="public.other", **given)
    try:
        with shop.connect() as writer:
            writer.execute("BEGIN; INSERT INTO orders VALUES (1, 'before it is published')")
            with beside(lambda _: streams.append(Stream(shop, spool, **given))):
                await_that(lambda: bool(streams or shop.execute(_WAITS_FOR_WRITERS)))
                writer.execute("INSERT INTO orders VALUES (2, 'later')")
                writer.execute("COMMIT")
        shop.execute("INSERT INTO orders VALUES (3, 'last')")

        def ids() -> list[int]:
            streams[0].batch()
            return [row["id"] for row in streams[0].rows]

        await_that(lambda: 3 in ids())
        assert ids() in ([3], [1, 2, 3])
    finally:
        for stream in (first, *streams):
            stream.reader.stop()


def _refuse(shop: Database, spool: Path, table: str, **given: str) -> None:
    options = {"dsn": shop.dsn, "slot": shop.name, "spool": str(spool), "table": table, **given}
    keeper = CaptureKeeper(SourceOptions.parse({**options, "starting_position": "now"}))
    try:
        keeper.publish()
        keeper.wait_for_spool()
        with pytest.raises(ConfigError, match=f"no changes of table {table} by"):
            keeper.await_publications()
    finally:
        keeper.close()


def test_a_table_that_the_publications_do_not_send_is_refused(
    shop: Database, tmp_path: Path
) -> None:
    """Its stream would get nothing, and nobody would notice."""
    shop.execute("CREATE PUBLICATION p FOR TABLE other")
    _refuse(shop, tmp_path / "spool", "public.orders", publications="p")
    shop.execute("ALTER PUBLICATION p ADD TABLE orders")
    stream = Stream(shop, tmp_path / "spool", starting_position="now", publications="p")
    stream.reader.stop()


@pytest.mark.pg(">= 11")  # the primary key of a partitioned table
def test_a_partition_with_partitions_is_refused_if_it_is_not_sent_by_its_name(
    shop: Database, tmp_path: Path
) -> None:
    shop.execute(
        "CREATE TABLE root (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF mid FOR VALUES FROM (0) TO (9)",
    )
    given = {"starting_position": "now"}
    _refuse(shop, tmp_path / "spool", "public.mid")
    for name in ("root", "leaf"):
        stream = Stream(
            shop, tmp_path / "spool", table=f"public.{name}", subscription=name, **given
        )
        shop.execute("INSERT INTO root VALUES (1, 'x')", "DELETE FROM root")
        await_that(lambda stream=stream: bool(stream.batch() and stream.rows))  # type: ignore[misc]
        stream.reader.stop()


def test_a_column_that_is_added_before_a_query_starts_is_read(
    shop: Database, tmp_path: Path
) -> None:
    """The spool has the table's columns of the last change before."""
    stream = Stream(shop, tmp_path / "spool", starting_position="now")
    reader = stream.reader.reader()
    try:
        begin = reader.position()
        shop.execute("INSERT INTO orders VALUES (1, 'x')")
        await_that(lambda: reader.position() > begin, "the change is in the spool")
    finally:
        stream.reader.stop()
    shop.execute(
        "ALTER TABLE orders DROP COLUMN note", "ALTER TABLE orders ADD COLUMN more int DEFAULT 7"
    )
    schema = PgoutputDataSource(stream.options).schema()
    assert schema.startswith("`id` int, `note` string, `more` int, `_change_type`")
    begins = {"subscription": "new", "starting_position": "snapshot"}
    schema = PgoutputDataSource({**stream.options, **begins}).schema()
    assert schema.startswith("`id` int, `more` int, `_change_type`"), "as the rows have it"
    dead = {**stream.options, "dsn": "host=127.0.0.1 port=1"}
    assert PgoutputDataSource(dead).schema().startswith("`id` int, `note` string, `_change_type`")


@pytest.mark.pg(">= 15")  # column lists
@pytest.mark.parametrize("begins", ["now", "snapshot"])
def test_a_query_has_no_columns_that_the_publications_do_not_send(
    shop: Database, tmp_path: Path, begins: str
) -> None:
    shop.execute("CREATE PUBLICATION p FOR TABLE orders (id)")
    options = {"publications": "p", "starting_position": begins}
    stream = Stream(shop, tmp_path / "spool", **options)
    reader = stream.reader.reader()
    try:
        for subscription in ("q", "new"):
            source = PgoutputDataSource({**stream.options, "subscription": subscription})
            assert source.schema().startswith("`id` int, `_change_type`")
        begin = reader.position()
        shop.execute("INSERT INTO orders VALUES (1, 'x')")
        await_that(lambda: reader.position() > begin, "the change is in the spool")
        for subscription in ("q", "new"):
            source = PgoutputDataSource({**stream.options, "subscription": subscription})
            assert source.schema().startswith("`id` int, `_change_type`")
    finally:
        stream.reader.stop()
