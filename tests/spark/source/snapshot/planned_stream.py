"""A stream that begins with the rows of its table, driven as Spark drives it, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from tests.support.databases import Database
from tests.support.spools import SCHEMA

from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader

Offset = dict[str, str]


class Stream:
    """A query without Spark: its planning process may be killed between any two calls.

    Attributes:
        offsets: of the batches that are committed.
        rows: of these batches.
    """

    def __init__(self, shop: Database, spool: Path, **options: str) -> None:
        self.options = {
            "dsn": shop.dsn,
            "slot": shop.name,
            "spool": str(spool),
            "subscription": "q",
            "table": "public.orders",
            "starting_position": "snapshot",
            **options,
        }
        self.reader = self.planner()
        self.offsets = [self.reader.initialOffset()]
        self.rows: list[dict[str, Any]] = []

    def planner(self) -> PgoutputStreamReader:
        reader = PgoutputDataSource(self.options).streamReader(SCHEMA)
        assert isinstance(reader, PgoutputStreamReader)
        return reader

    def restart(self) -> None:
        """Another planning process goes on from the checkpoint."""
        self.reader.stop()
        self.reader = self.planner()

    def plan(self, limit: ReadLimit | None = None) -> Offset:
        """Where the next batch ends."""
        return self.reader.latestOffset(self.offsets[-1], limit or ReadAllAvailable())

    def read(self, end: Offset, most_tasks: int = 100) -> list[dict[str, Any]]:
        """A batch's rows, read by pickled copies of the reader."""
        tasks = self.reader.partitions(self.offsets[-1], end)
        copy = pickle.loads(pickle.dumps(self.planner()))
        return [
            row
            for task in tasks[:most_tasks]
            for batch in copy.read(pickle.loads(pickle.dumps(task)))
            for row in batch.to_pylist()
        ]

    def commit(self, end: Offset) -> None:
        """Read a batch and commit it."""
        self.rows += self.read(end)
        self.offsets.append(end)

    def batch(self, limit: ReadLimit | None = None) -> Offset:
        """Plan a batch, read and commit it."""
        end = self.plan(limit)
        self.commit(end)
        return end

    def table(self) -> dict[int, str]:
        """What the rows make of the table."""
        table: dict[int, str] = {}
        for row in sorted(self.rows, key=lambda row: (row["_commit_version"], row["_ordinal"])):
            if row["_change_type"] == "delete":
                del table[row["id"]]
            else:
                is_new = row["id"] not in table
                assert is_new == (row["_change_type"] == "insert"), "lost or doubled"
                table[row["id"]] = row["note"]
        return table
