"""What the driver makes of results, on a real spool and without Spark."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import pytest
from tests.support.spools import OID, START, SpoolMaker, orders

from pgsluice.config import Config
from pgsluice.errors import Failure, Remedy, SinkError, SourceUnreachable
from pgsluice.events import MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool import (
    AddedColumns,
    OldTarget,
    Owner,
    Pending,
    RecordStore,
    SpoolReader,
    SubscriptionRecord,
    TableRecord,
    TableState,
    find_record,
)
from pgsluice.spool.layout import subscription_folder
from pgsluice.subscription.base.barrier import BarrierOwner
from pgsluice.subscription.base.received import ReceivedLive
from pgsluice.subscription.base.waits import WAITS, Waits
from pgsluice.subscription.base.work import Outcome, TableWork, TaskResult
from pgsluice.subscription.batches.planning import plan_tables
from pgsluice.subscription.batches.results import steady_now
from pgsluice.subscription.copies import snapshots
from pgsluice.subscription.copies.pending import awaits_copy
from pgsluice.subscription.copies.scheduler import CopyScheduler
from pgsluice.subscription.lifecycle.look_events import PublishedAgain, Unpublished
from pgsluice.subscription.lifecycle.table_events import (
    BATCH_ATTEMPTS,
    BatchFailed,
    CopyBegun,
    CopyRequested,
    HoldReleased,
)
from pgsluice.subscription.lifecycle.transitions import TableEvent
from pgsluice.subscription.running.driver import SubscriptionDriver

QUIET, GONE = OID + 1, OID + 2
EVERY_TABLE = [
    {"state": state, **more}
    for state in set(TableState) - {TableState.UNPUBLISHED}
    for more in (
        {},
        {"applied_through": Lsn(START)},
        {"pending": Pending(due=2.0**40)},
        {"pending": Pending(due=0.0)},
        {"pending": Pending(columns=AddedColumns(Lsn(START), "{}"))},
        {"pending": Pending(verification="why")},
        {"copying": OldTarget("public", "before", 1, 0)},
        {"is_published": False},
    )
]


def ready(name: str, **more: Any) -> TableRecord:
    more = {"applied_through": Lsn(START), "committed": Lsn(START), "version": 0, **more}
    return TableRecord("public", name, **{"state": TableState.READY, **more})


def config_of(maker: SpoolMaker, **keys: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "host=/nowhere", "slot": "s"},
            "spool": {"path": str(maker.path)},
            "subscription": (
                {"name": "lake", "sink": {"type": "delta", "path": "/lake/{table}"}, **keys},
            ),
        }
    )


def driver_of(
    maker: SpoolMaker,
    tables: Mapping[int, TableRecord] | None = None,
    report: Callable[[MetricsEvent], None] = lambda _: None,
    config: Config | None = None,
    spark: ContextOnDemand | None = None,
    waits: Waits = WAITS,
    **keys: Any,
) -> SubscriptionDriver:
    """A driver of a subscription with two tables; ``orders`` has all the changes."""
    config = config or config_of(maker, **keys)
    known = {OID: ready("orders"), QUIET: ready("quiet"), **(tables or {})}
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(START), Lsn(START), known
    )
    store = RecordStore.create(maker.path, record)
    return SubscriptionDriver(
        config,
        store,
        report,
        CopyScheduler(spark or ContextOnDemand(cast(Any, None))),  # nobody asks for that one
        ReceivedLive(config),
        waits,
    )


def work(oid: int, end: Lsn) -> TableWork:
    return TableWork(oid, "public", "orders", Lsn(START), end, Lsn(START), 0, (oid,))


def applied(end: Lsn, **more: Any) -> Outcome:
    return work(OID, end), TaskResult(end, **{"version": 1, "changes": 1, **more})


def failed(end: Lsn, remedy: Remedy, message: str, oid: int = OID) -> Outcome:
    return work(oid, end), Failure(remedy, message)


def take(driver: SubscriptionDriver, end: Lsn, *outcomes: Outcome) -> SubscriptionRecord:
    driver.results.record(end, outcomes, time.monotonic())
    saved = find_record(driver.reader.spool.path, "lake")
    assert saved == driver.tables.record
    return saved


def test_batches_without_changes_of_tables_need_no_spark(maker: SpoolMaker) -> None:
    asked: list[Any] = []

    def start() -> Any:
        asked.append("context")
        raise SourceUnreachable("no Spark here")

    driver = driver_of(maker, spark=ContextOnDemand(start))
    assert not driver.batches.run_next()
    end = maker.segment([])
    assert driver.batches.run_next()
    assert (driver.tables.position, asked) == (end, []), "nothing waits that needs Spark"
    maker.segment(orders(1))
    with pytest.raises(SourceUnreachable):
        driver.batches.run_next()
    assert (driver.tables.position, asked) == (end, ["context"])


def test_a_barrier_is_answered_when_all_up_to_it_is_applied(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    driver = driver_of(maker)
    with BarrierOwner(subscription_folder(maker.path, "lake"), ()) as owner:
        owner.move(end)
        driver.batches.answer_barrier()
        assert owner.answer() is None, "a segment is not applied"
        take(driver, end, applied(end))
        driver.batches.answer_barrier()
        answer = owner.answer()
        assert answer is not None
        assert (answer.position, answer.is_passed) == (end, False)
        # The folder of this test's targets does not exist.
        assert {table.reason for table in answer.tables.values()} == {"its target is gone"}


def test_a_barrier_behind_the_position_is_passed(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    driver = driver_of(maker)
    take(driver, end, applied(end))
    with BarrierOwner(subscription_folder(maker.path, "lake"), ()) as owner:
        owner.hold()
        driver.batches.answer_barrier()
        assert owner.answer() is None, "a hold has no position"
        owner.move(Lsn(int(end) - 1))
        driver.batches.answer_barrier()
        answer = owner.answer()
        assert answer is not None
        assert answer.is_passed


def test_a_batch_moves_every_table_and_makes_a_cut(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    record = take(driver_of(maker), end, applied(end))
    assert record.position == end
    assert {table.applied_through for table in record.tables.values()} == {end}
    assert record.tables[QUIET].committed == START
    assert record.cut is not None
    assert (record.cut.lsn, record.cut.versions) == (end, {OID: 1, QUIET: 0})


def test_a_copied_table_is_ready_when_nothing_in_the_spool_waits_for_it(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    copied = {"state": TableState.COPIED}
    driver = driver_of(
        maker,
        {
            OID: ready("orders", **copied),
            QUIET: ready("quiet", **copied),
            GONE: ready("later", **copied, applied_through=Lsn(int(end) + 1)),
        },
    )
    driver.results.promote_copied()
    states = {oid: table.state for oid, table in driver.tables.durable.tables.items()}
    assert states == {OID: "f", QUIET: "r", GONE: "f"}, "orders has changes; later is not received"
    assert driver.tables.durable.tables[QUIET].applied_through == end
    record = take(driver, end, applied(end))
    assert record.tables[OID].state == "r"


def test_a_table_that_was_left_out_stays_where_it_is(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    record = take(driver_of(maker), end)
    assert record.tables[OID].applied_through == START
    assert record.tables[QUIET].applied_through == end
    assert record.cut is None


def test_no_cut_while_a_table_is_further_than_the_others(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    copied_at = Lsn(end + 5)
    copied = ready("quiet", state=TableState.COPIED, applied_through=copied_at, committed=copied_at)
    driver = driver_of(maker, {QUIET: copied})
    assert take(driver, end, applied(end)).cut is None
    later = maker.segment(orders(2))
    record = take(driver, later, applied(later))
    assert record.cut is not None
    assert record.cut.lsn == later


def test_results_for_tables_that_left_since_the_plan_mean_nothing(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    driver = driver_of(maker, {OID: ready("orders", state=TableState.INITIALISE)})
    gone = failed(end, Remedy.PARK, "gone", GONE)
    record = take(driver, end, failed(end, Remedy.PARK, "stale"), gone)
    assert record.position == end
    assert record.tables[OID].state is TableState.INITIALISE
    assert GONE not in record.tables


def test_an_error_that_may_pass_is_tried_again_in_its_own_time(maker: SpoolMaker) -> None:
    driver, end = driver_of(maker, cut_interval_s=1e-6), maker.segment(orders(1))
    for attempt in range(1, BATCH_ATTEMPTS):
        record = take(driver, end, failed(end, Remedy.RETRY, "full"))
        # Also when a cut is overdue.
        assert record.tables[OID].pending.due is not None, attempt
        assert record.tables[OID].state is TableState.READY
        assert not driver.batches.is_behind()
    record = take(driver, end, failed(end, Remedy.RETRY, "full"))
    assert record.tables[OID].is_parked


def test_deferrals_of_an_earlier_run_are_over(maker: SpoolMaker) -> None:
    """Its clock may have been ahead by an hour."""
    driver = driver_of(maker, {OID: ready("orders", pending=Pending(due=2.0**40))})
    driver.results.end_deferrals(now=math.inf)
    assert driver.tables.record.tables[OID].pending.due is None


def test_a_cut_that_is_due_takes_deferred_tables_along(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    for cut_interval_s, is_due in ((1e-6, True), (3600, False)):
        deferred = ready("orders", pending=Pending(due=time.time() + 3600))
        driver = driver_of(maker, {OID: deferred}, cut_interval_s=cut_interval_s)
        record = take(driver, end)
        assert (record.tables[OID].pending.due is None) is is_due
        assert driver.batches.is_behind() is is_due


def test_tables_that_are_left_out_between_batches_have_nothing_to_do(maker: SpoolMaker) -> None:
    end = maker.segment(orders(1))
    level = {"applied_through": end}
    for fields in EVERY_TABLE:
        table = ready("orders", **{**level, **fields}).in_state(fields["state"])
        driver = driver_of(maker, {OID: table, QUIET: ready("quiet", **level)})
        driver.tables.advance(end)
        driver.results.promote_copied()
        driver.results.end_deferrals()
        record = driver.tables.record
        table = record.tables[OID]
        is_marked = table.pending.verification and table.is_active and table.is_published
        is_altered = table.pending.columns and table.is_active
        is_deferred = table.pending.due is not None
        is_waiting = table.is_to_copy or table.state is TableState.COPIED or is_deferred
        has_work = plan_tables(SpoolReader(maker.path), record, record.position)
        needs_more = any((is_marked, is_altered, is_waiting, has_work)) and not table.is_parked
        assert QUIET not in driver.tables.unfinished
        assert OID in driver.tables.unfinished or not needs_more, fields
        assert bool(has_work) or not driver.batches.is_behind() or bool(is_altered), fields
        assert driver.copies.pending() == ([OID] if awaits_copy(table) else []), fields
        assert list(driver.suspicious.marked()) == ([OID] if is_marked else []), fields


@pytest.mark.parametrize(("merge_s", "waits"), [(0.4, False), (200.0, True)])
def test_an_expensive_merge_puts_its_tables_next_one_off(
    maker: SpoolMaker, merge_s: float, waits: bool
) -> None:
    """Merging a table takes at most a fifth of the time; the others are not delayed."""
    driver, end = driver_of(maker), maker.segment(orders(1))
    began = steady_now()
    record = take(driver, end, applied(end, merge_s=merge_s))
    assert (record.tables[OID].pending.due is not None) is waits
    if waits:
        assert record.tables[OID].pending.due >= began + 4 * merge_s
    later = maker.segment(orders(2))
    planned = plan_tables(SpoolReader(maker.path), record, later)
    assert bool(planned) is not waits
    record = take(driver, later)
    # Its changes stay in the spool, and it keeps its own position.
    assert record.tables[OID].applied_through == end
    assert record.tables[QUIET].applied_through == later
    assert plan_tables(SpoolReader(maker.path), record, later, with_deferred=True)


@pytest.mark.parametrize("remedy", [Remedy.PARK, Remedy.COPY])
def test_only_the_table_of_an_error_stops(maker: SpoolMaker, remedy: Remedy) -> None:
    end = maker.segment(orders(1))
    record = take(driver_of(maker), end, failed(end, remedy, "why"))
    expected = TableState.PARKED if remedy is Remedy.PARK else TableState.INITIALISE
    assert (record.tables[OID].state, record.tables[OID].error) == (expected, "why")
    assert record.tables[QUIET].applied_through == end
    assert record.cut is not None
    assert OID not in record.cut.versions


def test_a_subscription_that_did_not_hold_the_spool_is_copied_again(maker: SpoolMaker) -> None:
    driver = driver_of(maker)
    end = maker.segment(orders(1))
    maker.segment(orders(2))
    maker.writer.release(end)
    driver.copy_released()
    record = driver.tables.record
    assert {table.state for table in record.tables.values()} == {TableState.INITIALISE}
    assert record.position == end
    driver.raise_failure()


def test_a_copy_holds_the_spool_before_its_snapshot_is_taken(maker: SpoolMaker) -> None:
    parked = ready("quiet", state=TableState.PARKED, error="why")
    driver = driver_of(maker, {QUIET: parked})
    copies = driver.copies
    end = maker.segment(orders(1))
    take(driver, end, applied(end))
    driver.tables.request_copy(QUIET)
    driver.tables.request_copy(GONE)
    assert copies.pending() == [QUIET]
    with pytest.raises(SourceUnreachable):
        copies.run()
    table = find_record(maker.path, "lake").tables[QUIET]
    assert (table.state, table.applied_through) == (TableState.DATA_COPY, end)
    assert copies.pending() == [QUIET]


@pytest.mark.parametrize(
    ("position", "said"), [(START, "cannot reach the server"), (START - 1, "another snapshot")]
)
def test_a_new_slots_snapshot_serves_while_the_spool_keeps_what_follows_it(
    position: int, said: str, maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Spark has ended, copies begin again, and the stream may be further by then."""
    driver = driver_of(maker, {OID: ready("orders", state=TableState.INITIALISE)})

    def take_another(*arguments: object) -> NoReturn:
        raise SourceUnreachable.of_text("another snapshot is taken")

    monkeypatch.setattr(snapshots, "new_snapshot", take_another)
    monkeypatch.setattr(driver.looks, "has_aware_streams", True)
    with pytest.raises(SourceUnreachable, match=said):
        driver.copies.run(first=Snapshot("1", Lsn(position), 1))


