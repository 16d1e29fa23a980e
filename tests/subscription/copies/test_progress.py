"""What a subscription's copies say of how far they are: events, and the file that status reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.subscription.copies.test_staging import table

from pgsluice.events import CopiesProgress, CopyAmount, CopyProgress, MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import StagedRows
from pgsluice.spool import Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.layout import COPY_STATUS, subscription_folder
from pgsluice.spool.notes import CopyStatus, read_copy_status
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.progress import CopyCounts

BIG, SMALL = 1, 2


class Copies:
    """The counts of a subscription, with a clock that the test moves."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self.now = 100.0
        self.events: list[MetricsEvent] = []
        self.folder = subscription_folder(spool, "lake")
        self.folder.mkdir(parents=True)
        self.counts = CopyCounts("lake", self.folder, self.events.append, self.clock)

    def clock(self) -> float:
        return self.now

    def stage(self, copy: TableCopy, number: int, rows: int) -> None:
        copy.staged[number] = StagedRows(rows=rows)
        self.counts.staged(copy, number)

    def last(self) -> CopiesProgress:
        return [event for event in self.events if isinstance(event, CopiesProgress)][-1]

    def file(self, state: TableState = TableState.DATA_COPY, fresh_s: float = 15.0) -> CopyStatus:
        tables = {oid: TableRecord("public", f"t{oid}", state) for oid in (BIG, SMALL)}
        record = SubscriptionRecord("lake", Owner.CONFIG, "current", "x", Lsn(1), Lsn(1), tables)
        return read_copy_status(self.spool, record, fresh_s)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def of(oid: int, *sizes: int) -> TableCopy:
    copy = table(f"t{oid}", *sizes)
    return TableCopy(replace(copy.work, facts=replace(copy.work.facts, oid=oid)), copy.portions)


def test_ranges_rows_and_bytes_are_counted_for_each_table_and_in_all(copies: Copies) -> None:
    big, small = of(BIG, 600, 600, 600), of(SMALL, 100)
    copies.counts.begin([big, small])
    copies.stage(small, 0, rows=5)
    copies.counts.committed(small)
    copies.now += 10
    copies.stage(big, 1, rows=30)
    assert copies.file() == CopyStatus(
        {BIG: CopyAmount(1, 3, 30, 600, 1800, 3.0, 60.0)},
        done=1,
        all_tables=2,
        amount=CopyAmount(2, 4, 35, 700, 1900, 3.5, 70.0),
    )
    assert copies.last() == CopiesProgress("lake", 1, 2, copies.file().amount)
    assert copies.events[-1] == CopyProgress("lake", "public", "t1", copies.file().tables[BIG])
    done = CopyProgress("lake", "public", "t2", CopyAmount(1, 1, 5, 100, 100), is_done=True)
    assert [
        replace(event, amount=replace(event.amount, rows_per_s=0, bytes_per_s=0))
        for event in copies.events
        if isinstance(event, CopyProgress) and event.is_done
    ] == [done]


def test_the_rate_is_that_of_the_last_half_minute(copies: Copies) -> None:
    big = of(BIG, *[300] * 10)
    copies.counts.begin([big])
    for number, seconds in enumerate((10, 10, 20)):
        copies.now += seconds
        copies.stage(big, number, rows=30)
    amount = copies.file().amount
    assert (amount.bytes_per_s, amount.rows_per_s) == (20.0, 2.0), "two ranges in 30 s"
    assert amount.left_s == 2100 / 20
    copies.now += 60
    copies.counts.tend()
    assert copies.file().amount.bytes_per_s == 600 / 90, "the last two ranges, if they are older"
    copies.stage(big, 3, rows=30)
    assert copies.file().amount.bytes_per_s == 600 / 80


def test_a_copy_that_is_held_to_a_rate_is_not_said_to_be_faster(copies: Copies) -> None:
    """Each range is read at once, and the next one waits."""
    rate = 5
    copies.counts = CopyCounts("lake", copies.folder, copies.events.append, copies.clock, rate)
    big = of(BIG, *[300] * 10)
    copies.counts.begin([big])
    for number in range(4):
        copies.now += 1
        copies.stage(big, number, rows=30)
        for _ in range(6):
            amount = copies.file().amount
            assert 5 * 2 / 3 - 0.1 < amount.bytes_per_s <= 5, (number, amount)
            copies.now += 9.5
            copies.counts.tend()
        copies.now += 2


def test_small_tables_do_not_tell_how_long_large_ones_take(copies: Copies) -> None:
    small, big = of(SMALL, 300), of(BIG, 300_000, 300_000)
    copies.counts.begin([small, big])
    copies.now += 10
    copies.stage(small, 0, rows=1)
    assert copies.last().amount.bytes_per_s == 30
    assert copies.last().amount.left_s is None, "not five hours"
    copies.now += 1
    copies.stage(big, 0, rows=1)
    assert copies.file().amount.left_s == 300_000 / (300_300 / 11)


def test_the_rate_of_a_table_does_not_count_the_time_in_which_it_waited(copies: Copies) -> None:
    small, big = of(SMALL, 300), of(BIG, 300, 300)
    copies.counts.begin([small, big])
    copies.now += 20
    copies.stage(small, 0, rows=1)
    copies.now += 3
    copies.stage(big, 0, rows=1)
    assert copies.file().tables[BIG].bytes_per_s == 100


