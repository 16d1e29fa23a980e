"""Logical messages as envelope rows: their columns, their order, their position."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.source.test_rows import ENVELOPE
from tests.support.databases import Database, MakeDatabase
from tests.support.spools import START, SpoolMaker, orders, transactional

from pgsluice.capture import run_capture
from pgsluice.config import Config
from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spark.source.messages import message_batches
from pgsluice.spark.source.options import TableName
from pgsluice.spark.source.reading import ChangePartition, RowReader, plan
from pgsluice.spark.source.rows import MAX_ROWS
from pgsluice.spool import RawMessages, SegmentView, SpoolReader
from pgsluice.spool.segments.block import part_block
from pgsluice.types import TypeOptions
from pgsluice.wire import LogicalMessage


def envelope(spool: Path) -> list[dict[str, Any]]:
    """Every envelope row of a spool, in the order of position and ordinal."""
    reader = SpoolReader(spool)
    partitions = plan(reader.segments(reader.start()), reader.start(), reader.position())
    rows = RowReader(spool, None, (), ENVELOPE, TypeOptions())
    batches = [batch for partition in partitions for batch in checked(rows, partition)]
    unsorted = [row for batch in batches for row in batch.to_pylist()]
    return sorted(unsorted, key=lambda row: (row["_commit_version"], row["_ordinal"]))


def checked(rows: RowReader, partition: ChangePartition) -> list[pa.RecordBatch]:
    """A partition's batches, after a check of their schema."""
    batches = list(rows.read(partition))
    for batch in batches:
        assert batch.schema.equals(ENVELOPE, check_metadata=True)
        batch.validate(full=True)
    return batches


def test_a_transactional_message_is_a_row_of_its_transaction(spool_maker: SpoolMaker) -> None:
    sent = transactional("outbox", b"\x00\xff")
    end = spool_maker.segment([*orders(1), sent, *orders(2)[1:]])
    before, message, after = envelope(spool_maker.path)
    assert (before["_change_type"], after["_change_type"]) == ("insert", "insert")
    assert [before[name] for name in ("prefix", "content")] == [None, None]
    assert message == {
        "schema": None,
        "table": None,
        "key": None,
        "row": None,
        "prefix": "outbox",
        "content": b"\x00\xff",
        "_change_type": "message",
        "_commit_version": end,
        "_commit_timestamp": before["_commit_timestamp"],
        "_ordinal": 1,
        "_xid": before["_xid"],
        "_key": [],
        "_absent": [],
        "_unfit": [],
        "_unfit_text": [],
    }
    assert before["_commit_timestamp"] == datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=701)


def test_a_message_outside_a_transaction_has_no_xid_and_no_timestamp(
    spool_maker: SpoolMaker,
) -> None:
    position = spool_maker.message("audit", b"")
    (message,) = envelope(spool_maker.path)
    assert position == Lsn(START) + 1
    assert (message["_commit_version"], message["_ordinal"]) == (position, 0)
    assert (message["_xid"], message["_commit_timestamp"]) == (None, None)
    assert (message["prefix"], message["content"]) == ("audit", b"")


def test_a_query_of_one_table_has_no_messages(spool_maker: SpoolMaker) -> None:
    spool_maker.segment([*orders(1), transactional("outbox", b"x")])
    declared = pa.schema([pa.field("id", pa.int32()), *list(ENVELOPE)[6:]])
    name = TableName("public", "orders")
    rows = RowReader(spool_maker.path, name, (), declared, TypeOptions())
    (batch,) = rows.read(ChangePartition(START, spool_maker.at))
    assert batch.column("_change_type").to_pylist() == ["insert"]


def view(*messages: LogicalMessage | bytes, in_stream: bool = False) -> SegmentView:
    """A part of a transaction in progress."""
    encoded = [m if isinstance(m, bytes) else m.encode() for m in messages]
    block = part_block(
        RawMessages.from_messages([(START, data) for data in encoded]),
        in_stream=in_stream, position=START + 9, commit_timestamp=0, xid=7, ordinal_start=40,
    )  # fmt: skip
    return SegmentView("part", Lsn(START), Lsn(START + 9), {}, block)


def test_a_streamed_message_has_its_transactions_xid() -> None:
    streamed = LogicalMessage(1, Lsn(START), "p", b"content", xid=7)
    (batch,) = message_batches(view(streamed, streamed, in_stream=True), ENVELOPE)
    assert batch.column("content").to_pylist() == [b"content"] * 2
    assert batch.column("_ordinal").to_pylist() == [40, 41]
    assert batch.column("_xid").to_pylist() == [7, 7]


def test_many_messages_make_several_batches() -> None:
    many = view(*[transactional("p", b"x")] * (MAX_ROWS + 1))
    assert [len(batch) for batch in message_batches(many, ENVELOPE)] == [MAX_ROWS, 1]


def test_a_malformed_message_is_an_error_that_says_where() -> None:
    cut = transactional("prefix", b"content").encode()[:-1]
    with pytest.raises(ProtocolError, match=r"message 'M' .* segment part"):
        list(message_batches(view(cut), ENVELOPE))


@pytest.mark.pg(">= 14")
def test_a_servers_messages_become_rows_once(database: MakeDatabase, tmp_path: Path) -> None:
    shop = database()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    config = _config(shop, tmp_path / "spool")
    run_capture(config, once=True)
    _emit(shop)
    run_capture(config, once=True)
    rows = envelope(tmp_path / "spool")
    shown = [(row["_change_type"], row["prefix"], row["content"], row["_ordinal"]) for row in rows]
    assert shown == [
        ("message", "audit", b"before", 0),
        ("insert", None, None, 0),
        ("message", "outbox", "gr\u00fc\u00df".encode(), 1),
        ("insert", None, None, 2),
        ("message", "audit", b"of an aborted transaction", 0),
        ("message", "outbox", b"alone", 0),
    ]
    assert [row["_xid"] is None for row in rows] == [True, False, False, False, True, False]
    assert len({row["_commit_version"] for row in rows}) == 4
    run_capture(config, once=True)
    assert envelope(tmp_path / "spool") == rows, "nothing comes twice"


def _config(shop: Database, spool: Path) -> Config:
    name = shop.name
    source = {"dsn": shop.dsn, "slot": name, "publications": (name,), "messages": True}
    return Config.model_validate({"source": source, "spool": {"path": str(spool)}})


def _emit(shop: Database) -> None:
    emit = "SELECT pg_logical_emit_message"
    shop.execute(f"{emit}(false, 'audit', 'before')")
    with shop.connect() as connection:
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (1)")
            connection.execute(f"{emit}(true, 'outbox', 'gr\u00fc\u00df')")
            connection.execute("INSERT INTO orders VALUES (2)")
        connection.execute("BEGIN")
        connection.execute(f"{emit}(false, 'audit', 'of an aborted transaction')")
        connection.execute(f"{emit}(true, 'outbox', 'never happened')")
        connection.execute("ROLLBACK")
    shop.execute(f"{emit}(true, 'outbox', 'alone')")


@pytest.mark.pg(">= 14")
def test_a_publication_without_tables_gives_only_messages(
    database: MakeDatabase, tmp_path: Path
) -> None:
    shop = database()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)", f"CREATE PUBLICATION {shop.name}")
    config = _config(shop, tmp_path / "spool")
    run_capture(config, once=True)
    _emit(shop)
    run_capture(config, once=True)
    contents = [row["content"] for row in envelope(tmp_path / "spool")]
    assert contents == [
        b"before", "gr\u00fc\u00df".encode(), b"of an aborted transaction", b"alone",
    ]  # fmt: skip
