"""The sink contract as tests: a new sink subclasses :class:`SinkContract` and is done.

The subclass says how a sink is made and how its tables are read back, nothing else::

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path): ...

        def rows(self, sink, table): ...
"""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.errors import PgsluiceError, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Sink, StagedRows, TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("big", pa.string())]
)
TABLE = TargetTable("public", "t", SCHEMA, ("id",))
SPOOL = "5b0a7c1e-0000-4000-8000-000000000001"


def identity(*, spool: str = SPOOL, oid: int = 16384, copy: int = 1) -> TargetIdentity:
    """Whose rows the tests' table holds."""
    return TargetIdentity(spool, oid, copy)


def row(id_: int, a: int | None = 0, big: Any = "big") -> dict[str, Any]:
    """A row of the tests' table."""
    return {"id": id_, "a": a, "big": big}


def net(*builders: ChangesBuilder, table: TargetTable = TABLE) -> NetChanges:
    """Net changes of what was built."""
    return net_changes([one.build() for one in builders], schema=table.schema, key=table.key)


def changes(key: tuple[str, ...] = ("id",)) -> ChangesBuilder:
    """Changes of the tests' table."""
    return ChangesBuilder(SCHEMA, key)


def batches(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    """Rows as a copy gives them."""
    return list(pa.Table.from_pylist(list(rows), schema=schema).to_batches(max_chunksize=2))


class SinkContract:
    """What every sink owes; see :mod:`pgsluice.sinks.contract`."""

    @pytest.fixture
    def sink(self) -> Sink:
        """A sink with nothing in it."""
        raise NotImplementedError

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        """A table's rows, read without pgsluice, in any order."""
        raise NotImplementedError

    def writer(self, sink: Sink, copy: int = 1, table: TargetTable = TABLE) -> TableWriter:
        """A fresh writer of the tests' table."""
        return TableWriter(sink, table, identity(copy=copy))

    def sorted_rows(self, sink: Sink) -> list[dict[str, Any]]:
        """The tests' table by id."""
        return sorted(self.rows(sink), key=lambda one: int(one["id"]))

    def loaded(self, sink: Sink, *rows: dict[str, Any], lsn: int = 100) -> Applied:
        """Copy rows into the tests' table."""
        return self.writer(sink).load(batches(*rows), Lsn(lsn))

    def staged(
        self, sink: Sink, *parts: list[dict[str, Any]], lsn: int = 100, copy: int = 1
    ) -> list[StagedRows]:
        """Stage a copy as its tasks do: a task for each part, or one where the sink needs that.

        What a task returns travels to the driver by pickle.
        """
        if not self.writer(sink).can_stage():
            parts = ([row for part in parts for row in part],)
        staged = [
            self.writer(sink, copy=copy).stage_load(batches(*part), Lsn(lsn)) for part in parts
        ]
        restored: list[StagedRows] = pickle.loads(pickle.dumps(staged))  # noqa: S301 - our own
        return restored

    def test_a_table_that_does_not_exist_has_no_position(self, sink: Sink) -> None:
        assert self.writer(sink).position() is None

    def test_a_copy_brings_rows_and_position(self, sink: Sink) -> None:
        applied = self.loaded(sink, row(1), row(2), row(3))
        assert (applied.rows_inserted, applied.skipped) == (3, False)
        assert self.writer(sink).position() == 100
        assert self.sorted_rows(sink) == [row(1), row(2), row(3)]

    def test_an_empty_copy_makes_the_table(self, sink: Sink) -> None:
        self.loaded(sink)
        assert self.writer(sink).position() == 100
        assert self.rows(sink) == []

    def test_copying_again_replaces_everything(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        self.writer(sink, copy=2).load(batches(row(3)), Lsn(150))
        assert self.rows(sink) == [row(3)]
        assert (self.writer(sink).position(), self.writer(sink).copy_number()) == (150, 2)

    def test_a_late_attempt_of_an_older_copy_does_nothing(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        self.writer(sink, copy=2).load(batches(row(3)), Lsn(150))
        assert self.writer(sink).load(batches(row(9)), Lsn(200)).skipped
        late = changes()
        late.insert(row(8))
        assert self.writer(sink).apply(net(late), Lsn(300)).skipped
        assert self.rows(sink) == [row(3)]

    def test_the_same_copy_twice_is_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        assert self.loaded(sink, row(1), row(2)).skipped
        assert self.rows(sink) == [row(1)]

    def test_an_error_while_rows_come_leaves_the_table_as_it_was(self, sink: Sink) -> None:
        self.loaded(sink, row(1))

        def broken() -> Any:
            yield from batches(row(2), row(3), row(4))
            raise PgsluiceError("the connection broke")

        with pytest.raises(PgsluiceError, match="the connection broke"):
            self.writer(sink, copy=2).load(broken(), Lsn(150))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 100

    def test_changes_are_applied_with_their_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2), row(3, 3, "kept"))
        t = changes()
        t.update(row(1, 10))
        t.delete({"id": 2})
        t.update(row(3, 30, ABSENT))
        t.insert(row(4, 40, None))
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.sorted_rows(sink) == [row(1, 10), row(3, 30, "kept"), row(4, 40, None)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 2, 1)
        assert self.writer(sink).position() == 110

    def test_new_rows_are_added(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        t = changes()
        t.insert(row(3, 3, "x"))
        t.update(row(3, 4, ABSENT))
        t.insert(row(2))
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert (applied.rows_inserted, applied.rows_updated) == (2, 0)
        assert self.sorted_rows(sink) == [row(1), row(2), row(3, 4, "x")]

    def test_changes_begin_a_table_that_was_not_copied(self, sink: Sink) -> None:
        t = changes()
        t.insert(row(1))
        self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 110

    def test_changes_that_undo_themselves_move_the_position(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        t = changes()
        t.insert(row(2))
        t.delete({"id": 2})
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 110
        assert applied.version == self.writer(sink).version()

    def test_a_truncate_and_what_follows_are_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1), row(2))
        t = changes()
        t.truncate()
        t.insert(row(2, 20))
        self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(2, 20)]
        t = changes()
        t.truncate()
        self.writer(sink).apply(net(t), Lsn(120))
        assert self.rows(sink) == []
        assert self.writer(sink).position() == 120

    def test_swapped_keys_keep_their_own_values(self, sink: Sink) -> None:
        self.loaded(sink, row(1, 10, "one"), row(2, 20, "two"), row(3, 30, "three"))
        t = changes()
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 21, ABSENT), old={"id": 2})
        t.update(row(2, 11, ABSENT), old={"id": -1})
        t.update(row(3, 31, ABSENT))
        self.writer(sink).apply(net(t), Lsn(110))
        assert self.sorted_rows(sink) == [
            row(1, 21, "two"),
            row(2, 11, "one"),
            row(3, 31, "three"),
        ]

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
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(2)]
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 0, 1)
        assert applied.rows_skipped == 4
        assert self.writer(sink).position() == 110

    def test_a_missing_row_is_skipped_through_changes_of_its_key(self, sink: Sink) -> None:
        self.loaded(sink, row(1, 10, "one"), row(3))
        t = changes()
        t.update(row(5, 50), old={"id": 4})
        t.update(row(6, 60, ABSENT), old={"id": 5})
        t.update(row(-1, 10, ABSENT), old={"id": 1})
        t.update(row(1, 20), old={"id": 2})
        t.update(row(2, 11, ABSENT), old={"id": -1})
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.sorted_rows(sink) == [row(2, 11, "one"), row(3)]
        assert applied.rows_skipped == 2

    def test_a_row_after_a_truncate_needs_an_insert(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        t = changes()
        t.truncate()
        t.update(row(1, 1, ABSENT))
        t.insert(row(2))
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(2)]
        assert applied.rows_skipped == 1

    def test_changes_of_a_table_that_was_not_copied_need_an_insert(self, sink: Sink) -> None:
        t = changes()
        t.update(row(1))
        t.update(row(3, 3, ABSENT), old={"id": 2})
        t.delete({"id": 4})
        t.insert(row(5))
        applied = self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(5)]
        assert (applied.rows_inserted, applied.rows_skipped) == (1, 3)

    def test_an_insert_over_a_row_replaces_it(self, sink: Sink) -> None:
        """A publication without DELETE: the rows' deletes were not sent."""
        self.loaded(sink, row(1), row(2))
        t = changes()
        t.insert(row(1, 10, None))
        t.insert(row(2))
        t.delete({"id": 2})
        t.insert(row(3))
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
        applied = self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        assert sorted(one["id"] for one in self.rows(sink, table)) == [1, 3]
        assert applied.rows_skipped == 1

    def test_a_late_attempt_with_an_older_position_does_nothing(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        for lsn, a in ((110, 1), (120, 2)):
            t = changes()
            t.update(row(1, a))
            self.writer(sink).apply(net(t), Lsn(lsn))
        t = changes()
        t.update(row(1, 1))
        assert self.writer(sink).apply(net(t), Lsn(110)).skipped
        assert self.rows(sink) == [row(1, 2)]

    def test_two_attempts_at_once_are_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        before = self.writer(sink)
        version = before.apply(net(_insert(2)), Lsn(110)).version
        writers = [self.writer(sink), self.writer(sink)]
        for writer in writers:
            assert writer.position() == 110
        results: list[Applied] = []
        threads = [
            threading.Thread(target=lambda w=w: results.append(w.apply(net(_insert(3)), Lsn(120))))
            for w in writers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one.skipped for one in results) == [False, True]
        assert {one.version for one in results} == {version + 1}
        assert self.writer(sink).version() == version + 1
        assert self.sorted_rows(sink) == [row(1), row(2), row(3)]

    def test_changes_from_where_the_table_no_longer_is_are_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        slow = self.writer(sink)
        slow.position()
        self.writer(sink).apply(net(_insert(2)), Lsn(110))
        t = changes()
        t.insert(row(2))
        t.insert(row(3))
        with pytest.raises(PgsluiceError, match="not where the changes start"):
            slow.apply(net(t), Lsn(120))
        assert self.sorted_rows(sink) == [row(1), row(2)]

    def test_parts_of_a_copy_are_staged_by_tasks_and_committed_once(self, sink: Sink) -> None:
        self.loaded(sink, row(9))
        parts = self.staged(sink, [row(1), row(2)], [row(3)], lsn=150, copy=2)
        if self.writer(sink).can_stage():
            assert self.rows(sink) == [row(9)], "nobody sees staged rows"
        applied = self.writer(sink, copy=2).commit_load(parts, Lsn(150))
        assert (applied.rows_inserted, applied.skipped) == (3, False)
        assert applied.version == self.writer(sink, copy=2).version()
        assert self.sorted_rows(sink) == [row(1), row(2), row(3)]
        assert (self.writer(sink).position(), self.writer(sink).copy_number()) == (150, 2)

    def test_a_staged_copy_makes_a_table_and_changes_go_on_from_it(self, sink: Sink) -> None:
        parts = self.staged(sink, [row(1), row(2, 2, "kept")], [])
        self.writer(sink).commit_load(parts, Lsn(100))
        t = changes()
        t.update(row(2, 20, ABSENT))
        t.delete({"id": 1})
        self.writer(sink).apply(net(t), Lsn(110))
        assert self.rows(sink) == [row(2, 20, "kept")]

    def test_a_staged_copy_without_rows_makes_an_empty_table(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        self.writer(sink, copy=2).commit_load(self.staged(sink, [], lsn=150, copy=2), Lsn(150))
        assert self.rows(sink) == []
        assert self.writer(sink).position() == 150

    def test_a_part_that_was_staged_twice_is_committed_once(self, sink: Sink) -> None:
        """A task was attempted twice; the driver commits the attempt that reported back."""
        self.staged(sink, [row(1)])
        parts = self.staged(sink, [row(1)])
        self.writer(sink).commit_load(parts, Lsn(100))
        assert self.rows(sink) == [row(1)]

    def test_staged_rows_that_are_committed_twice_are_there_once(self, sink: Sink) -> None:
        parts = self.staged(sink, [row(1)])
        first = self.writer(sink).commit_load(parts, Lsn(100))
        again = self.writer(sink).commit_load(parts, Lsn(100))
        assert again.version == first.version == self.writer(sink).version()
        assert self.rows(sink) == [row(1)]

    def test_a_late_attempt_of_a_staged_copy_does_nothing(self, sink: Sink) -> None:
        parts = self.staged(sink, [row(1)])
        self.writer(sink).commit_load(parts, Lsn(100))
        self.writer(sink).apply(net(_insert(2)), Lsn(110))
        version = self.writer(sink).version()
        late = self.staged(sink, [row(8)])
        assert self.writer(sink).commit_load(late, Lsn(100)).version == version
        assert self.sorted_rows(sink) == [row(1), row(2)]

    def test_a_crash_between_staging_and_commit_leaves_the_table_as_it_was(
        self, sink: Sink
    ) -> None:
        self.loaded(sink, row(1))
        if not self.writer(sink).can_stage():
            pytest.skip("this sink loads a copy in its task")
        self.staged(sink, [row(7)], lsn=150, copy=2)
        self.writer(sink).apply(net(_insert(2)), Lsn(110))
        assert self.sorted_rows(sink) == [row(1), row(2)]
        parts = self.staged(sink, [row(3)], lsn=150, copy=3)
        self.writer(sink, copy=3).commit_load(parts, Lsn(150))
        assert self.rows(sink) == [row(3)]

    def test_two_drivers_that_commit_at_once_are_one(self, sink: Sink) -> None:
        parts = self.staged(sink, [row(1)])
        writers = [self.writer(sink), self.writer(sink)]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda writer: writer.commit_load(parts, Lsn(100)), writers))
        assert len({applied.version for applied in done}) == 1
        assert self.rows(sink) == [row(1)]

    def test_another_sources_table_takes_no_staged_rows(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        other = TableWriter(sink, TABLE, identity(oid=99))
        with pytest.raises(TableError, match="position of another source"):
            other.stage_load(batches(row(2)), Lsn(200))
        with pytest.raises(TableError, match="position of another source"):
            other.commit_load([StagedRows()], Lsn(200))
        assert self.rows(sink) == [row(1)]

    @pytest.mark.parametrize("other", [identity(spool="another"), identity(oid=99)])
    def test_another_sources_table_is_refused(self, sink: Sink, other: TargetIdentity) -> None:
        self.loaded(sink, row(1))
        writer = TableWriter(sink, TABLE, other)
        with pytest.raises(TableError, match="position of another source"):
            writer.position()
        with pytest.raises(TableError, match="position of another source"):
            TableWriter(sink, TABLE, other).apply(net(_insert(2)), Lsn(200))
        with pytest.raises(TableError, match="position of another source"):
            TableWriter(sink, TABLE, other).load(batches(row(2)), Lsn(200))
        assert self.rows(sink) == [row(1)]

    def test_an_added_column_is_null_in_rows_from_before(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        wide = SCHEMA.append(pa.field("more", pa.timestamp("us")))
        t = ChangesBuilder(wide)
        t.insert({**row(2), "more": 5_000_000})
        table = TargetTable("public", "t", wide, ("id",))
        self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        first, second = self.sorted_rows(sink)
        assert first == {**row(1), "more": None}
        assert second["more"].second == 5

    def test_a_changed_type_is_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        other = SCHEMA.set(1, pa.field("a", pa.string()))
        t = ChangesBuilder(other)
        t.insert({"id": 2, "a": "x"})
        table = TargetTable("public", "t", other, ("id",))
        with pytest.raises(TableError, match=r"'a' of public.t changed its type") as caught:
            self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        assert caught.value.remedy is Remedy.PARK

    def test_a_key_column_that_allows_null_at_the_target_is_refused(self, sink: Sink) -> None:
        loose = SCHEMA.set(0, pa.field("id", pa.int64()))
        without_key = TargetTable("public", "t", loose, ())
        self.writer(sink, table=without_key).load(batches(row(1), schema=loose), Lsn(100))
        with pytest.raises(
            TableError, match=r"'id' of the target of public.t allows NULL"
        ) as caught:
            self.writer(sink).apply(net(_insert(2)), Lsn(110))
        assert caught.value.remedy is Remedy.PARK
        assert self.rows(sink) == [row(1)]

    def test_a_table_without_key_takes_inserts_as_they_come(self, sink: Sink) -> None:
        table = TargetTable("public", "t", SCHEMA, ())
        self.writer(sink, table=table).load(batches(row(1)), Lsn(100))
        t = changes(())
        t.insert(row(1))
        t.insert(row(2))
        self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        assert self.sorted_rows(sink) == [row(1), row(1), row(2)]
        t = changes(())
        t.truncate()
        t.insert(row(5))
        self.writer(sink, table=table).apply(net(t, table=table), Lsn(120))
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
        self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        found = sorted(self.rows(sink, table), key=lambda one: int(one[names[0]]))
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
        self.writer(sink, table=table).apply(net(t, table=table), Lsn(110))
        found = sorted((one["x"], one["y"], one["v"]) for one in self.rows(sink, table))
        assert found == [("a", 2, "a2"), ("a", 9, "b2"), ("b", 1, "new")]


def _insert(id_: int) -> ChangesBuilder:
    t = changes()
    t.insert(row(id_))
    return t
