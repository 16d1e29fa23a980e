"""Follows a table's copy in another process, by the files of the spool.

It reports the same events as the run, so the live view is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pgsluice.errors import PgsluiceError, TableError
from pgsluice.events import CopiesProgress, CopyProgress, MetricsCallback, TableStateChanged
from pgsluice.spool import TableState
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import read_copy_status
from pgsluice.spool.records.store import record_reader
from pgsluice.stores.spool_place import SpoolPlace

_POLL_S = 0.5


def follow_copy(
    spool: SpoolPlace | Path,
    name: str,
    oid: int,
    report: MetricsCallback,
    pause: Callable[[], None] = lambda: time.sleep(_POLL_S),
) -> None:
    """Report the progress of a copy until the table is copied.

    Args:
        spool, name: the subscription, whose run has accepted the request for the copy.
        oid: the table's OID.
        report: receives the events.
        pause: waits a moment between two reads of the files.

    Raises:
        TableError: the table is parked, or no longer published.
        PgsluiceError: the run ended before the table was copied.
    """
    spool = SpoolPlace.of(spool)
    lock, reader = subscription_lock(spool.folder, name), record_reader(spool, name)
    while True:
        is_running = lock.is_held()  # asked before the record is read, which it may end with
        record = reader.read()
        table = None if record is None else record.tables.get(oid)
        if record is None or table is None:
            raise TableError(
                f"the table was not copied: subscription {name} no longer receives the table"
            )
        # While a table is copied, what the copy mends is not reported.
        incomplete = () if table.is_to_copy else table.incomplete
        place = name, table.namespace, table.name
        report(TableStateChanged(*place, table.shown_state, table.error, incomplete))
        if not table.is_to_copy:
            break
        if not is_running:
            raise PgsluiceError(
                f'`pgsluice run` of subscription "{name}" ended before it had copied table '
                f"{table.title}",
                hint="start `pgsluice run CONFIG`, which resumes the copy",
            )
        status = read_copy_status(spool.folder, record)
        if (amount := status.tables.get(oid)) is not None:
            report(CopyProgress(*place, amount))
        if (waits_for := status.waits_for.get(oid)) or status.all_tables:
            waits = (waits_for,) if waits_for else ()
            report(CopiesProgress(name, status.done, status.all_tables, status.amount, waits))
        pause()
    if table.state is TableState.PARKED:
        raise TableError.of_text(f"table {table.title} is parked: {table.error}", table=table.title)