def test_a_copy_does_not_take_the_target_of_another_table(maker: SpoolMaker) -> None:
    """A renamed table keeps its target; a new table under the old name would write there, too."""
    newcomer = ready("orders", state=TableState.PARKED, error="the target belongs to another")
    tables = driver_of(maker, {GONE: newcomer}).tables
    tables.request_copy(GONE)
    assert tables.record.tables[GONE].is_parked
    assert "another table of this subscription already uses the target" in str(
        tables.record.tables[GONE].error
    )
    # Neither when the other one was only asked to be copied, and asked first.
    both = {OID: ready("orders", state=TableState.PARKED, error="why"), GONE: newcomer}
    tables = driver_of(maker, both).tables
    tables.request_copy(OID)
    tables.request_copy(GONE)
    assert tables.record.tables[OID].state is TableState.INITIALISE
    assert tables.record.tables[GONE].is_parked


@pytest.mark.parametrize("event", [HoldReleased(), CopyRequested()])
@pytest.mark.parametrize("state", "idfr")
def test_two_tables_never_wait_for_copies_to_one_target(
    maker: SpoolMaker, state: str, event: TableEvent
) -> None:
    other = ready("orders", state=TableState.PARKED, error="the target belongs to another")
    tables = driver_of(maker, {OID: ready("orders", state=TableState(state)), GONE: other}).tables
    tables.apply(GONE, event)
    tables.apply(OID, event)
    assert tables.record.tables[OID].state is TableState.INITIALISE
    assert tables.record.tables[GONE].is_parked


