"""The sink contract: columns that are added or get wider types."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Sink, TargetTable
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_tests import SCHEMA, SinkTests, at_once, batches, inserted, row

SEVEN = AddedColumn(pa.field("seven", pa.int32()), pa.scalar(7, pa.int32()))


class ColumnsContract(SinkTests):
    """A table's columns change, and its rows and position stay."""

    def test_a_column_is_added_with_a_value_for_the_rows_that_are_there(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2), row(3))
        added = [SEVEN, AddedColumn(pa.field("more", pa.string()), pa.scalar(None, pa.string()))]
        late = self.writer(sink)
        assert late.position() == 100
        applied = self.writer(sink).alter(added, ())
        assert not applied.skipped
        expected = [{**row(id_), "seven": 7, "more": None} for id_ in (1, 2, 3)]
        assert self.sorted_rows(sink) == expected
        assert self.writer(sink).position() == 100
        assert self.writer(sink).alter(added, ()).skipped  # a second attempt
        assert late.alter(added, ()).skipped  # one that opened the table before
        wide = self.writer(sink).schema()
        assert wide is not None
        table = TargetTable("public", "t", wide, ("id",))
        t = ChangesBuilder(wide, position=110).insert({**row(4), "seven": 8})
        self.applied(sink, t, table=table)
        assert self.sorted_rows(sink)[3]["seven"] == 8
        assert self.writer(sink).alter(added, ()).skipped
        assert [one["seven"] for one in self.sorted_rows(sink)] == [7, 7, 7, 8]

    def test_a_column_gets_a_wider_type(self, sink: Sink) -> None:
        narrow = SCHEMA.append(pa.field("n", pa.decimal128(4, 2)))
        table = TargetTable("public", "t", narrow, ("id",))
        rows = [{**row(1), "n": Decimal("12.34")}, {**row(2), "n": None}]
        self.writer(sink, table=table).load(batches(*rows, schema=narrow), Lsn(100))
        wide = pa.field("n", pa.decimal128(10, 2))
        assert not self.writer(sink).alter((), [wide]).skipped
        schema = self.writer(sink).schema()
        assert schema is not None
        assert schema.field("n").type == wide.type
        assert self.sorted_rows(sink) == rows
        assert self.writer(sink).alter((), [wide]).skipped
        assert self.writer(sink).alter((), [narrow.field("n")]).skipped  # a late attempt

    def test_two_attempts_at_once_add_a_column_once(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        writers = [self.writer(sink) for _ in range(2)]
        assert [one.position() for one in writers] == [100, 100]
        applied = at_once(lambda one: one.alter([SEVEN], ()), writers)
        assert sorted(one.skipped for one in applied) == [False, True]
        assert [one["seven"] for one in self.sorted_rows(sink)] == [7, 7]

    def test_another_copy_or_position_gets_no_column(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        late = self.writer(sink)
        assert late.position() == 100
        self.applied(sink, inserted(2))
        with pytest.raises(PgsluiceError, match="another attempt has written"):
            late.alter([SEVEN], ())
        with pytest.raises(PgsluiceError, match="another attempt has written"):
            self.writer(sink, copy=2).alter([SEVEN], ())
        assert self.sorted_rows(sink) == [row(1), row(2)]

    def test_a_table_that_does_not_exist_gets_no_column(self, sink: Sink) -> None:
        assert self.writer(sink).alter([SEVEN], ()).skipped
        assert self.writer(sink).position() is None
