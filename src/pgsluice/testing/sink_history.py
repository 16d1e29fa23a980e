"""The sink contract: histories, which have each version of a row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.history.versions import versions_of
from pgsluice.changes.net import NetChanges
from pgsluice.errors import ForeignTarget, PgsluiceError, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Sink, TargetTable
from pgsluice.sinks.identity import TargetMode
from pgsluice.sinks.writers import HistoryWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_tests import (
    SCHEMA,
    TABLE,
    SinkTests,
    batches,
    changes,
    identity,
    inserted,
    net,
    row,
)

HISTORY = HistoryColumns("_")


def versions(t: ChangesBuilder) -> list[NetChanges]:
    """The versions that the collected changes make."""
    return list(versions_of([t.build()], HISTORY, schema=SCHEMA, key=TABLE.key, missing={}))


class HistoryContract(SinkTests):
    """A key has at most one version at each position, and the right one."""

    def history(self, sink: Sink, copy: int = 1, table: TargetTable = TABLE) -> HistoryWriter:
        """A fresh writer of the tests' table."""
        origin = identity(copy=copy, mode=TargetMode(history=HISTORY))
        if not sink.open(TABLE, origin).can_keep_versions():
            pytest.skip("the sink keeps no histories: their tables are parked")
        return HistoryWriter(sink, table, origin)

    def written(self, sink: Sink, t: ChangesBuilder, lsn: int) -> Applied:
        """Apply the collected changes, which begin after the target's position."""
        writer = self.history(sink)
        writer.position()
        return writer.apply_pieces(versions(t), Lsn(lsn))

    def spans(self, sink: Sink) -> list[tuple[Any, ...]]:
        """Each version: id, a, big, and the positions between which it was valid."""
        names = ("id", "a", "big", "_valid_from", "_valid_to")
        rows = self.rows(sink)
        assert all(each["_is_current"] == (each["_valid_to"] is None) for each in rows)
        return sorted((tuple(each[name] for name in names) for each in rows), key=repr)

    def test_each_transaction_leaves_versions(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1, 1, "one"), row(2)), Lsn(100))
        t = changes(position=101)
        t.update(row(1, 2, ABSENT))
        t.update(row(1, 3, ABSENT))
        t.insert(row(7))
        t.delete({"id": 7})
        t.commit()
        t.update(row(1, 4, ABSENT))
        t.insert(row(5))
        t.commit()
        t.delete({"id": 5})
        t.delete({"id": 2})
        t.commit()
        t.insert(row(2, 9, None))
        writer = self.history(sink)
        [piece] = versions(t)
        applied = writer.apply(piece, Lsn(104))
        assert self.spans(sink) == [
            (1, 1, "one", 100, 101),
            (1, 3, "one", 101, 102),
            (1, 4, "one", 102, None),
            (2, 0, "big", 100, 103),
            (2, 9, None, 104, None),
            (5, 0, "big", 102, 103),
        ]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (0, 2, 0)
        assert self.history(sink).position() == 104
        assert self.history(sink).apply(piece, Lsn(104)).skipped

    def test_a_changed_key_takes_unsent_values_along(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1, 1, "one"), row(2, 2, "two")), Lsn(100))
        t = changes(position=101)
        t.update(row(3, 10, ABSENT), old={"id": 1})
        t.update(row(1, 20, ABSENT), old={"id": 2})
        t.commit()
        t.update({"id": 4, "a": ABSENT, "big": ABSENT}, old={"id": 3})
        t.update(row(9, 1, ABSENT))  # the target lacks it
        assert self.written(sink, t, 102).rows_skipped == 1
        assert self.spans(sink) == [
            (1, 1, "one", 100, 101),
            (1, 20, "two", 101, None),
            (2, 2, "two", 100, 101),
            (3, 10, "one", 101, 102),
            (4, 10, "one", 102, None),
        ]

    def test_a_truncate_ends_all_versions(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1, 1), row(2, 2), row(3, 3)), Lsn(100))
        t = changes(position=101)
        t.update(row(1, 5))
        t.commit()
        t.update(row(2, 5))
        t.insert(row(8))
        t.truncate()
        t.truncate()
        t.insert(row(3, 30))
        t.commit()
        t.update(row(3, 31, ABSENT))
        self.written(sink, t, 103)
        assert self.spans(sink) == [
            (1, 1, "big", 100, 101),
            (1, 5, "big", 101, 102),
            (2, 2, "big", 100, 102),
            (3, 3, "big", 100, 102),
            (3, 30, "big", 102, 103),
            (3, 31, "big", 103, None),
        ]

    def test_an_inserted_key_ends_the_version_that_is_still_open(self, sink: Sink) -> None:
        """Its row went without a change: its partition was dropped, or truncated alone."""
        self.history(sink).load(batches(row(1, 1), row(2, 2), row(3, 3)), Lsn(100))
        writer = self.history(sink)
        writer.position()
        [piece] = versions(changes(position=101).insert(row(1, 10)))
        applied = writer.apply(piece, Lsn(101))
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (0, 1, 0)
        pieces = versions(changes(position=102).insert(row(2, 2)))
        pieces += versions(changes(position=103).insert(row(4, 4)))
        writer = self.history(sink)
        writer.position()
        writer.apply_pieces(pieces, Lsn(103))
        self.written(sink, changes(position=104).insert(row(9)).update(row(3), old={"id": 9}), 104)
        assert self.spans(sink) == [
            (1, 1, "big", 100, 101),
            (1, 10, "big", 101, None),
            (2, 2, "big", 100, 102),
            (2, 2, "big", 102, None),
            (3, 0, "big", 104, None),
            (3, 3, "big", 100, 104),
            (4, 4, "big", 103, None),
        ]

    def test_parts_of_a_transaction_are_no_versions(self, sink: Sink) -> None:
        """A large batch is divided within transactions."""
        self.history(sink).load(batches(row(1, 1), row(2, 2)), Lsn(100))
        pieces = []
        for number in range(3):
            t = changes(position=101)
            t.update(row(1, 10 + number, ABSENT))
            t.update(row(5 + number, 0, ABSENT), old={"id": 4 + number if number else 2})
            pieces += versions(t)
        writer = self.history(sink)
        writer.position()
        writer.apply_pieces(pieces, Lsn(101))
        assert self.spans(sink) == [
            (1, 1, "big", 100, 101),
            (1, 12, "big", 101, None),
            (2, 2, "big", 100, 101),
            (7, 0, "big", 101, None),
        ]

    def test_a_copy_again_ends_what_differs(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1, 1), row(2, 2), row(3, 3), row(4, None)), Lsn(100))
        self.written(sink, changes(position=101).update(row(2, 20)), 101)
        again = self.history(sink, copy=2)
        staged = [
            again.stage_load(batches(*rows), Lsn(150))
            for rows in ([row(1, 1), row(2, 21)], [row(4, None), row(5)])
        ]
        again.commit_load(staged, Lsn(150))
        assert self.history(sink, copy=2).commit_load(staged, Lsn(150)).skipped
        assert self.spans(sink) == [
            (1, 1, "big", 100, None),
            (2, 2, "big", 100, 101),
            (2, 20, "big", 101, 150),
            (2, 21, "big", 150, None),
            (3, 3, "big", 100, 150),
            (4, None, "big", 100, None),
            (5, 0, "big", 150, None),
        ]
        with pytest.raises(PgsluiceError, match="past the copy"):
            self.history(sink, copy=3).load(batches(row(1)), Lsn(120))

    def test_columns_are_joined(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1, 1), row(2, 2)), Lsn(100))
        self.written(sink, changes(position=101).delete({"id": 2}), 101)
        added = [AddedColumn(pa.field("n", pa.int32()), pa.scalar(7, pa.int32()))]
        self.history(sink).alter(added, [pa.field("a", pa.int64())])
        assert self.history(sink).alter(added, ()).skipped
        by_id = {each["id"]: (each["a"], each["n"], each["_valid_to"]) for each in self.rows(sink)}
        assert by_id == {1: (1, 7, None), 2: (2, None, 101)}
        other = pa.schema([SCHEMA.field("id"), pa.field("a", pa.int64()), ("m", pa.string())])
        table = TargetTable("public", "t", other, ("id",))
        writer = self.history(sink, 2, table)
        writer.load(batches({"id": 1, "a": 1, "m": "new"}, schema=other), Lsn(200))
        rows = sorted(self.rows(sink), key=lambda each: int(each["_valid_from"]))
        assert [(each["id"], each["m"], each["_valid_to"]) for each in rows] in (
            [(1, None, 200), (2, None, 101), (1, "new", None)],
            [(2, None, 101), (1, None, 200), (1, "new", None)],
        )

    def test_another_key_or_type_is_refused(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1)), Lsn(100))
        text = pa.schema([SCHEMA.field("id"), ("a", pa.string())])
        with pytest.raises(TableError, match="in the target at") as caught:
            self.history(sink, 2, TargetTable("public", "t", text, ("id",))).load([], Lsn(200))
        assert caught.value.remedy is Remedy.PARK
        other = pa.schema([("id", pa.int64()), pa.field("a", pa.int32(), nullable=False)])
        with pytest.raises(TableError, match="has the key"):
            self.history(sink, 2, TargetTable("public", "t", other, ("a",))).load([], Lsn(200))
        assert self.spans(sink) == [(1, 0, "big", 100, None)]

    def test_rows_of_partitions_lead_to_a_copy(self, sink: Sink) -> None:
        self.history(sink).load(batches(row(1)), Lsn(100))
        writer = self.history(sink)
        writer.position()
        with pytest.raises(TableError, match="rows of a partition") as caught:
            writer.apply_pieces([net(inserted(2))], Lsn(120))
        assert caught.value.remedy is Remedy.COPY

    def test_a_target_without_a_history_is_of_another_mode(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        with pytest.raises(ForeignTarget, match="in another mode") as caught:
            self.history(sink).position()
        assert "adopt" not in str(caught.value), "this mode has no such setting"
        assert self.writer(sink).position() == 100
