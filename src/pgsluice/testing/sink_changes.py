"""The sink contract: net changes, and the shapes of tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgsluice.changes.net import net_changes
from pgsluice.errors import PgsluiceError, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_tests import (
    SCHEMA,
    TABLE,
    SinkTests,
    at_once,
    batches,
    changes,
    identity,
    inserted,
    net,
    row,
)


class ChangesContract(SinkTests):
    """Changes are applied once, with their position."""

    def test_changes_are_applied_with_their_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2), row(3, 3, "kept"))
        t = changes()
        t.update(row(1, 10))
        t.delete({"id": 2})
        t.update(row(3, 30, ABSENT))
        t.insert(row(4, 40, None))
        applied = self.applied(sink, t)
        assert self.sorted_rows(sink) == [row(1, 10), row(3, 30, "kept"), row(4, 40, None)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 2, 1)
        assert self.writer(sink).position() == 110

    def test_new_rows_are_added(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        t = changes().insert(row(3, 3, "x")).update(row(3, 4, ABSENT)).insert(row(2))
        applied = self.applied(sink, t)
        assert (applied.rows_inserted, applied.rows_updated) == (2, 0)
        assert self.sorted_rows(sink) == [row(1), row(2), row(3, 4, "x")]

    def test_changes_begin_a_table_that_was_not_copied(self, sink: Sink) -> None:
        self.applied(sink, changes().insert(row(1)))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 110

    def test_changes_that_undo_themselves_move_the_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        applied = self.applied(sink, changes().insert(row(2)).delete({"id": 2}))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 110
        assert applied.version == self.writer(sink).version()

    def test_a_truncate_and_what_follows_are_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        self.applied(sink, changes().truncate().insert(row(2, 20)))
        assert self.rows(sink) == [row(2, 20)]
        self.applied(sink, changes().truncate(), 120)
        assert self.rows(sink) == []
        assert self.writer(sink).position() == 120

    def test_swapped_keys_keep_their_own_values(self, sink: Sink) -> None:
        self.loaded(sink, row(1, 10, "one"), row(2, 20, "two"), row(3, 30, "three"))
        t = changes()
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 21, ABSENT), old={"id": 2})
        t.update(row(2, 11, ABSENT), old={"id": -1})
        t.update(row(3, 31, ABSENT))
        self.applied(sink, t)
        expected = [row(1, 21, "two"), row(2, 11, "one"), row(3, 31, "three")]
        assert self.sorted_rows(sink) == expected

    def test_updates_and_deletes_of_missing_rows_are_skipped(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        t = changes()
        t.update(row(1, 1, ABSENT))
        t.update(row(7, 70))
        t.update(row(8, 70, ABSENT))
        t.delete({"id": 9})
        t.insert(row(2))
        t.delete({"id": 1})
        t.update(row(1, 2))
        applied = self.applied(sink, t)
        assert self.rows(sink) == [row(2)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 0, 1)
        assert applied.rows_skipped == 4
        assert self.writer(sink).position() == 110

    def test_changes_of_missing_rows_alone_move_the_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        applied = self.applied(sink, changes().update(row(7, 70)).delete({"id": 9}))
        assert self.rows(sink) == [row(1)]
        assert applied.rows_skipped == 2
        assert self.writer(sink).position() == 110

    def test_a_missing_row_is_skipped_through_changes_of_its_key(self, sink: Sink) -> None:
        self.loaded(sink, row(1, 10, "one"), row(3))
        t = changes()
        t.update(row(5, 50), old={"id": 4})
        t.update(row(6, 60, ABSENT), old={"id": 5})
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 20), old={"id": 2})
        t.update(row(2, 11, ABSENT), old={"id": -1})
        applied = self.applied(sink, t)
        assert self.sorted_rows(sink) == [row(2, 11, "one"), row(3)]
        assert applied.rows_skipped == 2

    def test_a_row_after_a_truncate_needs_an_insert(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        applied = self.applied(sink, changes().truncate().update(row(1, 1, ABSENT)).insert(row(2)))
        assert self.rows(sink) == [row(2)]
        assert applied.rows_skipped == 1

    def test_changes_of_a_table_that_was_not_copied_need_inserts(self, sink: Sink) -> None:
        t = changes()
        t.update(row(1))
        t.update(row(3, 3, ABSENT), old={"id": 2})
        t.delete({"id": 4})
        t.insert(row(5))
        applied = self.applied(sink, t)
        assert self.rows(sink) == [row(5)]
        assert (applied.rows_inserted, applied.rows_skipped) == (1, 3)

    def test_an_insert_over_a_row_replaces_it(self, sink: Sink) -> None:
        """A publication without DELETE: the rows' deletes were not sent."""
        self.loaded(sink, row(1), row(2))
        t = changes().insert(row(1, 10, None)).insert(row(2)).delete({"id": 2}).insert(row(3))
        sent = net_changes([t.build()], schema=SCHEMA, key=TABLE.key, is_complete=False)
        applied = self.writer(sink).apply(sent, Lsn(110))
        assert self.sorted_rows(sink) == [row(1, 10, None), row(3)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 1, 1)
        assert applied.rows_skipped == 0

    def test_a_table_of_key_columns_only(self, sink: Sink) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        table = TargetTable("public", "keys", schema, ("id",))
        self.writer(sink, table=table).load(batches({"id": 1}, {"id": 2}, schema=schema), Lsn(100))
        t = ChangesBuilder(schema)
        t.update({"id": 1})
        t.update({"id": 3}, old={"id": 2})
        t.update({"id": 8})
        applied = self.applied(sink, t, table=table)
        assert sorted(row["id"] for row in self.rows(sink, table)) == [1, 3]
        assert applied.rows_skipped == 1

    def test_a_late_attempt_with_an_older_position_does_nothing(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        for lsn, a in ((110, 1), (120, 2)):
            self.applied(sink, changes().update(row(1, a)), lsn)
        assert self.applied(sink, changes().update(row(1, 1))).skipped
        assert self.rows(sink) == [row(1, 2)]

    def test_two_attempts_at_once_are_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        version = self.applied(sink, inserted(2)).version
        writers = [self.writer(sink), self.writer(sink)]
        for writer in writers:
            assert writer.position() == 110
        results = at_once(lambda writer: writer.apply(net(inserted(3)), Lsn(120)), writers)
        assert sorted(applied.skipped for applied in results) == [False, True]
        assert {applied.version for applied in results} == {version + 1}
        assert self.writer(sink).version() == version + 1
        assert self.sorted_rows(sink) == [row(1), row(2), row(3)]

    def test_changes_from_where_the_table_no_longer_is_are_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        slow = self.writer(sink)
        slow.position()
        self.applied(sink, inserted(2))
        with pytest.raises(PgsluiceError, match="another attempt has written"):
            slow.apply(net(changes().insert(row(2)).insert(row(3))), Lsn(120))
        assert self.sorted_rows(sink) == [row(1), row(2)]

    @pytest.mark.parametrize("other", [identity(spool="another"), identity(oid=99)])
    def test_another_sources_table_is_refused(self, sink: Sink, other: TargetIdentity) -> None:
        self.loaded(sink, row(1))
        writer = TableWriter(sink, TABLE, other)
        with pytest.raises(TableError, match=r"from another spool(.|\n)*adopt = true"):
            writer.position()
        with pytest.raises(TableError, match="from another spool"):
            TableWriter(sink, TABLE, other).apply(net(inserted(2)), Lsn(200))
        with pytest.raises(TableError, match="from another spool"):
            TableWriter(sink, TABLE, other).load(batches(row(2)), Lsn(200))
        assert self.rows(sink) == [row(1)]

    def test_an_added_column_is_null_in_rows_from_before(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        wide = SCHEMA.append(pa.field("more", pa.timestamp("us")))
        t = ChangesBuilder(wide).insert({**row(2), "more": 5_000_000})
        table = TargetTable("public", "t", wide, ("id",))
        self.applied(sink, t, table=table)
        first, second = self.sorted_rows(sink)
        assert first == {**row(1), "more": None}
        assert second["more"].second == 5

    def test_a_changed_type_is_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        other = SCHEMA.set(1, pa.field("a", pa.string()))
        t = ChangesBuilder(other).insert({"id": 2, "a": "x"})
        table = TargetTable("public", "t", other, ("id",))
        with pytest.raises(TableError, match=r"'a' of table public.t changed its type") as caught:
            self.applied(sink, t, table=table)
        assert caught.value.remedy is Remedy.PARK

    def test_a_key_column_that_allows_null_at_the_target_is_refused(self, sink: Sink) -> None:
        loose = SCHEMA.set(0, pa.field("id", pa.int64()))
        without_key = TargetTable("public", "t", loose, ())
        self.writer(sink, table=without_key).load(batches(row(1), schema=loose), Lsn(100))
        with pytest.raises(
            TableError, match=r"target of table public.t allows NULL in the key column 'id'"
        ) as caught:
            self.applied(sink, inserted(2))
        assert caught.value.remedy is Remedy.COPY
        assert self.rows(sink) == [row(1)]

    def test_a_table_without_key_takes_inserts_as_they_come(self, sink: Sink) -> None:
        table = TargetTable("public", "t", SCHEMA, ())
        self.writer(sink, table=table).load(batches(row(1)), Lsn(100))
        self.applied(sink, changes(()).insert(row(1)).insert(row(2)), table=table)
        assert self.sorted_rows(sink) == [row(1), row(1), row(2)]
        self.applied(sink, changes(()).truncate().insert(row(5)), 120, table=table)
        assert self.sorted_rows(sink) == [row(5)]

    def test_odd_names_of_columns_and_tables(self, sink: Sink) -> None:
        names = ['Id "x"', "a.b", "ü ß", "s", "t", "op", "c0", "select", "it's", "back`tick"]
        schema = pa.schema(
            [pa.field(names[0], pa.int64(), nullable=False)] + [(n, pa.string()) for n in names[1:]]
        )
        table = TargetTable("Sales & Co", '50 % "off"/../x', schema, (names[0],))
        first = dict(zip(names, [1, *names[1:]], strict=True))
        self.writer(sink, table=table).load(batches(first, schema=schema), Lsn(100))
        t = ChangesBuilder(schema, table.key)
        t.update({**dict.fromkeys(names, ABSENT), names[0]: 1, "s": "new"})
        t.insert({names[0]: 2})
        self.applied(sink, t, table=table)
        found = sorted(self.rows(sink, table), key=lambda row: int(row[names[0]]))
        assert found == [{**first, "s": "new"}, {**dict.fromkeys(names), names[0]: 2}]

    def test_a_composite_key(self, sink: Sink) -> None:
        schema = pa.schema(
            [
                pa.field("x", pa.string(), nullable=False),
                pa.field("y", pa.int32(), nullable=False),
                ("v", pa.string()),
            ]
        )
        table = TargetTable("public", "pairs", schema, ("x", "y"))
        rows = [{"x": x, "y": y, "v": f"{x}{y}"} for x in "ab" for y in (1, 2)]
        self.writer(sink, table=table).load(batches(*rows, schema=schema), Lsn(100))
        t = ChangesBuilder(schema, table.key)
        t.update({"x": "a", "y": 9, "v": ABSENT}, old={"x": "b", "y": 2})
        t.delete({"x": "a", "y": 1})
        t.update({"x": "b", "y": 1, "v": "new"})
        self.applied(sink, t, table=table)
        found = sorted((row["x"], row["y"], row["v"]) for row in self.rows(sink, table))
        assert found == [("a", 2, "a2"), ("a", 9, "b2"), ("b", 1, "new")]
