"""Shared by the parts of the sink contract: a table for the tests, and how it is written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Sink, StagedRows, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import CURRENT, TargetIdentity, TargetMode
from pgsluice.testing.changes import ChangesBuilder

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("big", pa.string())]
)
TABLE = TargetTable("public", "t", SCHEMA, ("id",))
KEYLESS = TargetTable("public", "keyless", SCHEMA, ())
SPOOL = "5b0a7c1e-0000-4000-8000-000000000001"
_W = TypeVar("_W")
_R = TypeVar("_R")


def identity(
    *, spool: str = SPOOL, oid: int = 16384, copy: int = 1, mode: TargetMode = CURRENT
) -> TargetIdentity:
    """The origin of the rows in the tests' table."""
    return TargetIdentity(spool, oid, copy, mode)


def row(id_: int, a: int | None = 0, big: Any = "big") -> dict[str, Any]:
    """A row of the tests' table."""
    return {"id": id_, "a": a, "big": big}


def net(
    *builders: ChangesBuilder, table: TargetTable = TABLE, is_key_proved: bool = True
) -> NetChanges:
    """The net changes of the collected changes."""
    return net_changes(
        [builder.build() for builder in builders],
        schema=table.schema,
        key=table.key,
        is_key_proved=is_key_proved,
    )


def changes(key: tuple[str, ...] = ("id",), position: int = 100) -> ChangesBuilder:
    """Changes of the tests' table."""
    return ChangesBuilder(SCHEMA, key, position=position)


def batches(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    """Rows of a table as batches of at most two, which is how a copy passes them to a sink."""
    return list(pa.Table.from_pylist(list(rows), schema=schema).to_batches(max_chunksize=2))


def inserted(id_: int, position: int = 100) -> ChangesBuilder:
    """An INSERT of one row."""
    return changes(position=position).insert(row(id_))


def at_once(attempt: Callable[[_W], _R], writers: Sequence[_W]) -> list[_R]:
    """The results of attempts that several writers make at the same time."""
    with ThreadPoolExecutor(len(writers)) as pool:
        return list(pool.map(attempt, writers))


class SinkTests:
    """The methods that a sink's tests define, and those that the tests use."""

    @pytest.fixture
    def sink(self) -> Sink:
        """A sink without tables; subclasses define it, and each test gets one of its own."""
        raise NotImplementedError

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        """A table's rows, read without pgsluice, in any order."""
        raise NotImplementedError

    def writer(self, sink: Sink, copy: int = 1, table: TargetTable = TABLE) -> TableWriter:
        """A fresh writer of the tests' table."""
        return TableWriter(sink, table, identity(copy=copy))

    def sorted_rows(self, sink: Sink) -> list[dict[str, Any]]:
        """The rows of the tests' table, sorted by id."""
        return sorted(self.rows(sink), key=lambda row: int(row["id"]))

    def loaded(self, sink: Sink, *rows: dict[str, Any], lsn: int = 100) -> Applied:
        """Copy rows to the tests' table."""
        return self.writer(sink).load(batches(*rows), Lsn(lsn))

    def applied(
        self, sink: Sink, t: ChangesBuilder, lsn: int = 110, *, table: TargetTable = TABLE
    ) -> Applied:
        """Apply the net changes of the collected changes, as one batch."""
        return self.writer(sink, table=table).apply(net(t, table=table), Lsn(lsn))

    def staged(
        self, sink: Sink, *parts: list[dict[str, Any]], lsn: int = 100, copy: int = 1
    ) -> list[StagedRows]:
        """Stage a copy as its tasks do: one task for each part, or a single task if the sink needs
        that.

        The result of a task is pickled for the driver.
        """
        if not self.writer(sink).can_stage():
            parts = ([row for part in parts for row in part],)
        staged = [
            self.writer(sink, copy=copy).stage_load(batches(*part), Lsn(lsn)) for part in parts
        ]
        restored: list[StagedRows] = pickle.loads(pickle.dumps(staged))  # noqa: S301 - our own
        return restored
