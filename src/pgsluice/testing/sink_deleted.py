"""The sink contract: targets that keep deleted rows, with the time of the delete in a column."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgsluice.changes.deleted_rows import with_marks
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.columnar.changes import Int64s
from pgsluice.errors import ForeignTarget, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Sink, TargetTable
from pgsluice.sinks.identity import TargetMode
from pgsluice.sinks.writers import MarkingWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_tests import SCHEMA, TABLE, SinkTests, batches, changes, identity, row

COLUMN = "gone_at"
_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
"""When the tests' changes are committed."""


class DeletedRowsContract(SinkTests):
    """A delete gives a row a time; an insert of its key takes it."""

    def marking(self, sink: Sink, copy: int = 1, table: TargetTable = TABLE) -> MarkingWriter:
        """A fresh writer of the tests' table."""
        origin = identity(copy=copy, mode=TargetMode(deleted_column=COLUMN))
        if not sink.open(TABLE, origin).can_keep_deleted():
            pytest.skip("the sink keeps no deleted rows: their tables are parked")
        return MarkingWriter(sink, table, origin)

    def marked(self, t: ChangesBuilder) -> NetChanges:
        """The net changes of the collected changes, with marks for deleted rows."""
        times: list[Int64s] = []
        net = net_changes([t.build()], schema=SCHEMA, key=TABLE.key, is_complete=False, times=times)
        return with_marks(net, COLUMN, np.concatenate(times))

    def applied_marked(self, sink: Sink, t: ChangesBuilder, lsn: int = 110) -> Applied:
        """Apply the collected changes, with marks for deleted rows."""
        return self.marking(sink).apply(self.marked(t), Lsn(lsn))

    def shown(self, sink: Sink) -> dict[int, tuple[Any, ...]]:
        """By id: the other columns, and whether the row is deleted."""
        return {
            each["id"]: (each["a"], each["big"], each[COLUMN] is not None)
            for each in self.rows(sink)
        }

    def test_a_delete_keeps_the_row_with_a_time(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1), row(2, 2, "two"), row(3)), Lsn(100))
        t = changes()
        t.delete({"id": 2})
        t.update(row(1, 10, ABSENT))
        t.insert(row(4))
        t.delete({"id": 4})
        t.delete({"id": 9})
        applied = self.applied_marked(sink, t)
        assert self.shown(sink) == {
            1: (10, "big", False),
            2: (2, "two", True),
            3: (0, "big", False),
        }
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (0, 1, 1)
        assert applied.rows_skipped == 1
        [deleted] = [each for each in self.rows(sink) if each["id"] == 2]
        assert deleted[COLUMN] == _TIME
        assert self.marking(sink).position() == 110

    def test_an_insert_of_the_key_takes_the_time(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1), row(2)), Lsn(100))
        for lsn, delete, insert in ((110, True, False), (120, False, True), (130, True, True)):
            t = changes()
            if delete:
                t.delete({"id": 1})
            if insert:
                t.insert(row(1, lsn, None))
            self.applied_marked(sink, t, lsn)
            assert self.shown(sink)[1][2] == (not insert)
        assert self.shown(sink) == {1: (130, None, False), 2: (0, "big", False)}

    def test_a_changed_key_leaves_a_deleted_row(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1, 1, "one"), row(2, 2, "two"), row(3)), Lsn(100))
        t = changes()
        t.update(row(5, 10, ABSENT), old={"id": 1})
        t.delete({"id": 3})
        t.update(row(3, 20, ABSENT), old={"id": 2})
        self.applied_marked(sink, t)
        assert self.shown(sink) == {
            1: (1, "one", True),
            2: (2, "two", True),
            3: (20, "two", False),
            5: (10, "one", False),
        }

    def test_a_truncate_deletes_all_rows(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1, 1), row(2, 2), row(3, 3)), Lsn(100))
        self.applied_marked(sink, changes().delete({"id": 1}))
        t = changes().insert(row(8)).truncate().insert(row(3, 30)).insert(row(4))
        writer = self.marking(sink)
        writer.position()
        writer.apply_pieces(writer.truncation(self.marked(t), 1_000_000), Lsn(120))
        times = {each["id"]: each[COLUMN] for each in self.rows(sink)}
        assert times == {
            1: _TIME,
            2: _TIME + dt.timedelta(seconds=1),
            3: None,
            4: None,
        }

    def test_a_copy_again_keeps_the_rows_that_it_does_not_have(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1), row(2), row(3, 3), row(4)), Lsn(100))
        self.applied_marked(sink, changes().delete({"id": 1}).delete({"id": 2}))
        again = self.marking(sink, copy=2)
        staged = [again.stage_load(batches(row(each, 7)), Lsn(150)) for each in (1, 4)]
        assert again.commit_load(staged, Lsn(150)).rows_inserted == 2
        assert self.marking(sink, copy=2).commit_load(staged, Lsn(150)).skipped
        assert self.shown(sink) == {
            1: (7, "big", False),
            2: (0, "big", True),
            3: (3, "big", True),
            4: (7, "big", False),
        }
        by_id = {each["id"]: each[COLUMN] for each in self.rows(sink)}
        assert by_id[2] == _TIME
        assert by_id[3] > _TIME

    def test_a_copy_with_another_key_replaces_all_rows(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1)), Lsn(100))
        renamed = pa.schema([pa.field("key", pa.int64(), nullable=False)])
        writer = self.marking(sink, 2, TargetTable("public", "t", renamed, ("key",)))
        writer.load(batches({"key": 2}, schema=renamed), Lsn(200))
        assert self.rows(sink) == [{"key": 2, COLUMN: None}]

    def test_rows_of_partitions_are_not_deleted(self, sink: Sink) -> None:
        """Pieces of a copy of single partitions lack the column."""
        self.marking(sink).load(batches(row(1)), Lsn(100))
        self.applied_marked(sink, changes().delete({"id": 1}))
        t = changes().insert(row(1, 5)).build()
        net = net_changes([t], schema=SCHEMA, key=TABLE.key, is_complete=False)
        writer = self.marking(sink)
        writer.position()
        writer.apply_pieces([net], Lsn(120))
        assert self.shown(sink) == {1: (5, "big", False)}

    def test_deletes_without_a_time_lead_to_a_copy(self, sink: Sink) -> None:
        self.marking(sink).load(batches(row(1)), Lsn(100))
        writer = self.marking(sink)
        writer.position()
        with pytest.raises(TableError, match="cannot be marked") as caught:
            writer.apply_pieces([self.marked(changes().truncate())], Lsn(120))
        assert caught.value.remedy is Remedy.COPY
        assert self.shown(sink) == {1: (0, "big", False)}

    def test_a_target_without_deleted_rows_is_of_another_mode(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        with pytest.raises(ForeignTarget, match="in another mode") as caught:
            self.marking(sink).position()
        assert "adopt" not in str(caught.value), "this mode has no such setting"
        assert self.writer(sink).position() == 100
