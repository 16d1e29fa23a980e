"""What becomes of a table when its copy was tried."""

from __future__ import annotations

import pytest

from pgsluice.copy.job import CopyResult
from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spool import TableRecord, TableState
from pgsluice.subscription.copies.results import copy_event
from pgsluice.subscription.lifecycle.table_events import COPY_ATTEMPTS
from pgsluice.subscription.lifecycle.transitions import Attempts, next_state

TABLE = TableRecord("public", "t", TableState.DATA_COPY, applied_through=Lsn(100), copy_number=2)
SNAPSHOT = Snapshot("00000003-1", Lsn(200))


def after(result: CopyResult | Failure, failures: int = 0) -> TableRecord:
    event = copy_event(result, TABLE.copy_number, SNAPSHOT)
    return next_state(TABLE.state, TABLE, Attempts(failures), event).table


def test_a_copy_that_stands_is_where_its_snapshot_was() -> None:
    table = after(CopyResult(5, 3), COPY_ATTEMPTS - 1)
    assert (table.state, table.version, table.rows) == (TableState.COPIED, 3, 5)
    assert table.applied_through == table.committed == Lsn(200)


def test_a_target_with_a_later_copy_was_not_loaded() -> None:
    table = after(CopyResult(0, 3, copy_number=7))
    assert (table.state, table.copy_number) == (TableState.DATA_COPY, 7)
    assert table.committed == 0


@pytest.mark.parametrize(
    ("remedy", "failures", "state", "way_out"),
    [
        (Remedy.PARK, 0, TableState.PARKED, ""),
        (Remedy.RETRY, 0, TableState.DATA_COPY, ""),
        (
            Remedy.RETRY,
            COPY_ATTEMPTS - 1,
            TableState.PARKED,
            "\n  → solve the cause, then copy the table: pgsluice copy CONFIG public.t",
        ),
        (Remedy.WAIT, 0, TableState.DATA_COPY, ""),
        # A server that is away is not the table's fault.
        (Remedy.WAIT, COPY_ATTEMPTS - 1, TableState.DATA_COPY, ""),
        (Remedy.LATER, COPY_ATTEMPTS - 1, TableState.INITIALISE, ""),
        (Remedy.STOP, COPY_ATTEMPTS - 1, TableState.DATA_COPY, ""),
    ],
)
def test_errors(remedy: Remedy, failures: int, state: TableState, way_out: str) -> None:
    table = after(Failure(remedy, "why"), failures)
    assert (table.state, table.error) == (state, f"why{way_out}")
    # What is parked here needs nothing that came before it.
    assert table.applied_through == Lsn(100)
