"""How far copies are, asked of the server while they run; no copy depends on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pgsluice.copy import CopyWork
from pgsluice.events import CopyProgress
from pgsluice.replication import connect_sql

_INTERVAL_S = 0.5
_FIRST_WITH_PROGRESS = 140000
# Only the server knows how far a COPY is; the reader's application_name says which it is.
_PROGRESS = """
SELECT a.application_name, p.tuples_processed
FROM pg_catalog.pg_stat_progress_copy p JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE a.application_name LIKE 'pgsluice copy %'
"""


@contextmanager
def report_progress(
    dsn: str, subscription: str, works: Sequence[CopyWork], report: Callable[[CopyProgress], None]
) -> Iterator[None]:
    """Report how far copies are while the block runs.

    Args:
        subscription: the name for the events.
        report: called from a thread.
    """
    done = threading.Event()
    thread = threading.Thread(
        target=_watch,
        args=(dsn, subscription, works, report, done),
        name="pgsluice-copy-progress",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(
    dsn: str,
    subscription: str,
    works: Sequence[CopyWork],
    report: Callable[[CopyProgress], None],
    done: threading.Event,
) -> None:
    by_application = {
        f"pgsluice copy {work.facts.namespace}.{work.facts.name}"[:63]: work for work in works
    }
    try:
        with connect_sql(dsn) as connection:
            if connection.info.server_version < _FIRST_WITH_PROGRESS:
                return
            while not done.wait(_INTERVAL_S):
                for application, rows in connection.execute(_PROGRESS).fetchall():
                    work = by_application.get(str(application))
                    if work is not None:
                        rows_so_far = int(str(rows))
                        report(CopyProgress(subscription, work.namespace, work.name, rows_so_far))
    except Exception:
        # Progress is a convenience: no failure of it is a reason to stop a copy.
        return
