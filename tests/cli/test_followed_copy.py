"""A copy that another process makes is followed by the files of the spool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.threads import beside
from tests.support.transactions import new_spool
from tests.support.waiting import await_that

from pgsluice.cli.copy_request import ask_for_copy, follow_copy
from pgsluice.config import Config
from pgsluice.errors import PgsluiceError, TableError
from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.monitor.live import LiveView
from pgsluice.spool import (
    Owner,
    RecordStore,
    SubscriptionRecord,
    TableRecord,
    TableState,
    find_record,
)
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import CopyStatus, write_copy_status
from pgsluice.subscription.base.requests import pending_requests

OID = 7
_LINES_EVERY_S = 10


class Run:
    """Of another process: it holds the subscription's lock, and writes its files."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        new_spool(spool)
        self.table = TableRecord("public", "orders", TableState.INITIALISE)
        self.store = RecordStore.create(
            spool,
            SubscriptionRecord(
                "lake", Owner.CONFIG, "current", "x", Lsn(1), Lsn(1), {OID: self.table}
            ),
        )
        self.lock = subscription_lock(spool, "lake")
        self.lock.acquire()

    def save(self, state: TableState, error: str | None = None, **more: Any) -> None:
        self.table = replace(self.table, state=state, error=error, **more)
        self.store.save(replace(self.store.record, tables={OID: self.table}))

    def copy(self, ranges: int, waits_for: str = "") -> None:
        amount = CopyAmount(ranges, 4, ranges * 100, ranges << 20, 4 << 20, 10.0, 1 << 20)
        waits = {OID: waits_for} if waits_for else {}
        status = CopyStatus({OID: amount}, waits, 1, 2, amount)
        write_copy_status(subscription_folder(self.spool, "lake"), status)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def follow(run: Run, *steps: Callable[[], None]) -> list[str]:
    """The lines of a log; the run does a step between any two looks at its files."""
    left, clock, file = list(steps), iter(range(0, 1000, _LINES_EVERY_S)), StringIO()
    view = LiveView(Console(file=file, width=200), clock=lambda: float(next(clock)))
    follow_copy(run.spool, "lake", OID, view, lambda: left.pop(0)())
    return file.getvalue().splitlines()


def test_progress_is_shown_until_the_table_is_copied(run: Run) -> None:
    run.table = replace(run.table, incomplete=("older rows were not copied",))
    amount = "2 of 4 ranges, 200 rows, 2.0 MiB of 4.0 MiB, 1.0 MiB/s, 10 rows/s, about 2.00 s left"
    lines = follow(
        run,
        lambda: run.save(TableState.INITIALISE, "public.orders is locked by session 5"),
        lambda: run.save(TableState.DATA_COPY),
        lambda: run.copy(0, "its turn"),
        lambda: run.copy(2),
        lambda: run.save(TableState.COPIED, incomplete=()),
    )
    assert lines == [
        "lake: public.orders to copy",
        "lake: public.orders to copy: public.orders is locked by session 5",
        "lake: public.orders is being copied, 4.0 MiB in 4 ranges",
        f"lake: public.orders: {amount}",
        f"lake: copies, 1 of 2 tables, {amount}",
    ]


def test_a_table_that_is_parked_ends_it_with_the_reason(run: Run) -> None:
    with pytest.raises(TableError) as error:
        follow(run, lambda: run.save(TableState.PARKED, "the key is gone\n  → add one"))
    assert str(error.value) == "table public.orders is parked: the key is gone\n  → add one"


def test_a_run_that_ends_before_ends_it_too(run: Run) -> None:
    with pytest.raises(PgsluiceError, match=r"ended before it had copied table public\.orders"):
        follow(run, run.lock.release)


def test_what_a_run_has_done_before_its_end_counts(run: Run) -> None:
    def end() -> None:
        run.save(TableState.READY)
        run.lock.release()

    follow(run, end)


def test_a_request_that_a_run_has_not_taken_before_its_end_goes_into_the_record(run: Run) -> None:
    """So does one beside another command, which holds the lock for a moment."""
    run.save(TableState.READY)
    sink = {"type": "delta", "path": str(run.spool / "lake" / "{table}")}
    config = Config.model_validate(
        {
            "source": {"dsn": "dbname=shop"},
            "spool": {"path": run.spool},
            "subscription": ({"name": "lake", "sink": sink},),
        }
    )
    folder, accepted = subscription_folder(run.spool, "lake"), list[bool]()

    def ask(_: threading.Event) -> None:
        accepted.append(ask_for_copy(config, "lake", OID))

    with beside(ask):
        await_that(lambda: bool(pending_requests(folder)))
        run.lock.release()
    assert accepted == [False]
    assert not pending_requests(folder)
    record = find_record(run.spool, "lake")
    assert record is not None
    assert record.tables[OID].is_to_copy


def test_a_table_that_is_not_sent_any_more(run: Run) -> None:
    with pytest.raises(TableError, match="the table was not copied"):
        follow(run, lambda: run.store.save(replace(run.store.record, tables={})))
