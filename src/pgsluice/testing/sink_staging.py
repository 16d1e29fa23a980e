"""The sink contract: copies that tasks stage and the driver commits."""

from __future__ import annotations

import pytest

from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, StagedRows
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT
from pgsluice.testing.sink_tests import (
    TABLE,
    SinkTests,
    at_once,
    batches,
    changes,
    identity,
    inserted,
    row,
)


class StagingContract(SinkTests):
    """Staged rows are invisible until the commit, and are committed once."""

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
        self.applied(sink, changes().update(row(2, 20, ABSENT)).delete({"id": 1}))
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
        self.applied(sink, inserted(2))
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
        self.applied(sink, inserted(2))
        assert self.sorted_rows(sink) == [row(1), row(2)]
        parts = self.staged(sink, [row(3)], lsn=150, copy=3)
        self.writer(sink, copy=3).commit_load(parts, Lsn(150))
        assert self.rows(sink) == [row(3)]

    def test_others_than_the_discarded_rows_are_committed(self, sink: Sink) -> None:
        discarded, *parts = self.staged(sink, [row(1)], [row(2)])
        if not self.writer(sink).can_stage():
            pytest.skip("this sink loads a copy in its task")
        self.writer(sink).discard_load([discarded])
        self.writer(sink).commit_load(parts, Lsn(100))
        assert self.rows(sink) == [row(2)]

    def test_two_drivers_that_commit_at_once_are_one(self, sink: Sink) -> None:
        parts = self.staged(sink, [row(1)])
        writers = [self.writer(sink), self.writer(sink)]
        done = at_once(lambda writer: writer.commit_load(parts, Lsn(100)), writers)
        assert len({applied.version for applied in done}) == 1
        assert self.rows(sink) == [row(1)]

    def test_another_sources_table_takes_no_staged_rows(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        other = TableWriter(sink, TABLE, identity(oid=99))
        with pytest.raises(TableError, match="from another spool"):
            other.stage_load(batches(row(2)), Lsn(200))
        with pytest.raises(TableError, match="from another spool"):
            other.commit_load([StagedRows()], Lsn(200))
        assert self.rows(sink) == [row(1)]
