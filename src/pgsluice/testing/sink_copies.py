"""The sink contract: copies that one task loads."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink
from pgsluice.testing.sink_tests import (
    SinkTests,
    batches,
    changes,
    net,
    row,
)


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
