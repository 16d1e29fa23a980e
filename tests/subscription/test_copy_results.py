"""What becomes of a table when its copy was tried."""

from __future__ import annotations

import pytest

from pgsluice.copy import CopyResult, Snapshot
from pgsluice.errors import Remedy
from pgsluice.lsn import Lsn
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.lifecycle import Attempts, next_state
from pgsluice.subscription.table_copies import copy_event

TABLE = TableRecord("public", "t", TableState.DATA_COPY, applied_through=Lsn(100), copy_number=2)
SNAPSHOT = Snapshot("00000003-1", Lsn(200))


def after(result: CopyResult, *, is_last: bool) -> TableRecord:
    event = copy_event(result, TABLE.copy_number, SNAPSHOT, is_last=is_last)
    return next_state(TABLE.state, TABLE, Attempts(), event).table


def test_a_copy_that_stands_is_where_its_snapshot_was() -> None:
    table = after(CopyResult(1, rows=5, version=3), is_last=True)
    assert (table.state, table.version, table.rows) == (TableState.COPIED, 3, 5)
    assert table.applied_through == table.committed == Lsn(200)


def test_a_target_with_a_later_copy_was_not_loaded() -> None:
    table = after(CopyResult(1, copy_number=7), is_last=False)
    assert (table.state, table.copy_number) == (TableState.DATA_COPY, 7)
    assert table.committed == 0


@pytest.mark.parametrize(
    ("remedy", "is_last", "state"),
    [
        (Remedy.PARK, False, TableState.PARKED),
        (Remedy.RETRY, False, TableState.DATA_COPY),
        (Remedy.RETRY, True, TableState.PARKED),
        (Remedy.WAIT, False, TableState.DATA_COPY),
        (Remedy.WAIT, True, TableState.DATA_COPY),  # a server that is away is not the table's fault
        (Remedy.STOP, True, TableState.DATA_COPY),
    ],
)
def test_errors(remedy: Remedy, is_last: bool, state: TableState) -> None:
    table = after(CopyResult(1, remedy=remedy, error="why"), is_last=is_last)
    assert (table.state, table.error) == (state, "why")
    # What is parked here needs nothing that came before it.
    assert table.applied_through == Lsn(100)