def test_a_table_that_is_published_again_does_not_share_its_target(maker: SpoolMaker) -> None:
    tables = driver_of(maker, {GONE: ready("orders", state=TableState.PARKED, error="why")}).tables
    tables.apply(OID, Unpublished())
    tables.request_copy(GONE)
    tables.apply(OID, PublishedAgain())
    assert tables.record.tables[GONE].state is TableState.INITIALISE
    assert "another table of this subscription already uses the target" in str(
        tables.record.tables[OID].error
    )


def test_a_copy_that_the_spool_has_no_room_for_waits_longer_each_time(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_of(maker)
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def given_up_for_s() -> float:
        """After how long a copy that was given up begins again."""
        nonlocal now
        driver.tables.apply(OID, CopyBegun(Lsn(START)))
        driver.copies.put_off(OID)
        began = now
        table = driver.tables.record.tables[OID]
        assert table.state is TableState.INITIALISE
        assert "so pgsluice has cancelled the copy of the table, and restarts it at" in str(
            table.error
        )
        while not driver.copies.waiting():
            now += 1
        return now - began

    driver.tables.request_copy(OID)
    assert [given_up_for_s() for _ in range(8)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    driver.tables.apply(OID, CopyBegun(Lsn(START)))
    driver.copies.put_off(OID)
    assert not driver.copies.waiting()
    driver.tables.request_copy(OID)
    assert driver.copies.waiting() == [OID], "a user asks for it"


def test_what_could_not_be_written_has_not_happened(maker: SpoolMaker) -> None:
    reported: list[MetricsEvent] = []
    tables = driver_of(maker, report=reported.append).tables
    before = tables.record

    def fail_in_the_middle() -> None:
        with tables.changing():
            tables.apply(OID, BatchFailed(Failure(Remedy.PARK, "why"), 0.0))
            tables.advance(Lsn(START + 100))
            assert tables.record.tables[OID].is_parked
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_in_the_middle()
    assert tables.record == before == find_record(maker.path, "lake")
    assert reported == []
    tables.apply(OID, BatchFailed(Failure(Remedy.PARK, "why"), 0.0))
    assert [(event.state, event.error) for event in cast(Any, reported)] == [("p", "why")]


def test_other_threads_see_only_what_is_durable(maker: SpoolMaker) -> None:
    driver = driver_of(maker)
    tables, seen = driver.tables, []
    before = tables.record
    reader = threading.Thread(target=lambda: seen.append(tables.record))
    with tables.changing():
        tables.apply(OID, HoldReleased())
        assert tables.durable == before
        assert driver.copies.pending() == []
        reader.start()
        reader.join(0.1)
        assert seen == []  # it waits for the block's end
    reader.join()
    assert seen == [tables.durable]
    assert seen != [before]


def test_a_report_that_raises_does_not_lose_effects(maker: SpoolMaker) -> None:
    def report(_: MetricsEvent) -> None:
        raise RuntimeError

    tables = driver_of(maker, report=report).tables

    def fail() -> None:
        with tables.changing():
            tables.apply(QUIET, BatchFailed(Failure(Remedy.LOOK, "a new partition"), 0.0))
            tables.apply(OID, BatchFailed(Failure(Remedy.STOP, "no lake"), 0.0))

    with pytest.raises(RuntimeError):
        fail()
    assert tables.needs_look
    with pytest.raises(SinkError, match="no lake"):
        tables.raise_failure()


def test_a_look_that_fails_is_still_needed(maker: SpoolMaker) -> None:
    driver = driver_of(maker)
    driver.tables.apply(OID, BatchFailed(Failure(Remedy.LOOK, "a new partition"), 0.0))
    with pytest.raises(SourceUnreachable):
        driver.looks.look()
    assert driver.tables.needs_look


def test_a_look_does_not_answer_for_what_came_after_the_catalog_was_read(
    maker: SpoolMaker,
) -> None:
    tables = driver_of(maker).tables
    tables.apply(OID, BatchFailed(Failure(Remedy.LOOK, "a new partition"), 0.0))
    with tables.looking():
        assert not tables.needs_look
        tables.apply(QUIET, BatchFailed(Failure(Remedy.LOOK, "a newer partition"), 0.0))
    assert tables.needs_look
    with tables.looking():
        pass
    assert not tables.needs_look


def test_a_problem_is_logged_once_also_if_it_quotes_a_log_that_grows(
    maker: SpoolMaker, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(maker)
    for message in (
        "Spark did not start\n  at 10:00",
        "Spark did not start\n  at 10:01",
        None,
        None,
    ):
        driver.log_once(message)
    assert [record.getMessage() for record in caplog.records] == [
        "lake: Spark did not start\n  at 10:00",
        "lake: resolved: Spark did not start",
    ]
