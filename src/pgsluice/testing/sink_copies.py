"""The sink contract: copies that one task loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.opened_table import read_content
from pgsluice.testing.sink_tests import TABLE, SinkTests, batches, identity, inserted, row


class CopiesContract(SinkTests):
    """A copy replaces the table; a late attempt changes nothing."""

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
        assert self.applied(sink, inserted(8), 300).skipped
        assert self.rows(sink) == [row(3)]

    def test_the_same_copy_twice_is_one(self, sink: Sink) -> None:
        self.loaded(sink, row(1))
        assert self.loaded(sink, row(1), row(2)).skipped
        assert self.rows(sink) == [row(1)]

    def test_an_error_while_rows_come_leaves_the_table_as_it_was(self, sink: Sink) -> None:
        self.loaded(sink, row(1))

        def broken() -> Any:
            yield from batches(row(2), row(3), row(4))
            raise PgsluiceError("the connection to the server broke")

        with pytest.raises(PgsluiceError, match="connection to the server broke"):
            self.writer(sink, copy=2).load(broken(), Lsn(150))
        assert self.rows(sink) == [row(1)]
        assert self.writer(sink).position() == 100

    def test_an_earlier_version_can_be_read(self, sink: Sink) -> None:
        """So a renamed table is copied from its old target, also after a swap of two targets."""
        version = self.loaded(sink, row(1), row(2), row(3)).version
        had = identity(copy=1)
        if read_content(sink, TABLE, had, version, Lsn(100)) is None:
            pytest.skip(
                "the sink reads no earlier versions: such a table is copied from the source"
            )
        self.writer(sink, copy=2).load(batches(row(9)), Lsn(150))
        content = read_content(sink, TABLE, had, version, Lsn(100))
        assert content is not None
        new = replace(TABLE, name="renamed", schema=content.schema)
        writer = TableWriter(sink, new, identity(copy=3))
        writer.commit_load([writer.stage_load(content.rows, Lsn(100))], Lsn(100))
        rows = sorted(self.rows(sink, new), key=lambda each: int(each["id"]))
        assert rows == [row(1), row(2), row(3)]
        assert TableWriter(sink, new, identity(copy=3)).position() == 100
        # Neither another position nor another copy is taken for it.
        assert read_content(sink, TABLE, had, version, Lsn(99)) is None
        assert read_content(sink, TABLE, identity(copy=2), version, Lsn(100)) is None
        assert read_content(sink, TABLE, had, version + 99, Lsn(100)) is None
