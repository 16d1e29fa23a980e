"""A standby as the source of rows: refused, since no position of its snapshots is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.source.snapshot.test_start import Stream
from tests.support.capturing import configure, phase, running
from tests.support.clusters import CopiedServer
from tests.support.databases import Database
from tests.support.spools import SCHEMA
from tests.support.standby import Standby
from tests.support.waiting import await_that

from pgsluice.errors import SourceRefused
from pgsluice.spark.source.data_source import PgoutputDataSource

_WORDS = "the server is a standby"


def test_a_read_and_a_stream_that_begins_with_rows_refuse_a_standby(tmp_path: Path) -> None:
    with CopiedServer(18, settings={"fsync": "off"}) as primary:
        shop = Database(primary, "postgres")
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        with Standby(primary) as standby:
            dsn = Database(standby, "postgres").dsn
            given = {"dsn": dsn, "table": "public.orders", "snapshot": "true"}
            with pytest.raises(SourceRefused, match=_WORDS) as refused:
                PgoutputDataSource(given).reader(SCHEMA).partitions()
            assert "set the option dsn to the primary" in str(refused.value)
            config = configure(shop, tmp_path / "spool")
            with running(config):  # of the primary
                await_that(lambda: phase(config) == "streaming")
                stream = Stream(shop, tmp_path / "spool", dsn=dsn)
                with pytest.raises(SourceRefused, match=_WORDS) as refused:
                    stream.read(stream.plan())
                assert "set the option dsn to the primary" in str(refused.value)
                stream.reader.stop()
            assert Database(standby, "postgres").execute(
                "SELECT count(*) FROM pg_replication_slots"
            ) == [(0,)]
