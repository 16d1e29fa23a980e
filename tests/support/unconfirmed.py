"""Commits that wait for a synchronous standby, which never confirms them.

Such a commit is in the WAL, and thus in the stream, but no snapshot sees it, and its locks are
still held. Commits of a session with ``SET synchronous_commit = local`` do not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.support.databases import Database
from tests.support.waiting import await_that

_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND datname = current_database() AND application_name = ''
"""


@contextmanager
def unconfirmed(database: Database, transactions: Sequence[Callable[[], object]]) -> Iterator[None]:
    """A block in which transactions have committed, and wait for a standby's word.

    Args:
        transactions: each runs in a thread of its own, and commits once or fails.
    """
    with _without_standby(database):
        threads = [threading.Thread(target=transaction) for transaction in transactions]
        for thread in threads:
            thread.start()
        await_that(lambda: _count_waiting(database) > sum(thread.is_alive() for thread in threads))
        yield
    for thread in threads:
        thread.join()


@contextmanager
def _without_standby(database: Database) -> Iterator[None]:
    """A block in which commits wait; one of its own does, too."""
    database.execute(
        "CREATE TABLE IF NOT EXISTS public.unconfirmed_probe (n int)",
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    )
    probe = _begin_probe(database)
    try:
        # The server has read the setting when a commit waits.
        while not (probe.is_alive() and _count_waiting(database)):
            if not probe.is_alive():
                probe = _begin_probe(database)
        yield
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        probe.join()


def _begin_probe(database: Database) -> threading.Thread:
    insert = "INSERT INTO unconfirmed_probe VALUES (1)"
    thread = threading.Thread(target=lambda: database.execute(insert))
    thread.start()
    return thread


def _count_waiting(database: Database) -> int:
    ((count,),) = database.execute(_WAITING)
    return int(count)
