"""The sink contract: change logs, to which rows are only added."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgsluice.changes.change_log import LogColumns
from pgsluice.errors import ForeignTarget, PgsluiceError, TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Sink, TargetTable
from pgsluice.sinks.identity import TargetMode
from pgsluice.sinks.writers import LogWriter
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
    row,
)

LOG = LogColumns("_")
_COLUMNS = LOG.of_table(SCHEMA, TABLE.title)


class LogContract(SinkTests):
    """Every change is a row once, and stays."""

    def log(self, sink: Sink, copy: int = 1, table: TargetTable = TABLE) -> LogWriter:
        """A fresh writer of the tests' log."""
        origin = identity(copy=copy, mode=TargetMode(log=LOG))
        if not sink.open(TABLE, origin).can_append():
            pytest.skip("the sink keeps no change logs: their tables are parked")
        return LogWriter(sink, table, origin)

    def appended(self, writer: LogWriter, t: ChangesBuilder, lsn: int) -> Applied:
        """Add the collected changes as a task does."""
        writer.position()
        rows = LOG.rows([t.build()], _COLUMNS)
        return writer.append(rows.to_batches(), _COLUMNS, Lsn(lsn))

    def kinds(self, sink: Sink) -> list[tuple[Any, ...]]:
        """Position, kind and id of the log's rows, in order."""
        found = self.rows(sink)
        found.sort(key=lambda each: (each["_commit_version"], each["_ordinal"]))
        return [(each["_commit_version"], each["_change_type"], each["id"]) for each in found]

    def test_changes_are_rows_in_order(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1), row(2, 2, "kept")), Lsn(100))
        t = changes(position=110)
        t.insert(row(3))
        t.update(row(2, 20, ABSENT))
        t.update(row(5, 3), old={"id": 3})
        t.commit()
        t.delete({"id": 1})
        t.truncate()
        applied = self.appended(self.log(sink), t, 111)
        assert (applied.rows_inserted, applied.skipped) == (6, False)
        assert self.kinds(sink) == [
            (100, "snapshot", None),
            *sorted((100, "insert", number) for number in (1, 2)),
            (110, "insert", 3),
            (110, "update_postimage", 2),
            (110, "update_preimage", 3),
            (110, "update_postimage", 5),
            (111, "delete", 1),
            (111, "truncate", None),
        ]
        absent = {
            (each["_change_type"], each["id"]): each["_absent"]
            for each in self.rows(sink)
            if each["_absent"]
        }
        assert absent == {
            ("update_postimage", 2): ["big"],
            ("update_preimage", 3): ["a", "big"],
            ("delete", 1): ["a", "big"],
        }
        assert self.log(sink).position() == 111

    def test_a_late_attempt_adds_nothing(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        t = inserted(2, 110)
        self.appended(self.log(sink), t, 110)
        assert self.appended(self.log(sink), t, 110).skipped
        assert self.kinds(sink)[2:] == [(110, "insert", 2)]

    def test_two_attempts_at_once_are_one(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        writers = [self.log(sink), self.log(sink)]
        for writer in writers:
            assert writer.position() == 100
        rows = LOG.rows([inserted(2, 110).build()], _COLUMNS).to_batches()
        results = at_once(lambda writer: writer.append(rows, _COLUMNS, Lsn(110)), writers)
        assert sorted(applied.skipped for applied in results) == [False, True]
        assert self.kinds(sink)[2:] == [(110, "insert", 2)]

    def test_changes_from_where_the_log_no_longer_is_are_refused(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        slow = self.log(sink)
        slow.position()
        self.appended(self.log(sink), inserted(2, 110), 110)
        rows = LOG.rows([inserted(3, 120).build()], _COLUMNS).to_batches()
        with pytest.raises(PgsluiceError, match="another attempt has written"):
            slow.append(rows, _COLUMNS, Lsn(120))
        assert self.kinds(sink)[2:] == [(110, "insert", 2)]

    def test_changes_begin_a_log_that_was_not_copied(self, sink: Sink) -> None:
        self.appended(self.log(sink), inserted(1, 110), 110)
        assert self.kinds(sink) == [(110, "insert", 1)]
        assert self.log(sink).position() == 110

    def test_a_copy_again_follows_what_was_there(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        self.appended(self.log(sink), inserted(2, 110), 110)
        again = self.log(sink, copy=2)
        staged = [again.stage_load(batches(row(each)), Lsn(110)) for each in (1, 3)]
        assert again.commit_load(staged, Lsn(110)).rows_inserted == 3
        assert self.log(sink, copy=2).commit_load(staged, Lsn(110)).skipped
        assert self.kinds(sink)[2:] == [
            (110, "insert", 2),
            (110, "snapshot", None),
            (110, "insert", 1),
            (110, "insert", 3),
        ]
        assert self.log(sink, copy=2).copy_number() == 2

    def test_an_added_column_is_a_row_with_the_value_of_older_rows(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        added = [
            AddedColumn(pa.field("n", pa.int64()), pa.scalar(7, pa.int64())),
            AddedColumn(pa.field("empty", pa.string()), pa.scalar(None, pa.string())),
        ]
        self.log(sink).alter(added, ())
        assert self.log(sink).alter(added, ()).skipped
        [event] = [each for each in self.rows(sink) if each["_change_type"] == "add_column"]
        assert event["n"] == 7
        assert event["_commit_version"] == 100
        assert event["_absent"] == ["id", "a", "big", "empty"]
        assert {each["n"] for each in self.rows(sink)} == {7, None}
        assert self.log(sink).position() == 100

    def test_a_wider_type_keeps_the_rows(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1, 10)), Lsn(100))
        self.log(sink).alter((), [pa.field("a", pa.int64())])
        wide = SCHEMA.set(1, pa.field("a", pa.int64()))
        t = ChangesBuilder(wide, position=110).insert(row(2, 2**40))
        columns = LOG.of_table(wide, "t")
        writer = self.log(sink)
        writer.position()
        writer.append(LOG.rows([t.build()], columns).to_batches(), columns, Lsn(110))
        assert {each["id"]: each["a"] for each in self.rows(sink) if each["id"]} == {
            1: 10,
            2: 2**40,
        }

    def test_another_type_is_refused(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        other = SCHEMA.set(1, pa.field("a", pa.string()))
        table = TargetTable("public", "t", other, ("id",))
        with pytest.raises(TableError, match=r"'a' .* now has the type (large_)?string"):
            self.log(sink, 2, table).load(batches(row(2, "x"), schema=other), Lsn(200))  # type: ignore[arg-type]
        assert self.kinds(sink) == [(100, "snapshot", None), (100, "insert", 1)]

    def test_a_column_that_differs_by_case_is_refused(self, sink: Sink) -> None:
        self.log(sink).load(batches(row(1)), Lsn(100))
        other = SCHEMA.set(2, pa.field("BIG", pa.string()))
        table = TargetTable("public", "t", other, ("id",))
        with pytest.raises(TableError, match=r"'BIG' of table public.t differs from"):
            self.log(sink, 2, table).load([], Lsn(200))

    def test_a_target_of_another_mode_is_refused(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        with pytest.raises(ForeignTarget, match="in another mode") as caught:
            self.log(sink).position()
        assert "adopt" not in str(caught.value), "this mode has no such setting"
        with pytest.raises(ForeignTarget, match="in another mode"):
            self.log(sink, copy=2).load(batches(row(2)), Lsn(200))
        assert self.rows(sink) == [row(1)]

    def test_a_column_with_the_name_of_a_change_column_is_refused(self, sink: Sink) -> None:
        schema = SCHEMA.append(pa.field("_ORDINAL", pa.int64()))
        with pytest.raises(TableError, match="'_ORDINAL', but pgsluice adds a column"):
            self.log(sink, table=TargetTable("public", "t", schema, ("id",)))