def test_what_an_earlier_run_has_staged_counts_but_not_for_the_rate(copies: Copies) -> None:
    big = of(BIG, 300, 300, 300)
    big.staged[0] = StagedRows(rows=7)
    copies.counts.begin([big])
    assert copies.file().tables[BIG] == CopyAmount(1, 3, 7, 300, 900)


def test_the_file_outlives_a_run_that_is_killed_and_ends_with_the_copies(copies: Copies) -> None:
    big = of(BIG, 300, 300)
    copies.counts.begin([big])
    copies.stage(big, 1, rows=1)
    assert copies.file().tables[BIG].ranges == 1
    assert copies.file(TableState.PARKED) == CopyStatus(), "the record says what is copied"
    copies.stage(big, 0, rows=1)
    copies.counts.committed(big)
    assert not list(copies.spool.rglob(f"{COPY_STATUS}*"))


def test_a_table_that_is_not_copied_after_all_does_not_count(copies: Copies) -> None:
    big, small = of(BIG, 300, 300), of(SMALL, 100)
    copies.counts.begin([big, small])
    copies.stage(big, 0, rows=9)
    copies.counts.given_up([big])
    copies.counts.given_up([big])
    assert copies.last().all_tables == 2, "the file is not written for it"
    copies.now += 1
    copies.counts.tend()
    last, amount = copies.last(), copies.last().amount
    assert (last.tables, last.all_tables) == (0, 1)
    assert (amount.ranges, amount.all_ranges, amount.rows, amount.bytes) == (0, 1, 0, 0)
    assert amount.all_bytes == 100


def test_what_tables_wait_for_is_said_as_long_as_it_lasts(copies: Copies) -> None:
    copies.counts.wait([BIG, SMALL], "its snapshot")
    assert copies.file().waits_for == dict.fromkeys((BIG, SMALL), "its snapshot")
    assert copies.last().waits_for == ("its snapshot",)
    copies.counts.begin([of(BIG, 100)])
    assert copies.file().waits_for == {SMALL: "its snapshot"}
    copies.counts.wait([SMALL], "")
    assert copies.last().waits_for == ()


def test_a_table_that_is_copied_or_given_up_waits_for_nothing(copies: Copies) -> None:
    big, small = of(BIG, 100), of(SMALL, 100)
    copies.counts.begin([big, small])
    copies.counts.wait([BIG, SMALL], "their turn")
    copies.stage(small, 0, rows=5)
    copies.counts.committed(small)
    assert copies.last().waits_for == ("their turn",)
    copies.counts.given_up([big])
    assert copies.last().waits_for == (), "so the live view shows no copies any more"
    assert not (subscription_folder(copies.spool, "lake") / COPY_STATUS).exists()


def test_a_copy_that_waits_does_not_have_the_totals_of_one_that_has_ended(copies: Copies) -> None:
    big = of(BIG, 100)
    copies.counts.begin([big])
    copies.stage(big, 0, rows=5)
    copies.counts.committed(big)
    copies.counts.wait([BIG], "its snapshot")
    assert copies.last() == CopiesProgress("lake", 0, 0, CopyAmount(), ("its snapshot",))


def test_a_run_that_has_ended_copies_at_no_rate(copies: Copies) -> None:
    big = of(BIG, 300, 300)
    copies.counts.begin([big])
    copies.now += 1
    copies.stage(big, 0, rows=1)
    assert copies.file().amount.bytes_per_s == 300
    assert copies.file(fresh_s=0.0).amount == CopyAmount(1, 2, 1, 300, 600)


def test_a_damaged_file_says_nothing(copies: Copies) -> None:
    copies.counts.begin([of(BIG, 300)])
    (subscription_folder(copies.spool, "lake") / COPY_STATUS).write_text('{"tables": 5}')
    assert copies.file() == CopyStatus()


def test_a_later_copy_of_a_table_counts_and_what_an_earlier_one_still_does_not(
    copies: Copies,
) -> None:
    """A table was renamed, or asked for again, while tasks of its copy still read."""
    earlier, later = of(BIG, 300, 300), of(BIG, 300, 300, 300)
    copies.counts.begin([earlier])
    copies.stage(earlier, 0, rows=9)
    copies.counts.begin([later])
    copies.stage(earlier, 1, rows=9)
    copies.counts.given_up([earlier])
    copies.now += 30
    copies.stage(later, 0, rows=5)
    status = copies.file()
    assert status.tables[BIG].ranges == 1
    assert (status.amount.all_ranges, status.amount.rows, status.all_tables) == (3, 5, 1)
    copies.counts.committed(earlier)
    assert copies.file().done == 0


def test_what_many_tables_wait_for_is_not_saved_all_the_time(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    saves: list[float] = []

    def report(_: MetricsEvent) -> None:
        saves.append(copies.now)
        copies.now += 0.1  # what a save takes

    counts = CopyCounts("lake", copies.folder, report, copies.clock)
    counts.begin([of(BIG, 1, 1)])
    saves.clear()
    begun = copies.now
    for number in range(1000):
        copies.now += 0.01
        counts.wait([BIG], f"turn {number}")
        counts.tend()
    assert len(saves) <= (copies.now - begun) + 1
    assert copies.file().waits_for[BIG] in {f"turn {number}" for number in range(890, 1000)}
